//! `cargo xtask bench gpu`: the worker that measures in jobs beside what others measure with, by turns on the GPUs of
//! this machine. It prints numbers and judges nothing. What is not there (torch, nvcc, nccl-tests) is said in its row.
#![forbid(unsafe_code)]

mod cores;
mod machine;
mod ours;
mod theirs;
mod torch;
mod turns;

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cores::Cores;
use machine::Machine;
use ours::Ours;
use prolog::protocol::Collective;
use theirs::{Call, Launch, NcclTests};
use torch::Torch;
use turns::{Reading, Turns, by_turns, row, table};

/// Fewer say nothing of the spread.
const LEAST: usize = 5;

/// What all of it may take, and what each turn adds.
const START: Duration = Duration::from_secs(240);
const TURN: Duration = Duration::from_secs(60);

/// Turns of launches for each of the others: a launch is short, and its time depends on the core.
const LAUNCH_TURNS: usize = 5;

/// How long the GPUs rest before each product, so that both sides find them as a job does that has just got them.
const REST: Duration = Duration::from_secs(2);

/// The window of the others where our worker does not run.
const WINDOW: Duration = Duration::from_millis(400);

const COLLECTIVES: [(Collective, &str); 3] = [
    (Collective::AllReduce, "all_reduce"),
    (Collective::AllGather, "all_gather"),
    (Collective::AllToAll, "all_to_all"),
];

fn main() -> Result<()> {
    let repeats = repeats(std::env::args().skip(1))?;
    let machine = Machine::look()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let limit = START + TURN * u32::try_from(repeats).unwrap_or(u32::MAX);
    let done = runtime.block_on(async { tokio::time::timeout(limit, bench(&machine, repeats)).await });
    done.with_context(|| format!("the bench took longer than {} s", limit.as_secs()))?
}

/// `--repeats N`; cargo adds `--bench`.
fn repeats(mut arguments: impl Iterator<Item = String>) -> Result<usize> {
    let mut repeats = LEAST;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bench" => {}
            "--repeats" => {
                let text = arguments.next().context("--repeats needs a number")?;
                repeats = text.parse().with_context(|| format!("--repeats {text}"))?;
            }
            other => bail!("{other}: the only argument is --repeats N"),
        }
    }
    if repeats < LEAST {
        bail!("--repeats {repeats}: medians of fewer than {LEAST} mean little");
    }
    Ok(repeats)
}

/// Our side, or why there is none.
type Side = Result<Ours, String>;

async fn bench(machine: &Machine, repeats: usize) -> Result<()> {
    let uuids = &machine.uuids;
    let mut ours: Side = Ours::start(uuids).await.map_err(|error| format!("{error:#}"));
    let mut versions = Vec::new();
    // Launches first: the processes of the others are not there yet.
    let mut rows = launches(&mut ours, uuids, repeats, &mut versions).await;
    eprintln!("starting PyTorch");
    let mut torch = Torch::start(uuids).await;
    rows.extend(products(&mut ours, &mut torch, uuids, repeats).await);
    versions.extend(torch.as_ref().ok().map(|torch| torch.version.clone()));
    if uuids.len() > 1 {
        rows.extend(collectives(&mut ours, torch, uuids, repeats, &mut versions).await);
    }
    print!("\n{}", table(&rows));
    println!("\nmedians of {repeats} turns (least to greatest); a ratio is of one turn");
    if uuids.len() < 2 {
        println!("one GPU: collectives need two");
    }
    for line in machine.words() {
        println!("{line}");
    }
    if let Ok(ours) = &ours {
        println!("ours: {}", ours.versions.join(", "));
    }
    println!("theirs: {}", versions.join("; "));
    match ours {
        Ok(ours) => ours.stop().await,
        Err(why) => bail!("our side did not measure: {why}"),
    }
}

/// Kernel launches beside a plain loop, both on the same cores.
async fn launches(
    ours: &mut Side,
    uuids: &[String],
    repeats: usize,
    versions: &mut Vec<String>,
) -> Vec<[String; 6]> {
    eprintln!("launches");
    let mut launch = Launch::start(uuids).await;
    versions.extend(launch.as_ref().ok().map(|launch| launch.version.clone()));
    let processes: Vec<u32> =
        [ours.as_ref().ok().and_then(Ours::pid), launch.as_ref().ok().and_then(Launch::pid)]
            .into_iter()
            .flatten()
            .collect();
    // One for each GPU's thread, and one for what else a process does.
    let cores = Cores::of_this_process(uuids.len() + 1);
    let cores = || cores.as_ref().map_err(Clone::clone);
    let parts = ["launch call, median", "launch call, p99", "launch and end, median"];
    let mut rows = Vec::new();
    for (call, name) in [(Call::Driver, "cuLaunchKernel in C++"), (Call::Runtime, "cudaLaunchKernel in C++")]
    {
        // Two measurements a turn, on the same cores.
        let measured = Cell::new(0);
        let place = || cores()?.share(measured.replace(measured.get() + 1) / 2, &processes);
        let mine = async || {
            place()?;
            mine(ours)?.launches().await
        };
        let theirs = async || {
            place()?;
            launch.as_mut().map_err(|why| why.clone())?.launches(call).await
        };
        let turns = by_turns(repeats * LAUNCH_TURNS, mine, theirs).await;
        rows.extend((0..uuids.len() * parts.len()).map(|number| {
            let what = format!("{}, GPU {}", parts[number % parts.len()], number / parts.len());
            row(&what, "µs", name, &turns, number)
        }));
    }
    if let Err(why) = cores().and_then(|cores| cores.give_back(&processes)) {
        eprintln!("{why}");
    }
    rows
}

/// Products beside PyTorch's.
async fn products(
    ours: &mut Side,
    torch: &mut Result<Torch, String>,
    uuids: &[String],
    repeats: usize,
) -> Vec<[String; 6]> {
    eprintln!("products");
    let window = window(ours);
    let theirs = async || {
        tokio::time::sleep(REST).await;
        peer(torch)?.products(window).await
    };
    let mine = async || {
        tokio::time::sleep(REST).await;
        mine(ours)?.products().await
    };
    let turns = by_turns(repeats, mine, theirs).await;
    let row = |gpu| row(&format!("bf16 product, 8192, GPU {gpu}"), "TFLOP/s", "torch.matmul", &turns, gpu);
    (0..uuids.len()).map(row).collect()
}

/// Collectives beside nccl-tests, or beside PyTorch's where those are not there.
async fn collectives(
    ours: &mut Side,
    mut torch: Result<Torch, String>,
    uuids: &[String],
    repeats: usize,
    versions: &mut Vec<String>,
) -> Vec<[String; 6]> {
    let mut tests = NcclTests::find(uuids);
    let window = window(ours);
    let beside = match &tests {
        Ok(_) => {
            torch = Err("not used".to_owned());
            "nccl-tests".to_owned()
        }
        Err(missing) => format!("torch.distributed ({missing})"),
    };
    let mut rows = Vec::new();
    for (collective, name) in COLLECTIVES {
        eprintln!("{name}");
        let theirs = async || -> Reading {
            match &mut tests {
                Ok(tests) => tests.collective(collective).await,
                Err(_) => peer(&mut torch)?.collective(collective, window).await,
            }
        };
        let turns: Turns = by_turns(repeats, async || mine(ours)?.collective(collective).await, theirs).await;
        for (number, size) in ["4 MiB", "64 MiB", "1 GiB"].into_iter().enumerate() {
            rows.push(row(&format!("{name}, {size}"), "GB/s busbw", &beside, &turns, number));
        }
    }
    versions.extend(tests.ok().map(|tests| tests.version));
    rows
}

fn mine(ours: &mut Side) -> Result<&mut Ours, String> {
    ours.as_mut().map_err(|why| why.clone())
}

fn peer(torch: &mut Result<Torch, String>) -> Result<&mut Torch, String> {
    torch.as_mut().map_err(|why| why.clone())
}

fn window(ours: &Side) -> Duration {
    ours.as_ref().map_or(WINDOW, Ours::window)
}
