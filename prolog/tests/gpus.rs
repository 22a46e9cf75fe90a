//! One GPU of two that fails, or hangs: what a worker and its checks say of it, and that the other goes on. The driver,
//! cuBLASLt and NCCL are stand-ins (`kernels/tests/cuda`, `kernels/tests/fakes`) whose GPU 1 is out of order; no time or rate
//! of theirs is looked at.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails panics")]

#[path = "../../kernels/tests/cuda/built.rs"]
mod built;
mod support;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use diag::check::CheckName;
use diag::conclude::{Caps, verdict};
use diag::facts::{Engine, GpuName, Joined, NodeFacts, Roster, RosterEntry};
use diag::gpu_facts::Known;
use diag::judge::{Hardware, Suite};
use diag::measurement::Subject;
use diag::policy::Policy;
use diag::round::{Mode, NodeOutcome, Purpose, Round, RoundResult};
use diag::verdict::{Finding, Status};
use jiff::Timestamp;
use prolog::checks::{self, Context};
use prolog::protocol::{
    Collected, Collective, Devices, Libraries, Member, Opened, Reply, Request, Tag, Trouble, TroubleKind,
};
use prolog::worker_client::{Options, Worker, WorkerError};
use support::{KEY, PATIENCE, options, program, run};
use tempfile::TempDir;

/// How the stand-in driver names its second GPU.
const SECOND: &str = "GPU-01010101-0101-0101-0101-010101010101 at 0000:b1:00.0: ";

/// How long a call that hangs takes: longer than any test.
const HANGS_MS: u32 = 300_000;

/// A machine with the two GPUs of the stand-in driver.
struct Machine {
    folder: TempDir,
}

impl Machine {
    /// `conf`: the driver's switches.
    fn new(conf: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        built::build(folder.path(), "libcuda.so.1", built::DRIVER);
        std::fs::write(folder.path().join("libcuda.so.1.conf"), conf).unwrap();
        built::build(folder.path(), "libcublasLt.so.13", built::CUBLAS_LT);
        std::fs::write(folder.path().join("libcublasLt.so.13.conf"), "fake_multiply=0\n").unwrap();
        std::fs::copy(example("worker_nccl"), folder.path().join("libnccl.so.2")).unwrap();
        for (minor, bus, byte) in [(0, "0000:a1:00.0", "00"), (1, "0000:b1:00.0", "01")] {
            let gpu = folder.path().join("proc/driver/nvidia/gpus").join(bus);
            std::fs::create_dir_all(&gpu).unwrap();
            let groups = [4, 2, 2, 2, 6].map(|bytes| byte.repeat(bytes)).join("-");
            let text = format!(
                "Model: \t\t Fake GPU\nGPU UUID: \t GPU-{groups}\nBus Location: \t {bus}\nDevice Minor: \t {minor}\n"
            );
            std::fs::write(gpu.join("information"), text).unwrap();
        }
        Self { folder }
    }

    fn options(&self, limit_ms: u64) -> Options {
        let path = self.folder.path().to_owned();
        let libraries = Libraries {
            driver: path.clone(),
            cublas_lt: path.clone(),
            nccl: path.clone(),
            nvml: path.join("none"),
        };
        let gpus = vec!["0".to_owned(), "1".to_owned()];
        Options { devices: Some(Devices { gpus, libraries, root: path, limit_ms }), ..options(2) }
    }

    /// A worker that has joined as node 0, what it opened, and its ports.
    async fn worker(&self, limit_ms: u64) -> (Worker, Opened, Vec<u16>) {
        let mut worker = Worker::spawn(&program(), self.options(limit_ms)).unwrap();
        let ports = worker.hello(PATIENCE).await.unwrap().to_vec();
        let opened = worker.open().await.unwrap();
        worker.join(0, KEY, PATIENCE).await.unwrap();
        (worker, opened, ports)
    }
}

/// Where cargo puts examples, seen from the test that runs.
fn example(name: &str) -> std::path::PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(Path::parent).unwrap().join("examples");
    let library = folder.join(format!("lib{name}.so"));
    assert!(library.is_file(), "{} is missing: cargo build -p prolog --examples", library.display());
    library
}

/// Ends a worker whatever its GPUs do.
async fn end(worker: Worker) {
    worker.stop().await.unwrap();
}

/// That this is all that is wrong: the second GPU's trouble of this kind, in these words.
fn second_only(troubles: &[Trouble], kind: TroubleKind, words: &str) {
    let [trouble] = troubles else { panic!("{troubles:?}") };
    assert_eq!((trouble.rank, trouble.kind), (1, kind), "{trouble:?}");
    assert!(trouble.message.starts_with(SECOND) && trouble.message.contains(words), "{trouble:?}");
}

/// Which ranks have launch times, and the troubles of the others.
async fn launches(worker: &mut Worker, limit_ms: u64) -> (Vec<bool>, Vec<Trouble>) {
    let request = Request::WakeUp { window_ms: 50, limit_ms, ranks: 2 };
    match worker.call(request, Duration::from_millis(limit_ms) + PATIENCE).await.unwrap() {
        Reply::WakeUp(seen) => (seen.per_rank.iter().map(Option::is_some).collect(), seen.troubles),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_gpu_that_can_t_be_opened_is_named_and_the_other_is_measured() {
    run(async {
        for (code, kind, name) in [
            (214, TroubleKind::Broken, "cuDevicePrimaryCtxRetain: CUDA_ERROR_ECC_UNCORRECTABLE (214)"),
            (719, TroubleKind::Failed, "cuDevicePrimaryCtxRetain: CUDA_ERROR_LAUNCH_FAILED (719)"),
        ] {
            let machine = Machine::new(&format!("fake_gpu=1\nfake_context={code}\n"));
            let (mut worker, opened, _) = machine.worker(20_000).await;
            second_only(&opened.troubles, kind, name);
            let names: Vec<(u32, &str)> =
                opened.gpus.iter().map(|gpu| (gpu.index, gpu.name.as_str())).collect();
            assert_eq!(names, [(0, "Fake GPU"), (1, "Fake GPU")]);
            let (measured, troubles) = launches(&mut worker, 20_000).await;
            assert_eq!(measured, [true, false]);
            second_only(&troubles, kind, name);
            end(worker).await;
        }
    });
}

#[test]
fn a_gpu_that_hangs_while_its_context_is_made_is_named_with_the_step_and_waited_for_once() {
    run(async {
        let machine = Machine::new(&format!("fake_gpu=1\nfake_context_ms={HANGS_MS}\n"));
        let (mut worker, opened, _) = machine.worker(6000).await;
        let words = "no answer in making its context (cuDevicePrimaryCtxRetain) after ";
        second_only(&opened.troubles, TroubleKind::Silent, words);
        let begun = Instant::now();
        let (measured, troubles) = launches(&mut worker, 30_000).await;
        assert_eq!(measured, [true, false]);
        second_only(&troubles, TroubleKind::Silent, words);
        assert!(begun.elapsed() < Duration::from_secs(20), "waited again: {:?}", begun.elapsed());
        end(worker).await;
    });
}

#[test]
fn a_driver_that_does_not_start_ends_at_the_limit_and_the_step_is_named() {
    run(async {
        let machine = Machine::new(&format!("fake_init_ms={HANGS_MS}\n"));
        let mut worker = Worker::spawn(&program(), machine.options(700)).unwrap();
        worker.hello(PATIENCE).await.unwrap();
        let begun = Instant::now();
        let error = worker.open().await.unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        let WorkerError::Refused { message } = &error else { panic!("{error:?}") };
        assert!(
            message.starts_with("NVIDIA driver: no answer in cuInit, which did not return, after"),
            "{message}"
        );
        end(worker).await;
    });
}

#[test]
fn a_launch_that_fails_or_hangs_is_its_gpu_s_alone() {
    run(async {
        let machine = Machine::new("fake_gpu=1\nfake_launch=719\n");
        let (mut worker, opened, _) = machine.worker(20_000).await;
        assert_eq!(opened.troubles, []);
        let (measured, troubles) = launches(&mut worker, 20_000).await;
        assert_eq!(measured, [true, false]);
        second_only(&troubles, TroubleKind::Failed, "cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED (719)");
        end(worker).await;
        let machine = Machine::new(&format!("fake_gpu=1\nfake_launch_ms={HANGS_MS}\n"));
        let (mut worker, _, _) = machine.worker(20_000).await;
        let (measured, troubles) = launches(&mut worker, 6000).await;
        assert_eq!(measured, [true, false]);
        second_only(&troubles, TroubleKind::Silent, "no answer in launches of an empty kernel after ");
        end(worker).await;
    });
}

#[test]
fn a_product_that_fails_is_its_gpu_s_alone() {
    run(async {
        for (state, kind, name) in [
            ("fake_alloc=2", TroubleKind::Failed, "no room for"),
            ("fake_launch=214", TroubleKind::Broken, "CUDA_ERROR_ECC_UNCORRECTABLE (214)"),
        ] {
            let machine = Machine::new(&format!("fake_gpu=1\n{state}\n"));
            let (mut worker, _, _) = machine.worker(20_000).await;
            let request = Request::Product { window_ms: 20, limit_ms: 50_000, ranks: 2 };
            let reply = worker.call(request, Duration::from_secs(55)).await.unwrap();
            let Reply::Product(products) = reply else { panic!("{reply:?}") };
            second_only(&products.troubles, kind, name);
            assert!(products.per_rank[0] > 0.0 && products.per_rank.len() == 2, "{products:?}");
            end(worker).await;
        }
    });
}

/// What kept an all-reduce of both GPUs from its result.
async fn broken(worker: &mut Worker, ports: &[u16], limit_ms: u64) -> Vec<Trouble> {
    let member = |(rank, port): (u32, &u16)| Member { node: 0, rank, address: LOCAL, port: *port };
    let request = Request::Collective {
        tag: Tag { round: 0, group: 0 },
        collective: Collective::AllReduce,
        communicators: vec![(0..).zip(ports).map(member).collect()],
        window_ms: 50,
        limit_ms,
    };
    let reply = worker.call(request, Duration::from_millis(limit_ms) + PATIENCE).await.unwrap();
    let Reply::Collective(mut collected) = reply else { panic!("{reply:?}") };
    match (collected.pop(), collected.pop()) {
        (Some(Collected::Broken(troubles)), None) => troubles,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_collective_that_a_gpu_breaks_is_an_error_of_that_gpu_and_of_no_peer() {
    run(async {
        // Whose memory it is that the driver calls broken is not known where GPUs read each other's.
        for (code, name) in
            [(719, "CUDA_ERROR_LAUNCH_FAILED (719)"), (214, "CUDA_ERROR_ECC_UNCORRECTABLE (214)")]
        {
            let machine = Machine::new(&format!("fake_gpu=1\nfake_launch={code}\n"));
            let (mut worker, _, ports) = machine.worker(20_000).await;
            let troubles = broken(&mut worker, &ports, 20_000).await;
            second_only(&troubles, TroubleKind::Failed, name);
            end(worker).await;
        }
    });
}

#[test]
fn nobody_waits_in_a_collective_for_a_gpu_that_has_failed() {
    run(async {
        // What the other GPU waits for never comes; and the driver says at once of one that failed before.
        for state in ["fake_launch=719\nfake_answer=600", "fake_query=719"] {
            let machine = Machine::new(&format!("fake_gpu=1\n{state}\n"));
            let (mut worker, _, ports) = machine.worker(20_000).await;
            let begun = Instant::now();
            let troubles = broken(&mut worker, &ports, 50_000).await;
            second_only(&troubles, TroubleKind::Failed, "CUDA_ERROR_LAUNCH_FAILED (719)");
            assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
            end(worker).await;
        }
    });
}

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn now() -> Timestamp {
    Timestamp::UNIX_EPOCH
}

/// What a job of one node is told of this check, measured by this machine.
async fn told(machine: &Machine, name: CheckName) -> Vec<Finding> {
    let (mut worker, opened, rank_ports) = machine.worker(20_000).await;
    let facts = NodeFacts {
        version: "1".into(),
        request_digest: String::new(),
        engine: Engine::Cuda,
        address: Some(LOCAL),
        rank_ports,
        gpus: opened.gpus.iter().map(|gpu| GpuName { index: gpu.index, model: gpu.name.clone() }).collect(),
        libraries: String::new(),
        known: Known::default(),
        unable: None,
    };
    let joined = Some(Joined::new(facts, LOCAL));
    let entry = RosterEntry { name: "n1".into(), joined, absent_because: None };
    let roster = Roster { nodes: vec![entry], leader: 0, leaves: diag::topology::Leaves::default() };
    let round =
        Round { index: 0, check: name, purpose: Purpose::First, mode: Mode::Full, groups: vec![vec![0]] };
    let policy = Policy::parse("[cuda]\nseconds_per_check = 0.1\nstart_s = 20\n").unwrap();
    let (worker, policy) = (&mut worker, &policy);
    let mut cx =
        Context { round: &round, me: 0, roster: &roster, policy, worker, now: &now, parts: Vec::new() };
    let numbers = checks::get(name).unwrap().run(&mut cx).await.unwrap();
    let outcome = NodeOutcome::Partly { numbers, parts: cx.parts };
    let results = [RoundResult { round, outcomes: BTreeMap::from([(0, outcome)]) }];
    let suite = Suite {
        checks: vec![name],
        unbuilt: Vec::new(),
        engine: Engine::Cuda,
        baselines: Vec::new(),
        hardware: Hardware::default(),
    };
    let caps = Caps { max_drain_nodes: 4, max_drain_fraction: 1.0 };
    verdict(&suite.on(&roster), &roster, &results, caps, None).findings
}

#[test]
fn a_check_tells_of_each_gpu_by_itself() {
    run(async {
        let machine = Machine::new("fake_gpu=1\nfake_launch=719\n");
        let gpu = |index: u32| Subject::Gpu { node: 0, index };
        let findings = told(&machine, CheckName::KernelLaunch).await;
        let mut seen: Vec<(&Subject, Status)> =
            findings.iter().map(|one| (&one.subject, one.status)).collect();
        seen.sort_unstable_by_key(|(subject, _)| (*subject).clone());
        assert_eq!(seen, [(&gpu(0), Status::Pass), (&gpu(1), Status::Error)], "{findings:#?}");
        let broken = findings.iter().find(|one| one.subject == gpu(1)).unwrap();
        assert_eq!(
            broken.message,
            format!(
                "n1/gpu1: kernel_launch: {SECOND}cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED (719), no text"
            )
        );
        // Together there is nothing to measure without it.
        let findings = told(&machine, CheckName::AllReduce1).await;
        let [finding] = findings.as_slice() else { panic!("{findings:#?}") };
        assert_eq!((&finding.subject, finding.status), (&gpu(1), Status::Error));
        assert!(finding.message.contains("CUDA_ERROR_LAUNCH_FAILED (719)"), "{}", finding.message);
    });
}
