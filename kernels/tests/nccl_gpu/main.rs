//! NCCL on real GPUs: two "nodes" that share one GPU and meet over a socket, and all GPUs of one node with a thread
//! each. Runs where AIMASTER_GPU_TESTS=1; AIMASTER_NCCL is a path of libnccl.so.2 or of its folder, else the loader
//! finds it. Both runs are children of this program: the settings of NCCL are read once a process, from a clean
//! environment.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may stop at the first surprise"
)]

mod busbw;
mod driver;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use driver::{Driver, Flow, Gpu};
use kernels::nccl::{Comm, Nccl, Operation, Place, Until};

/// The variable that makes this program one of the children, and says which.
const PART: &str = "AIMASTER_NCCL_PART";
/// Where the ranks of two nodes leave the id.
const MEET: &str = "AIMASTER_NCCL_MEET";
/// A path or a folder of NCCL.
const LIBRARY: &str = "AIMASTER_NCCL";

/// How long a child may take: contexts and an init take seconds, the largest collectives milliseconds.
const CHILD_LIMIT: Duration = Duration::from_secs(120);
/// How long one step of NCCL may take.
const STEP: Duration = Duration::from_secs(30);

static NEVER: AtomicBool = AtomicBool::new(false);

fn until() -> Until<'static> {
    Until::after(STEP, &NEVER)
}

fn load() -> Nccl {
    let path = std::env::var_os(LIBRARY).map(PathBuf::from);
    Nccl::load(path.as_deref()).unwrap_or_else(|error| panic!("{error}"))
}

/// The children share GPUs: one that measures would measure the others.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// What a GPU run needs is there, or a line says that it is not.
fn wanted(gpus: usize) -> bool {
    if std::env::var_os("AIMASTER_GPU_TESTS").is_none_or(|value| value != "1") {
        println!("skipped: AIMASTER_GPU_TESTS is not 1");
        return false;
    }
    let there = Driver::load().expect("AIMASTER_GPU_TESTS=1 and no driver").gpus();
    if there < gpus {
        println!("skipped: {there} GPUs, and it takes {gpus}");
    }
    there >= gpus
}

/// This program again as `part`, with NCCL's settings as a policy would give them and nothing else.
fn child(part: &str, test: &str, settings: &[(&str, &str)]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env_clear().env(PART, part).env("AIMASTER_GPU_TESTS", "1");
    command.env("NCCL_NVLS_ENABLE", "0").env("NCCL_SOCKET_IFNAME", "lo").env("CUDA_CACHE_DISABLE", "1");
    command.envs(settings.iter().copied());
    // Where the machine keeps its driver; no setting of NCCL's.
    for name in [LIBRARY, "LD_LIBRARY_PATH"] {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    command.stdin(Stdio::null()).stdout(Stdio::inherit()).spawn().unwrap()
}

/// Waits for children; one that outlasts the limit is killed, and so are the others.
fn wait(mut children: Vec<Child>) -> Vec<bool> {
    let deadline = Instant::now() + CHILD_LIMIT;
    loop {
        let ended: Vec<Option<bool>> = children
            .iter_mut()
            .map(|child| child.try_wait().unwrap().map(|status| status.success()))
            .collect();
        if ended.iter().all(Option::is_some) {
            return ended.into_iter().flatten().collect();
        }
        if Instant::now() > deadline {
            for child in &mut children {
                _ = child.kill();
                _ = child.wait();
            }
            panic!("a child took longer than {CHILD_LIMIT:?}: {ended:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_part(part: &str) -> bool {
    std::env::var_os(PART).is_some_and(|value| value == part)
}

/// Only what `child` sets of NCCL's reaches it: a setting of the user's would measure something else.
fn assert_clean_environment() {
    let foreign: Vec<String> = std::env::vars()
        .map(|(name, _)| name)
        .filter(|name| {
            name.starts_with("NCCL_") || name.starts_with("LD_PRELOAD") || name.starts_with("PYTHON")
        })
        .filter(|name| !["NCCL_NVLS_ENABLE", "NCCL_SOCKET_IFNAME", "NCCL_HOSTID"].contains(&name.as_str()))
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    assert_eq!(std::env::var("NCCL_NVLS_ENABLE").as_deref(), Ok("0"));
}

/// Starts this test again as two nodes that share GPU 0, and waits for both.
fn two_nodes(test: &str) {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = std::env::temp_dir().join(format!("aimaster-nccl-{}-{test}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let meet = folder.join("id");
    let children = ["nodeA", "nodeB"].into_iter().zip(["node0", "node1"]).map(|(host, part)| {
        let settings = [("NCCL_HOSTID", host), (MEET, meet.to_str().unwrap())];
        child(part, test, &settings)
    });
    let ended = wait(children.collect());
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(ended, [true, true]);
}

/// Which of the two nodes this process is, if it is one of them.
fn node() -> Option<usize> {
    (0..2).find(|rank| is_part(&format!("node{rank}")))
}

/// One of the two nodes, joined.
struct Node {
    rank: usize,
    gpu: Gpu,
    flow: Flow,
    comm: Comm,
    said: String,
}

impl Node {
    fn join(rank: usize) -> Self {
        assert_clean_environment();
        let began = Instant::now();
        let driver = Driver::load().unwrap();
        let gpu = driver.bind(0).unwrap();
        let flow = gpu.stream().unwrap();
        let context = began.elapsed();
        let nccl = load();
        let id = meet(rank, &nccl);
        let began = Instant::now();
        let place = Place { ranks: 2, rank: u32::try_from(rank).unwrap() };
        let comm = Comm::init(&nccl, &id, place, until()).unwrap_or_else(|error| panic!("{error}"));
        let library = nccl.library().display();
        let version = nccl.version();
        let init = began.elapsed();
        let said =
            format!("node {rank}: NCCL {version} of {library}, context {context:.2?}, init {init:.2?}");
        Self { rank, gpu, flow, comm, said }
    }
}

/// Sums four megabytes with the other rank and looks at every element.
fn sum_is_right(comm: &mut Comm, gpu: &Gpu, flow: &Flow) -> Duration {
    const ELEMENTS: usize = 1_000_000;
    let value = |rank: usize, at: usize| f32::from(u16::try_from((at * (rank + 1)) % 2048).unwrap());
    let rank = usize::try_from(comm.place().rank).unwrap();
    let mine: Vec<f32> = (0..ELEMENTS).map(|at| value(rank, at)).collect();
    let (send, receive) = (gpu.copy_of(&mine).unwrap(), gpu.memory(ELEMENTS * 4).unwrap());
    let began = Instant::now();
    comm.collective(Operation::AllReduce, (send.span(), receive.span()), ELEMENTS, flow.for_nccl(), until())
        .unwrap_or_else(|error| panic!("{error}"));
    comm.wait("all_reduce", until(), || flow.done().unwrap()).unwrap_or_else(|error| panic!("{error}"));
    let took = began.elapsed();
    let sums = receive.read(ELEMENTS).unwrap();
    let wrong = (0..ELEMENTS).filter(|&at| (sums[at] - value(0, at) - value(1, at)).abs() > 0.0).count();
    assert_eq!(wrong, 0, "of {ELEMENTS} sums");
    took
}

#[test]
fn two_nodes_share_one_gpu() {
    if let Some(rank) = node() {
        let Node { gpu, flow, mut comm, said, .. } = Node::join(rank);
        let first = sum_is_right(&mut comm, &gpu, &flow);
        println!("{said}, first all-reduce of 4 MB {first:.2?}, every sum right");
        // The other way round in the new one.
        let key = 1 - i32::try_from(rank).unwrap();
        let began = Instant::now();
        let child = comm.split(Some(7), key, until()).unwrap_or_else(|error| panic!("{error}"));
        let mut child = child.expect("it has a color");
        assert_eq!(child.place(), Place { ranks: 2, rank: u32::try_from(key).unwrap() });
        let took = began.elapsed();
        sum_is_right(&mut child, &gpu, &flow);
        println!("node {rank}: split {took:.2?}, and its sums are right too");
        let none = comm.split((rank == 0).then_some(1), 0, until()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(none.is_some(), rank == 0);
        for comm in none.into_iter().chain([child, comm]) {
            comm.close(until()).unwrap_or_else(|error| panic!("{error}"));
        }
        return;
    }
    if std::env::var_os(PART).is_none() && wanted(1) {
        two_nodes("two_nodes_share_one_gpu");
    }
}

#[test]
fn a_collective_that_the_other_rank_left_out_is_ended() {
    const LIMIT: Duration = Duration::from_secs(3);
    if let Some(rank) = node() {
        let Node { rank, gpu, flow, mut comm, .. } = Node::join(rank);
        sum_is_right(&mut comm, &gpu, &flow);
        if rank == 1 {
            // It stays, and does not take part.
            std::thread::sleep(LIMIT * 2);
            return;
        }
        let memory = gpu.memory(1 << 20).unwrap();
        let limit = Until::after(LIMIT, &NEVER);
        comm.collective(
            Operation::AllReduce,
            (memory.span(), memory.span()),
            1 << 18,
            flow.for_nccl(),
            limit,
        )
        .unwrap_or_else(|error| panic!("{error}"));
        assert!(!flow.done().unwrap(), "the other rank can't have taken part");
        let began = Instant::now();
        let error = comm.wait("all_reduce", limit, || flow.done().unwrap()).unwrap_err();
        println!("node 0: after {:.2?}: {error}", began.elapsed());
        assert!(error.to_string().ends_with("the communicator was aborted"), "{error}");
        // The abort ends the kernel that waited for the other rank.
        let deadline = Instant::now() + LIMIT;
        while !flow.done().unwrap() {
            assert!(Instant::now() < deadline, "the kernel still runs");
            std::thread::sleep(Duration::from_millis(5));
        }
        return;
    }
    if std::env::var_os(PART).is_none() && wanted(1) {
        two_nodes("a_collective_that_the_other_rank_left_out_is_ended");
    }
}

/// The id, which rank 0 leaves in a file.
fn meet(rank: usize, nccl: &Nccl) -> [u8; 128] {
    let path = PathBuf::from(std::env::var_os(MEET).unwrap());
    if rank == 0 {
        let id = nccl.unique_id(STEP).unwrap_or_else(|error| panic!("{error}"));
        let fresh = path.with_extension("new");
        std::fs::write(&fresh, id).unwrap();
        std::fs::rename(&fresh, &path).unwrap();
        return id;
    }
    let deadline = Instant::now() + STEP;
    loop {
        if let Some(id) = read_id(&path) {
            return id;
        }
        assert!(Instant::now() < deadline, "rank 0 left no id");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn read_id(path: &Path) -> Option<[u8; 128]> {
    std::fs::read(path).ok()?.try_into().ok()
}

#[test]
fn a_rank_that_does_not_come_is_not_waited_for() {
    if is_part("alone") {
        return alone();
    }
    if std::env::var_os(PART).is_some() || !wanted(1) {
        return;
    }
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let ended = wait(vec![child("alone", "a_rank_that_does_not_come_is_not_waited_for", &[])]);
    assert_eq!(ended, [true]);
}

/// Rank 0 of two, of which the other never comes.
fn alone() {
    const LIMIT: Duration = Duration::from_secs(4);
    assert_clean_environment();
    let driver = Driver::load().unwrap();
    let _gpu = driver.bind(0).unwrap();
    let nccl = load();
    let id = nccl.unique_id(STEP).unwrap_or_else(|error| panic!("{error}"));
    let began = Instant::now();
    let place = Place { ranks: 2, rank: 0 };
    let error = Comm::init(&nccl, &id, place, Until::after(LIMIT, &NEVER)).unwrap_err();
    let took = began.elapsed();
    println!("alone: after {took:.2?}: {error}");
    assert!(error.to_string().ends_with("the communicator was aborted"), "{error}");
    assert!(took >= LIMIT && took < LIMIT + Duration::from_secs(3), "{took:?}");
}

#[test]
fn busbw_of_one_node() {
    if is_part("busbw") {
        assert_clean_environment();
        return busbw::measure();
    }
    if std::env::var_os(PART).is_some() || !wanted(2) {
        return;
    }
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(wait(vec![child("busbw", "busbw_of_one_node", &[])]), [true]);
}
