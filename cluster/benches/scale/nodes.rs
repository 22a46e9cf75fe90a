//! A process that holds one or more nodes of a job: it gets ready, begins when it is told, and says when each thing was done.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cluster::auth::{Authenticator, SiteKey};
use cluster::log::LogSink;
use cluster::munge::Munge;
use cluster::rendezvous::{JobKey, MeetConfig, meet};
use cluster::session::{Answers, Session};
use diag::facts::{Engine, GpuName, NodeFacts};
use diag::gpu_facts::{Compared, Known};
use diag::topology::Leaves;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use crate::argument;

/// Longer than any run takes: a bench has no other deadline.
const WINDOW: Duration = Duration::from_secs(120);
/// munged has few threads: more callers at once only wait for each other.
const ASKING_AT_ONCE: usize = 8;
/// Nodes below one leaf switch.
const BELOW_A_LEAF: u32 = 16;

/// What a process says when it is done: seconds of the machine's monotonic clock, and of processor time.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub struct Done {
    pub met: f64,
    pub first: f64,
    pub second: f64,
    pub cpu_s: f64,
    pub peak_kib: u64,
}

pub fn now(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Some nodes of a job of `of`.
pub struct Part {
    nodes: std::ops::Range<u32>,
    of: u32,
    first_port: u16,
    munge_socket: Option<String>,
    answer: usize,
}

impl Part {
    /// `None`: this is not such a process.
    pub fn of_arguments() -> Option<Self> {
        let (begin, end) = argument("part", "").split_once("..").map(|(a, b)| (a.parse(), b.parse()))?;
        let socket = argument("socket", "");
        Some(Self {
            nodes: begin.unwrap()..end.unwrap(),
            of: argument("of", "").parse().unwrap(),
            first_port: argument("port", "").parse().unwrap(),
            answer: argument("answer", "0").parse().unwrap(),
            munge_socket: (!socket.is_empty()).then_some(socket),
        })
    }

    /// The arguments that make a process this part.
    pub fn arguments(
        nodes: std::ops::Range<u32>,
        of: u32,
        port: u16,
        socket: &str,
        answer: u32,
    ) -> Vec<String> {
        let part = format!("part={}..{}", nodes.start, nodes.end);
        vec![
            part,
            format!("of={of}"),
            format!("port={port}"),
            format!("socket={socket}"),
            format!("answer={answer}"),
        ]
    }

    pub fn play(&self) {
        let auth = match &self.munge_socket {
            Some(socket) => Authenticator::Munge {
                munge: Munge::open(Path::new("libmunge.so.2"), Path::new(socket)).unwrap(),
                trusted: rustix::process::geteuid().as_raw(),
            },
            None => Authenticator::Key(SiteKey::from_secret(&[7; 64])),
        };
        raise_file_limit();
        // As the product's own: one thread.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(ASKING_AT_ONCE)
            .build()
            .unwrap();
        let names: Arc<[Arc<str>]> = (0..self.of).map(|node| name(node).into()).collect();
        let leaves = leaves(self.of);
        say("ready");
        hear("go");
        let begun = now(ClockId::ProcessCPUTime);
        let (done, sessions) = runtime.block_on(async {
            let started: Vec<_> = self
                .nodes
                .clone()
                .map(|me| {
                    let home = IpAddr::V4(Ipv4Addr::LOCALHOST);
                    let config = MeetConfig {
                        job: JobKey { cluster: "bench".into(), job_id: 0, restart: 0 },
                        nodes: Arc::clone(&names),
                        me,
                        addresses: [(0, home), (1, home)].into(),
                        ports: self.first_port..=self.first_port + 15,
                        leaves: if me <= 1 { leaves.clone() } else { Leaves::default() },
                        join_window: WINDOW,
                        auth: auth.clone(),
                        log: LogSink::silent(),
                    };
                    tokio::spawn(node(config, self.of, self.answer))
                })
                .collect();
            let mut last = [0.0_f64; 3];
            let mut sessions = Vec::new();
            for one in started {
                let (times, session) = one.await.unwrap();
                for (last, time) in last.iter_mut().zip(times) {
                    *last = last.max(time);
                }
                sessions.push(session);
            }
            say(&format!("{last:?}"));
            // What the others still send or read is served meanwhile.
            let stop = tokio::task::spawn_blocking(|| hear("stop"));
            stop.await.unwrap();
            (last, sessions)
        });
        let cpu_s = now(ClockId::ProcessCPUTime) - begun;
        let done = Done { met: done[0], first: done[1], second: done[2], cpu_s, peak_kib: peak_kib() };
        say(&serde_json::to_string(&done).unwrap());
        // The system takes it all back at once.
        std::mem::forget((sessions, runtime));
        std::process::exit(0);
    }
}

/// One node's way: when it had met the others, and passed each barrier.
async fn node(config: MeetConfig, of: u32, answer: usize) -> ([f64; 3], Session) {
    let mut session = meet(config.clone(), facts(config.me)).await.unwrap();
    assert_eq!(session.roster().able().count(), of as usize);
    let met = now(ClockId::Monotonic);
    // Of no length all are alike, as at a barrier; else each node has its own.
    let mine = format!("{:>answer$}", if answer > 0 { name(session.me()) } else { String::new() });
    let mut passed = [0.0; 2];
    for (tag, passed) in (1..).zip(&mut passed) {
        let all: Answers<String> = session.exchange(tag, &mine, Instant::now() + WINDOW).await.unwrap();
        assert!(all.len() == of as usize && all.lost().next().is_none());
        *passed = now(ClockId::Monotonic);
    }
    ([met, passed[0], passed[1]], session)
}

fn name(node: u32) -> String {
    format!("gpu-node-{node:05}")
}

/// What a node with eight GPUs says of itself. Its address follows no order, so that a roster can't be told shortly for one.
fn facts(node: u32) -> NodeFacts {
    let scattered = node.wrapping_mul(2_654_435_761) >> 8;
    NodeFacts {
        version: "0.1.0".into(),
        request_digest: "5f".repeat(32),
        engine: Engine::Cuda,
        address: Some(Ipv4Addr::from(0x0A00_0000 | scattered).into()),
        rank_ports: (0..8).map(|rank| 45_100 + rank).collect(),
        gpus: (0..8).map(|index| GpuName { index, model: "NVIDIA H200".into() }).collect(),
        libraries: "NCCL 2.28.9".into(),
        known: Known {
            facts: Vec::new(),
            compared: Compared { driver: Some("580.95.05".into()), ..Compared::default() },
        },
        unable: None,
    }
}

fn leaves(nodes: u32) -> Leaves {
    let leaf = |node| node / BELOW_A_LEAF;
    Leaves {
        names: (0..nodes.div_ceil(BELOW_A_LEAF)).map(|leaf| format!("leaf{leaf:04}")).collect(),
        of: (0..nodes).map(|node| Some(leaf(node))).collect(),
        ..Leaves::default()
    }
}

fn hear(word: &str) {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    assert_eq!(line.trim(), word);
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

/// As many descriptors as this user may have.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// Most memory that this process has held, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
