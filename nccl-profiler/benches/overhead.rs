//! What a small collective costs in the plugin, beside a plugin that does nothing with the same mask: `cargo bench -p
//! nccl-profiler`. Blocks of calls take turns, so that a change of the clock rate meets all alike.
//!
//! It is the cost of the calls alone. NCCL's own part, which comes with the mask, is measured with NCCL and the null plugin on GPUs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a tool for developers")]

#[path = "../tests/plugin/agent.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod agent;
#[path = "../tests/plugin/nccl.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod nccl;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use nccl::{ALL_REDUCE, COMM, Coll, Handle, Nccl};
use nccl_profiler::handover::SOCKET_VARIABLE;
use nccl_profiler::ring::{Kernels, Order};

/// Calls in a block: short against a change of the clock rate, long against a look at the clock.
const BLOCK: u64 = 2_000;
const ROUNDS: usize = 201;

/// All calls that NCCL 2.28 makes for one all-reduce on two channels with the light mask. Handles that are null get no further
/// calls.
fn all_reduce(nccl: &Nccl, context: Handle, sequence: u64, kernels: bool) {
    let end = |handle| {
        if handle != Handle::NULL {
            nccl.stop(handle);
        }
    };
    let api = nccl.start(context, 1 << 8, Handle::NULL, |_| {});
    let call = nccl.start(context, 1 << 9, api, |_| {});
    end(call);
    let group = nccl.start(context, 1, api, |_| {});
    let op = nccl.coll(context, Coll { sequence, ..ALL_REDUCE });
    end(op);
    end(group);
    end(api);
    if !kernels {
        return;
    }
    let channels = [nccl.kernel(context, op, 0, sequence), nccl.kernel(context, op, 1, sequence)];
    for kernel in channels {
        if kernel != Handle::NULL {
            nccl.stop_channel(kernel, sequence + 1);
        }
    }
}

struct Subject {
    name: &'static str,
    nccl: Nccl,
    context: Handle,
    kernels: bool,
    sequence: u64,
    ns: Vec<f64>,
}

impl Subject {
    fn new(name: &'static str, file: &Path, log: *const std::ffi::c_void, kernels: bool) -> Self {
        let nccl = Nccl::load(file, 5, log);
        let context = nccl.init(COMM);
        assert_ne!(context, Handle::NULL, "{name} is off");
        Self { name, nccl, context, kernels, sequence: 0, ns: Vec::new() }
    }

    fn block(&mut self) {
        let began = Instant::now();
        for _ in 0..BLOCK {
            self.sequence += 1;
            all_reduce(&self.nccl, self.context, self.sequence, self.kernels);
        }
        self.ns.push(began.elapsed().as_nanos() as f64 / BLOCK as f64);
    }

    fn report(&mut self) -> f64 {
        self.ns.sort_by(f64::total_cmp);
        let at = |part: usize| self.ns[(self.ns.len() - 1) * part / 100];
        println!(
            "{:28} {:7.1} ns  (5 % {:.1}, 25 % {:.1}, 75 % {:.1}, 95 % {:.1})",
            self.name,
            at(50),
            at(5),
            at(25),
            at(75),
            at(95)
        );
        at(50)
    }
}

fn build() -> (PathBuf, PathBuf, PathBuf) {
    let program = std::env::current_exe().unwrap();
    let target = program.ancestors().nth(3).unwrap();
    for arguments in [
        &["build", "--profile", "plugin", "-p", "nccl-profiler-plugin"][..],
        &["build", "--release", "-p", "nccl-profiler", "--examples"],
    ] {
        let mut cargo = Command::new(env!("CARGO"));
        let done = cargo.args(arguments).arg("--target-dir").arg(target).status().unwrap();
        assert!(done.success());
    }
    let examples = target.join("release/examples");
    (
        target.join("plugin/libnccl_profiler_aimaster.so"),
        examples.join("libnull_profiler.so"),
        examples.join("libfake_nccl.so"),
    )
}

fn main() {
    let (ours, null, fake) = build();
    let name = format!("aimaster-c4d/bench/{}", std::process::id());
    let listener = agent::listener(&name, rustix::net::SocketType::SEQPACKET, 4);
    // SAFETY: there is one thread.
    unsafe { std::env::set_var(SOCKET_VARIABLE, &name) };
    // SAFETY: the file has this function and no initialiser; it stays loaded.
    let log = unsafe {
        let library = libloading::Library::new(fake).unwrap();
        let log = *library.get::<*const std::ffi::c_void>(b"fake_nccl_log").unwrap();
        std::mem::forget(library);
        log
    };
    let mut subjects = [
        Subject::new("null, KernelCh", &null, log, true),
        Subject::new("ours, KernelCh", &ours, log, true),
        Subject::new("null, without KernelCh", &null, log, false),
        Subject::new("ours, without KernelCh", &ours, log, false),
    ];
    let (_, ring) = agent::message(&rustix::net::accept(&listener).unwrap()).unwrap();
    let ring = ring.unwrap();
    for round in 0..ROUNDS as u16 {
        for subject in &mut subjects {
            let kernels = if subject.kernels { Kernels::On } else { Kernels::Off };
            let number = round * 4 + 1 + u16::from(subject.kernels);
            let order = Order { number, telemetry: true, kernels, steps_ms: 0 };
            ring.order(order);
            subject.block();
        }
    }
    println!("one small all-reduce on two channels, {ROUNDS} blocks of {BLOCK}:");
    let medians: Vec<f64> = subjects.iter_mut().map(Subject::report).collect();
    println!(
        "ours over null: {:.1} ns with KernelCh, {:.1} ns without",
        medians[1] - medians[0],
        medians[3] - medians[2]
    );
    let mut time = Vec::new();
    for _ in 0..ROUNDS {
        let began = Instant::now();
        for _ in 0..BLOCK {
            std::hint::black_box(Instant::now());
        }
        time.push(began.elapsed().as_nanos() as f64 / BLOCK as f64);
    }
    time.sort_by(f64::total_cmp);
    println!(
        "of which a look at this machine's clock: {:.1} ns, three with KernelCh, one without",
        time[ROUNDS / 2]
    );
}
