//! The works by their names. Each is prepared once; what is then done, as often as asked, is only the work itself. Each gives
//! the size of what it made, so that none of it can be left out.

use diag::c4d::digest::Digest;
use diag::c4d::picture::Picture;
use diag::c4d::settings::Settings;
use diag::c4d::step;
use diag::check::CheckName::{
    self, AllReduce, AllReduce1, AllReduce2, GemmFlops, KernelLaunch, MultiAllReduce2,
};
use diag::conclude::{Caps, verdict};
use diag::facts::Roster;
use diag::hostlist::expand;
use diag::judge::Suite;
use diag::page::Page;
use diag::plan::Settled;
use diag::policy::Policy;
use diag::report::{MeasuredOn, Report, RunId};
use diag::round::{RoundResult, Step};
use jiff::{SignedDuration, Timestamp};

use crate::job::{Event, Plan, Shape};
use crate::simulated::fault::Fault;
use crate::simulated::machine::Machine;
use crate::simulated::noise::Noise;
use crate::simulated::{Job, Run};
use crate::{job, source};

/// The work, to be done once.
pub type Once = Box<dyn FnOnce() -> usize>;

/// Makes the work anew, so that a second turn finds nothing that the first one left.
pub type Prepared = Box<dyn FnMut() -> Once>;

/// One of them.
pub struct Work {
    pub name: &'static str,
    pub what: &'static str,
    pub prepare: fn(Size) -> Prepared,
}

pub const ALL: &[Work] = &[
    Work { name: "policy", what: "a policy with an address for each node is read", prepare: policy },
    Work { name: "hostlist", what: "a hostlist becomes names", prepare: hostlist },
    Work { name: "plan", what: "all steps of a suite are planned, two faults localised", prepare: plan },
    Work { name: "verdict", what: "its verdict", prepare: concluded },
    Work { name: "report_json", what: "its report as JSON, written and read back", prepare: report_json },
    Work { name: "report_html", what: "its report as an HTML page", prepare: report_html },
    Work { name: "digests", what: "the digests of one second are read from JSON", prepare: digests },
    Work { name: "window", what: "and judged, with a rank that hangs", prepare: window },
];

/// How large the job is, and what it is measured with.
#[derive(Clone, Copy)]
pub struct Size {
    pub nodes: u32,
    pub checks: &'static [CheckName],
}

impl Size {
    /// A suite with checks of every scope.
    pub fn whole(nodes: u32) -> Self {
        Self { nodes, checks: &[GemmFlops, KernelLaunch, AllReduce1, AllReduce2, MultiAllReduce2, AllReduce] }
    }

    /// One check of single nodes and one of pairs: a counter of instructions makes everything some fifty times slower.
    pub fn short(nodes: u32) -> Self {
        Self { nodes, checks: &[KernelLaunch, AllReduce2] }
    }
}

/// The built-in caps.
const CAPS: Caps = Caps { max_drain_nodes: 4, max_drain_fraction: 0.34 };

/// The shipped policy with every key that it shows, and addresses.
fn policy(size: Size) -> Prepared {
    let mut text = String::new();
    for line in include_str!("../../../conf/aimaster.toml").lines() {
        let key = line.strip_prefix('#').filter(|key| key.starts_with(|c: char| c != ' '));
        text.push_str(key.unwrap_or(line));
        text.push('\n');
        if key == Some("[network.addresses]") {
            for node in 0..size.nodes {
                text.push_str(&format!("n{} = \"10.7.{}.{}\"\n", node + 1, node / 250, node % 250 + 1));
            }
        }
    }
    assert_eq!(Policy::parse(&text).unwrap().network.addresses.len(), size.nodes as usize);
    Box::new(move || {
        let text = text.clone();
        Box::new(move || Policy::parse(&text).unwrap().network.addresses.len())
    })
}

fn hostlist(size: Size) -> Prepared {
    let half = size.nodes / 2;
    Box::new(move || {
        let text = format!("rack[1-2]-gpu[0001-{half:04}]");
        Box::new(move || expand(&text).unwrap().len())
    })
}

/// A job that was measured to its end: a node with a slow network, a GPU that is slow, and the noise of healthy ones.
#[derive(Clone)]
struct Measured {
    job: Job,
    suite: Suite,
    roster: Roster,
    results: Vec<RoundResult>,
}

impl Measured {
    fn of(Size { nodes, checks }: Size) -> Self {
        let noise = Noise { seed: 5, spread: 0.03, sigma: 0.01, outliers: 0.002 };
        let job = Job::on(Machine::H200, nodes, noise)
            .with(Fault::Network { node: nodes / 2, left: 0.5 })
            .with(Fault::Gpu { node: nodes / 3, gpu: 5, left: 0.6 });
        let (suite, roster) = (job.suite(checks), job.roster());
        let mut results: Vec<RoundResult> = Vec::new();
        let mut settled = Settled::default();
        while let Step::Measure(round) = settled.next(&suite, &roster, &results) {
            let outcomes = job.measured(&round, &results);
            results.push(RoundResult { round, outcomes });
        }
        Self { job, suite, roster, results }
    }

    fn report(&self) -> Report {
        let judged = verdict(&self.suite, &self.roster, &self.results, CAPS, None);
        let run = Run { verdict: judged, results: self.results.clone() };
        let number = RunId {
            job_id: 7,
            cluster: "c".into(),
            check_number: 1,
            engine: self.job.machine.engine,
            hardware: MeasuredOn::of(&self.suite),
        };
        let times = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH + SignedDuration::from_secs(9));
        Report::new(&number, &self.roster, &run.verdict, &self.job.decision(&run), times)
    }
}

/// As every node does it after each round: what it knows of the rounds before is kept.
fn plan(size: Size) -> Prepared {
    let measured = Measured::of(size);
    Box::new(move || {
        let Measured { suite, roster, results, .. } = measured.clone();
        Box::new(move || {
            let mut settled = Settled::default();
            let steps = (0..=results.len()).map(|rounds| settled.next(&suite, &roster, &results[..rounds]));
            steps.filter(|step| matches!(step, Step::Measure(_))).count()
        })
    })
}

fn concluded(size: Size) -> Prepared {
    let measured = Measured::of(size);
    Box::new(move || {
        let Measured { suite, roster, results, .. } = measured.clone();
        Box::new(move || verdict(&suite, &roster, &results, CAPS, None).findings.len())
    })
}

fn report_json(size: Size) -> Prepared {
    let report = Measured::of(size).report();
    Box::new(move || {
        let report = report.clone();
        Box::new(move || {
            let text = serde_json::to_vec(&report).unwrap();
            let read: Report = serde_json::from_slice(&text).unwrap();
            assert_eq!(read.items.len(), report.items.len());
            text.len()
        })
    })
}

fn report_html(size: Size) -> Prepared {
    let report = Measured::of(size).report();
    Box::new(move || {
        let report = report.clone();
        Box::new(move || {
            let page = Page::new(Some(&report), &[]).unwrap();
            source::html::render(&page).unwrap().len()
        })
    })
}

/// A second of a job in which a rank's program has stopped, and what the rules know of the seconds before.
struct Second {
    picture: Picture,
    digests: Vec<Vec<u8>>,
    now_ms: u64,
}

impl Second {
    fn of(nodes: u32) -> Self {
        const SECONDS: u64 = 5;
        let shape = Shape { tp: 4, pp: 2, dp: nodes as usize, per_node: 8, batches: 1 };
        let event = Event::HostHang { rank: shape.ranks() / 2, at_ms: 2_500, until_ms: None };
        let plan = Plan { compute_ms: 200.0, events: vec![event], ..Plan::new(shape, 5) };
        let names = (1..=shape.nodes()).map(|node| format!("n{node}")).collect();
        let (mut job, mut picture) = (job::Job::new(plan), Picture::new(names));
        for now_ms in (1..SECONDS).map(|second| second * 1000) {
            job.advance(now_ms);
            let digests = job.told(&picture.wants_steps());
            step(&mut picture, &digests, now_ms, &Settings::default());
        }
        let now_ms = SECONDS * 1000;
        job.advance(now_ms);
        let digests = job.told(&picture.wants_steps());
        let digests = digests.iter().map(|digest| serde_json::to_vec(digest).unwrap()).collect();
        Self { picture, digests, now_ms }
    }
}

fn digests(size: Size) -> Prepared {
    let second = Second::of(size.nodes);
    Box::new(move || {
        let digests = second.digests.clone();
        Box::new(move || digests.iter().map(|bytes| Digest::parse(bytes).unwrap().ranks.len()).sum())
    })
}

fn window(size: Size) -> Prepared {
    let second = Second::of(size.nodes);
    let digests: Vec<Digest> = second.digests.iter().map(|bytes| Digest::parse(bytes).unwrap()).collect();
    let (picture, now_ms) = (second.picture, second.now_ms);
    Box::new(move || {
        let (mut picture, digests) = (picture.clone(), digests.clone());
        Box::new(move || {
            let said = step(&mut picture, &digests, now_ms, &Settings::default());
            said.len() + picture.bytes()
        })
    })
}
