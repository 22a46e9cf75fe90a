//! The fault matrix: faults, each in every phase of a job with checks, on a real Slurm; and what must hold afterwards.
//! `cargo xtask matrix` runs it all, a test a handful. `cell` says what a cell is, `table` has them all, `judge` the
//! invariants, `run` runs them; crowds of jobs, which have no target, are in `crowds`.

pub mod cell;
mod clock;
pub mod crowds;
mod doc;
mod inject;
mod judge;
mod lives;
mod reach;
mod run;
mod site;
pub mod table;

pub use doc::{Results, line};
pub use judge::Seen;
pub use lives::Lives;
pub use run::{Done, run_all, run_cell};
pub use site::Site;
