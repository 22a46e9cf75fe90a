//! A folder with a stand-in for NVML, a kernel log and a sysfs, each of which a test changes while a watch runs.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use diag::gpu_facts::ids::GpuId;
use diag::health::HealthEvent;
use epilog::health::{Hired, Settings, Watch, Watcher};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use serde_json::{Value, json};

/// Beyond every wait of a watch.
pub const LATER: Duration = Duration::from_secs(30);

/// Longest that something may take that happens within seconds; the machine may be busy.
const DEADLINE: Duration = Duration::from_secs(60);

/// From look to look.
const LOOK: Duration = Duration::from_millis(50);

pub struct Stage {
    folder: tempfile::TempDir,
    state: Mutex<Value>,
}

pub fn uuid(minor: u32) -> String {
    format!("GPU-00000000-0000-0000-0000-{minor:012x}")
}

pub fn pci(minor: u32) -> String {
    format!("0000:{:02x}:00.0", 0x81 + minor)
}

/// A healthy H200.
fn h200(minor: u32) -> Value {
    let mut gpu: Value =
        serde_json::from_str(include_str!("../../../kernels/tests/fakes/h200.json")).unwrap();
    gpu["nvmlDeviceGetUUID"] = json!(uuid(minor));
    gpu["nvmlDeviceGetMinorNumber"] = json!(minor);
    gpu["nvmlDeviceGetPciInfo_v3"] = json!(format!("0000{}", pci(minor)));
    for link in 0..18 {
        gpu[format!("nvmlDeviceGetNvLinkState:{link}")] = json!(1);
    }
    gpu
}

impl Stage {
    pub fn new(gpus: u32) -> Self {
        let test = std::env::current_exe().unwrap();
        let built = test.parent().and_then(Path::parent).unwrap().join("examples/libwatcher_nvml.so");
        assert!(built.is_file(), "{} is missing: cargo build -p epilog --examples", built.display());
        let folder = tempfile::tempdir().unwrap();
        // The watcher is another user.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let gpus: Vec<Value> = (0..gpus).map(h200).collect();
        let stage = Self { folder, state: Mutex::new(json!({"nvmlInit_v2": 0, "gpus": gpus})) };
        fs::copy(built, stage.library()).unwrap();
        fs::write(stage.kernel_log(), "").unwrap();
        stage.show(&stage.state.lock().unwrap());
        stage
    }

    fn path(&self, below: &str) -> PathBuf {
        let path = self.folder.path().join(below);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    fn library(&self) -> PathBuf {
        self.path("libnvidia-ml.so.1")
    }

    fn kernel_log(&self) -> PathBuf {
        self.path("kmsg")
    }

    fn show(&self, state: &Value) {
        // By a rename: a reader must not see half of it.
        let fresh = self.path("fresh");
        fs::write(&fresh, state.to_string()).unwrap();
        fs::rename(fresh, self.path("libnvidia-ml.so.1.json")).unwrap();
    }

    /// NVML itself answers so from now on.
    pub fn nvml(&self, changes: Value) {
        let mut state = self.state.lock().unwrap();
        changes.as_object().unwrap().iter().for_each(|(key, value)| state[key] = value.clone());
        self.show(&state);
    }

    /// A GPU answers so from now on.
    pub fn change(&self, gpu: usize, changes: Value) {
        let mut state = self.state.lock().unwrap();
        changes.as_object().unwrap().iter().for_each(|(key, value)| state["gpus"][gpu][key] = value.clone());
        self.show(&state);
    }

    /// The driver's own list below /proc.
    pub fn driver_lists(&self, gpus: &[u32]) {
        for minor in gpus {
            let file = self.path(&format!("proc/driver/nvidia/gpus/{}/information", pci(*minor)));
            fs::write(file, format!("Model: \t NVIDIA H200\nDevice Minor: \t {minor}\n")).unwrap();
        }
    }

    /// The kernel says something.
    pub fn log(&self, seq: u64, text: &str) {
        let mut log = OpenOptions::new().append(true).open(self.kernel_log()).unwrap();
        let mut line = String::new();
        writeln!(line, "4,{seq},{},-;{text}", seq * 1000).unwrap();
        log.write_all(line.as_bytes()).unwrap();
    }

    /// A port of a network device, with what it has moved.
    pub fn port(&self, device: &str, state: &str, moved_bytes: u64) {
        let bus = format!("sys/devices/pci0000:a0/0000:a{}:00.0", if device == "mlx5_0" { 1 } else { 2 });
        let folder = format!("{bus}/infiniband/{device}");
        let set = |file: &str, text: &str| {
            let path = self.path(&format!("{folder}/ports/1/{file}"));
            let fresh = path.with_extension("fresh");
            fs::write(&fresh, text).unwrap();
            fs::rename(fresh, path).unwrap();
        };
        set("phys_state", "5: LinkUp\n");
        set("counters/link_downed", "0\n");
        set("counters/port_xmit_data", &format!("{}\n", moved_bytes / 4));
        set("state", &format!("{state}\n"));
        let class = self.path(&format!("sys/class/infiniband/{device}"));
        if !class.is_symlink() {
            symlink(format!("../../../{folder}"), class).unwrap();
            let address = bus.rsplit('/').next().unwrap();
            symlink(format!("../../../{address}"), self.path(&format!("{folder}/device"))).unwrap();
        }
    }

    pub fn settings(&self, gpus: &[u32]) -> Settings {
        Settings {
            nvml: self.library(),
            root: self.folder.path().to_owned(),
            kernel_log: self.kernel_log(),
            ..Settings::new(gpus.iter().copied().map(GpuId::Minor).collect())
        }
    }

    /// A watch that has begun.
    pub fn watch(&self, gpus: &[u32]) -> Watch {
        Watch::start(self.settings(gpus), hired())
    }

    /// Polls until it is so.
    pub fn until(&self, watch: &mut Watch, so: impl Fn(&Watch) -> bool) -> Vec<HealthEvent> {
        let until = Instant::now() + DEADLINE;
        let mut events = Vec::new();
        while !so(watch) {
            assert!(Instant::now() < until, "{watch:?}");
            events.extend(watch.poll(Instant::now()));
            std::thread::sleep(LOOK);
        }
        events
    }

    /// Polls until every GPU has been seen at work, and some looks more: what was told in that time.
    pub fn quiet(&self, watch: &mut Watch) -> Vec<HealthEvent> {
        let gpus = self.state.lock().unwrap()["gpus"].as_array().unwrap().len();
        let mut events = self.until(watch, |watch| {
            let loads = watch.loads();
            let seen = !loads.is_empty() && loads.iter().all(|load| load.busy_percent.is_some());
            watch.ready() && (gpus == 0 || seen)
        });
        for _ in 0..20 {
            events.extend(watch.poll(Instant::now()));
            std::thread::sleep(LOOK);
        }
        events
    }

    /// Polls until something is told.
    pub fn events(&self, watch: &mut Watch) -> Vec<HealthEvent> {
        self.told_within(|| watch.poll(Instant::now()))
    }

    /// Looks again and again until something is told.
    pub fn told_within(&self, mut look: impl FnMut() -> Vec<HealthEvent>) -> Vec<HealthEvent> {
        let until = Instant::now() + DEADLINE;
        loop {
            let events = look();
            if !events.is_empty() {
                return events;
            }
            assert!(Instant::now() < until, "nothing was told");
            std::thread::sleep(LOOK);
        }
    }
}

/// Watchers of today.
pub fn hired() -> Hired {
    Hired::new(&Watcher { program: env!("CARGO_BIN_EXE_aimaster-watcher").into(), user: String::new() })
}

/// Watchers that this process has started.
pub fn watchers() -> Vec<u32> {
    let own = std::process::id().to_string();
    let is_ours = |pid: &u32| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let arguments: Vec<&[u8]> = arguments.split(|byte| *byte == 0).collect();
        arguments.first().is_some_and(|name| name.ends_with(b"aimaster-watcher"))
            && arguments.get(1) == Some(&own.as_bytes())
    };
    let pids = fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_ours).collect()
}

/// What an agent gives up, for the calling thread.
pub fn give_up_rights() {
    let mut sets = capabilities(None).unwrap();
    sets.permitted &= CapabilitySet::SYSLOG;
    sets.effective &= CapabilitySet::SYSLOG;
    sets.inheritable = CapabilitySet::empty();
    set_capabilities(None, sets).unwrap();
}

/// The watcher that has loaded the stage's library.
pub fn process_of(stage: &Stage) -> u32 {
    find_process(stage).unwrap()
}

/// The same, if there is one.
pub fn find_process(stage: &Stage) -> Option<u32> {
    let library = stage.library();
    let has = |pid: &u32| {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.contains(library.to_str().unwrap())
    };
    watchers().into_iter().find(has)
}

/// Ends a watcher from outside.
pub fn lost_watchers(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}
