//! Plays a rank that is busy: it loads the plugin as NCCL does and calls it for so many all-reduces a second, in step with the
//! other ranks by the clock alone. `busy PER_SECOND SECONDS`, as a task of Slurm's.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a player that can't play says so by its end")]

#[path = "../tests/plugin/nccl.rs"]
#[allow(dead_code, reason = "the tests of the plugin play more than this")]
mod nccl;

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nccl::{ALL_REDUCE, Coll, Comm, Nccl};
use nccl_profiler::handover::PLUGIN_VARIABLE;

/// NCCL 2.29.2 and later: of those no version is denied.
const API: u32 = 6;

/// NCCL's bit for the begin and the end of kernels.
const KERNELS: i32 = 1 << 6;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [per_second, seconds] = arguments.as_slice() else {
        return Err("usage: busy PER_SECOND SECONDS".into());
    };
    let number = |name: &str| -> Result<u64, Box<dyn Error>> {
        let text = std::env::var(name).map_err(|_| format!("{name} is not set: start it by srun"))?;
        Ok(text.parse()?)
    };
    let (per_second, seconds): (u64, u64) = (per_second.parse()?, seconds.parse()?);
    let plugin = std::env::var(PLUGIN_VARIABLE).map_err(|_| "no profiler plugin is asked for")?;
    let nccl = Nccl::load(Path::new(&plugin), API, std::ptr::null());
    let context = nccl.init(Comm {
        id: 0x5a00_0000_0000 + number("SLURM_JOB_ID")?,
        name: c"busy",
        nodes: i32::try_from(number("SLURM_NNODES")?)?,
        ranks: i32::try_from(number("SLURM_NTASKS")?)?,
        rank: i32::try_from(number("SLURM_PROCID")?)?,
    });
    // All ranks count from the same full ten seconds on.
    let since = UNIX_EPOCH.elapsed()?.as_secs() / 10 * 10 + 10;
    let first = UNIX_EPOCH + Duration::from_secs(since);
    let began = Instant::now();
    let now_ns = || u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    for sequence in 0..per_second * seconds {
        let due = first + Duration::from_nanos(sequence * 1_000_000_000 / per_second);
        if let Ok(left) = due.duration_since(SystemTime::now()) {
            std::thread::sleep(left);
        }
        let mask = nccl.mask();
        let op = nccl.coll(context, Coll { sequence, ..ALL_REDUCE });
        nccl.stop(op);
        let kernels: Vec<_> = (0..ALL_REDUCE.channels)
            .filter(|_| mask & KERNELS != 0)
            .map(|channel| nccl.kernel(context, op, channel, now_ns()))
            .collect();
        kernels.into_iter().for_each(|kernel| nccl.stop_channel(kernel, now_ns()));
    }
    nccl.finalize(context);
    Ok(())
}
