//! The watch of health as the agent holds it: what is planted in a stand-in for the kernel's log, NVML and sysfs comes into
//! the report, to the other nodes, and into what is told of ranks.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]

// Other tests use more of it.
#[allow(dead_code, reason = "shared with tests/health.rs")]
mod health_stage;

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use diag::gpu_facts::ids::GpuId;
use diag::health::{Action, HealthEvent, Turn};
use epilog::c4d::health::Health;
use epilog::c4d::ranks::Ranks;
use epilog::c4d::report::RuntimeReport;
use epilog::c4d::socket::Arrival;
use epilog::health::{Hired, Settings};
use health_stage::{Stage, hired};
use nccl_profiler::handover::{Hello, Status};
use nccl_profiler::ring::{FILE_BYTES, LAYOUT_VERSION};
use serde_json::json;

/// The machine may be busy.
const DEADLINE: Duration = Duration::from_secs(60);

fn report() -> RuntimeReport {
    let text = json!({
        "schema": 1, "job_id": 7, "cluster": "aim", "check_number": 1, "node": "n1",
        "started_at": "2026-01-01T00:00:00Z", "first_step_at": null, "finished": null,
        "telemetry": {"status": "NONE", "because": [], "ranks": 0, "refused": 0},
        "judged": false, "findings": [], "withdrawn": [], "errors": [],
    });
    serde_json::from_value(text).unwrap()
}

struct Agent {
    health: Health,
    ranks: Ranks,
    report: RuntimeReport,
    news: Vec<HealthEvent>,
}

impl Agent {
    fn new(settings: Settings, hired: Hired) -> Self {
        let ranks = Ranks::new(0, &settings.gpus);
        Self { health: Health::with(settings, hired), ranks, report: report(), news: Vec::new() }
    }

    /// Looks until it is so.
    fn until(&mut self, so: impl Fn(&mut Self) -> bool) {
        let until = Instant::now() + DEADLINE;
        while !so(self) {
            assert!(Instant::now() < until, "{:?} {:?}", self.report, self.health);
            self.news.extend(self.health.look(&mut self.ranks, &mut self.report, Instant::now()));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A process that says that it has no telemetry.
struct Rank(Child);

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Rank {
    fn start() -> Self {
        Self(Command::new("sleep").arg("600").spawn().unwrap())
    }

    fn arrival(&self) -> Arrival {
        let hello = Hello {
            layout_version: LAYOUT_VERSION,
            pid: 1,
            file_bytes: FILE_BYTES,
            nccl_version: 0,
            api: 5,
            status: Status::NoMemory,
        };
        Arrival { pid: self.0.id(), hello, ring: None }
    }
}

#[test]
fn an_xid_comes_into_the_report_and_to_the_others_and_a_rank_has_its_gpu() {
    let stage = Stage::new(2);
    let rank = Rank::start();
    // NVML finds it on the second.
    let used = json!({"nvmlDeviceGetComputeRunningProcesses_v3": [{"pid": rank.0.id()}]});
    stage.change(1, used);
    let mut agent = Agent::new(stage.settings(&[1, 0]), hired());
    assert!(agent.ranks.admit(rank.arrival()));
    agent.until(|agent| {
        let gpu = agent.ranks.look(Instant::now()).ranks[0].gpu.clone();
        gpu.is_some_and(|gpu| (gpu.index, gpu.busy_percent.is_some()) == (1, true))
    });
    assert_eq!((agent.report.hardware.as_slice(), agent.report.blind.as_slice()), (&[][..], &[][..]));
    stage.log(10, "NVRM: Xid (PCI:0000:82:00): 79, pid=7, name=python, GPU has fallen off the bus.");
    agent.until(|agent| !agent.news.is_empty());
    let [event] = agent.report.hardware.as_slice() else { panic!("{:?}", agent.report) };
    assert_eq!((event.what.as_str(), event.action, event.turn), ("Xid 79", Action::Drain, Turn::Began));
    assert_eq!(agent.news, agent.report.hardware);
    let written = serde_json::to_string(&agent.report).unwrap();
    assert_eq!(serde_json::from_str::<RuntimeReport>(&written).unwrap(), agent.report);
}

#[test]
fn without_nvml_the_kernel_s_log_and_ports_are_watched_and_the_rest_is_said_once() {
    let stage = Stage::new(1);
    stage.driver_lists(&[0]);
    let settings = Settings { nvml: "/nonexistent/libnvidia-ml.so.1".into(), ..stage.settings(&[0]) };
    let mut agent = Agent::new(settings, hired());
    agent.until(|agent| !agent.report.blind.is_empty());
    let said = agent.report.blind.clone();
    assert!(said.len() == 1 && said[0].contains("NVML"), "{said:?}");
    stage.log(10, "NVRM: Xid (PCI:0000:81:00): 79, pid=7, name=python, GPU has fallen off the bus.");
    agent.until(|agent| !agent.news.is_empty());
    assert_eq!((agent.report.hardware.len(), &agent.report.blind), (1, &said));
    // A job without GPUs asks nobody.
    let none = Settings { gpus: Vec::<GpuId>::new(), ..stage.settings(&[]) };
    let mut agent = Agent::new(none, Hired::none());
    for _ in 0..20 {
        agent.news.extend(agent.health.look(&mut agent.ranks, &mut agent.report, Instant::now()));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!((agent.report.blind.len(), agent.news.len()), (0, 0), "{:?}", agent.report);
}
