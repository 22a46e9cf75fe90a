//! Plays a rank of a job that makes one all-reduce after another: it loads the plugin as NCCL does and calls it as NCCL
//! does for one communicator of all ranks. `player FOLDER EVERY_MS`, as a task of Slurm's; FOLDER is the same on all nodes.
//!
//! An all-reduce begins where a rank comes to it, and ends when all have come, which they see by a file of counts. A file
//! `stop` in FOLDER with a rank's number holds that rank back from its next one, as a program does that works on and on; a
//! file `end` ends all of them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a player that can't play says so by its end")]

#[path = "../tests/plugin/nccl.rs"]
#[allow(dead_code, reason = "the tests of the plugin play more than this")]
mod nccl;

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nccl::{ALL_REDUCE, Coll, Comm, Nccl};
use nccl_profiler::handover::PLUGIN_VARIABLE;

/// NCCL 2.29.2 and later: of those no version is denied.
const API: u32 = 6;

/// NCCL's bit for the begin and the end of kernels.
const KERNELS: i32 = 1 << 6;

/// Between two looks at the counts.
const POLL: Duration = Duration::from_millis(2);

/// How often the files that hold back and end are looked for.
const LOOK: Duration = Duration::from_millis(50);

/// Ranks differ by up to this much before each operation, never the same one for long.
const JITTER_MS: u64 = 10;

/// Longest play: a test that was killed leaves no player behind.
const LONGEST: Duration = Duration::from_secs(600);

struct Player {
    folder: PathBuf,
    counts: File,
    rank: u64,
    ranks: u64,
    began: Instant,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, every_ms] = arguments.as_slice() else { return Err("usage: player FOLDER EVERY_MS".into()) };
    let number = |name: &str| -> Result<u64, Box<dyn Error>> {
        let text = std::env::var(name).map_err(|_| format!("{name} is not set: start it by srun"))?;
        Ok(text.parse()?)
    };
    let (rank, ranks, nodes) = (number("SLURM_PROCID")?, number("SLURM_NTASKS")?, number("SLURM_NNODES")?);
    let every = Duration::from_millis(every_ms.parse()?);
    let folder = PathBuf::from(folder);
    let counts =
        File::options().read(true).write(true).create(true).truncate(false).open(folder.join("counts"))?;
    let player = Player { folder, counts, rank, ranks, began: Instant::now() };
    println!("rank {rank} is process {}", std::process::id());

    let plugin = std::env::var(PLUGIN_VARIABLE).map_err(|_| "no profiler plugin is asked for")?;
    // The address of the log tells the plugin NCCL's version; without one it goes by the interface.
    let nccl = Nccl::load(Path::new(&plugin), API, std::ptr::null());
    let id = 0x5a00_0000_0000 + number("SLURM_JOB_ID")?;
    let context = nccl.init(Comm {
        id,
        name: c"played",
        nodes: i32::try_from(nodes)?,
        ranks: i32::try_from(ranks)?,
        rank: i32::try_from(rank)?,
    });
    let mut sequence = 0;
    while player.may_go_on(sequence) {
        let coll = Coll { sequence, ..ALL_REDUCE };
        // NCCL reads its mask before it tells of an operation.
        let mask = nccl.mask();
        let op = nccl.coll(context, coll);
        nccl.stop(op);
        let kernels: Vec<_> = (0..coll.channels)
            .filter(|_| mask & KERNELS != 0)
            .map(|channel| nccl.kernel(context, op, channel, player.now_ns()))
            .collect();
        sequence += 1;
        player.come(sequence)?;
        if !player.wait_for_all(sequence)? {
            break;
        }
        kernels.into_iter().for_each(|kernel| nccl.stop_channel(kernel, player.now_ns()));
        std::thread::sleep(every + Duration::from_millis(player.jitter_ms(sequence)));
    }
    nccl.finalize(context);
    println!("rank {rank} has ended");
    Ok(())
}

impl Player {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn jitter_ms(&self, sequence: u64) -> u64 {
        // Spreads ranks and operations over the range; nothing more is asked of it.
        ((self.rank + 31 * sequence).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % (JITTER_MS + 1)
    }

    fn come(&self, sequence: u64) -> std::io::Result<()> {
        self.counts.write_all_at(&sequence.to_le_bytes(), self.rank * 8)
    }

    /// Whether the other ranks have come as well; false: the play is over.
    fn wait_for_all(&self, sequence: u64) -> std::io::Result<bool> {
        let mut looked = Instant::now();
        loop {
            let mut bytes = vec![0; usize::try_from(self.ranks * 8).unwrap()];
            // Until the last rank came for the first time the file is shorter.
            let whole = self.counts.read_exact_at(&mut bytes, 0).is_ok();
            let counts = bytes.as_chunks::<8>().0.iter().map(|count| u64::from_le_bytes(*count));
            if whole && counts.min().is_some_and(|least| least >= sequence) {
                return Ok(true);
            }
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                if self.is_over() {
                    return Ok(false);
                }
            }
            std::thread::sleep(POLL);
        }
    }

    fn is_over(&self) -> bool {
        self.folder.join("end").exists() || self.began.elapsed() > LONGEST
    }

    /// False: the play is over. A rank that is held back comes no further, and says so once.
    fn may_go_on(&self, sequence: u64) -> bool {
        let held = || {
            let text = std::fs::read_to_string(self.folder.join("stop")).unwrap_or_default();
            text.trim().parse() == Ok(self.rank)
        };
        if held() {
            println!("rank {} does not come to {sequence}", self.rank);
        }
        while held() && !self.is_over() {
            std::thread::sleep(LOOK);
        }
        !self.is_over()
    }
}
