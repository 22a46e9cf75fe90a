//! One meeting: its processes are started, told to begin at once, and asked what it took.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use rustix::time::ClockId;

use crate::munged::Munged;
use crate::nodes::{Done, Part, now};

/// Each meeting has ports of its own: those of the one before are still fading.
static NEXT_PORT: AtomicU16 = AtomicU16::new(20_000);
const PORTS: u16 = 16;
const LAST_PORT: u16 = 32_000;

pub struct Plan {
    pub nodes: u32,
    pub processes: u32,
    pub answer: u32,
}

/// How nodes prove themselves.
pub enum Way<'m> {
    Munge(&'m Munged),
    Key,
}

/// What a meeting took, in seconds: `met`, `first` and `second` from the beginning until the last node was there.
pub struct Took {
    pub met: f64,
    pub first: f64,
    pub second: f64,
    pub leader_cpu: f64,
    pub deputy_cpu: f64,
    pub others_cpu: f64,
    pub munged_cpu: f64,
    pub leader_mib: f64,
}

impl Took {
    pub fn all_cpu(&self) -> f64 {
        self.leader_cpu + self.deputy_cpu + self.others_cpu + self.munged_cpu
    }
}

struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(arguments: Vec<String>) -> Self {
        let mut child = Command::new("/proc/self/exe")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn hear(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    fn tell(&mut self, word: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{word}").unwrap();
    }
}

pub fn run(plan: &Plan, way: &Way<'_>) -> Took {
    let port = NEXT_PORT.fetch_add(PORTS, Ordering::Relaxed);
    if port > LAST_PORT - 2 * PORTS {
        NEXT_PORT.store(20_000, Ordering::Relaxed);
    }
    let socket = match way {
        Way::Munge(munged) => munged.socket().display().to_string(),
        Way::Key => String::new(),
    };
    let mut parts = vec![0..1, 1..2];
    let others = plan.nodes - 2;
    for process in 0..plan.processes {
        parts.push(2 + others * process / plan.processes..2 + others * (process + 1) / plan.processes);
    }
    let start = |nodes| Process::start(Part::arguments(nodes, plan.nodes, port, &socket, plan.answer));
    let mut processes: Vec<_> = parts.into_iter().map(start).collect();
    for process in &mut processes {
        assert_eq!(process.hear(), "ready");
    }
    let spent = |way: &Way<'_>| if let Way::Munge(munged) = way { munged.cpu_s() } else { 0.0 };
    let (before, begin) = (spent(way), now(ClockId::Monotonic));
    processes.iter_mut().for_each(|process| process.tell("go"));
    processes.iter_mut().for_each(|process| drop(process.hear()));
    processes.iter_mut().for_each(|process| process.tell("stop"));
    let done: Vec<Done> =
        processes.iter_mut().map(|process| serde_json::from_str(&process.hear()).unwrap()).collect();
    for process in &mut processes {
        process.child.wait().unwrap();
    }
    let last = |when: fn(&Done) -> f64| done.iter().map(when).fold(0.0, f64::max) - begin;
    Took {
        met: last(|done| done.met),
        first: last(|done| done.first),
        second: last(|done| done.second),
        leader_cpu: done[0].cpu_s,
        deputy_cpu: done[1].cpu_s,
        others_cpu: done[2..].iter().map(|done| done.cpu_s).sum(),
        munged_cpu: spent(way) - before,
        leader_mib: done[0].peak_kib as f64 / 1024.0,
    }
}
