//! A watch over the stand-in for NVML (`worker_nvml` of Cargo.toml).

use std::path::{Path, PathBuf};

use diag::gpu_facts::ids::GpuId;
use serde_json::{Value, json};

use super::*;

const UUID: &str = "GPU-00000000-0000-0000-0000-000000000000";
const WINDOW: Duration = Duration::from_millis(400);

struct Stage {
    folder: tempfile::TempDir,
    gpu: Value,
}

impl Stage {
    fn new() -> Self {
        let test = std::env::current_exe().unwrap();
        let built = test.parent().and_then(Path::parent).unwrap().join("examples/libworker_nvml.so");
        assert!(built.is_file(), "{} is missing: cargo build -p prolog --examples", built.display());
        let folder = tempfile::tempdir().unwrap();
        let text = include_str!("../../../../kernels/tests/fakes/h200.json");
        let mut gpu: Value = serde_json::from_str(text).unwrap();
        gpu["nvmlDeviceGetUUID"] = json!(UUID);
        gpu["nvmlDeviceGetMinorNumber"] = json!(0);
        gpu["nvmlDeviceGetPciInfo_v3"] = json!("00000000:81:00.0");
        let stage = Self { folder, gpu };
        std::fs::copy(built, stage.library()).unwrap();
        stage.show(&json!({}));
        stage
    }

    fn library(&self) -> PathBuf {
        self.folder.path().join("libnvidia-ml.so.1")
    }

    /// The GPU answers so from now on.
    fn show(&self, changes: &Value) {
        let mut gpu = self.gpu.clone();
        for (key, value) in changes.as_object().unwrap() {
            gpu[key] = value.clone();
        }
        // By a rename: a reader must not see half of it.
        let fresh = self.folder.path().join("fresh");
        std::fs::write(&fresh, json!({"nvmlInit_v2": 0, "gpus": [gpu]}).to_string()).unwrap();
        std::fs::rename(fresh, self.folder.path().join("libnvidia-ml.so.1.json")).unwrap();
    }

    fn looker(&self) -> Looker {
        let looker = Looker::default();
        let (sender, seen) = channel();
        let wanted = Look {
            gpus: vec![GpuId::Minor(0)],
            nvml: self.library(),
            root: self.folder.path().to_owned(),
            gpu_free_bytes: 2 << 30,
            limit_ms: 20_000,
        };
        looker.look(wanted, move |reading| sender.send(reading).unwrap()).unwrap();
        let reading = seen.recv_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!((reading.gpus.len(), reading.trouble.len()), (1, 0), "{reading:?}");
        looker
    }
}

fn watched() -> [Watched; 1] {
    [Watched { uuid: UUID.to_owned(), pci: "0000:81:00.0".to_owned() }]
}

#[test]
fn a_gpu_is_seen_as_it_changes_and_who_joins_it() {
    let stage = Stage::new();
    let watch = stage.looker().watch(&watched(), WINDOW).unwrap();
    thread::sleep(WINDOW);
    let process = json!([{"pid": 4711, "bytes": 5}]);
    stage.show(&json!({
        "nvmlDeviceGetCurrentClocksEventReasons": 0x48,
        "nvmlDeviceGetComputeRunningProcesses_v3": process,
    }));
    thread::sleep(WINDOW * 2);
    let loads = watch.finish();
    let [load] = &loads[..] else { panic!("{loads:?}") };
    let reasons: Vec<Option<u64>> = load.samples.iter().map(|one| one.clocks.reasons).collect();
    assert_eq!((reasons.first(), reasons.last()), (Some(&Some(1)), Some(&Some(0x48))), "{reasons:?}");
    assert!((4..=16).contains(&reasons.len()), "{reasons:?}");
    assert!(load.seconds > WINDOW.as_secs_f64() && load.seconds < 60.0, "{}", load.seconds);
    let pids: Vec<u32> = load.processes.iter().map(|one| one.pid).collect();
    assert_eq!(pids, [4711], "named once");
}

// E17: a driver that owes an answer is not waited for, and how long it does is told.
#[test]
fn a_driver_that_hangs_meanwhile_holds_up_nobody() {
    let stage = Stage::new();
    let watch = stage.looker().watch(&watched(), WINDOW).unwrap();
    stage.show(&json!({"nvmlDeviceGetPowerUsage": {"hang_ms": 60_000}}));
    thread::sleep(WINDOW * 3);
    let begun = Instant::now();
    let loads = watch.finish();
    assert!(begun.elapsed() < WINDOW, "{:?}", begun.elapsed());
    assert!(loads[0].samples.last().is_some_and(|one| one.took_ms >= 400), "{loads:?}");
}

#[test]
fn without_nvml_nothing_is_watched() {
    assert!(Looker::default().watch(&watched(), WINDOW).is_none());
}
