//! What the tasks of a step tell each other by MPI before they measure: on which node each of them is, and a key of this run
//! alone, so that neither MUNGE nor Slurm's environment is needed. MPI is done with before anything is measured: a task that
//! waits in it would keep a processor busy.

use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cluster::auth::hex;
use mpi::traits::{Communicator as _, CommunicatorCollectives as _, Root as _};
use zeroize::Zeroizing;

use super::step::Tasks;

/// What says that this is a task of an MPI program: PMIx sets the first, older starters of Open MPI the second.
const TASK: [&str; 2] = ["PMIX_RANK", "OMPI_COMM_WORLD_RANK"];

/// Room for the name of a node, filled up with zeros.
const NAME_BYTES: usize = 256;

/// Bytes of a key.
const KEY_BYTES: usize = 32;

/// The exit code for "it can't be run".
const NO_ANSWER: i32 = 2;

/// Whether this is a task of an MPI program.
pub fn is_task(get: impl Fn(&str) -> Option<String>) -> bool {
    TASK.iter().any(|name| get(name).is_some())
}

/// Tells the others of this node, and hears of theirs.
///
/// # Errors
/// MPI does not start, or the name is too long. A peer that never comes ends this process after `within`.
pub fn exchange(node: &str, within: Duration) -> Result<Tasks> {
    if node.len() > NAME_BYTES {
        bail!("{node:?} is longer than {NAME_BYTES} bytes");
    }
    let done = Arc::new(AtomicBool::new(false));
    limit(within, Arc::clone(&done))?;
    let universe = mpi::initialize().context("MPI does not start (srun --mpi=pmix)")?;
    let world = universe.world();
    let mut own = [0; NAME_BYTES];
    own[..node.len()].copy_from_slice(node.as_bytes());
    let tasks = usize::try_from(world.size()).context("MPI says how many tasks there are")?;
    let mut all = vec![0; NAME_BYTES * tasks];
    world.all_gather_into(&own[..], &mut all[..]);
    let mut secret = Zeroizing::new([0_u8; KEY_BYTES]);
    if world.rank() == 0 {
        getrandom::fill(&mut secret[..]).context("no random numbers from the system")?;
    }
    world.process_at_rank(0).broadcast_into(&mut secret[..]);
    let rank = usize::try_from(world.rank()).context("MPI says which task this is")?;
    drop(universe);
    done.store(true, Ordering::Release);
    let nodes = all.chunks(NAME_BYTES).map(name).collect::<Result<Vec<String>>>()?;
    Ok(Tasks { nodes, rank, key: Zeroizing::new(hex(&secret[..])) })
}

fn name(bytes: &[u8]) -> Result<String> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    Ok(std::str::from_utf8(&bytes[..end]).context("a task told a name that is no text")?.to_owned())
}

/// MPI itself waits for ever: a task that never comes must not hold the others.
fn limit(within: Duration, done: Arc<AtomicBool>) -> Result<()> {
    let watch = move || {
        std::thread::sleep(within);
        if !done.load(Ordering::Acquire) {
            eprintln!(
                "aimaster: the tasks did not meet by MPI within {} s: is each of them there, and does srun --mpi=list have pmix?",
                within.as_secs()
            );
            exit(NO_ANSWER);
        }
    };
    std::thread::Builder::new().name("mpi-limit".into()).spawn(watch).context("a thread for MPI's limit")?;
    Ok(())
}
