//! Reports of simulated jobs, for the pictures of `cargo xtask screenshots`: numbers as measured on H200, faults at known
//! places, verdicts and findings by the rules of the product. Argument: the folder, which is filled as a folder of reports.
#![allow(clippy::unwrap_used, reason = "an example may stop at the first surprise")]

#[path = "../tests/c4d/job/mod.rs"]
#[allow(dead_code, reason = "the simulation is that of the tests")]
mod job;
#[path = "../tests/rules/simulated/mod.rs"]
mod simulated;

use std::path::Path;

use diag::c4d::finding::{Finding, State};
use diag::c4d::picture::Picture;
use diag::c4d::settings::Settings;
use diag::c4d::step;
use diag::check::CheckName::{
    self, AllReduce, AllReduce1, AllReduce2, AllToAll2, GemmFlops, KernelLaunch, MultiAllReduce2,
};
use diag::conclude::{Caps, verdict};
use diag::health::{self, Action, HealthEvent, Part, Turn};
use diag::report::{MeasuredOn, Report, RunId};
use diag::round::NodeOutcome;
use diag::runtime_report::{Act, Finished, OfNode, RuntimeReport, Status, Telemetry};
use jiff::{SignedDuration, Timestamp};
use job::{Event, Plan, Shape};
use simulated::Job;
use simulated::fault::Fault;
use simulated::machine::Machine;
use simulated::noise::Noise;

const CHECKS: &[CheckName] =
    &[GemmFlops, KernelLaunch, AllReduce1, AllReduce2, AllToAll2, MultiAllReduce2, AllReduce];

/// The built-in caps.
const CAPS: Caps = Caps { max_drain_nodes: 4, max_drain_fraction: 0.34 };

/// 2026-11-30T08:00:00Z.
const BEGIN_S: i64 = 1_796_025_600;

/// How long the nodes take to meet, and a round, in ms: as a suite on eight GPUs does.
const MEETING_MS: i64 = 900;
const ROUND_MS: i64 = 1400;

fn at(ms: i64) -> Timestamp {
    Timestamp::from_second(BEGIN_S).unwrap() + SignedDuration::from_millis(ms)
}

fn h200(size: u32) -> Job {
    Job::on(Machine::H200, size, Noise { seed: 5, spread: 0.03, sigma: 0.01, outliers: 0.002 })
}

/// The report of a job, with a time for each round.
fn report(job: &Job, id: u32) -> Report {
    let mut results = job.run_with(CHECKS, CAPS).results;
    for result in &mut results {
        let begin = MEETING_MS + i64::from(result.round.index) * ROUND_MS;
        for outcome in result.outcomes.values_mut() {
            if let NodeOutcome::Measured(numbers) = outcome {
                for one in numbers {
                    (one.started_at, one.finished_at) = (at(begin), at(begin + ROUND_MS - 150));
                }
            }
        }
    }
    let end = MEETING_MS + i64::try_from(results.len()).unwrap() * ROUND_MS + 40;
    let judged = verdict(&job.suite(CHECKS), &job.roster(), &results, CAPS, None);
    let run = simulated::Run { verdict: judged, results };
    let decision = job.decision(&run);
    let number = RunId {
        job_id: id,
        cluster: "h200".into(),
        check_number: 1,
        engine: job.machine.engine,
        hardware: MeasuredOn::of(&job.suite(CHECKS)),
    };
    let mut report = Report::new(&number, &job.roster(), &run.verdict, &decision, (at(0), at(end)));
    report.drained = decision.drains.iter().map(|drain| drain.node.clone()).collect();
    report
}

/// What is found of a job of 64 ranks while it runs.
fn runtime(id: u32, events: Vec<Event>, seconds: u64) -> RuntimeReport {
    let mut plan = Plan::new(Shape::SMALL, 7);
    plan.events = events;
    let names: Vec<String> = (1..=plan.shape.nodes()).map(|node| format!("n{node}")).collect();
    let (mut job, mut picture) = (job::Job::new(plan), Picture::new(names.clone()));
    let mut said: Vec<Finding> = Vec::new();
    for now_ms in (1..=seconds).map(|second| second * 1000) {
        job.advance(now_ms);
        let digests = job.told(&picture.wants_steps());
        said.extend(step(&mut picture, &digests, now_ms, &Settings::default()));
    }
    let (started_at, end_ms) = (at(20_000), i64::try_from(seconds).unwrap() * 1000);
    let end = started_at + SignedDuration::from_millis(end_ms);
    let mut findings: Vec<Finding> = Vec::new();
    let (mut withdrawn, mut acts) = (Vec::new(), Vec::new());
    for one in said {
        if one.state == State::Confirmed {
            findings.push(one);
        } else {
            findings.retain(|held| held.class != one.class || !held.same_ranks(&one));
            withdrawn.push(one);
        }
    }
    for one in &findings {
        let ms = i64::try_from(one.found_ms).unwrap() + 900;
        let what = "drain: telemetry alone drains nobody (c4d.telemetry_may_drain)".into();
        acts.push(Act { at: started_at + SignedDuration::from_millis(ms), done: false, what });
    }
    RuntimeReport {
        first_step_at: Some(started_at + SignedDuration::from_secs(2)),
        finished: Some(Finished { at: end, because: "the job's epilog ended it".into() }),
        telemetry: Telemetry { status: Status::Ok, because: Vec::new(), ranks: 64, refused: 0 },
        judged: true,
        spoke: true,
        findings,
        withdrawn,
        delays: picture.delays().to_vec(),
        acts,
        elsewhere: vec![port_errors()],
        names: (0..).zip(names).collect(),
        ..RuntimeReport::new("h200", id, 1, "n1", started_at)
    }
}

/// A state of the hardware that can't be had by simulating ranks.
fn port_errors() -> OfNode {
    let event = HealthEvent {
        part: Part::Nic { device: "mlx5_1".into(), port: 1 },
        what: "symbol errors".into(),
        class: health::Class::Network,
        action: Action::Report,
        turn: Turn::Began,
        words: "mlx5_1 port 1: 412 symbol errors since the job's start, 2.7 a second".into(),
        age_ms: 60_000,
    };
    OfNode { node: 1, event }
}

fn main() {
    let folder = std::env::args().nth(1).unwrap();
    let put = |id: u32, name: &str, text: String| {
        let folder = Path::new(&folder).join("h200").join(id.to_string()).join("1");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(name), text).unwrap();
    };
    let before =
        |id: u32, job: &Job| put(id, "report.json", serde_json::to_string(&report(job, id)).unwrap());
    before(101, &h200(4));
    before(102, &h200(4).with(Fault::Gpu { node: 2, gpu: 5, left: 0.62 }));
    let slow = h200(16).with(Fault::Link { a: 4, b: 5, left: 0.4 });
    before(103, &slow.with(Fault::Network { node: 10, left: 0.5 }));
    let large = h200(1024).with(Fault::Gpu { node: 700, gpu: 3, left: 0.55 });
    before(104, &large.with(Fault::Rail { node: 333, rail: 6, left: 0.5 }));
    before(105, &h200(8));
    let events = vec![
        Event::Pause { rank: 42, at_ms: 30_000, until_ms: Some(58_000) },
        Event::SlowLink { rank: 9, at_ms: 90_000, until_ms: None, factor: 200.0 },
    ];
    put(105, "runtime.json", serde_json::to_string(&runtime(105, events, 150)).unwrap());
}
