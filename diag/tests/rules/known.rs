//! What is known of GPUs and network devices, from the readings of nodes to the outcome and the drains: a part at fault, a
//! cause that explains a slow number, a thing to mend, a node that has nothing to measure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use crate::readings::{needs, node, sample};
use crate::simulated::measure::plain;
use diag::action::{Case, decide};
use diag::baseline::Baselines;
use diag::check::CheckName::{self, AllReduce1, AllReduce2, GemmFlops};
use diag::conclude::{Caps, verdict};
use diag::facts::{Engine, GpuName, Joined, NodeFacts, NodeId, Roster, RosterEntry};
use diag::gpu_facts::reading::{Load, NodeReading, Process, ProcessOwner, Sharing};
use diag::gpu_facts::{Fact, Known, under_load};
use diag::judge::{Hardware, Suite};
use diag::measurement::{Measurement, Metric, Subject};
use diag::plan;
use diag::policy::Policy;
use diag::request::FailAction;
use diag::round::{NodeOutcome, Round, RoundResult, Step};
use diag::topology::Leaves;
use diag::verdict::{FaultClass, Finding, Outcome, Status, Verdict};

const MODEL: &str = "NVIDIA H200";

const BASELINES: &str = "engine = 'cuda'\n
[[limit]]\ncheck = 'gemm_flops'\nmetric = 'flops'\nvalue = 620.0\nsource = 'a test'\n
[[limit]]\ncheck = 'all_reduce_1'\nmetric = 'busbw'\nvalue = 300.0\nsource = 'a test'\n
[[limit]]\ncheck = 'all_reduce_2'\nmetric = 'busbw'\nvalue = 200.0\nsource = 'a test'\n";

/// A job on nodes with four H200 each.
struct Job {
    nodes: Vec<NodeReading>,
    checks: Vec<CheckName>,
    /// What a GPU, or node, shows instead of a healthy number, as a share of it.
    slow: BTreeMap<Subject, f64>,
    /// What is seen of a GPU while it multiplies.
    loads: BTreeMap<Subject, Load>,
    /// Why nodes can't measure.
    unable: BTreeMap<NodeId, String>,
    caps: Caps,
}

struct Run {
    verdict: Verdict,
    rounds: Vec<Round>,
    drains: Vec<(String, String)>,
}

impl Job {
    fn of(size: u32) -> Self {
        Self {
            nodes: (0..size).map(|number| node(&format!("n{number}"))).collect(),
            checks: vec![GemmFlops],
            slow: BTreeMap::new(),
            loads: BTreeMap::new(),
            unable: BTreeMap::new(),
            caps: Caps { max_drain_nodes: 4, max_drain_fraction: 0.34 },
        }
    }

    fn roster(&self) -> Roster {
        let entry = |(node, reading): (NodeId, &NodeReading)| {
            let facts = NodeFacts {
                version: "1".into(),
                request_digest: String::new(),
                engine: Engine::Cuda,
                address: None,
                rank_ports: vec![1; 4],
                gpus: (0..4).map(|index| GpuName { index, model: MODEL.into() }).collect(),
                libraries: String::new(),
                known: Known::of(node, reading, &needs()),
                unable: self.unable.get(&node).cloned(),
            };
            let seen_address = IpAddr::V4(Ipv4Addr::LOCALHOST);
            RosterEntry {
                name: reading.name.as_str().into(),
                joined: Some(Joined::new(facts, seen_address)),
                absent_because: None,
            }
        };
        Roster { nodes: (0..).zip(&self.nodes).map(entry).collect(), leader: 0, leaves: Leaves::default() }
    }

    fn measure(&self, node: NodeId, round: &Round) -> NodeOutcome {
        let number = |metric, subject: Subject, healthy: f64| {
            let share = self.slow.get(&subject).copied().unwrap_or(1.0);
            let reading = &self.nodes[node as usize];
            let facts: Vec<Fact> = match (&subject, self.loads.get(&subject)) {
                (Subject::Gpu { index, .. }, Some(load)) => {
                    under_load(node, &reading.name, &reading.gpus[*index as usize], load)
                }
                _ => Vec::new(),
            };
            Measurement {
                bytes: (metric == Metric::Busbw).then_some(1 << 30),
                samples: Vec::new(),
                detail: MODEL.into(),
                facts,
                ..plain(round.check, metric, subject, healthy * share)
            }
        };
        NodeOutcome::Measured(match round.check {
            GemmFlops => {
                (0..4).map(|index| number(Metric::Flops, Subject::Gpu { node, index }, 700.0)).collect()
            }
            AllReduce1 => vec![number(Metric::Busbw, Subject::Node { node }, 350.0)],
            _ => {
                let group = round.groups_of(node).next().unwrap();
                let worst = group.iter().filter_map(|node| self.slow.get(&Subject::Node { node: *node }));
                let share = worst.copied().fold(1.0, f64::min);
                vec![number(Metric::Busbw, Subject::Pair { a: group[0], b: group[1] }, 300.0 * share)]
            }
        })
    }

    fn run(&self) -> Run {
        let suite = Suite {
            checks: self.checks.clone(),
            unbuilt: Vec::new(),
            engine: Engine::Cuda,
            baselines: vec![Baselines::parse(BASELINES).unwrap()],
            hardware: Hardware::default(),
        };
        let roster = self.roster();
        let suite = suite.on(&roster);
        let mut results: Vec<RoundResult> = Vec::new();
        while let Step::Measure(round) = plan::next(&suite, &roster, &results) {
            assert!(results.len() < 30, "{round:?}");
            let outcomes = round.participants().into_iter().map(|node| (node, self.measure(node, &round)));
            let outcomes = outcomes.collect();
            results.push(RoundResult { round, outcomes });
        }
        let verdict = verdict(&suite, &roster, &results, self.caps, None);
        let decision = decide(Case {
            fail_action: FailAction::Fail,
            site_checks: &BTreeSet::new(),
            policy: &Policy::default().actions,
            job: None,
            unread: false,
            roster: &roster,
            verdict: &verdict,
            job_id: 7,
            check_number: 1,
        });
        let drains = decision.drains.into_iter().map(|drain| (drain.node, drain.reason)).collect();
        Run { verdict, rounds: results.into_iter().map(|result| result.round).collect(), drains }
    }
}

impl Run {
    /// The findings that are no pass.
    fn odd(&self) -> Vec<&Finding> {
        self.verdict.findings.iter().filter(|one| one.status != Status::Pass).collect()
    }

    fn measured(&self) -> BTreeSet<NodeId> {
        self.rounds.iter().flat_map(Round::participants).collect()
    }
}

fn gpu(node: NodeId, index: u32) -> Subject {
    Subject::Gpu { node, index }
}

fn alices() -> Process {
    let owner = ProcessOwner {
        command: "python".to_owned(),
        uid: 1000,
        user: Some("alice".to_owned()),
        state: Some('R'),
    };
    Process { pid: 4711, memory_bytes: Some(5 << 30), mps: false, owner: Some(owner) }
}

/// What is changed of node 1 and its GPU 2, and the words that must be told.
type State = (fn(&mut NodeReading), &'static str);

/// States that explain a slow number and are no fault.
const CAUSES: &[State] = &[
    (|it| it.gpus[2].processes = Some(vec![alices()]), "4711 (python of user alice"),
    (|it| it.gpus[2].clocks.sm_set_mhz = Some(1200), "SM clock set to 1200 MHz"),
    (|it| it.gpus[2].power.limit_mw = Some(450_000), "power limit lowered to 450 W"),
    (|it| it.gpus[2].fabric.as_mut().unwrap().health_summary = Some(3), "limited capacity"),
];

#[test]
fn a_cause_explains_a_slow_gpu_and_nobody_is_drained() {
    for (change, words) in CAUSES {
        let mut job = Job::of(3);
        change(&mut job.nodes[1]);
        job.slow.insert(gpu(1, 2), 0.5);
        let run = job.run();
        assert_eq!(run.verdict.outcome, Outcome::Error, "{words}: {:#?}", run.odd());
        let [finding] = run.odd()[..] else { panic!("{:#?}", run.odd()) };
        assert_eq!((finding.status, &finding.subject), (Status::Error, &gpu(1, 2)));
        assert!(finding.message.contains(words) && finding.message.contains("350 TFLOP/s"), "{finding:?}");
        assert!(finding.message.contains("no fault of a part"), "{finding:?}");
        assert!(run.drains.is_empty() && run.verdict.notes.is_empty());
    }
}

#[test]
fn a_cause_explains_nothing_that_it_did_not_slow() {
    // Without a slow number it is worth a note.
    for (change, words) in CAUSES {
        let mut job = Job::of(3);
        change(&mut job.nodes[1]);
        let run = job.run();
        assert_eq!(run.verdict.outcome, Outcome::Pass, "{words}");
        assert!(run.verdict.notes[0].contains(words), "{:?}", run.verdict.notes);
        // Another GPU of the node has no excuse by it.
        job.slow.insert(gpu(1, 0), 0.5);
        let run = job.run();
        assert_eq!(run.drains.len(), 1, "{words}: {:#?}", run.odd());
    }
    // Nor has a GPU by what slows nothing.
    let mut job = Job::of(3);
    job.nodes[1].gpus[2].persistence = Some(false);
    job.slow.insert(gpu(1, 2), 0.5);
    let run = job.run();
    assert_eq!((run.verdict.outcome, run.drains.len()), (Outcome::Fail, 1), "E11");
    assert!(run.verdict.notes[0].contains("persistence"));
}

#[test]
fn a_wrong_result_has_no_excuse() {
    let mut job = Job::of(3);
    job.nodes[1].gpus[2].processes = Some(vec![alices()]);
    let run = job.run();
    assert_eq!(run.verdict.outcome, Outcome::Pass);
    let roster = job.roster();
    let suite = Suite {
        checks: vec![GemmFlops],
        unbuilt: Vec::new(),
        engine: Engine::Cuda,
        baselines: Vec::new(),
        hardware: Hardware::default(),
    };
    let suite = suite.on(&roster);
    let mut results = Vec::new();
    while let Step::Measure(round) = plan::next(&suite, &roster, &results) {
        let outcomes = (0..3).map(|node| {
            let mut outcome = job.measure(node, &round);
            if let NodeOutcome::Measured(numbers) = &mut outcome {
                for number in numbers {
                    number.metric = Metric::Correct;
                    number.value = if number.subject == gpu(1, 2) { 0.0 } else { 1.0 };
                }
            }
            (node, outcome)
        });
        let outcomes = outcomes.collect();
        results.push(RoundResult { round, outcomes });
    }
    let verdict = verdict(&suite, &roster, &results, job.caps, None);
    let failed: Vec<&Subject> = verdict
        .findings
        .iter()
        .filter(|one| one.class == Some(FaultClass::Part))
        .map(|one| &one.subject)
        .collect();
    assert_eq!(failed, [&gpu(1, 2)]);
}

/// States that are faults of their own.
const FAULTS: &[State] = &[
    (|it| it.gpus[2].ecc.volatile_uncorrected = Some(5), "5 uncorrected memory errors"),
    (|it| it.gpus[2].rows.as_mut().unwrap().failed = true, "could not be replaced"),
    (|it| it.gpus[2].rows.as_mut().unwrap().pending = true, "waits to be replaced"),
    (|it| it.gpus[2].lost = Some("GPU is lost".to_owned()), "does not answer: GPU is lost"),
    (|it| it.gpus[2].links[7].active = Some(false), "NVLink 7 down"),
    (
        |it| it.gpus[2].fabric.as_mut().unwrap().status = (23, "Insufficient Resources".to_owned()),
        "Insufficient",
    ),
    (|it| it.machine.paths[2].nodes[2].width = Some(8), "has 8 lanes"),
    (|it| it.machine.rdma[1].ports[0].state = Some("DOWN".to_owned()), "mlx5_1 port 1 is DOWN"),
];

#[test]
fn a_fault_is_a_fail_without_a_measurement_and_drains_its_node_once() {
    for (change, words) in FAULTS {
        let mut job = Job::of(4);
        job.checks = vec![GemmFlops, AllReduce2];
        change(&mut job.nodes[1]);
        let run = job.run();
        assert_eq!(run.verdict.outcome, Outcome::Fail, "{words}: {:#?}", run.odd());
        let failed: Vec<&Finding> = run.odd().into_iter().filter(|one| one.status == Status::Fail).collect();
        assert_eq!(failed.len(), 1, "{words}: {failed:#?}");
        assert!(failed[0].message.contains(words), "{words}: {}", failed[0].message);
        let [(node, reason)] = &run.drains[..] else { panic!("{words}: {:?}", run.drains) };
        assert_eq!(node, "n1");
        assert!(reason.starts_with("aimaster: hardware n1") && reason.ends_with(" job=7 n=1"), "{reason}");
        // It sits out, and the others are measured.
        assert_eq!(run.measured(), BTreeSet::from([0, 2, 3]), "{words}");
        assert!(run.odd().iter().any(|one| one.status == Status::Skip && one.message.contains("sat out")));
    }
}

#[test]
fn several_faults_of_a_part_are_one_finding_and_of_a_node_one_drain() {
    let mut job = Job::of(4);
    for (change, _) in FAULTS {
        change(&mut job.nodes[1]);
    }
    let run = job.run();
    let failed: Vec<&Finding> = run.odd().into_iter().filter(|one| one.status == Status::Fail).collect();
    let subjects: BTreeSet<&Subject> = failed.iter().map(|one| &one.subject).collect();
    assert_eq!(subjects.len(), failed.len(), "{failed:#?}");
    assert_eq!(run.drains.len(), 1);
}

#[test]
fn faults_obey_the_caps() {
    // Two of four are more than a third of them.
    let mut job = Job::of(4);
    for node in [1, 2, 3] {
        job.nodes[node].gpus[0].ecc.volatile_uncorrected = Some(1);
    }
    let run = job.run();
    assert_eq!((run.verdict.outcome, run.drains.len()), (Outcome::Environment, 0));
    // More than half of three, within every cap.
    let mut job = Job::of(3);
    job.caps = Caps { max_drain_nodes: 9, max_drain_fraction: 1.0 };
    for node in [1, 2] {
        job.nodes[node].gpus[0].ecc.volatile_uncorrected = Some(1);
    }
    let run = job.run();
    assert_eq!((run.verdict.outcome, run.drains.len()), (Outcome::Environment, 0));
}

#[test]
fn what_is_to_be_mended_is_an_error_that_drains_nobody() {
    let states: &[State] = &[
        (|it| it.gpus[2].memory.as_mut().unwrap().free_bytes = 1 << 30, "1.0 GiB of 140.0 GiB free"),
        (|it| it.trouble = vec!["NVML: can't load libnvidia-ml.so.1".to_owned()], "libnvidia-ml.so.1"),
        (|it| it.driver_version = Some("570.86.15".to_owned()), "GPU driver 570.86.15"),
        (|it| it.gpus[2].unreadable = vec!["no answer within 10000 ms".to_owned()], "no answer within"),
        (|it| it.machine.shm.as_mut().unwrap().total_bytes = 1 << 26, "/dev/shm has 64 MiB"),
    ];
    for (change, words) in states {
        let mut job = Job::of(3);
        change(&mut job.nodes[1]);
        let run = job.run();
        assert_eq!(run.verdict.outcome, Outcome::Error, "{words}: {:#?}", run.odd());
        let [finding] = run.odd()[..] else { panic!("{words}: {:#?}", run.odd()) };
        assert!(finding.status == Status::Error && finding.message.contains(words), "{finding:?}");
        assert_eq!((run.drains.len(), run.measured().len()), (0, 3), "{words}");
    }
}

// L05: also where nothing could be opened there.
#[test]
fn a_node_that_has_nothing_to_measure_is_a_skip() {
    let states: &[State] =
        &[(|it| it.gpus[2].mig = Some(true), "MIG"), (|it| it.shared = Some(Sharing::Shard), "shards")];
    for (change, words) in states {
        let mut job = Job::of(3);
        change(&mut job.nodes[1]);
        job.unable.insert(1, "its GPU can't be opened".to_owned());
        let run = job.run();
        assert_eq!(run.verdict.outcome, Outcome::Pass, "{words}: {:#?}", run.odd());
        let [finding] = run.odd()[..] else { panic!("{words}: {:#?}", run.odd()) };
        assert!(finding.status == Status::Skip && finding.message.contains(words), "{finding:?}");
        assert_eq!(run.measured(), BTreeSet::from([0, 2]), "{words}");
        job.nodes.iter_mut().for_each(change);
        assert_eq!(job.run().verdict.outcome, Outcome::Skip, "{words}");
    }
}

fn load(reasons: u64, margin: i32) -> Load {
    let mut samples = vec![sample(); 8];
    for one in &mut samples {
        one.clocks.reasons = Some(reasons);
        one.clocks.sm_mhz = Some(1200);
        one.temperature.margin_c = Some(margin);
    }
    Load { samples, seconds: 0.5, ..Load::default() }
}

#[test]
fn what_is_seen_under_load_is_a_fault_when_it_stays_or_explains_the_number() {
    // H05, H06: measured three times, also where the number is good enough.
    for share in [0.5, 1.0] {
        let mut job = Job::of(3);
        job.slow.insert(gpu(1, 2), share);
        job.loads.insert(gpu(1, 2), load(0x48, 0));
        let run = job.run();
        assert_eq!((run.verdict.outcome, run.rounds.len()), (Outcome::Fail, 3), "{:#?}", run.odd());
        let [finding] = run.odd()[..] else { panic!("{:#?}", run.odd()) };
        assert!(finding.message.contains("slowed for heat by hardware in 8 of 8"), "{finding:?}");
        assert_eq!(run.drains.len(), 1);
        // Somebody else's work beside it is no excuse for that.
        job.nodes[1].gpus[2].processes = Some(vec![alices()]);
        assert_eq!(job.run().verdict.outcome, Outcome::Fail);
    }
    // G10: locked clocks, and a process that came meanwhile.
    for (load, words) in [
        (load(0x2, 30), "locked at 1200 of 1980"),
        (Load { processes: vec![alices()], ..load(0x4, 30) }, "4711 (python"),
    ] {
        let mut job = Job::of(3);
        job.slow.insert(gpu(1, 2), 0.5);
        job.loads.insert(gpu(1, 2), load);
        let run = job.run();
        assert_eq!((run.verdict.outcome, run.drains.len()), (Outcome::Error, 0), "{:#?}", run.odd());
        assert!(run.odd()[0].message.contains(words), "{:?}", run.odd());
    }
    // H01: at its power limit a GPU works well.
    let mut job = Job::of(3);
    job.loads.insert(gpu(1, 2), load(0x4, 30));
    assert_eq!(job.run().verdict.outcome, Outcome::Pass);
}

#[test]
fn between_nodes_a_cause_of_the_node_explains() {
    let states: &[State] = &[
        // J11.
        (|it| it.machine.peer_memory.as_mut().unwrap().registered = Some(false), "GPUDirect RDMA is off"),
        (|it| it.gpus[2].processes = Some(vec![alices()]), "4711"),
    ];
    for (change, words) in states {
        for size in [2, 5] {
            let mut job = Job::of(size);
            job.checks = vec![AllReduce2];
            job.slow.insert(Subject::Node { node: 1 }, 0.1);
            let bare = job.run();
            assert_ne!(bare.verdict.outcome, Outcome::Pass);
            change(&mut job.nodes[1]);
            let run = job.run();
            assert_eq!((run.verdict.outcome, run.drains.len()), (Outcome::Error, 0), "{:#?}", run.odd());
            assert!(run.odd().iter().any(|one| one.message.contains(words)), "{:#?}", run.odd());
        }
    }
    // What the network is slow by does not slow the inside of a node.
    let mut job = Job::of(3);
    job.checks = vec![AllReduce1];
    job.slow.insert(Subject::Node { node: 1 }, 0.1);
    job.nodes[1].machine.peer_memory.as_mut().unwrap().registered = Some(false);
    assert_eq!(job.run().drains.len(), 1);
}
