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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use nccl::{ALL_REDUCE, COMM, Coll, Handle, Nccl, ProxyOp};
use nccl_profiler::handover::SOCKET_VARIABLE;
use nccl_profiler::ring::{Kernels, Order};

/// Calls in a block: short against a change of the clock rate, long against a look at the clock.
const BLOCK: u64 = 2_000;
const ROUNDS: usize = 201;

/// All calls that NCCL 2.28 makes in the caller's thread for one all-reduce with the light mask. Handles that are null get no
/// further calls.
fn enqueue(nccl: &Nccl, context: Handle, sequence: u64, channels: u8) -> Handle {
    let end = |handle| {
        if handle != Handle::NULL {
            nccl.stop(handle);
        }
    };
    let api = nccl.start(context, 1 << 8, Handle::NULL, |_| {});
    let call = nccl.start(context, 1 << 9, api, |_| {});
    end(call);
    let group = nccl.start(context, 1, api, |_| {});
    let op = nccl.coll(context, Coll { sequence, channels, ..ALL_REDUCE });
    end(op);
    end(group);
    end(api);
    op
}

/// Channels of a small and of a large operation on GPUs that NVLink joins.
const CHANNELS: [u8; 2] = [2, 24];

/// All calls that it makes in the proxy's thread.
fn run_kernels(nccl: &Nccl, context: Handle, op: Handle, sequence: u64, channels: u8) {
    let mut kernels = [Handle::NULL; CHANNELS[1] as usize];
    for (kernel, channel) in kernels.iter_mut().zip(0..channels) {
        *kernel = nccl.kernel(context, op, channel, sequence);
    }
    for kernel in kernels.into_iter().filter(|kernel| *kernel != Handle::NULL) {
        nccl.stop_channel(kernel, sequence + 1);
    }
}

/// Steps of a network transfer: a MiB over two channels to a neighbour.
const STEPS: i32 = 4;

/// All calls that it makes in the proxy's thread for one transfer that is sent, while steps are asked for.
fn run_transfer(nccl: &Nccl, context: Handle) {
    let pid = std::process::id() as i32;
    let what = ProxyOp { pid, channel: 0, peer: 1, steps: STEPS, send: true };
    let transfer = nccl.proxy_op(context, Handle::NULL, &what);
    nccl.state(transfer, 19, 0);
    for number in 0..STEPS {
        let step = nccl.proxy_step(context, transfer, number);
        for state in [8, 20, 9] {
            nccl.state(step, state, 1 << 17);
        }
        nccl.stop(step);
    }
    nccl.stop(transfer);
}

/// The same as the first in two threads, as NCCL has it: the caller's and the proxy's, which the lines of memory that both write travel between.
/// Gives the time that the caller's thread was in the plugin, a call.
fn in_two_threads(nccl: &Nccl, context: Handle, from: u64, kernels: bool) -> f64 {
    let next = AtomicUsize::new(0);
    let ns = std::thread::scope(|scope| {
        scope.spawn(|| {
            for sequence in 0..BLOCK {
                let op = loop {
                    match next.load(Ordering::Acquire) {
                        0 => std::hint::spin_loop(),
                        op => break Handle(op),
                    }
                };
                if kernels {
                    run_kernels(nccl, context, op, from + sequence, CHANNELS[0]);
                }
                next.store(0, Ordering::Release);
            }
        });
        let mut ns = 0;
        for sequence in 0..BLOCK {
            let began = Instant::now();
            let op = enqueue(nccl, context, from + sequence, CHANNELS[0]);
            ns += began.elapsed().as_nanos();
            // Null has a handle too; without one the proxy's thread does nothing.
            next.store(op.0.max(1), Ordering::Release);
            while next.load(Ordering::Acquire) != 0 {
                std::hint::spin_loop();
            }
        }
        ns
    });
    ns as f64 / BLOCK as f64
}

struct Subject {
    name: &'static str,
    nccl: Nccl,
    context: Handle,
    kernels: bool,
    sequence: u64,
    /// All calls, in one thread, by channels.
    ns: [Vec<f64>; 2],
    /// The caller's calls, with another thread for the others.
    caller_ns: Vec<f64>,
    /// A network transfer's.
    transfer_ns: Vec<f64>,
}

impl Subject {
    fn new(name: &'static str, file: &Path, log: *const std::ffi::c_void, kernels: bool) -> Self {
        let nccl = Nccl::load(file, 5, log);
        let context = nccl.init(COMM);
        assert_ne!(context, Handle::NULL, "{name} is off");
        Self {
            name,
            nccl,
            context,
            kernels,
            sequence: 0,
            ns: [Vec::new(), Vec::new()],
            caller_ns: Vec::new(),
            transfer_ns: Vec::new(),
        }
    }

    fn block(&mut self) {
        for (at, channels) in CHANNELS.into_iter().enumerate() {
            let began = Instant::now();
            for _ in 0..BLOCK {
                self.sequence += 1;
                let op = enqueue(&self.nccl, self.context, self.sequence, channels);
                if self.kernels {
                    run_kernels(&self.nccl, self.context, op, self.sequence, channels);
                }
            }
            self.ns[at].push(began.elapsed().as_nanos() as f64 / BLOCK as f64);
        }
        let began = Instant::now();
        for _ in 0..BLOCK {
            run_transfer(&self.nccl, self.context);
        }
        self.transfer_ns.push(began.elapsed().as_nanos() as f64 / BLOCK as f64);
        self.sequence += BLOCK;
        self.caller_ns.push(in_two_threads(&self.nccl, self.context, self.sequence, self.kernels));
    }
}

fn report(name: &str, ns: &mut [f64]) -> f64 {
    ns.sort_by(f64::total_cmp);
    let at = |part: usize| ns[(ns.len() - 1) * part / 100];
    println!(
        "{name:28} {:7.1} ns  (5 % {:.1}, 25 % {:.1}, 75 % {:.1}, 95 % {:.1})",
        at(50),
        at(5),
        at(25),
        at(75),
        at(95)
    );
    at(50)
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
    println!("one all-reduce, {ROUNDS} blocks of {BLOCK}; all calls in one thread:");
    let all = [0, 1].map(|at| {
        println!("on {} channels:", CHANNELS[at]);
        subjects.each_mut().map(|one| report(one.name, &mut one.ns[at]))
    });
    println!("the caller's calls, the others in a second thread:");
    let caller = subjects.each_mut().map(|one| report(one.name, &mut one.caller_ns));
    for (what, ns) in [("all", all[0]), ("all of a large one", all[1]), ("the caller's", caller)] {
        println!(
            "ours over null, {what}: {:.1} ns with KernelCh, {:.1} ns without",
            ns[1] - ns[0],
            ns[3] - ns[2]
        );
    }
    println!("one network transfer of {STEPS} steps, while steps are asked for:");
    let [null, ours, ..] = subjects.each_mut();
    let transfer = [null, ours].map(|one| report(one.name, &mut one.transfer_ns));
    println!("ours over null, a step: {:.1} ns", (transfer[1] - transfer[0]) / f64::from(STEPS));
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
