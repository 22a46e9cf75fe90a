//! Recorded traces of a real NCCL, played through the plugin. What the reader must see is worked out from the trace's lines here,
//! without the plugin.

use std::collections::{BTreeMap, HashMap};

use nccl_profiler::ring::{Function, Record, Steps};

use crate::agent::{Rank, done, load};
use crate::nccl::{Comm, Handle, Nccl, ProxyOp};

pub const SCENARIOS: &[(&str, fn())] = &[("replay", replay)];

const TRACE: &str = "PLUGIN_TEST_TRACE";

struct Line {
    what: String,
    fields: HashMap<String, String>,
    kind: String,
}

impl Line {
    fn number(&self, name: &str) -> u64 {
        self.fields[name].parse().unwrap()
    }
}

fn trace(name: &str) -> Vec<Line> {
    let path = format!("{}/tests/traces/{name}.tsv", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| {
        let mut parts = line.splitn(3, '\t').skip(1);
        let what = parts.next().unwrap().to_owned();
        let mut kind = String::new();
        let mut fields = HashMap::new();
        for word in parts.next().unwrap_or_default().split(' ') {
            match word.split_once('=') {
                Some((name, value)) => drop(fields.insert(name.to_owned(), value.to_owned())),
                None => word.clone_into(&mut kind),
            }
        }
        Line { what, fields, kind }
    });
    lines.collect()
}

/// The size of an operation; the traces have two types of data.
fn bytes(line: &Line) -> u64 {
    let element = match line.fields["dtype"].as_str() {
        "ncclFloat32" => 4,
        "ncclInt8" => 1,
        other => panic!("{other}"),
    };
    line.number("count") * element
}

fn leak(text: &str) -> &'static std::ffi::CStr {
    Box::leak(std::ffi::CString::new(text).unwrap().into_boxed_c_str())
}

fn replay() {
    let nccl = load(5);
    let (mut contexts, mut handles) = (HashMap::new(), HashMap::from([(0, Handle::NULL)]));
    for line in trace(&std::env::var(TRACE).unwrap()) {
        match line.what.as_str() {
            "init" => {
                let comm = Comm {
                    id: u64::from_str_radix(&line.fields["comm"], 16).unwrap(),
                    name: c"",
                    nodes: line.number("nodes") as i32,
                    ranks: line.number("ranks") as i32,
                    rank: line.number("rank") as i32,
                };
                contexts.insert(line.number("ctx"), nccl.init(comm));
            }
            "start" => {
                let handle =
                    start(&nccl, &line, contexts[&line.number("ctx")], handles[&line.number("parent")]);
                handles.insert(line.number("id"), handle);
            }
            // NCCL calls only with what it got.
            "state" | "stop" if handles[&line.number("id")] == Handle::NULL => {}
            "state" => {
                let word = line.fields.get("gpu_ns").or(line.fields.get("bytes"));
                let word = word.map_or(0, |text| text.parse().unwrap());
                nccl.state(handles[&line.number("id")], line.number("state") as i32, word);
            }
            "stop" => nccl.stop(handles[&line.number("id")]),
            "finalize" => nccl.finalize(contexts[&line.number("ctx")]),
            other => panic!("{other}"),
        }
    }
}

fn start(nccl: &Nccl, line: &Line, context: Handle, parent: Handle) -> Handle {
    match line.kind.as_str() {
        "Coll" => nccl.coll(
            context,
            crate::nccl::Coll {
                sequence: line.number("seq"),
                function: leak(&line.fields["func"]),
                count: line.number("count") as usize,
                datatype: leak(&line.fields["dtype"]),
                channels: line.number("ch") as u8,
            },
        ),
        "P2p" => {
            let (count, peer) = (line.number("count") as usize, line.number("peer") as i32);
            nccl.p2p(context, leak(&line.fields["func"]), count, peer, 2)
        }
        "KernelCh" => nccl.kernel(context, parent, line.number("ch") as u8, line.number("gpu_ns")),
        "ProxyOp" => nccl.proxy_op(
            context,
            parent,
            &ProxyOp {
                pid: std::process::id() as i32,
                channel: line.number("ch") as u8,
                peer: line.number("peer") as i32,
                steps: line.number("steps") as i32,
                send: line.number("send") == 1,
            },
        ),
        "ProxyStep" => nccl.proxy_step(context, parent, line.number("step") as i32),
        "Group" => nccl.start(context, 1, parent, |_| {}),
        "GroupApi" => nccl.start(context, 1 << 8, parent, |_| {}),
        "CollApi" => nccl.start(context, 1 << 9, parent, |_| {}),
        "P2pApi" => nccl.start(context, 1 << 10, parent, |_| {}),
        other => panic!("{other}"),
    }
}

/// What the plugin must make of a trace: per communicator (its place), function and number, the operation's bytes and its time on
/// the GPU if it ended.
type Expected = BTreeMap<Key, (u64, Option<u64>)>;

/// Communicator, function, number.
type Key = (u64, String, u64);

fn expected(lines: &[Line]) -> Expected {
    let mut ops: HashMap<u64, (Key, u64, u64)> = HashMap::new();
    let (mut counts, mut kernels) =
        (HashMap::<(u64, String), u64>::new(), HashMap::<u64, (u64, u64, Option<u64>)>::new());
    let rank = lines.iter().find(|line| line.what == "init").unwrap().number("rank");
    for line in lines {
        match (line.what.as_str(), line.kind.as_str()) {
            ("start", "Coll") => {
                let key = (line.number("ctx"), line.fields["func"].clone(), line.number("seq"));
                ops.insert(line.number("id"), (key, bytes(line), line.number("ch")));
            }
            ("start", "P2p") if line.number("peer") != rank => {
                let count = counts.entry((line.number("ctx"), line.fields["func"].clone())).or_default();
                let key = (line.number("ctx"), line.fields["func"].clone(), *count);
                *count += 1;
                ops.insert(line.number("id"), (key, bytes(line), 2));
            }
            ("start", "KernelCh") => {
                kernels.insert(line.number("id"), (line.number("parent"), line.number("gpu_ns"), None));
            }
            ("state", "KernelCh") => {
                kernels.get_mut(&line.number("id")).unwrap().2 = Some(line.number("gpu_ns"))
            }
            _ => {}
        }
    }
    let of_op = |(id, (key, bytes, channels)): (u64, (Key, u64, u64))| {
        let mine: Vec<_> = kernels.values().filter(|kernel| kernel.0 == id).collect();
        let stops: Vec<u64> = mine.iter().filter_map(|kernel| kernel.2).collect();
        let start = mine.iter().map(|kernel| kernel.1).min();
        let ended = stops.len() as u64 == channels;
        (key, (bytes, ended.then(|| stops.iter().max().unwrap() - start.unwrap())))
    };
    ops.into_iter().map(of_op).collect()
}

fn play(name: &str) -> (crate::agent::Ring, Vec<Record>, Expected) {
    let rank = Rank::start_with("replay", &[(TRACE, name)]);
    let mut ring = rank.ring();
    rank.finish();
    let records = ring.records();
    ring.counts(&[]);
    let wanted = expected(&trace(name));
    let mut seen = Expected::new();
    for record in &records {
        match record {
            Record::Enqueued { op, bytes, .. } => {
                let key = (u64::from(op.communicator), op.function.name().to_owned(), op.sequence);
                assert!(seen.insert(key, (*bytes, None)).is_none(), "{name}: twice");
            }
            Record::Done { op, bytes: whole, gpu_start_ns, gpu_stop_ns, .. } => {
                let key = (u64::from(op.communicator), op.function.name().to_owned(), op.sequence);
                let of_op = seen.entry(key).or_insert((*whole, None));
                assert!(of_op.1.replace(gpu_stop_ns - gpu_start_ns).is_none(), "{name}: twice");
            }
            _ => {}
        }
    }
    // Of a collective that did not end the progress tells.
    for ((slot, function, sequence), of_op) in wanted.iter().filter(|(_, (_, gpu_ns))| gpu_ns.is_none()) {
        let communicators = ring.communicators();
        let function = Function::ALL.into_iter().find(|one| one.name() == function).unwrap();
        let progress = communicators[*slot as usize].progress(function);
        assert_eq!((progress.enqueued, progress.bytes), (sequence + 1, of_op.0), "{name}");
        seen.insert((*slot, function.name().to_owned(), *sequence), *of_op);
    }
    assert_eq!(seen, wanted, "{name}");
    assert!(!wanted.is_empty());
    (ring, records, wanted)
}

#[test]
fn a_clean_run_is_told_as_it_was() {
    for name in ["clean-light.rank0", "clean-light.rank1", "clean-full.rank0"] {
        let (ring, records, wanted) = play(name);
        assert!(wanted.values().all(|(_, gpu)| gpu.is_some()), "{name}: all are done");
        let communicators = ring.communicators();
        assert_eq!(communicators.len(), 2);
        assert!(communicators.iter().all(|one| one.ended && one.ranks == 2 && one.nodes == 2));
        assert_ne!(communicators[0].id, communicators[1].id);
        let progress = communicators[0].progress(Function::AllReduce);
        assert_eq!(
            (progress.enqueued, progress.started, progress.finished, progress.running),
            (13, 13, 13, 0)
        );
        for function in [Function::AllGather, Function::Send, Function::Recv] {
            let progress = communicators[0].progress(function);
            assert_eq!((progress.enqueued, progress.finished), (1, 1), "{name} {function:?}");
        }
        let ends = records.iter().filter(|record| matches!(record, Record::CommEnd { .. })).count();
        assert_eq!(ends, 2);
    }
}

// The shape of a straggler: who waits runs long, who is late runs short.
#[test]
fn a_straggler_shows_in_the_others_time_on_the_gpu() {
    let late = |expected: Expected| {
        let last =
            expected.into_iter().filter(|((_, function, number), _)| function == "AllReduce" && *number >= 3);
        last.map(|(_, (_, gpu_ns))| gpu_ns.unwrap()).collect::<Vec<_>>()
    };
    let waiting = late(play("straggler-light.rank0").2);
    let straggler = late(play("straggler-light.rank1").2);
    assert!(waiting.len() >= 8 && waiting.len() == straggler.len());
    let long = waiting.iter().filter(|ns| **ns > 40_000_000).count();
    assert!(long >= 8, "{waiting:?}");
    assert!(straggler.iter().all(|ns| *ns < 20_000_000), "{straggler:?}");
}

#[test]
fn a_missing_rank_leaves_the_other_s_operation_running() {
    for (name, reached, running) in [
        ("missing-light.rank0", (9, 9, 8), 1),
        ("missing-light.rank1", (8, 8, 8), 0),
        ("missing-full.rank0", (9, 9, 8), 1),
    ] {
        let (ring, records, _) = play(name);
        let communicator = ring.communicator();
        let progress = communicator.progress(Function::AllReduce);
        assert_eq!((progress.enqueued, progress.started, progress.finished), reached, "{name}");
        assert_eq!(progress.running, running, "{name}");
        assert!(!communicator.ended, "{name}: it was ended from outside");
        assert_eq!(done(&records), (0..8).collect::<Vec<_>>(), "{name}");
    }
    // With steps on, what the operation waits for can be seen while it hangs: the receiver for data, the sender for credit or its GPU.
    let (ring, ..) = play("missing-full.rank0");
    let live = ring.reader.live_steps().unwrap();
    assert!(!live.is_empty());
    assert!(live.iter().all(|one| one.sequence == 8 && one.function == Function::AllReduce && one.peer == 1));
    assert!(live.iter().any(|one| !one.send && one.state == 10), "{live:?}");
}

#[test]
fn operations_of_a_cuda_graph_are_numbered_on() {
    for name in ["graph-light.rank0", "graph-light.rank1"] {
        let (ring, records, _) = play(name);
        let progress = *ring.communicator().progress(Function::AllReduce);
        assert_eq!((progress.enqueued, progress.finished), (11, 11), "{name}");
        assert_eq!(done(&records), (0..11).collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn steps_are_summed_per_transfer() {
    let name = "clean-full.rank0";
    let (_, records, _) = play(name);
    let lines = trace(name);
    let count =
        |what: &str, kind: &str| lines.iter().filter(|line| line.what == what && line.kind == kind).count();
    let steps: Vec<&Steps> = records
        .iter()
        .filter_map(|record| if let Record::Steps { steps, .. } = record { Some(steps) } else { None })
        .collect();
    assert_eq!(steps.len(), count("stop", "ProxyOp"));
    assert_eq!(steps.iter().map(|one| usize::from(one.count)).sum::<usize>(), count("stop", "ProxyStep"));
    assert!(
        steps.iter().all(|one| one.op.peer == 1 && one.op.sequence != Steps::NO_SEQUENCE && one.channel < 2)
    );
    let sending = steps.iter().filter(|one| one.send).count();
    assert_eq!(sending * 2, steps.len());
    // Data of the states that know it, both ways alike.
    let states = |number: &str| {
        let mine = lines.iter().filter(|line| {
            line.kind == "ProxyStep" && line.fields.get("state").is_some_and(|one| one == number)
        });
        mine.map(|line| line.number("bytes") / 1024).sum::<u64>()
    };
    let kib =
        |send: bool| steps.iter().filter(|one| one.send == send).map(|one| u64::from(one.kib)).sum::<u64>();
    assert_eq!((kib(true), kib(false)), (states("9"), states("11")));
    assert!(kib(true) > 0);
}
