//! Slurm as a job's prolog meets it: its environment, its configuration, its command. No libslurm.

pub mod address;
pub mod apply;
pub mod config;
pub mod environment;
pub mod picture;
pub mod queue;
pub mod scontrol;
pub mod show;
pub mod stamp;
