//! `cargo xtask bench telemetry`: what the check while a job runs costs the job. nccl-tests' all-reduce over all GPUs of this
//! machine, by turns without a profiler plugin, with one that does nothing, and with ours, whose ring the agent's own
//! code reads once a second and whose orders it writes. It prints numbers and judges nothing.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use epilog::c4d::ranks::Ranks;
use epilog::c4d::socket::{Arrivals, Door};
use nccl_profiler::handover::{PLUGIN_VARIABLE, SOCKET_VARIABLE};
use tokio::process::Command;
use tokio::time::{interval, timeout};

/// From a small all-reduce to one that the links bound, in bytes.
const SIZES: [u64; 5] = [8, 32 << 10, 1 << 20, 8 << 20, 64 << 20];

/// Each size runs for about so long: a window of kernel events comes every 5 s at the latest.
const RUN: Duration = Duration::from_secs(6);

/// Operations of the run that tells how many fill [`RUN`].
const PROBE: u32 = 2_000;

/// A probe, contexts and a communicator included.
const LIMIT: Duration = Duration::from_secs(60);

/// Fewer say nothing of the spread.
const LEAST: usize = 3;

/// The events that a plugin asks for all the time: collectives, sends and receives; and with begin and end of kernels.
const LIGHT_MASK: &str = "6";
const KERNEL_MASK: &str = "70";

#[derive(Debug, Clone, Copy)]
enum With {
    Nothing,
    Null { mask: &'static str },
    Ours,
}

const ALL: [(&str, With); 4] = [
    ("no plugin", With::Nothing),
    ("null, light", With::Null { mask: LIGHT_MASK }),
    ("null, kernels", With::Null { mask: KERNEL_MASK }),
    ("ours", With::Ours),
];

struct Files {
    tests: PathBuf,
    null: PathBuf,
    ours: PathBuf,
}

impl Files {
    fn find() -> Result<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let tests = std::env::split_paths(&path).map(|folder| folder.join("all_reduce_perf"));
        let tests = tests.into_iter().find(|file| file.is_file());
        let tests = tests.context("nccl-tests' all_reduce_perf is not on the PATH")?;
        let program = std::env::current_exe()?;
        let release = program.ancestors().nth(2).context("where is this program?")?;
        let ours = [release.join("../plugin"), release.to_owned()];
        let ours = ours.iter().map(|folder| folder.join("libnccl_profiler_aimaster.so"));
        let ours = ours.into_iter().find(|file| file.is_file());
        let ours = ours.context("`cargo build --profile plugin -p nccl-profiler-plugin` makes the plugin")?;
        let null = release.join("examples/libnull_profiler.so");
        if !null.is_file() {
            bail!("`cargo build --release -p nccl-profiler --examples` makes {}", null.display());
        }
        Ok(Self { tests, null, ours })
    }
}

/// How many GPUs nccl-tests finds: it fails beyond.
fn gpus() -> Result<usize> {
    let devices = std::fs::read_dir("/dev").context("/dev")?.flatten();
    let is_gpu = |name: &str| {
        name.strip_prefix("nvidia")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    match devices.filter(|entry| entry.file_name().to_str().is_some_and(is_gpu)).count() {
        0 | 1 => bail!("it takes two GPUs: one sends nothing"),
        many => Ok(many),
    }
}

/// One run: µs an all-reduce, and how many rings came.
async fn measure(
    files: &Files,
    gpus: usize,
    with: With,
    bytes: u64,
    operations: u32,
) -> Result<(f64, usize)> {
    let name = format!("aimaster-c4d/bench/{}", std::process::id());
    let mut command = Command::new(&files.tests);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"NCCL_")) {
        command.env_remove(name);
    }
    let (size, operations, gpus) = (bytes.to_string(), operations.to_string(), gpus.to_string());
    command.args(["-b", &size, "-e", &size, "-w", "200", "-n", &operations, "-c", "0", "-g", &gpus]);
    command.env("NCCL_NVLS_ENABLE", "0").stdin(Stdio::null()).stderr(Stdio::piped()).stdout(Stdio::piped());
    let plugin = |command: &mut Command, path: &Path| _ = command.env(PLUGIN_VARIABLE, path);
    match with {
        With::Nothing => {}
        With::Null { mask } => {
            plugin(&mut command, &files.null);
            command.env("NULL_PROFILER_MASK", mask);
        }
        With::Ours => {
            plugin(&mut command, &files.ours);
            command.env(SOCKET_VARIABLE, &name);
        }
    }
    let mut arrivals = Arrivals::new(Door::open(&name, rustix::process::geteuid().as_raw())?)?;
    let mut ranks = Ranks::new(0, &[]);
    let mut rings = 0;
    let mut tick = interval(Duration::from_secs(1));
    let output = command.kill_on_drop(true).spawn().context("all_reduce_perf")?.wait_with_output();
    let mut output = std::pin::pin!(timeout(LIMIT + 3 * RUN, output));
    let output = loop {
        tokio::select! {
            output = &mut output => break output.context("all_reduce_perf did not end")??,
            came = arrivals.next() => match came {
                Ok(arrival) => {
                    rings += usize::from(arrival.ring.is_some());
                    ranks.admit(arrival);
                }
                Err(refusal) => bail!("the agent refused a rank: {}", refusal.because),
            },
            _ = tick.tick() => drop(ranks.look(Instant::now())),
        }
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let row = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = row.into_iter().find(|row| row.first() == Some(&size.as_str()) && row.len() > 5);
    let time = row.and_then(|row| row[5].parse().ok());
    let time = time.with_context(|| format!("{said}{}", String::from_utf8_lossy(&output.stderr)))?;
    Ok((time, rings))
}

fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
}

/// `--repeats N` and `--sizes BYTES,...`; cargo adds `--bench`.
fn asked(mut arguments: impl Iterator<Item = String>) -> Result<(usize, Vec<u64>)> {
    let (mut repeats, mut sizes) = (LEAST, SIZES.to_vec());
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--bench" => {}
            "--repeats" => repeats = value()?.parse()?,
            "--sizes" => {
                sizes = value()?.split(',').map(str::parse).collect::<Result<_, _>>().context("--sizes")?;
            }
            other => bail!("{other}: the arguments are --repeats N and --sizes BYTES,..."),
        }
    }
    if repeats < LEAST {
        bail!("--repeats {repeats}: medians of fewer than {LEAST} mean little");
    }
    Ok((repeats, sizes))
}

fn main() -> Result<()> {
    let (repeats, sizes) = asked(std::env::args().skip(1))?;
    let (files, gpus) = (Files::find()?, gpus()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!("all-reduce over {gpus} GPUs, µs each, median of {repeats} turns (least to greatest)");
    println!("{:>10}  {:<14} {:>28}  {:>9}  {:>8}", "bytes", "with", "µs", "more, µs", "more, %");
    for bytes in sizes {
        let (probe, _) = runtime.block_on(measure(&files, gpus, With::Nothing, bytes, PROBE))?;
        let fill = RUN.as_secs_f64() * 1e6 / probe;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let operations = fill.clamp(100.0, 2e6) as u32;
        let mut times: [Vec<f64>; ALL.len()] = Default::default();
        for turn in 0..repeats {
            // Who begins changes: the others find a warmer GPU.
            for place in (0..ALL.len()).map(|place| (place + turn) % ALL.len()) {
                let (name, with) = ALL[place];
                let (time, rings) = runtime.block_on(measure(&files, gpus, with, bytes, operations))?;
                if matches!(with, With::Ours) && rings == 0 {
                    bail!("{name}: no rank handed over a ring");
                }
                times[place].push(time);
            }
        }
        for ((name, _), times_of) in ALL.iter().zip(&times) {
            // Turn by turn: a drift of the machine meets both.
            let more: Vec<f64> = times_of.iter().zip(&times[0]).map(|(one, none)| one - none).collect();
            let share: Vec<f64> =
                more.iter().zip(&times[0]).map(|(more, none)| 100.0 * more / none).collect();
            let (least, greatest) = times_of
                .iter()
                .fold((f64::MAX, 0.0_f64), |(least, most), one| (least.min(*one), most.max(*one)));
            let shown = format!("{:.2} ({least:.2} to {greatest:.2})", median(times_of));
            println!("{bytes:>10}  {name:<14} {shown:>28}  {:>9.2}  {:>8.2}", median(&more), median(&share));
        }
    }
    Ok(())
}
