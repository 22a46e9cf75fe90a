//! What the agent gives up before it hears anybody: all of root's power but looking into processes and the kernel log.
//! Of what it keeps, CAP_SYS_PTRACE alone is as much as reading every file, so that the right to do that adds nothing:
//! environment and counters of a process are files that its owner alone may open.
//! It stays root by name, since the run folder and `scontrol` ask for that: what belongs to root stays its own, so this is no
//! jail. It can't mount, load modules, change users, touch the network's settings or write what is others'.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities, set_no_new_privs};

/// What is kept, as far as it was there: wait channels, counters and environment of users' processes, the kernel log.
const KEPT: CapabilitySet =
    CapabilitySet::SYS_PTRACE.union(CapabilitySet::DAC_READ_SEARCH).union(CapabilitySet::SYSLOG);

/// Gives the rest up for good, also for what this process starts. This process has one thread.
pub(super) fn give_up() -> std::io::Result<()> {
    set_no_new_privs(true)?;
    let mut sets = capabilities(None)?;
    sets.permitted &= KEPT;
    sets.effective &= KEPT;
    sets.inheritable = CapabilitySet::empty();
    set_capabilities(None, sets)?;
    // It holds the key of the job's agents.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}
