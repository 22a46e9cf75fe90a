//! A Slurm cluster on one machine, for tests against the real srun, sbatch, salloc, scontrol and
//! sinfo.
//!
//! Every node is a set of namespaces (network, host name, mounts, processes, IPC) with its own
//! munged, slurmd, `/run`, `/tmp`, `/dev`, `/sys`, `/var/spool` and system log; so is the
//! controller `ctl`, which is the login node too. A test breaks nodes (cable, rates, losses,
//! ports, processor, processes) and looks at what the product and Slurm make of it. Two clusters
//! never meet. When a [`Cluster`] is dropped, and also when its test is killed, its processes,
//! namespaces and mounts are gone; the folder of a killed test is swept by the next boot.
//!
//! It is not a simulation of Slurm, and it holds no knowledge of the product but the names of its
//! files. Tests need root, Slurm, munge, iptables and iproute2. Tests that measure take
//! [`serial()`] first, so that they run one at a time.
//!
//! ```no_run
//! use std::time::Duration;
//! use aimaster_tests::{Block, Cluster, serial};
//!
//! # fn main() -> anyhow::Result<()> {
//! let _machine = serial()?;
//! let cluster = Cluster::builder().nodes(4).gpus(8).set("SlurmdTimeout", 10).boot()?;
//!
//! // Users' commands run on the login node as alice.
//! let output = cluster.srun(["-N4", "hostname"]).ok()?;
//! assert_eq!(output.stdout.lines().count(), 4);
//!
//! // A fault lasts as long as its guard.
//! let slow = cluster.rate_pair("n1", "n2", 20_000)?;
//! let refused = cluster.block("n3", Block::ports(40_000..=40_100).from("n1"))?;
//! let job = cluster.submit("srun hostname", ["-N4"])?;
//! cluster.wait_state(job, "COMPLETED", Duration::from_secs(30))?;
//! println!("{}", cluster.job_output(job)?);
//! slow.undo()?;
//! drop(refused);
//!
//! // Output can be followed while a command runs.
//! let running = cluster.srun(["-N2", "bash", "-c", "echo begun; sleep 5"]).spawn()?;
//! running.wait_line(|line| line == "begun", Duration::from_secs(10))?;
//! cluster.kill_node("n2")?;
//! running.wait(Duration::from_secs(90))?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod base;
mod builder;
pub mod c4d;
mod cluster;
mod conf;
mod cpu;
mod daemons;
mod exec;
mod fault;
mod fields;
mod files;
mod install;
pub mod matrix;
pub mod memcheck;
mod node;
pub mod other_build;
pub mod plugin;
mod process;
mod procs;
pub mod product;
mod serial;
mod shaping;
mod slurm;
mod slurm_version;
mod stamp;
mod switch;
mod syslog;
mod told;
pub mod traces;
mod users;
pub mod wait;

pub use builder::ClusterBuilder;
pub use cluster::Cluster;
pub use conf::CTL;
pub use exec::Exec;
pub use fault::Fault;
pub use fields::{NodeInfo, Record};
pub use install::{BUILT_PLUGIN, Install, NODE_DIR, NODE_PLUGIN, target_dir};
pub use process::{Output, Running, Stream};
pub use procs::Process;
pub use rustix::process::Signal;
pub use serial::{Serial, serial, side_by_side};
pub use shaping::{Block, Deny};
pub use slurm::JobId;
pub use slurm_version::{ROOT_VARIABLE, SlurmVersion};
pub use stamp::{stamp, stamped};

pub use told::Told;
pub use users::{AIMASTER, ALICE, BOB};
