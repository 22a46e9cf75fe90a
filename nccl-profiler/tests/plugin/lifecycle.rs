//! Beginning and end: agents that are not there, forks, unloading, an end without goodbye.

use std::time::{Duration, Instant};

use nccl_profiler::handover::{SOCKET_VARIABLE, Status};
use nccl_profiler::ring::{Counter, Function, Record};
use rustix::net::SocketType;

use crate::agent::{Rank, done, fresh_name, listener, load, message, tell};
use crate::nccl::{ALL_REDUCE, COMM, Coll, Comm, Handle, LIGHT, Nccl};

pub const SCENARIOS: &[(&str, fn())] = &[
    ("nobody", nobody),
    ("one_of_each", one_of_each),
    ("fork", fork),
    ("fork_first", fork_first),
    ("unload", unload),
    ("killed", killed),
    ("late_agent", late_agent),
];

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Without an agent everything is answered, nothing is asked for, and nothing is left behind.
fn nobody() {
    let nccl = load(5);
    let before = descriptors();
    for _ in 0..5 {
        let began = Instant::now();
        let context = nccl.init(COMM);
        assert!(began.elapsed() < Duration::from_secs(5), "a rank waits for nobody");
        assert_eq!((context, nccl.mask()), (Handle::NULL, 0));
        for parent in [Handle::NULL, Handle(0x13)] {
            assert_eq!(nccl.coll(context, ALL_REDUCE), Handle::NULL);
            assert_eq!(nccl.kernel(context, parent, 0, 1), Handle::NULL);
            assert_eq!(nccl.start(context, 1, parent, |_| {}), Handle::NULL);
            nccl.stop(parent);
            nccl.state(parent, 22, 1);
        }
        nccl.finalize(context);
    }
    assert_eq!(descriptors(), before);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("aimaster-c4d"), "no memory is taken for a ring that nobody reads");
}

// L15.
#[test]
fn without_an_agent_nccl_is_asked_for_nothing() {
    Rank::play_alone("nobody", &[]);
    let long = "x".repeat(300);
    for name in ["", "aimaster-c4d/test/nobody/listens", &long] {
        Rank::play_alone("nobody", &[(SOCKET_VARIABLE, name)]);
    }
}

// L15.
#[test]
fn a_hostile_socket_delays_nobody() {
    // Another kind of socket.
    let name = fresh_name();
    let stream = listener(&name, SocketType::STREAM, 8);
    Rank::play_alone("nobody", &[(SOCKET_VARIABLE, &name)]);
    drop(stream);
    // A queue that is full, and that nobody empties.
    let name = fresh_name();
    let full = listener(&name, SocketType::SEQPACKET, 0);
    let address = rustix::net::SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let flags = rustix::net::SocketFlags::NONBLOCK;
    let sockets: Vec<_> = (0..8)
        .map(|_| {
            rustix::net::socket_with(rustix::net::AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .unwrap()
        })
        .collect();
    assert!(sockets.iter().any(|one| rustix::net::connect(one, &address).is_err()), "the queue is full");
    Rank::play_alone("nobody", &[(SOCKET_VARIABLE, &name)]);
    drop((full, sockets));
}

#[test]
fn a_ring_is_handed_to_root_or_to_its_own_user_only() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let name = fresh_name();
    let there = name.clone();
    // Whoever listens is known by the thread that began to.
    let somebody = std::thread::spawn(move || {
        let other = rustix::process::Uid::from_raw(12_345);
        rustix::thread::set_thread_res_uid(other, other, other).unwrap();
        listener(&there, SocketType::SEQPACKET, 8)
    });
    let somebody = somebody.join().unwrap();
    Rank::play_alone("nobody", &[(SOCKET_VARIABLE, &name)]);
    // It knocked, saw who is there, and went without a word.
    assert!(message(&rustix::net::accept(&somebody).unwrap()).is_none());
}

fn one_of_each() {
    let before = descriptors();
    let nccl = load(std::env::var("PLUGIN_TEST_API").unwrap().parse().unwrap());
    let (context, other) = (nccl.init(COMM), nccl.init(Comm { id: 1, name: c"", rank: 0, ..COMM }));
    assert_eq!(nccl.name(), "aimaster");
    assert_eq!(nccl.mask(), LIGHT);
    assert_eq!(descriptors(), before, "no descriptor stays in the user's process");
    assert_ne!(
        nccl.start(context, 1, Handle::NULL, |_| {}),
        Handle::NULL,
        "numbers in graphs need a group's handle"
    );
    nccl.run(context, Coll { sequence: 41, ..ALL_REDUCE });
    nccl.run(other, Coll { function: c"AllGather", datatype: c"ncclBfloat16", ..ALL_REDUCE });
    let receive = nccl.p2p(context, c"Recv", 6, 2, 1);
    nccl.stop(receive);
    nccl.run_channel(context, receive, 5, [70, 90]);
    nccl.finalize(other);
    nccl.finalize(context);
}

#[test]
fn every_interface_tells_the_same() {
    for api in [3, 4, 5, 6] {
        let number = api.to_string();
        let variables = [("PLUGIN_TEST_API", number.as_str()), ("FAKE_NCCL_VERSION", "23007")];
        let rank = Rank::start_with("one_of_each", &variables);
        let (hello, ring) = rank.hello();
        let (mut ring, pid) = (ring.unwrap(), rank.pid());
        rank.finish();
        // v3 passes no log function, by which NCCL is found.
        assert_eq!((hello.api, hello.nccl_version, hello.pid), (api, if api == 3 { 0 } else { 23007 }, pid));
        let header = ring.reader.header().unwrap();
        assert_eq!((header.api, header.pid, header.mask), (api, pid, LIGHT as u64));
        let records = ring.records();
        let [first, second] = &ring.communicators()[..] else { panic!("two communicators") };
        if api == 3 {
            assert_eq!(
                (first.id, first.ranks, first.rank),
                (COMM.id, 0, -1),
                "the id comes with an operation"
            );
        } else {
            assert_eq!((first.id, first.ranks, first.nodes, first.rank), (COMM.id, 4, 2, 3), "v{api}");
            assert_eq!((first.name(), second.name()), ("dp".to_owned(), String::new()));
            assert_eq!((second.id, second.rank), (1, 0), "v{api}: each has a rank of its own");
        }
        let done: Vec<_> = records
            .iter()
            .filter_map(|record| match record {
                Record::Done { op, bytes, gpu_start_ns, gpu_stop_ns, .. } => Some((
                    op.communicator,
                    op.function,
                    op.sequence,
                    op.peer,
                    *bytes,
                    gpu_stop_ns - gpu_start_ns,
                )),
                _ => None,
            })
            .collect();
        let gpu = |ns: u64| if api == 3 { 0 } else { ns };
        // v3 does not say how many channels an operation has: it is done whenever none runs.
        let expected = [
            (0, Function::AllReduce, 41, 0, 1 << 20, gpu(2000)),
            (1, Function::AllGather, 0, 0, 1 << 19, gpu(2000)),
            (0, Function::Recv, 0, 2, 24, gpu(20)),
        ];
        assert_eq!(done, expected, "v{api}");
        let enqueued: Vec<_> = records
            .iter()
            .filter_map(|record| match record {
                Record::Enqueued { op, bytes, channels, .. } => Some((op.function, *bytes, *channels)),
                _ => None,
            })
            .collect();
        assert_eq!(enqueued, [(Function::Recv, 24, if api == 3 { 0 } else { 1 })]);
        if api > 3 {
            ring.counts(&[]);
        }
    }
}

/// What a child of fork does with NCCL's handles: everything. Ends the child.
fn child(nccl: &Nccl, context: Handle, op: Handle) -> ! {
    let kernel = nccl.kernel(context, op, 0, 1);
    let same = nccl.coll(context, Coll { sequence: 77, ..ALL_REDUCE });
    nccl.stop(op);
    nccl.finalize(context);
    let fresh = nccl.init(Comm { id: 5, ..COMM });
    let silent = [kernel, same, fresh].iter().all(|handle| *handle == Handle::NULL) && nccl.mask() == 0;
    // SAFETY: a fork's child ends at once.
    unsafe { libc::_exit(if silent { 0 } else { 1 }) }
}

fn fork_and_wait(in_child: impl FnOnce()) {
    // SAFETY: the child calls the plugin, which takes no lock, and ends.
    match unsafe { libc::fork() } {
        0 => in_child(),
        pid => {
            let mut status = 0;
            // SAFETY: our own child.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            assert_eq!(status, 0, "the child was silent and ended well");
        }
    }
}

fn fork() {
    let nccl = load(5);
    let context = nccl.init(COMM);
    let op = nccl.coll(context, ALL_REDUCE);
    nccl.stop(op);
    tell("before");
    fork_and_wait(|| child(&nccl, context, op));
    tell("after");
    nccl.run_channel(context, op, 0, [1, 2]);
    nccl.run_channel(context, op, 1, [1, 2]);
}

// Data loaders fork after NCCL has begun.
#[test]
fn a_child_of_fork_writes_nothing_and_its_parent_goes_on() {
    let mut rank = Rank::start("fork");
    let mut ring = rank.ring();
    assert_eq!(rank.hear(), "before");
    let before = (ring.reader.header().unwrap(), ring.communicators());
    rank.answer();
    assert_eq!(rank.hear(), "after");
    assert_eq!((ring.reader.header().unwrap(), ring.communicators()), before);
    rank.answer();
    rank.finish();
    assert_eq!(done(&ring.records()), [0]);
    assert!(!ring.communicator().ended);
    ring.counts(&[]);
}

fn fork_first() {
    let nccl = load(5);
    fork_and_wait(|| {
        let context = nccl.init(COMM);
        nccl.run(context, ALL_REDUCE);
        // SAFETY: a fork's child ends at once.
        unsafe { libc::_exit(i32::from(context == Handle::NULL)) }
    });
}

// A launcher that forks its ranks before NCCL has begun.
#[test]
fn a_child_that_begins_itself_has_its_own_ring() {
    let rank = Rank::start("fork_first");
    let (hello, ring) = rank.hello();
    let pid = rank.pid();
    rank.finish();
    assert_ne!(hello.pid, pid);
    assert_eq!(done(&ring.unwrap().records()), [0]);
}

fn unload() {
    for round in 0..3 {
        let nccl = load(5);
        let context = nccl.init(Comm { id: round, ..COMM });
        assert_eq!(nccl.mask(), LIGHT);
        let op = nccl.coll(context, Coll { sequence: round, ..ALL_REDUCE });
        nccl.stop(op);
        let kernel = nccl.kernel(context, op, 0, 10);
        nccl.run_channel(context, op, 1, [10, 30]);
        nccl.stop_channel(kernel, 20);
        nccl.finalize(context);
        nccl.unload();
    }
}

// NCCL unloads the plugin with the last communicator.
#[test]
fn unloading_and_loading_again_goes_on_in_the_same_ring() {
    let mut ring = Rank::play("unload");
    let records = ring.records();
    assert_eq!(done(&records), [0, 1, 2]);
    let ids = |wanted: fn(&Record) -> Option<u64>| records.iter().filter_map(wanted).collect::<Vec<_>>();
    assert_eq!(
        ids(|record| if let Record::CommInit { id, .. } = record { Some(*id) } else { None }),
        [0, 1, 2]
    );
    assert_eq!(
        ids(|record| if let Record::CommEnd { id, .. } = record { Some(*id) } else { None }),
        [0, 1, 2]
    );
    assert!(ring.communicators().iter().all(|one| one.ended));
    ring.counts(&[]);
}

fn killed() {
    let nccl = load(5);
    let context = nccl.init(COMM);
    nccl.run(context, ALL_REDUCE);
    let op = nccl.coll(context, Coll { sequence: 1, ..ALL_REDUCE });
    nccl.stop(op);
    nccl.kernel(context, op, 0, 1);
    tell("in the middle");
    // No finalize and no unwinding.
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) }
}

#[test]
fn an_end_without_goodbye_leaves_all_to_read() {
    for kill in [false, true] {
        let mut rank = Rank::start("killed");
        let mut ring = rank.ring();
        assert_eq!(rank.hear(), "in the middle");
        if kill {
            rank.kill();
        } else {
            rank.answer();
            rank.finish();
        }
        assert_eq!(done(&ring.records()), [0]);
        let communicator = ring.communicator();
        assert!(!communicator.ended);
        let progress = communicator.progress(Function::AllReduce);
        assert_eq!((progress.enqueued, progress.started, progress.finished, progress.running), (2, 2, 1, 1));
    }
}

fn late_agent() {
    let nccl = load(5);
    let early = nccl.init(COMM);
    assert_eq!((early, nccl.mask()), (Handle::NULL, 0));
    tell("too early");
    let context = nccl.init(Comm { id: 8, ..COMM });
    assert_eq!(nccl.mask(), LIGHT);
    nccl.run(context, ALL_REDUCE);
    nccl.run(early, ALL_REDUCE);
}

#[test]
fn a_communicator_that_begins_after_the_agent_is_seen() {
    let mut rank = Rank::start_deaf("late_agent", &[]);
    rank.answer();
    assert_eq!(rank.hear(), "too early");
    rank.listen();
    rank.answer();
    let (hello, ring) = rank.hello();
    assert_eq!(hello.status, Status::Ring);
    rank.finish();
    let mut ring = ring.unwrap();
    assert_eq!(done(&ring.records()), [0]);
    assert_eq!(ring.communicator().id, 8);
    ring.counts(&[(Counter::Stale, 0)]);
}
