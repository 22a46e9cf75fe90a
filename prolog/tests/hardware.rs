//! What a worker tells of GPUs and network devices, from a stand-in for NVML and a tree in the kernel's shape, through the
//! rules to the outcome; and the environment that a prolog gives to its worker.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails panics")]

mod support;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use diag::conclude::{Caps, verdict};
use diag::facts::{Engine, Joined, NodeFacts, NodeId, Roster, RosterEntry};
use diag::gpu_facts::ids::GpuId;
use diag::gpu_facts::reading::NodeReading;
use diag::gpu_facts::{FactKind, Known, Needs};
use diag::judge::{Hardware, Suite};
use diag::topology::Leaves;
use diag::verdict::Outcome;
use prolog::protocol::Look;
use prolog::worker_client::Worker;
use serde_json::{Value, json};
use support::{PATIENCE, options, program, run};
use tempfile::TempDir;

/// How long NVML has where a test does not mean to reach it.
const LIMIT_MS: u64 = 8000;

/// A node with GPUs 0 and 1, and the library that shows them.
struct Stage {
    folder: TempDir,
}

impl Stage {
    fn new(library: &str, state: &Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let stage = Self { folder };
        if !library.is_empty() {
            std::fs::copy(built(library), stage.library()).unwrap();
        }
        std::fs::write(stage.folder.path().join("libnvidia-ml.so.1.json"), state.to_string()).unwrap();
        stage
    }

    fn library(&self) -> PathBuf {
        self.folder.path().join("libnvidia-ml.so.1")
    }

    /// A file below the folder that stands for `/`.
    fn file(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// What a worker tells of it.
    async fn looked(&self, limit_ms: u64) -> NodeReading {
        let mut worker = Worker::spawn(&program(), options(2)).unwrap();
        worker.hello(PATIENCE).await.unwrap();
        let look = Look {
            gpus: vec![GpuId::Minor(0), GpuId::Minor(1)],
            nvml: self.library(),
            root: self.folder.path().to_owned(),
            gpu_free_bytes: 2 << 30,
            limit_ms,
        };
        worker.look(look).unwrap();
        let reading = worker.looked(PATIENCE).await.unwrap().clone();
        worker.stop().await.unwrap();
        NodeReading { name: "n1".to_owned(), ..reading }
    }
}

/// Where cargo puts examples, seen from the test that runs.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(Path::parent).unwrap().join("examples");
    let library = folder.join(format!("lib{name}.so"));
    assert!(library.is_file(), "{} is missing: cargo build -p prolog --examples", library.display());
    library
}

/// A healthy, idle H200.
fn h200(minor: u32) -> Value {
    let text = include_str!("../../kernels/tests/fakes/h200.json");
    let mut gpu: Value = serde_json::from_str(text).unwrap();
    gpu["nvmlDeviceGetUUID"] = json!(format!("GPU-00000000-0000-0000-0000-{minor:012x}"));
    gpu["nvmlDeviceGetMinorNumber"] = json!(minor);
    gpu["nvmlDeviceGetPciInfo_v3"] = json!(format!("00000000:{:02X}:00.0", 0x81 + minor));
    for link in 0..18 {
        gpu[format!("nvmlDeviceGetNvLinkState:{link}")] = json!(1);
    }
    gpu
}

fn node(gpus: &[Value]) -> Value {
    json!({
        "nvmlInit_v2": 0,
        "nvmlSystemGetDriverVersion": "580.159.03",
        "nvmlSystemGetCudaDriverVersion_v2": 13000,
        "gpus": gpus,
    })
}

/// A node whose GPU 1 answers otherwise.
fn with(changes: &Value) -> Value {
    let mut gpu = h200(1);
    for (key, value) in changes.as_object().unwrap() {
        gpu[key] = value.clone();
    }
    node(&[h200(0), gpu])
}

fn known(node: NodeId, reading: &NodeReading) -> Known {
    let needs = Needs { gpu_free_bytes: 2 << 30, ..Needs::default() };
    Known::of(node, reading, &needs)
}

/// The outcome of a job of these nodes of which nothing is measured, and what is told.
fn outcome(nodes: Vec<Known>) -> (Outcome, Vec<String>) {
    let entry = |known: Known| {
        let facts = NodeFacts {
            version: "1".into(),
            request_digest: String::new(),
            engine: Engine::Cuda,
            address: None,
            rank_ports: vec![1, 2],
            gpus: Vec::new(),
            libraries: String::new(),
            known,
            unable: None,
        };
        let seen_address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        RosterEntry {
            name: "n1".into(),
            joined: Some(Joined::new(facts, seen_address)),
            absent_because: None,
        }
    };
    let roster =
        Roster { nodes: nodes.into_iter().map(entry).collect(), leader: 0, leaves: Leaves::default() };
    let suite = Suite {
        checks: Vec::new(),
        unbuilt: Vec::new(),
        engine: Engine::Cuda,
        baselines: Vec::new(),
        hardware: Hardware::default(),
    };
    let caps = Caps { max_drain_nodes: 4, max_drain_fraction: 1.0 };
    let verdict = verdict(&suite.on(&roster), &roster, &[], caps, None);
    let told = verdict.findings.into_iter().map(|one| one.message).chain(verdict.notes);
    (verdict.outcome, told.collect())
}

/// Each state of NVML, what its node tells and what comes of it.
#[test]
fn each_state_of_nvml_has_the_outcome_that_is_specified() {
    let (skip, error, fail) = (Outcome::Skip, Outcome::Error, Outcome::Fail);
    let states: Vec<(&str, Value, Outcome, &str)> = vec![
        ("healthy", json!({}), skip, "no check was asked for"),
        (
            "foreign process",
            json!({"nvmlDeviceGetComputeRunningProcesses_v3": [{"pid": 4711, "bytes": 5_u64 << 30}]}),
            skip,
            "is used by another process",
        ),
        (
            "free memory",
            json!({"nvmlDeviceGetMemoryInfo_v2": {"total": 150_754_820_096_u64, "free": 1_000_000_000}}),
            error,
            "0.9 GiB of 140.4 GiB free",
        ),
        ("clocks set", json!({"nvmlDeviceGetApplicationsClock:0": 1200}), skip, "SM clock set to 1200 MHz"),
        (
            "clocks locked",
            json!({"nvmlDeviceGetCurrentClocksEventReasons": 2, "nvmlDeviceGetClockInfo:1": 1200}),
            skip,
            "SM clock locked at 1200 of 1980",
        ),
        ("power limit", json!({"nvmlDeviceGetPowerManagementLimit": 450_000}), skip, "lowered to 450 W"),
        ("ECC", json!({"nvmlDeviceGetTotalEccErrors:1:0": 2}), fail, "2 uncorrected memory errors"),
        ("rows failed", json!({"nvmlDeviceGetRemappedRows": {"failed": 1}}), fail, "could not be replaced"),
        ("rows pending", json!({"nvmlDeviceGetRemappedRows": {"pending": 1}}), fail, "waits to be replaced"),
        ("NVLink", json!({"nvmlDeviceGetNvLinkState:3": 0}), fail, "NVLink 3 down, 17 of 18 up"),
        (
            "fabric",
            json!({"nvmlDeviceGetGpuFabricInfoV": {"state": 3, "status": 23}}),
            fail,
            "Insufficient Resources",
        ),
        (
            "fabric waits",
            json!({"nvmlDeviceGetGpuFabricInfoV": {"state": 2}}),
            fail,
            "is in progress, other GPUs of the node have finished it",
        ),
        ("persistence", json!({"nvmlDeviceGetPersistenceMode": 0}), skip, "persistence mode is off"),
        ("MIG", json!({"nvmlDeviceGetMigMode": [1, 1]}), skip, "is split into MIG instances"),
        (
            "MPS",
            json!({"nvmlDeviceGetMPSComputeRunningProcesses_v3": [{"pid": 1, "bytes": 9}]}),
            skip,
            "shared through MPS",
        ),
        ("prohibited", json!({"nvmlDeviceGetComputeMode": 2}), error, "compute mode PROHIBITED"),
        ("lost", json!({"nvmlDeviceGetHandleByIndex_v2": {"error": 15}}), fail, "does not answer"),
        ("recovery", json!({"nvmlDeviceGetFieldValues:230:0": 2}), fail, "a restart of the node"),
        (
            "F05: not in ready state",
            json!({"nvmlDeviceGetHandleByIndex_v2": {"error": 27}}),
            error,
            "not in ready state",
        ),
        ("a call that fails", json!({"nvmlDeviceGetPowerUsage": {"error": 999}}), error, "NVML fails: power"),
    ];
    run(async {
        for (state, changes, expected, words) in states {
            let stage = Stage::new("worker_nvml", &with(&changes));
            let reading = stage.looked(LIMIT_MS).await;
            let (outcome, told) = outcome(vec![known(0, &reading)]);
            assert_eq!(outcome, expected, "{state}: {told:#?}");
            assert!(told.iter().any(|line| line.contains(words)), "{state}: {told:#?}");
        }
    });
}

#[test]
fn an_older_driver_and_a_library_that_is_torn_or_missing_are_no_crash() {
    run(async {
        let stage = Stage::new("worker_nvml_old", &with(&json!({})));
        let reading = stage.looked(LIMIT_MS).await;
        assert_eq!((reading.gpus.len(), reading.trouble.len()), (2, 0), "{reading:?}");
        // What it has no function for is not known, and no trouble.
        assert_eq!((&reading.gpus[0].fabric, reading.gpus[0].temperature.margin_c), (&None, None));
        assert!(reading.gpus.iter().all(|gpu| gpu.unreadable.is_empty()), "{reading:?}");
        for (library, state, words) in [
            ("worker_nvml_torn", json!({}), "NVML: "),
            ("", json!({}), "can't load"),
            ("worker_nvml", json!({"nvmlInit_v2": {"error": 9}}), "does not start"),
        ] {
            let stage = Stage::new(library, &state);
            let reading = stage.looked(LIMIT_MS).await;
            let (outcome, told) = outcome(vec![known(0, &reading)]);
            assert_eq!(outcome, Outcome::Error, "{library}: {told:?}");
            assert!(told.iter().any(|line| line.contains(words)), "{library}: {told:?}");
            let name = stage.library().display().to_string();
            assert!(told.iter().any(|line| line.contains(&name)), "{library}: {told:?}");
        }
    });
}

// E03: the others are told of, and the one that hangs is named.
#[test]
fn a_driver_that_does_not_come_back_is_an_error_within_the_limit() {
    run(async {
        for (state, words) in [
            (
                with(&json!({"nvmlDeviceGetPowerUsage": {"hang_ms": 30_000}})),
                "n1 GPU 1 (0000:82:00.0): NVML fails: no answer within",
            ),
            (json!({"nvmlInit_v2": {"hang_ms": 30_000}}), "NVML: the driver does not answer within"),
        ] {
            let stage = Stage::new("worker_nvml", &state);
            let begun = Instant::now();
            let reading = stage.looked(700).await;
            assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
            let (outcome, told) = outcome(vec![known(0, &reading)]);
            assert_eq!(outcome, Outcome::Error, "{told:?}");
            assert!(told.iter().any(|line| line.contains(words)), "{told:?}");
        }
        let stage =
            Stage::new("worker_nvml", &with(&json!({"nvmlDeviceGetPowerUsage": {"hang_ms": 30_000}})));
        let reading = stage.looked(700).await;
        assert!(reading.gpus[0].power.usage_mw.is_some() && reading.machine.uptime_s.is_none());
    });
}

// A worker answers what it is asked meanwhile, and tells what it saw when that is done.
#[test]
fn nobody_waits_for_what_is_looked_at() {
    run(async {
        let stage = Stage::new("worker_nvml", &with(&json!({"nvmlDeviceGetPowerUsage": {"hang_ms": 1500}})));
        let mut worker = Worker::spawn(&program(), options(2)).unwrap();
        worker.hello(PATIENCE).await.unwrap();
        let look = Look {
            gpus: vec![GpuId::Minor(0), GpuId::Minor(1)],
            nvml: stage.library(),
            root: stage.folder.path().to_owned(),
            gpu_free_bytes: 2 << 30,
            limit_ms: LIMIT_MS,
        };
        worker.look(look).unwrap();
        let begun = Instant::now();
        worker.join(0, support::KEY, PATIENCE).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        assert!(worker.reading().is_none());
        let reading = worker.looked(PATIENCE).await.unwrap();
        assert_eq!(reading.gpus.len(), 2);
        assert!(reading.gpus[1].unreadable.is_empty(), "{reading:?}");
        worker.stop().await.unwrap();
    });
}

// E13: the job before has ended, and the driver has not yet freed its memory.
#[test]
fn memory_that_comes_back_is_waited_for() {
    run(async {
        let full =
            json!({"nvmlDeviceGetMemoryInfo_v2": {"total": 150_754_820_096_u64, "free": 1_000_000_000}});
        let stage = Stage::new("worker_nvml", &with(&full));
        let folder = stage.folder.path().to_owned();
        let freed = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(700));
            let state = folder.join("libnvidia-ml.so.1.json");
            std::fs::write(folder.join("new"), with(&json!({})).to_string()).unwrap();
            std::fs::rename(folder.join("new"), state).unwrap();
        });
        let reading = stage.looked(LIMIT_MS).await;
        freed.join().unwrap();
        let (outcome, told) = outcome(vec![known(0, &reading)]);
        assert_eq!(outcome, Outcome::Skip, "{told:?}");
        assert!(reading.gpus[1].memory.unwrap().free_bytes > 100 << 30, "{reading:?}");
    });
}

/// An RDMA device with one port, and its PCI function.
fn rdma(stage: &Stage, state: &str, width: &str) {
    let place = "sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0";
    for (at, width) in [("sys/devices/pci0000:10/0000:10:01.0", "16"), (place, width)] {
        for (file, text) in [
            ("current_link_speed", "32.0 GT/s PCIe"),
            ("max_link_speed", "32.0 GT/s PCIe"),
            ("current_link_width", width),
            ("max_link_width", "16"),
        ] {
            stage.file(&format!("{at}/{file}"), text);
        }
    }
    let folder = format!("{place}/infiniband/mlx5_0");
    stage.file(&format!("{folder}/ports/1/state"), state);
    stage.file(&format!("{folder}/ports/1/phys_state"), "3: Disabled\n");
    stage.file("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n");
    stage.file("proc/modules", "nvidia 1 0 - Live\nnvidia_uvm 1 0 - Live\n");
    let root = stage.folder.path();
    let link = |from: &str, to: &str| {
        std::fs::create_dir_all(root.join(from).parent().unwrap()).unwrap();
        symlink(root.join(to), root.join(from)).unwrap();
    };
    link(&format!("{folder}/device"), place);
    link("sys/class/infiniband/mlx5_0", &folder);
    link("sys/bus/pci/devices/0000:11:00.0", place);
}

#[test]
fn ports_pcie_links_and_gpudirect_come_from_the_kernel() {
    let nodes = |states: [(&'static str, &'static str); 3]| async move {
        let mut nodes = Vec::new();
        for (node, (state, width)) in (0..).zip(states) {
            let stage = Stage::new("worker_nvml", &self::node(&[h200(0), h200(1)]));
            rdma(&stage, state, width);
            nodes.push(known(node, &stage.looked(LIMIT_MS).await));
        }
        nodes
    };
    run(async {
        let up = ("4: ACTIVE\n", "16");
        let (fine, told) = outcome(nodes([up, up, up]).await);
        assert_eq!(fine, Outcome::Skip);
        // J11: a note where nothing was slow.
        assert!(told.iter().any(|line| line.contains("GPUDirect RDMA is off")), "{told:?}");
        for (odd, words) in [
            (("1: DOWN\n", "16"), "mlx5_0 port 1 is DOWN (Disabled); the port is switched off"),
            (("4: ACTIVE\n", "8"), "has 8 lanes, both ends can do 16"),
        ] {
            let (outcome, told) = outcome(nodes([up, odd, up]).await);
            assert_eq!(outcome, Outcome::Fail, "{odd:?}: {told:?}");
            assert!(told.iter().any(|line| line.contains(words)), "{told:?}");
        }
    });
}

#[test]
fn workers_of_one_machine_are_no_strangers_to_each_other() {
    run(async {
        let other = Worker::spawn(&program(), options(1)).unwrap();
        let pid = other.pid().unwrap();
        let stage = Stage::new(
            "worker_nvml",
            &with(
                &json!({"nvmlDeviceGetComputeRunningProcesses_v3": [{"pid": pid, "bytes": 1}, {"pid": 1}]}),
            ),
        );
        symlink("/proc", stage.folder.path().join("proc")).unwrap();
        let reading = stage.looked(LIMIT_MS).await;
        let pids: Vec<u32> = reading.gpus[1].processes.iter().flatten().map(|one| one.pid).collect();
        assert_eq!(pids, [1], "{:?}", reading.gpus[1].processes);
        assert!(known(0, &reading).facts.iter().any(|fact| fact.kind == FactKind::Cause));
        other.stop().await.unwrap();
    });
}

// The stand-in writes down the environment of the process that loads it: the worker that a prolog started.
#[test]
fn the_worker_of_a_prolog_has_multicast_off_and_nothing_of_the_users() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root's libraries are loaded in a prolog");
        return;
    }
    // Others than root may not write where a library lies, and the worker's user must reach it.
    let folder = tempfile::tempdir_in("/var/lib").unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let beside = tempfile::tempdir().unwrap();
    std::fs::set_permissions(beside.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let environ = beside.path().join("environ");
    let library = folder.path().join("libnvidia-ml.so.1");
    std::fs::copy(built("worker_nvml"), &library).unwrap();
    let state = json!({"environ": environ, "nvmlInit_v2": {"error": 9}});
    std::fs::write(folder.path().join("libnvidia-ml.so.1.json"), state.to_string()).unwrap();
    let worker = folder.path().join("aimaster-worker");
    let prolog = folder.path().join("aimaster-prolog");
    for (from, to) in
        [(env!("CARGO_BIN_EXE_aimaster-worker"), &worker), (env!("CARGO_BIN_EXE_aimaster-prolog"), &prolog)]
    {
        assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
    }
    let policy = folder.path().join("aimaster.toml");
    let text = format!(
        "checks.always = ['gemm_flops']\ntime.join_s = 1\n[cuda]\nnvml = '{}'\nstart_s = 1\n\
         [nccl.env]\nNCCL_NVLS_ENABLE = '1'\nNCCL_HOSTID = '{{node}}'\n",
        library.display()
    );
    std::fs::write(&policy, text).unwrap();
    let cluster = format!("worker-environment-{}", std::process::id());
    let slurm_conf = folder.path().join("slurm.conf");
    std::fs::write(&slurm_conf, format!("ClusterName={cluster}\n")).unwrap();
    let output = Command::new(&prolog)
        .arg("--policy")
        .arg(&policy)
        .env_clear()
        .envs([
            ("SLURM_JOB_ID", "7"),
            ("SLURM_JOB_UID", "1000"),
            ("SLURM_CLUSTER_NAME", cluster.as_str()),
            ("SLURMD_NODENAME", "n1"),
            ("SLURM_NODELIST", "n1"),
            ("SLURM_JOB_GPUS", "0"),
            ("SLURM_CONF", slurm_conf.to_str().unwrap()),
            ("NCCL_NVLS_ENABLE", "1"),
            ("NCCL_DEBUG", "INFO"),
            ("PYTHONPATH", "/tmp"),
        ])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let _ = std::fs::remove_dir_all(Path::new("/run/aimaster").join(&cluster));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let seen = std::fs::read_to_string(&environ).unwrap_or_else(|error| panic!("{error}: {said}"));
    let lines: BTreeSet<&str> = seen.lines().collect();
    assert!(lines.contains("NCCL_NVLS_ENABLE=0") && lines.contains("NCCL_HOSTID=n1"), "{seen}");
    assert!(!lines.iter().any(|line| line.starts_with("NCCL_DEBUG") || line.starts_with("PYTHON")), "{seen}");
    assert!(!lines.iter().any(|line| line.starts_with("SLURM")), "{seen}");
}
