//! What the agents of the simulated job's nodes tell.

use diag::c4d::digest::{
    Collective, Comm, Digest, Func, Gpu, MAX_SAMPLES, P2p, Process, ProcessState, Progress, Rank, Sample,
    StepState, StepWait, Telemetry,
};
use diag::facts::NodeId;

use super::count::Count;
use super::program::{DP, NEXT_IN, NEXT_OUT, PREV_IN, PREV_OUT, TP, WORLD};
use super::run::{BYTES, Group, Job, Life};
use super::{Event, chance};

/// Names of the communicators, by kind.
const NAMES: [&str; 3] = ["tp", "dp", "world"];

/// What a step of the network waits where nothing is wrong, and on a slow connection.
const STEP_US: u64 = 15;

impl Job {
    /// The digests of this second, one a node. `wanted` are communicators whose steps are to be recorded.
    pub fn told(&mut self, wanted: &std::collections::BTreeSet<u64>) -> Vec<Digest> {
        let number = self.number;
        self.number += 1;
        let shape = self.plan.shape;
        let mut digests = Vec::new();
        for node in 0..shape.nodes() {
            let lost = self.plan.events.iter().any(|event| match *event {
                Event::NodeLost { node: one, at_ms } | Event::AgentLost { node: one, at_ms } => {
                    one == node && at_ms * 1000 <= self.now_us
                }
                _ => false,
            });
            let late = chance(self.plan.seed, node as u64, number) < self.plan.late_digests;
            if lost || late {
                continue;
            }
            let ranks = node * shape.per_node..((node + 1) * shape.per_node).min(shape.ranks());
            let ranks = ranks.map(|rank| self.rank_told(rank, wanted)).collect();
            let ending = self
                .plan
                .events
                .iter()
                .any(|event| matches!(*event, Event::Cancelled { at_ms } if at_ms * 1000 <= self.now_us));
            digests.push(Digest { node: node as NodeId, number, ending, ranks });
        }
        digests
    }

    fn rank_told(&mut self, rank: usize, wanted: &std::collections::BTreeSet<u64>) -> Rank {
        let now_us = self.now_us;
        let kernels = self.knows_kernels(rank);
        let state = &self.ranks[rank];
        let away = now_us < state.away_until_us;
        let (io, gpu) = if away { state.away } else { (false, true) };
        let stopped = now_us.saturating_sub(state.since_us) > 1_000_000;
        let busy = match state.life {
            Life::Well => {
                if gpu {
                    96
                } else {
                    0
                }
            }
            Life::GpuHang => 100,
            Life::HostHang | Life::Paused | Life::Gone => {
                if stopped {
                    0
                } else {
                    96
                }
            }
        };
        let events = &self.plan.events;
        let one_gpu = events.contains(&Event::OneGpu {});
        let none =
            events.iter().any(|event| matches!(*event, Event::NoTelemetry { rank: one } if one == rank));
        let lost = events.iter().any(
            |event| matches!(*event, Event::RecordsLost { rank: one, at_ms } if one == rank && at_ms * 1000 <= now_us),
        );
        let telemetry = if none {
            Telemetry::Unavailable { why: "the user has a profiler of his own".into() }
        } else if lost {
            Telemetry::Lost { records: 100 }
        } else {
            Telemetry::Ok
        };
        let process = match state.life {
            Life::Well | Life::GpuHang => ProcessState::Running,
            Life::HostHang => ProcessState::Sleeping,
            Life::Paused => ProcessState::Stopped,
            Life::Gone => ProcessState::Gone,
        };
        let wchan = if state.life == Life::HostHang { "futex_wait_queue" } else { "" };
        let comms = if none { Vec::new() } else { self.comms_told(rank, wanted, kernels) };
        Rank {
            pid: 100_000 + rank as u32,
            task: Some(rank as u32),
            gpu: Some(Gpu {
                index: (rank % self.plan.shape.per_node) as u32,
                uuid: if one_gpu { "GPU-shared".into() } else { format!("GPU-{rank}") },
                busy_percent: Some(if one_gpu { 100 } else { busy }),
            }),
            process: Process {
                state: process,
                wchan: wchan.into(),
                io_bytes: Some(if io { 200 << 20 } else { 4_096 }),
            },
            telemetry,
            kernels,
            comms,
        }
    }

    /// Whether begin and end of all that a rank does are known. Kernels are recorded all the time after a while without calls.
    fn knows_kernels(&mut self, rank: usize) -> bool {
        let (now_us, recorded) = (self.now_us, self.records(rank));
        let state = &mut self.ranks[rank];
        let counts = || state.collectives.iter().chain(&state.pairs);
        let (calls, known) = (counts().map(|one| one.enqueued).sum(), counts().all(Count::is_known));
        if state.calls.0 != calls {
            state.calls = (calls, now_us);
        } else if now_us - state.calls.1 >= 2_000_000 {
            state.late_until_us = now_us + 30_000_000;
        }
        recorded && known
    }

    fn comms_told(
        &mut self,
        rank: usize,
        wanted: &std::collections::BTreeSet<u64>,
        kernels: bool,
    ) -> Vec<Comm> {
        let shape = self.plan.shape;
        let (now_us, ending) = (self.now_us, self.ranks[rank].life == Life::Gone);
        let over = ending && self.plan.events.iter().any(|event| matches!(event, Event::JobEnds { .. }));
        let popular = self.plan.events.iter().any(|event| {
            matches!(*event, Event::Popular { rank: one, at_ms, .. } if one == rank && at_ms * 1000 <= now_us)
        });
        let mut comms = Vec::new();
        for kind in [TP, DP, WORLD] {
            let at = self.group_of(kind, rank);
            let Group { members, nodes, .. } = &self.groups[kind][at];
            let (members, nodes) = (members.len(), *nodes);
            if members < 2 {
                continue;
            }
            let place = match kind {
                TP => rank % shape.tp,
                DP => rank / (shape.tp * shape.pp),
                _ => rank,
            };
            let id = id(kind, at);
            let recorded = !self.plan.events.contains(&Event::NoSteps {});
            let steps = if wanted.contains(&id) && nodes > 1 && recorded {
                self.steps_told(rank, kind, place, members)
            } else {
                Vec::new()
            };
            let nranks = members as u32;
            let state = &mut self.ranks[rank];
            let samples = picked(std::mem::take(&mut state.samples[kind]));
            let progress = progress(&state.collectives[kind], now_us, BYTES, kernels);
            comms.push(Comm {
                id,
                name: NAMES[kind].into(),
                rank: place as u32,
                nranks,
                nnodes: nodes as u32,
                age_ms: now_us / 1000,
                ended: over,
                collectives: vec![Collective { func: Func::AllReduce, progress }],
                p2p: Vec::new(),
                samples,
                steps,
            });
        }
        if shape.pp > 1 {
            comms.push(self.pipeline_told(rank, wanted, over, kernels));
        }
        if self.plan.events.iter().any(|event| matches!(event, Event::Popular { .. })) {
            comms.push(experts_told(rank, shape.ranks(), now_us, popular));
        }
        comms
    }

    fn pipeline_told(
        &mut self,
        rank: usize,
        wanted: &std::collections::BTreeSet<u64>,
        ended: bool,
        kernels: bool,
    ) -> Comm {
        let shape = self.plan.shape;
        let (now_us, stage) = (self.now_us, shape.stage(rank));
        let mut p2p = Vec::new();
        for (end, peer, send) in [
            (PREV_IN, stage.checked_sub(1), false),
            (PREV_OUT, stage.checked_sub(1), true),
            (NEXT_IN, Some(stage + 1), false),
            (NEXT_OUT, Some(stage + 1), true),
        ] {
            let Some(peer) = peer.filter(|peer| *peer < shape.pp) else { continue };
            let count = &mut self.ranks[rank].pairs[end];
            let kernel_us = count.take_window_us(kernels) as u32;
            let progress = progress(count, now_us, 1 << 20, kernels);
            p2p.push(P2p { peer: peer as u32, send, kernel_us, progress });
        }
        let (replica, t) = (rank / (shape.tp * shape.pp), rank % shape.tp);
        let id = id(3, replica * shape.tp + t);
        let mut steps = Vec::new();
        if wanted.contains(&id) {
            let slow = self.plan.events.iter().any(|event| {
                matches!(*event, Event::SlowPipe { rank: one, at_ms, .. } if one == rank && at_ms * 1000 <= now_us)
            });
            for peer in
                [stage.checked_sub(1), Some(stage + 1)].into_iter().flatten().filter(|peer| *peer < shape.pp)
            {
                let wire_us = 64 * if slow && peer > stage { STEP_US * 20 } else { STEP_US };
                let (peer, gpu_us, credit_us) = (peer as u32, 64 * 100, 64 * 5);
                steps.push(StepWait {
                    peer,
                    channel: 0,
                    send: true,
                    steps: 64,
                    gpu_us,
                    credit_us,
                    wire_us,
                    open: None,
                });
            }
        }
        Comm {
            id,
            name: "pp".into(),
            rank: stage as u32,
            nranks: shape.pp as u32,
            nnodes: shape.pp as u32,
            age_ms: now_us / 1000,
            ended,
            collectives: Vec::new(),
            p2p,
            samples: Vec::new(),
            steps,
        }
    }

    fn steps_told(&self, rank: usize, kind: usize, place: usize, members: usize) -> Vec<StepWait> {
        let at = |at_ms: u64| at_ms * 1000 <= self.now_us && kind == DP;
        let mut wire_us = STEP_US;
        let mut stuck = false;
        for event in &self.plan.events {
            if let Some(factor) = event.slows_link(rank, self.now_us).filter(|_| kind == DP) {
                wire_us = (STEP_US as f64 * factor * 10.0) as u64;
            }
            stuck |= matches!(*event, Event::StuckLink { rank: one, at_ms } if one == rank && at(at_ms));
        }
        let inside = self.ranks[rank].collectives[kind].started > self.ranks[rank].collectives[kind].finished;
        let open = inside.then_some(if stuck { StepState::Wire } else { StepState::Credit });
        let peer = ((place + 1) % members) as u32;
        let (steps, gpu_us, credit_us) = (64, 64 * 100, 64 * 5);
        vec![StepWait { peer, channel: 0, send: true, steps, gpu_us, credit_us, wire_us: 64 * wire_us, open }]
    }
}

/// As an agent picks them: by how many there are.
fn picked(mut samples: Vec<Sample>) -> Vec<Sample> {
    let stride = diag::c4d::digest::stride(samples.len() as u64);
    samples.retain(|one| diag::c4d::digest::sampled(one.seq, stride));
    samples.truncate(MAX_SAMPLES);
    samples
}

/// Ids of communicators.
pub fn id(kind: usize, at: usize) -> u64 {
    0x1000_0000 * (kind as u64 + 1) + at as u64
}

fn progress(count: &Count, now_us: u64, bytes: u64, kernels: bool) -> Progress {
    let age = |at_us: u64| (now_us - at_us) / 1000;
    let [started, finished] = if kernels {
        [(count.started, count.at_us[1]), (count.finished, count.at_us[2])]
    } else {
        count.told
    };
    Progress {
        enqueued: count.enqueued,
        started: started.0,
        finished: finished.0,
        enqueued_age_ms: age(count.at_us[0]),
        started_age_ms: age(started.1),
        finished_age_ms: age(finished.1),
        bytes,
    }
}

/// An all-to-all of experts, of which only the bytes matter here.
fn experts_told(rank: usize, ranks: usize, now_us: u64, popular: bool) -> Comm {
    let bytes = if popular { 48 << 20 } else { 16 << 20 };
    let count = now_us / 1_000_000;
    let peer = |peer: usize, send: bool| P2p {
        peer: peer as u32,
        send,
        kernel_us: 100,
        progress: Progress { enqueued: count, started: count, finished: count, bytes, ..Progress::default() },
    };
    let peers = (0..6).map(|step| (rank + step) % ranks);
    Comm {
        id: id(4, 0),
        name: "experts".into(),
        rank: rank as u32,
        nranks: ranks as u32,
        nnodes: 1,
        age_ms: now_us / 1000,
        ended: false,
        collectives: Vec::new(),
        p2p: peers.flat_map(|one| [peer(one, true), peer(one, false)]).collect(),
        samples: Vec::new(),
        steps: Vec::new(),
    }
}
