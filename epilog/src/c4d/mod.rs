//! `aimaster-c4d`: watches a job on one node, from the end of its prolog to its epilog. One file a concern: [`birth`]
//! (order, session, lock, ready), [`steps`] (is the job still here), [`lock`] (one agent a run, and its end),
//! [`socket`] (ranks that come), [`rings`] and [`process`] (what a digest says of them; [`aside`]: what might not come at
//! once), [`orders`] (what a rank's plugin is to tell), [`ranks`] (all of them), [`health`] and [`held`] (the node's health),
//! [`link`] (what agents tell each other), [`bench`] with [`judge`] and [`voice`] (what is made of it where it is judged, and
//! who says so), [`report`] (what it says), [`budget`] (how much of it in the log), [`acts`] and `round` (what follows),
//! [`life`] (the loop that joins them).
//!
//! What it needs root for: the run folder is root's; `scontrol` believes root only; the wait channel, counters and
//! environment of a user's process and the kernel log are shown to CAP_SYS_PTRACE with CAP_DAC_READ_SEARCH and to
//! CAP_SYSLOG. Everything else of root's power it gives up before
//! it listens, for itself and for what it starts ([`privileges`]). All that ranks say is hostile.
//!
//! It is never a reason for a job to wait: nobody waits for its answers, the epilog's wait for its end is bounded, and
//! it ends by itself when the job is gone.

pub mod acts;
pub mod aside;
pub mod bench;
pub mod birth;
pub mod budget;
pub mod health;
pub mod held;
pub mod judge;
pub mod life;
pub mod link;
pub mod lock;
pub mod orders;
mod privileges;
pub mod process;
pub mod ranks;
pub mod report;
pub mod rings;
mod round;
pub mod socket;
pub mod steps;
pub mod voice;

#[cfg(test)]
mod tests {
    use diag::telemetry as plugin;
    use nccl_profiler::handover as profiler;

    // The plugin that sets the variables and the one that reads them share no crate.
    #[test]
    fn both_sides_use_the_same_names() {
        assert_eq!(plugin::PROFILER_VARIABLE, profiler::PLUGIN_VARIABLE);
        assert_eq!(plugin::SOCKET_VARIABLE, profiler::SOCKET_VARIABLE);
        assert_eq!(plugin::DENY_VARIABLE, profiler::DENY_VARIABLE);
        assert_eq!(plugin::LIBRARY, profiler::PLUGIN_FILE);
        assert_eq!(plugin::MAX_SOCKET_BYTES, profiler::SOCKET_NAME_BYTES);
    }
}
