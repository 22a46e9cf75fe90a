//! A bench of simulated nodes: what is news, and who tells it.
use super::*;
use diag::c4d::digest::{
    Collective, Comm, Digest, Func, Process, ProcessState, Progress, Rank as DigestRank, Telemetry,
};
use diag::c4d::finding::Class;
use diag::health::{Action, Class as HealthClass, Part};

/// Nodes of the job; each has one rank, whose process has the number 100 + node.
const NODES: u32 = 4;

/// Longest time from a rank's stop to its name: what the runtime check promises.
const NAMED_S: u64 = 15;

/// A job that makes an all-reduce a second, as its nodes tell it.
struct Job {
    begun: Instant,
    second: u64,
    rounds: u64,
    /// The rank that does not come, since when, and what its process does.
    stuck: Option<(u32, u64, ProcessState)>,
}

impl Job {
    fn new() -> Self {
        Self { begun: Instant::now(), second: 0, rounds: 0, stuck: None }
    }

    fn now(&self) -> Instant {
        self.begun + Duration::from_secs(self.second)
    }

    /// A second later; what the nodes tell then.
    fn tick(&mut self) -> Vec<Telling> {
        self.second += 1;
        if self.stuck.is_none() {
            self.rounds += 1;
        }
        (0..NODES).map(|node| self.telling(node)).collect()
    }

    fn stop(&mut self, node: u32, state: ProcessState) {
        self.stuck = Some((node, self.second, state));
    }

    fn telling(&self, node: u32) -> Telling {
        let stuck = self.stuck.filter(|(_, since, _)| self.second > *since);
        let (progress, state) = match stuck {
            None => (self.progress(self.rounds, self.rounds, 0), ProcessState::Running),
            Some((who, since, state)) => {
                let age_ms = (self.second - since) * 1000;
                let mine = who == node;
                let started = self.rounds + u64::from(!mine);
                let state = if mine { state } else { ProcessState::Running };
                (self.progress(started, self.rounds, age_ms), state)
            }
        };
        let comm = Comm {
            id: 0xab,
            name: String::new(),
            rank: node,
            nranks: NODES,
            nnodes: NODES,
            age_ms: self.second * 1000,
            ended: false,
            collectives: vec![Collective { func: Func::AllReduce, progress }],
            p2p: Vec::new(),
            samples: Vec::new(),
            steps: Vec::new(),
        };
        let rank = DigestRank {
            pid: 100 + node,
            task: Some(node),
            gpu: None,
            process: Process { state, wchan: String::new(), io_bytes: None },
            telemetry: Telemetry::Ok,
            kernels: true,
            comms: vec![comm],
        };
        let digest = Digest { node, number: self.second, ending: false, ranks: vec![rank] };
        Telling { digest, health: Vec::new() }
    }

    fn progress(&self, started: u64, finished: u64, age_ms: u64) -> Progress {
        Progress {
            enqueued: started,
            started,
            finished,
            enqueued_age_ms: age_ms,
            started_age_ms: age_ms,
            finished_age_ms: age_ms,
            bytes: 4096,
        }
    }
}

fn bench(role: Role, job: &Job) -> Bench {
    let nodes: Vec<String> = (0..NODES).map(|node| format!("n{node}")).collect();
    Bench::new(&nodes, role, NODES as usize, Settings::default(), job.now())
}

/// Everybody hears everybody.
fn all() -> Heard {
    Heard { nodes: NODES as usize, hear_head: NODES as usize, head: true }
}

/// The head's node tells nothing any more, and nobody hears it.
fn headless() -> Heard {
    Heard { nodes: NODES as usize - 1, hear_head: 0, head: false }
}

fn sit(bench: &mut Bench, job: &mut Job, heard: Heard) -> Vec<Finding> {
    let tellings = job.tick();
    bench.sit(&tellings, heard, None, job.now()).findings
}

/// Lets a job run well for a while.
fn warm(bench: &mut Bench, job: &mut Job) {
    for _ in 0..20 {
        assert_eq!(sit(bench, job, all()), []);
    }
}

fn pids(finding: &Finding) -> Vec<(NodeId, u32)> {
    finding.suspects.iter().map(|who| (who.node, who.pid)).collect()
}

/// The first finding, and how long after the stop it came.
fn first(bench: &mut Bench, job: &mut Job, heard: Heard) -> (Finding, u64) {
    let since = job.second;
    for _ in 0..60 {
        if let Some(finding) = sit(bench, job, heard).into_iter().next() {
            return (finding, job.second - since);
        }
    }
    panic!("nothing was found");
}

#[test]
fn a_rank_of_another_node_that_does_not_come_is_named_in_time_and_taken_back() {
    let mut job = Job::new();
    let mut head = bench(Role::Head, &job);
    warm(&mut head, &mut job);
    job.stop(2, ProcessState::Running);
    let (finding, after_s) = first(&mut head, &mut job, all());
    assert!(after_s <= NAMED_S, "{after_s} s");
    assert_eq!(
        (finding.class, pids(&finding)),
        (Class::NonCommunicationHang, vec![(2, 102)]),
        "{finding:#?}"
    );
    assert_eq!(head.findings().count(), 1);
    // It is told once, and its end is told.
    for _ in 0..10 {
        assert_eq!(sit(&mut head, &mut job, all()), []);
    }
    job.stuck = None;
    let (over, _) = first(&mut head, &mut job, all());
    assert!(matches!(over.state, State::Withdrawn { .. }), "{over:#?}");
    assert_eq!(head.findings().count(), 0);
}

#[test]
fn a_process_that_is_stopped_is_named_as_that() {
    let mut job = Job::new();
    let mut head = bench(Role::Head, &job);
    warm(&mut head, &mut job);
    job.stop(3, ProcessState::Stopped);
    let (finding, _) = first(&mut head, &mut job, all());
    assert_eq!((finding.class, pids(&finding)), (Class::Paused, vec![(3, 103)]), "{finding:#?}");
}

#[test]
fn the_deputy_tells_what_the_head_can_t_and_nothing_twice() {
    let mut job = Job::new();
    let (mut head, mut deputy) = (bench(Role::Head, &job), bench(Role::Deputy, &job));
    let both = |job: &mut Job, head: &mut Bench, deputy: &mut Bench| {
        let tellings = job.tick();
        let (of_head, of_deputy) = (head.saying().told, deputy.saying().told);
        let told = head.sit(&tellings, all(), Some(&of_deputy), job.now());
        let quiet = deputy.sit(&tellings, all(), Some(&of_head), job.now());
        assert_eq!(quiet, News::default(), "the deputy is silent");
        told.findings
    };
    (0..20).for_each(|_| assert_eq!(both(&mut job, &mut head, &mut deputy), []));
    job.stop(2, ProcessState::Running);
    let mut told = Vec::new();
    for _ in 0..20 {
        told.extend(both(&mut job, &mut head, &mut deputy));
    }
    assert_eq!(told.len(), 1, "{told:#?}");
    assert!(deputy.is_judged() && deputy.findings().count() == 0);
    // The head is gone: what it told is taken up, and not told again.
    let of_others = |job: &mut Job| -> Vec<Telling> { job.tick().into_iter().skip(1).collect() };
    for _ in 0..10 {
        let tellings = of_others(&mut job);
        assert_eq!(deputy.sit(&tellings, headless(), None, job.now()), News::default());
    }
    assert!(deputy.speaks());
    assert_eq!(deputy.findings().map(pids).collect::<Vec<_>>(), [[(2, 102)]]);
    // It takes back what the head told.
    job.stuck = None;
    let over = (0..20).find_map(|_| {
        let tellings = of_others(&mut job);
        deputy.sit(&tellings, headless(), None, job.now()).findings.into_iter().next()
    });
    assert!(matches!(over.unwrap().state, State::Withdrawn { .. }));
    // The head is back, with an old picture, and the deputy silent again.
    assert_eq!(both(&mut job, &mut head, &mut deputy).len(), 1, "the head's own finding is over");
    assert!(!deputy.speaks() && deputy.findings().count() == 0);
}

#[test]
fn a_head_that_falls_silent_before_it_could_tell_is_replaced_in_time() {
    let mut job = Job::new();
    let mut deputy = bench(Role::Deputy, &job);
    warm(&mut deputy, &mut job);
    job.stop(2, ProcessState::Running);
    // The head's agent is gone with the stop; its rank is not known any more, and nobody blames it.
    let since = job.second;
    let found = (0..30).find_map(|_| {
        let tellings: Vec<Telling> = job.tick().into_iter().skip(1).collect();
        // For five seconds the head may still be there.
        let heard = if job.second - since <= 5 { all() } else { headless() };
        let news = deputy.sit(&tellings, heard, None, job.now()).findings;
        news.into_iter().next().map(|finding| (finding, job.second - since))
    });
    let (finding, after_s) = found.unwrap();
    assert!(after_s <= NAMED_S, "{after_s} s");
    assert!(pids(&finding).contains(&(2, 102)), "{finding:#?}");
}

#[test]
fn a_deputy_that_was_frozen_itself_does_not_take_the_head_for_gone() {
    let mut job = Job::new();
    let mut deputy = bench(Role::Deputy, &job);
    warm(&mut deputy, &mut job);
    let alone = Heard { nodes: NODES as usize / 2, hear_head: 0, head: false };
    job.second += 60;
    let frozen_s = job.second;
    while !deputy.speaks() {
        assert_eq!(sit(&mut deputy, &mut job, alone), []);
    }
    let after = Duration::from_secs(job.second - frozen_s);
    assert!(after > Duration::from_millis(Settings::default().silent_ms), "{after:?}");
}

#[test]
fn digests_that_come_twice_or_are_lost_make_no_finding_and_hide_none() {
    let mut job = Job::new();
    let mut head = bench(Role::Head, &job);
    let mut last = Vec::new();
    for _ in 0..60 {
        let fresh = job.tick();
        let second = job.second;
        // Every third one of node 1 is lost, node 2's come twice, and node 3's old ones again after the new ones.
        let told = fresh.iter().filter(|one| one.digest.node != 1 || !second.is_multiple_of(3));
        let again = fresh.iter().filter(|one| one.digest.node == 2);
        let old = last.iter().filter(|one: &&Telling| one.digest.node == 3);
        let tellings: Vec<Telling> = told.chain(again).chain(old).cloned().collect();
        last.clone_from(&fresh);
        assert_eq!(head.sit(&tellings, all(), None, job.now()), News::default());
    }
    job.stop(1, ProcessState::Running);
    let since = job.second;
    let found = (0..30).find_map(|_| {
        let fresh = job.tick();
        let even = job.second.is_multiple_of(2);
        let told: Vec<Telling> = fresh.into_iter().filter(|one| even || one.digest.node == 0).collect();
        head.sit(&told, all(), None, job.now()).findings.into_iter().next()
    });
    let finding = found.unwrap();
    assert_eq!(
        (finding.class, pids(&finding)),
        (Class::NonCommunicationHang, vec![(1, 101)]),
        "{finding:#?}"
    );
    assert!(job.second - since <= NAMED_S);
}

#[test]
fn what_stops_while_the_job_ends_is_no_fault() {
    let mut job = Job::new();
    let (mut head, mut deputy) = (bench(Role::Head, &job), bench(Role::Deputy, &job));
    warm(&mut head, &mut job);
    warm(&mut deputy, &mut job);
    for second in 0..100 {
        let mut tellings = job.tick();
        tellings[1].digest.ending = true;
        if second == 0 {
            job.stop(1, ProcessState::Running);
        }
        // Nor is a head that ends with its job one that is to be replaced.
        for (bench, heard) in [(&mut head, all()), (&mut deputy, headless())] {
            assert_eq!(bench.sit(&tellings, heard, None, job.now()).findings, []);
        }
    }
    assert!(!deputy.speaks() && deputy.is_judged());
}

// A job that was made smaller, or of which one agent ended by itself, is not over.
#[test]
fn a_job_whose_other_nodes_go_on_is_judged_without_the_one_that_ended() {
    let mut job = Job::new();
    let mut head = bench(Role::Head, &job);
    warm(&mut head, &mut job);
    let second = |head: &mut Bench, job: &mut Job, last: bool| {
        let mut tellings = job.tick();
        // It says so once, and is gone.
        tellings[3].digest.ending = true;
        tellings.truncate(if last { 4 } else { 3 });
        head.sit(&tellings, Heard { nodes: 3, hear_head: 3, head: true }, None, job.now()).findings
    };
    assert_eq!(second(&mut head, &mut job, true), []);
    for _ in 0..200 {
        assert_eq!(second(&mut head, &mut job, false), []);
    }
    job.stop(1, ProcessState::Running);
    let since = job.second;
    let found = (0..30).find_map(|_| second(&mut head, &mut job, false).into_iter().next()).unwrap();
    assert_eq!((found.class, pids(&found)), (Class::NonCommunicationHang, vec![(1, 101)]), "{found:#?}");
    assert!(job.second - since <= NAMED_S);
}

#[test]
fn hardware_is_told_once_again_where_it_is_worse_and_at_its_end() {
    let mut job = Job::new();
    let mut head = bench(Role::Head, &job);
    warm(&mut head, &mut job);
    let event = |turn, action| HealthEvent {
        part: Part::Gpu { index: 1, pci: None },
        what: "xid 79".into(),
        class: HealthClass::Gpu,
        action,
        turn,
        words: "fallen off the bus".into(),
        age_ms: 0,
    };
    let mut tell = |event: Option<HealthEvent>| {
        let mut tellings = job.tick();
        tellings[2].health.extend(event);
        let hardware = head.sit(&tellings, all(), None, job.now()).hardware;
        (
            hardware.into_iter().map(|(node, event)| (node, event.turn)).collect::<Vec<_>>(),
            head.hardware().len(),
        )
    };
    let (began, worse) = (event(Turn::Began, Action::Report), event(Turn::Worse, Action::Drain));
    let ended = event(Turn::Ended, Action::Drain);
    assert_eq!(tell(Some(began.clone())), (vec![(2, Turn::Began)], 1));
    assert_eq!(tell(Some(began)), (vec![], 1));
    assert_eq!(tell(Some(worse.clone())), (vec![(2, Turn::Worse)], 1));
    assert_eq!(tell(Some(worse)), (vec![], 1));
    assert_eq!(tell(Some(ended.clone())), (vec![(2, Turn::Ended)], 0));
    assert_eq!(tell(Some(ended)), (vec![], 0));
    assert_eq!(tell(None), (vec![], 0));
}
