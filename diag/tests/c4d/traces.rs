//! Recorded traces of a real NCCL, turned into digests as an agent does it, and judged. A trace lasts less than a second, so
//! that it is played several times, one after the other, with sequence numbers that go on.

use std::collections::BTreeMap;

use diag::c4d::digest::{
    Collective, Comm, Digest, Func, Gpu, MAX_SAMPLES, P2p, Process, ProcessState, Progress, Rank, Sample,
    Telemetry, sampled, stride,
};
use diag::c4d::finding::{Class, Finding, State};
use diag::c4d::picture::Picture;
use diag::c4d::settings::Settings;
use diag::c4d::step;

/// One line of a trace.
#[derive(Debug, Clone)]
struct Line {
    at_ns: u64,
    call: String,
    /// The first word that is no field.
    kind: String,
    fields: BTreeMap<String, String>,
}

impl Line {
    fn read(text: &str) -> Self {
        let mut columns = text.split('\t');
        let (at, call) = (columns.next().unwrap(), columns.next().unwrap());
        let mut fields = BTreeMap::new();
        let mut kind = String::new();
        for word in columns.next().unwrap_or("").split(' ') {
            match word.split_once('=') {
                Some((key, value)) => drop(fields.insert(key.to_owned(), value.to_owned())),
                None => word.clone_into(&mut kind),
            }
        }
        Self { at_ns: at.parse().unwrap(), call: call.to_owned(), kind, fields }
    }

    fn number(&self, key: &str) -> u64 {
        self.fields[key].parse().unwrap()
    }
}

fn trace(name: &str, rank: usize) -> Vec<Line> {
    let path = format!("{}/../nccl-profiler/tests/traces/{name}.rank{rank}.tsv", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap().lines().map(Line::read).collect()
}

/// An operation that was enqueued.
#[derive(Debug, Clone)]
struct Op {
    comm: u64,
    what: What,
    bytes: u64,
    channels: u64,
    begun: u64,
    ended: u64,
    first_ns: u64,
    last_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Collective(Func, u64),
    Pair(u32, bool),
}

#[derive(Debug, Clone, Default)]
struct Seen {
    progress: Progress,
    at_ms: [u64; 3],
    kernel_us: u32,
}

/// What one rank's agent knows.
#[derive(Debug, Default)]
struct Agent {
    /// By context: communicator's id, ranks, rank, when it was made.
    comms: BTreeMap<u64, (u64, u32, u32, u64)>,
    ended: Vec<u64>,
    ops: BTreeMap<u64, Op>,
    seen: BTreeMap<(u64, Func), Seen>,
    pairs: BTreeMap<(u64, u32, bool), Seen>,
    samples: BTreeMap<u64, Vec<Sample>>,
    /// Sequence numbers of the passes before.
    before: u64,
}

/// The function of this name in a trace.
fn function(name: &str) -> Func {
    Func::ALL.into_iter().find(|func| func.text().eq_ignore_ascii_case(name)).unwrap_or(Func::Other)
}

impl Agent {
    fn take(&mut self, line: &Line, now_ms: u64, window_ops: u64) {
        match (line.call.as_str(), line.kind.as_str()) {
            ("init", _) => {
                let id = u64::from_str_radix(&line.fields["comm"], 16).unwrap();
                let (ranks, rank) = (line.number("ranks") as u32, line.number("rank") as u32);
                self.comms.insert(line.number("ctx"), (id, ranks, rank, now_ms));
            }
            ("finalize", _) => self.ended.push(line.number("ctx")),
            ("start", "Coll") => {
                let func = function(&line.fields["func"]);
                let seq = line.number("seq") + self.before;
                let size = if line.fields["dtype"].ends_with("Float32") { 4 } else { 1 };
                let bytes = line.number("count") * size;
                self.enqueue(line, What::Collective(func, seq), bytes, line.number("ch"));
                let seen = self.seen.entry((line.number("ctx"), func)).or_default();
                (seen.progress.enqueued, seen.at_ms[0]) = (seq + 1, now_ms);
                seen.progress.bytes = bytes;
            }
            ("start", "P2p") => {
                let (peer, send) = (line.number("peer") as u32, line.fields["func"] == "Send");
                self.enqueue(line, What::Pair(peer, send), line.number("count") * 4, 2);
                let seen = self.pairs.entry((line.number("ctx"), peer, send)).or_default();
                (seen.progress.enqueued, seen.at_ms[0]) = (seen.progress.enqueued + 1, now_ms);
            }
            ("start", "KernelCh") => self.kernel(line, now_ms, window_ops, true),
            ("state", "KernelCh") => self.kernel(line, now_ms, window_ops, false),
            _ => {}
        }
    }

    fn enqueue(&mut self, line: &Line, what: What, bytes: u64, channels: u64) {
        let comm = line.number("ctx");
        let op = Op { comm, what, bytes, channels, begun: 0, ended: 0, first_ns: u64::MAX, last_ns: 0 };
        self.ops.insert(line.number("id"), op);
    }

    /// A channel of a kernel begins or ends. The operation has begun with its first, and ended with its last channel.
    fn kernel(&mut self, line: &Line, now_ms: u64, window_ops: u64, begins: bool) {
        // The end names its own event; its parent was noted at the beginning.
        let parent = if begins { line.number("parent") } else { self.parent_of(line.number("id")) };
        if begins {
            let id = line.number("id");
            self.ops.insert(id, Op { comm: parent, channels: 0, ..self.ops[&parent].clone() });
        }
        let gpu_ns = line.number("gpu_ns");
        let Some(op) = self.ops.get_mut(&parent) else { return };
        if begins {
            op.begun += 1;
            op.first_ns = op.first_ns.min(gpu_ns);
        } else {
            op.ended += 1;
            op.last_ns = op.last_ns.max(gpu_ns);
        }
        let op = op.clone();
        let seen = match op.what {
            What::Collective(func, _) => self.seen.entry((op.comm, func)).or_default(),
            What::Pair(peer, send) => self.pairs.entry((op.comm, peer, send)).or_default(),
        };
        if begins && op.begun == 1 {
            (seen.progress.started, seen.at_ms[1]) = (seen.progress.started + 1, now_ms);
        }
        if !begins && op.ended == op.channels {
            (seen.progress.finished, seen.at_ms[2]) = (seen.progress.finished + 1, now_ms);
            let kernel_us = ((op.last_ns - op.first_ns) / 1000) as u32;
            seen.kernel_us += kernel_us;
            if let What::Collective(func, seq) = op.what
                && sampled(seq, stride(window_ops))
            {
                let samples = self.samples.entry(op.comm).or_default();
                if samples.len() < MAX_SAMPLES {
                    samples.push(Sample { func, seq, bytes: op.bytes, kernel_us });
                }
            }
        }
    }

    /// The operation of a kernel's event; a copy of it stands under the event's own id, with the parent as communicator.
    fn parent_of(&self, id: u64) -> u64 {
        self.ops[&id].comm
    }

    fn told(&mut self, node: u32, now_ms: u64, busy: u8) -> Rank {
        let progress = |seen: &Seen| Progress {
            enqueued_age_ms: now_ms - seen.at_ms[0],
            started_age_ms: now_ms - seen.at_ms[1],
            finished_age_ms: now_ms - seen.at_ms[2],
            ..seen.progress
        };
        let mut comms = Vec::new();
        for (ctx, (id, nranks, rank, born_ms)) in &self.comms {
            let collectives = self.seen.iter().filter(|((of, _), _)| of == ctx);
            let pairs = self.pairs.iter().filter(|((of, ..), _)| of == ctx);
            comms.push(Comm {
                id: *id,
                name: String::new(),
                rank: *rank,
                nranks: *nranks,
                nnodes: 2,
                age_ms: now_ms - born_ms,
                ended: self.ended.contains(ctx),
                collectives: collectives
                    .map(|((_, func), seen)| Collective { func: *func, progress: progress(seen) })
                    .collect(),
                p2p: pairs
                    .map(|((_, peer, send), seen)| P2p {
                        peer: *peer,
                        send: *send,
                        kernel_us: seen.kernel_us,
                        progress: progress(seen),
                    })
                    .collect(),
                samples: self.samples.remove(ctx).unwrap_or_default(),
                steps: Vec::new(),
            });
        }
        Rank {
            pid: 500 + node,
            task: Some(node),
            gpu: Some(Gpu { index: 0, uuid: String::new(), busy_percent: Some(busy) }),
            process: Process { state: ProcessState::Sleeping, wchan: String::new(), io_bytes: Some(0) },
            telemetry: Telemetry::Ok,
            kernels: true,
            comms,
        }
    }
}

/// Plays a trace so many times and waits until `to_ms`; what was found. Node i plays the file of `ranks[i]`.
fn play(name: &str, ranks: [usize; 2], passes: u64, to_ms: u64) -> Vec<(u64, Finding)> {
    let traces = ranks.map(|rank| trace(name, rank));
    let start_ns = traces.iter().map(|lines| lines[0].at_ns).min().unwrap();
    let end_ns = traces.iter().flatten().map(|line| line.at_ns).max().unwrap();
    let pass_ms = (end_ns - start_ns) / 1_000_000 + 5;
    let ops = traces[0].iter().filter(|line| line.call == "start" && line.kind == "Coll");
    let highest = ops.clone().map(|line| line.number("seq")).max().unwrap() + 1;
    let window_ops = ops.count() as u64 * 1000 / pass_ms;
    let mut agents = [Agent::default(), Agent::default()];
    let mut todo: Vec<(u64, usize, u64, &Line)> = Vec::new();
    for pass in 0..passes {
        for (rank, lines) in traces.iter().enumerate() {
            // A communicator is made in the first pass and ends in the last one.
            let once = |line: &&Line| match line.call.as_str() {
                "init" => pass == 0,
                "finalize" => pass + 1 == passes,
                _ => true,
            };
            let at = |line: &Line| pass * pass_ms + (line.at_ns - start_ns) / 1_000_000;
            todo.extend(lines.iter().filter(once).map(|line| (at(line), rank, pass, line)));
        }
    }
    todo.sort_by_key(|(at_ms, ..)| *at_ms);
    let mut todo = todo.into_iter().peekable();
    let mut picture = Picture::new(vec!["n0".into(), "n1".into()]);
    let mut said = Vec::new();
    for (number, now_ms) in (1..=to_ms / 1000).map(|second| second * 1000).enumerate() {
        while let Some((at_ms, rank, pass, line)) = todo.next_if(|(at_ms, ..)| *at_ms <= now_ms) {
            agents[rank].before = pass * highest;
            agents[rank].take(line, at_ms, window_ops);
        }
        let digests: Vec<Digest> = (0..2)
            .map(|node| {
                let open = agents[node].seen.values().any(|seen| seen.progress.is_open());
                let ranks = vec![agents[node].told(node as u32, now_ms, if open { 100 } else { 0 })];
                Digest { node: node as u32, number: number as u64, ending: false, ranks }
            })
            .collect();
        let changes = step(&mut picture, &digests, now_ms, &Settings::default());
        said.extend(changes.into_iter().map(|finding| (now_ms, finding)));
    }
    said
}

fn named(said: &[(u64, Finding)]) -> Vec<(Class, Vec<u32>)> {
    let confirmed = said.iter().filter(|(_, one)| one.state == State::Confirmed);
    confirmed.map(|(_, one)| (one.class, one.suspects.iter().map(|who| who.node).collect())).collect()
}

#[test]
fn a_clean_run_and_a_run_with_graphs_find_nothing() {
    for (name, passes) in [("clean-light", 60), ("graph-light", 300)] {
        let said = play(name, [0, 1], passes, 90_000);
        assert!(said.is_empty(), "{name}: {said:#?}");
    }
}

#[test]
fn the_straggler_is_rank_1() {
    let said = play("straggler-light", [0, 1], 60, 38_000);
    assert_eq!(named(&said), [(Class::Straggler, vec![1])], "{said:#?}");
    // 50 ms in ten of eleven late operations.
    let finding = &said[0].1;
    assert!(finding.evidence[0].contains("the others waited 48"), "{:?}", finding.evidence);
    // The files of the two ranks in the other order: it is what they hold that counts.
    let said = play("straggler-light", [1, 0], 60, 38_000);
    assert_eq!(named(&said), [(Class::Straggler, vec![0])], "{said:#?}");
}

#[test]
fn the_missing_rank_is_rank_1() {
    let said = play("missing-light", [0, 1], 1, 40_000);
    assert_eq!(named(&said), [(Class::NonCommunicationHang, vec![1])], "{said:#?}");
    let (at_ms, finding) = &said[0];
    assert!(*at_ms <= 15_000, "{at_ms}");
    assert!(finding.message.contains("AllReduce 8"), "{}", finding.message);
    let said = play("missing-light", [1, 0], 1, 40_000);
    assert_eq!(named(&said), [(Class::NonCommunicationHang, vec![0])], "{said:#?}");
}
