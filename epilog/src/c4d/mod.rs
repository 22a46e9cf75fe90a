//! `aimaster-c4d`: watches a job on one node, from the end of its prolog to its epilog. One file a concern: [`birth`]
//! (order, session, lock, ready), [`steps`] (is the job still here), [`lock`] (one agent a run, and its end),
//! [`socket`] (ranks that come), [`rings`] and
//! [`process`] (what a digest says of them), [`report`] (what it says), [`life`] (the loop that joins them).
//!
//! What it needs root for: the run folder is root's; `scontrol` believes root only; the wait channel of a user's process
//! and the kernel log are shown to CAP_SYS_PTRACE and CAP_SYSLOG. Everything else of root's power it gives up before
//! it listens, for itself and for what it starts ([`privileges`]). All that ranks say is hostile.
//!
//! It is never a reason for a job to wait: nobody waits for its answers, the epilog's wait for its end is bounded, and
//! it ends by itself when the job is gone.

pub mod birth;
pub mod life;
pub mod lock;
mod privileges;
pub mod process;
pub mod report;
pub mod rings;
pub mod socket;
pub mod steps;
