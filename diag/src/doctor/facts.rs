//! What is known of an installation: plain values, gathered elsewhere. `None` where there is nothing to know on this machine;
//! what could not be looked at stands in [`Facts::unseen`].

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::Serialize;

use crate::policy::Policy;

/// Everything.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Facts {
    /// What kind of machine this is.
    pub machine: Machine,
    /// The cluster, where its name is known.
    pub cluster: Option<String>,
    /// What Slurm says.
    pub slurm: Slurm,
    /// The plugin, and the line that loads it.
    pub plugin: Plugin,
    /// This software's own files and settings.
    pub site: Site,
    /// This machine.
    pub node: Node,
    /// What could not be looked at, and how it can be.
    pub unseen: Vec<String>,
}

/// What kind of machine this is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Machine {
    /// Jobs are submitted here, and do not run here.
    Login,
    /// slurmd runs here, or is to.
    Compute {
        /// The node's name.
        node: String,
    },
}

/// A release of Slurm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Release {
    /// The year.
    pub major: u8,
    /// The month.
    pub minor: u8,
    /// The maintenance release.
    pub micro: u8,
}

impl Release {
    /// Reads `slurm-wlm 22.05.8` or `24.11.5-1`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let word = text.split_whitespace().next_back()?;
        let mut parts = word.split(['.', '-']).map(str::parse);
        let mut next = || parts.next()?.ok();
        Some(Self { major: next()?, minor: next()?, micro: next()? })
    }

    /// Of the number that a plugin carries: each part is one byte, 22.05.8 is 0x160508.
    #[must_use]
    pub fn of_number(number: u32) -> Self {
        let [_, major, minor, micro] = number.to_be_bytes();
        Self { major, minor, micro }
    }

    /// The number that a plugin for it carries.
    #[must_use]
    pub fn number(self) -> u32 {
        u32::from_be_bytes([0, self.major, self.minor, self.micro])
    }

    /// Whether Slurm takes a plugin of the one for the other: the first two numbers are the same.
    #[must_use]
    pub fn fits(self, other: Self) -> bool {
        (self.major, self.minor) == (other.major, other.minor)
    }

    /// Whether it is this release or a newer one.
    #[must_use]
    pub fn is_from(self, major: u8, minor: u8) -> bool {
        (self.major, self.minor) >= (major, minor)
    }
}

impl std::fmt::Display for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:02}.{}", self.major, self.minor, self.micro)
    }
}

/// What Slurm says.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Slurm {
    /// Why slurmctld's own settings are not known, if so. Those of slurm.conf stand in for them.
    pub silent: Option<String>,
    /// Settings, keys in lower case, as `scontrol show config` has them.
    pub settings: BTreeMap<String, String>,
    /// Release of the commands on this machine.
    pub release: Option<Release>,
    /// How far this machine's clock is ahead of the controller's.
    pub clock_ahead_s: Option<f64>,
    /// The commands that this software calls.
    pub programs: Vec<Entry>,
    /// GPUs that Slurm says this node has.
    pub gpus: Option<u32>,
    /// The site's Prolog, and what each pattern of it comes to on this machine.
    pub prologs: Vec<SiteProlog>,
}

/// One pattern of `Prolog=`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SiteProlog {
    /// As it is written.
    pub pattern: String,
    /// The files.
    pub files: Vec<Entry>,
    /// Whether one of them calls this software's helper.
    pub calls_us: bool,
}

/// What lies at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The path.
    pub path: PathBuf,
    /// What it is.
    pub is: Is,
    /// Whose it is.
    pub owner: u32,
    /// Its permissions.
    pub mode: u32,
    /// Where on the way to it others than root can change something, in words.
    pub open: Option<String>,
}

/// What something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Is {
    /// Not there.
    Nothing,
    /// This user can't see it.
    Hidden,
    /// A file.
    File,
    /// A folder.
    Folder,
    /// Something else.
    Other,
}

impl Entry {
    /// Whether it is a program that everybody can run.
    #[must_use]
    pub fn is_program(&self) -> bool {
        self.is == Is::File && self.mode & 0o111 == 0o111
    }
}

/// The plugin.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Plugin {
    /// plugstack.conf as this machine has it.
    pub conf: PathBuf,
    /// Why it can't be read, if so.
    pub unreadable: Option<String>,
    /// The lines that load this software's plugin.
    pub lines: Vec<PlugLine>,
    /// Patterns of its `include` lines that no file here fits.
    pub empty_includes: Vec<String>,
    /// The file that the first of the lines names.
    pub file: Option<Entry>,
    /// The release that it is stamped for, or why that can't be told.
    pub stamp: Option<Result<Release, String>>,
    /// The plugin that a package brought, before it is stamped, lies in the folder of the helpers.
    pub packaged: bool,
}

/// A line of plugstack.conf, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlugLine {
    /// The file.
    pub file: PathBuf,
    /// From 1.
    pub line: usize,
    /// As it is written.
    pub text: String,
}

/// This software's own files and settings.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Site {
    /// The policy's file.
    pub policy_file: Entry,
    /// What holds: the defaults where the file has mistakes.
    #[serde(skip)]
    pub policy: Policy,
    /// What is wrong in the policy.
    pub policy_mistakes: Vec<String>,
    /// What is wrong with baseline files.
    pub baseline_mistakes: Vec<String>,
    /// The folder of numbers for Prometheus, where the policy names one and it answers.
    pub metrics_dir: Option<Entry>,
    /// Whether the site has limits for the engine in files of its own.
    pub has_limits: bool,
    /// The helpers.
    pub helpers: Vec<Entry>,
    /// Why nobody can be found to measure as, if so.
    pub worker_user: Option<String>,
    /// Whether it is `nobody`, for want of another.
    pub worker_is_nobody: bool,
    /// The folder of reports; `None`: its storage did not answer in time.
    pub report_dir: Option<Entry>,
    /// The folder of this cluster in it.
    pub report_cluster_dir: Option<Entry>,
    /// The folder of run state.
    pub run_dir: Option<Entry>,
    /// The folder of what nodes keep.
    pub state_dir: Option<Entry>,
    /// Why the node's history can't be used, if so.
    pub history: Option<String>,
    /// The socket of syslog.
    pub syslog: Option<Entry>,
    /// Libraries and programs that the policy names.
    pub named: Vec<Entry>,
    /// NCCL's profiler plugin beside the helpers.
    pub profiler: Option<Entry>,
}

impl Site {
    /// Whether the policy that holds is known: one with mistakes is nobody's.
    #[must_use]
    pub fn knows_policy(&self) -> bool {
        self.policy_mistakes.is_empty()
    }
}

/// This machine.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Node {
    /// Why MUNGE can't be used, if so.
    pub munge: Option<String>,
    /// The address that other nodes are told, or why there is none.
    pub address: Option<Result<IpAddr, String>>,
    /// Ports of the range that something else uses.
    pub busy_ports: Vec<u16>,
    /// The range from which Linux deals out ports by itself.
    pub local_ports: Option<(u16, u16)>,
    /// Other nodes that were knocked at.
    pub reached: Vec<String>,
    /// What can't be reached, one line each.
    pub blocked: Vec<String>,
    /// What slurmd may lock in memory, in bytes; `u64::MAX`: all.
    pub memlock: Option<u64>,
    /// slurmd's unit, where systemd runs it.
    pub unit: Option<Unit>,
    /// Whether slurmd runs.
    pub slurmd: Option<bool>,
    /// NVIDIA GPUs by their device files.
    pub gpu_devices: u32,
    /// Libraries of the CUDA engine that can't be found, one line each.
    pub missing_libraries: Vec<String>,
}

/// slurmd's unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unit {
    /// `KillMode`.
    pub kill_mode: String,
    /// `Delegate`.
    pub delegate: bool,
}
