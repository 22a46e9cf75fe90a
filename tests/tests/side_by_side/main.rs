//! Tests that wait most of their time: for deadlines, for Slurm, for connections that never come. They may run beside
//! each other, so they are one program.

mod actions;
mod c4d_judged;
mod c4d_life;
mod c4d_ranks;
mod c4d_report;
mod check_in_a_step;
mod cluster_nodes;
mod config_faults;
mod controller;
mod doctor;
mod drains;
mod faults;
mod gloo_faults;
mod gpu_states;
mod history;
mod hostile_hellos;
mod launch_gate;
mod links_down;
mod lost_helpers;
mod other_jobs;
mod reports;
mod shared_gpus;
mod slurm_versions;
mod submission;
mod targets;
mod upgrades;
