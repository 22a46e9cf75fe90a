//! The site's policy, `aimaster.toml`: checked, with every default filled in. How the file is read is in
//! `policy/`; what a policy means for a job is in [`crate::request::effective`].

mod budget;
mod c4d_keys;
mod origins;
mod read;
mod slots;
mod tree;
mod xid_rows;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize, Serializer};

use crate::c4d::settings::Settings;
use crate::check::CheckName;
use crate::facts::Engine;
use crate::request::FailAction;
use crate::xid::XidTable;

pub use budget::Budget;
pub use c4d_keys::MOST_DENIED;
pub use origins::lines;
pub use tree::MAX_POLICY_BYTES;

/// Where the policy is if nobody names another file.
pub const POLICY_FILE: &str = "/etc/aimaster/aimaster.toml";

/// What happens to a job where nothing was decided about its hardware.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Undecided {
    /// It starts.
    Start,
    /// It ends before the user's program starts.
    Fail,
}

/// What happens when the controller can't be reached for an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ControllerLost {
    /// The job starts.
    Start,
    /// The launch gate ends it.
    Hold,
}

/// Who writes reports, and owns them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportOwner {
    /// Root.
    Root,
    /// The job's user: on shared storage root may be nobody.
    User,
}

/// Who but root may read reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportReaders {
    /// The job's group, for projects whose members look at each other's jobs.
    #[default]
    Group,
    /// The job's user alone, for sites where all users share a group.
    User,
}

/// The whole policy. Times are in the unit that the name says.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Policy {
    /// What measures; `host` must be said outright.
    pub engine: Engine,
    /// `[scope]`: where the feature applies.
    pub scope: Scope,
    /// `[checks]`: what jobs get.
    pub checks: Checks,
    /// `[actions]`: what may be done, and what is done by default.
    pub actions: Actions,
    /// `[budget]`: what all jobs together may take out of service.
    pub budget: Budget,
    /// `[runtime]`: the check while the job runs.
    pub runtime: Runtime,
    /// `[c4d]`: the thresholds of its rules.
    pub c4d: Settings,
    /// `[history]`: what each node remembers of its own results.
    pub history: History,
    /// `[time]`: bounds.
    pub time: Time,
    /// `[network]`: addresses and ports.
    pub network: Network,
    /// `[host]`: the host engine.
    pub host: HostEngine,
    /// `[cuda]`: the CUDA engine.
    pub cuda: CudaEngine,
    /// `[paths]`: files, folders, users.
    pub paths: Paths,
    /// `[nccl.env]`: NCCL settings for the checks; `{node}` is replaced by the node's name.
    #[serde(rename = "nccl", serialize_with = "as_nccl_table")]
    pub nccl_env: BTreeMap<String, String>,
}

/// Writes the settings where the file has them, so that a policy that is shown can be used as a file.
fn as_nccl_table<S: Serializer>(env: &BTreeMap<String, String>, serializer: S) -> Result<S::Ok, S::Error> {
    BTreeMap::from([("env", env)]).serialize(serializer)
}

/// NCCL's list of network devices.
const HCA: &str = "NCCL_IB_HCA";

/// How the file spells a `requeue_nice` that is left alone.
const KEEP_NICE: &str = "keep";

/// How the file spells an `on_environment` that follows the request's action.
const BY_ACTION: &str = "by_action";

fn or_keep<S: Serializer>(nice: &Option<i32>, serializer: S) -> Result<S::Ok, S::Error> {
    match nice {
        Some(nice) => nice.serialize(serializer),
        None => KEEP_NICE.serialize(serializer),
    }
}

fn or_by_action<S: Serializer>(rule: &Option<Undecided>, serializer: S) -> Result<S::Ok, S::Error> {
    match rule {
        Some(rule) => rule.serialize(serializer),
        None => BY_ACTION.serialize(serializer),
    }
}

/// A policy that can't be written as TOML.
#[derive(Debug, thiserror::Error)]
#[error("the policy can't be written as TOML")]
pub struct ShowError(#[from] toml::ser::Error);

impl Policy {
    /// The whole policy as a file that [`Policy::parse`] reads back.
    ///
    /// # Errors
    /// If a path is not UTF-8, which no parsed policy has.
    pub fn to_toml(&self) -> Result<String, ShowError> {
        Ok(toml::to_string(self)?)
    }

    /// RDMA devices that the settings for NCCL name outright (`=mlx5_0,mlx5_1:1`); beginnings of names and exclusions
    /// name none.
    #[must_use]
    pub fn named_rdma(&self) -> BTreeSet<String> {
        let list = self.nccl_env.get(HCA).and_then(|value| value.strip_prefix('='));
        let device = |item: &str| item.split(':').next().unwrap_or_default().trim().to_owned();
        list.into_iter()
            .flat_map(|list| list.split(','))
            .map(device)
            .filter(|name| !name.is_empty())
            .collect()
    }
}

/// `[scope]`: a job is checked where all three that are given hold. Empty: no condition.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Scope {
    /// Partitions.
    pub partitions: Vec<String>,
    /// Node features that the job asks for (`--constraint`), such as `lingjun`.
    pub features: Vec<String>,
    /// GPU types in the job's GRES.
    pub gpu_types: Vec<String>,
}

/// `[checks]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checks {
    /// What every job in scope gets without flags; empty: nothing.
    pub always: Vec<CheckName>,
    /// Whether a user's list may leave out checks of `always`.
    pub users_may_weaken: bool,
    /// Whether `--sanity-check=off` is allowed.
    pub users_may_switch_off: bool,
}

/// `[actions]`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Actions {
    /// Default of `sanity_check.fail_action` (built-in: fail).
    pub fail_action: FailAction,
    /// Values that a user may ask for (default: all four).
    pub allowed: Vec<FailAction>,
    /// Actions under which nodes with a fault of their own are drained (default: fail, drain, requeue).
    pub drain_on: Vec<FailAction>,
    /// Whether drains may follow from a check that only the user asked for (default: true).
    pub drain_on_user_request: bool,
    /// Most nodes drained per verdict (default 4).
    pub max_drain_nodes: u32,
    /// Most nodes drained per verdict as a share of the job, rounded up, at least one (default 0.34).
    pub max_drain_fraction: f64,
    /// Requeues of our own before a job fails instead (default 3).
    pub max_requeues: u32,
    /// Nice value set at a requeue, to give back the place in the queue that it loses; `None`: untouched.
    #[serde(serialize_with = "or_keep")]
    pub requeue_nice: Option<i32>,
    /// On ERROR (default: start).
    pub on_error: Undecided,
    /// On SUSPECT (default: start).
    pub on_suspect: Undecided,
    /// On a fault of the fabric, the environment or when time ran out (default: by the request's action, where
    /// requeue counts as fail).
    #[serde(serialize_with = "or_by_action")]
    pub on_environment: Option<Undecided>,
    /// When the controller can't be reached (default: start).
    pub on_controller_lost: ControllerLost,
}

/// `[runtime]`: the check while the job runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Runtime {
    /// Whether it runs at all (default: true): the switch to turn it off everywhere.
    pub enabled: bool,
    /// Whether every job in scope gets it without flags (default: false).
    pub always: bool,
    /// Whether ranks tell what NCCL does, by a profiler plugin that is put into their environment (default: true).
    pub telemetry: bool,
    /// NCCL versions whose profiler support is broken, each one or a range such as `2.28.3-2.28.8` (the default): there
    /// ranks tell nothing.
    pub nccl_deny: Vec<String>,
    /// What each Xid and SXid of the driver means; the file's rows add to the built-in ones or change them.
    pub xid: XidTable,
}

/// `[history]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct History {
    /// Whether nodes keep their results below `paths.state_dir`, and say when a part declines (default: true).
    pub enabled: bool,
}

/// `[time]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Time {
    /// How long nodes wait for each other (default 60).
    pub join_s: u32,
    /// Longest run of the suite; shortens a request's timeout (default 300). Keep it 15 s or more below
    /// PrologEpilogTimeout.
    pub max_deadline_s: u32,
    /// How often the leader looks whether the job was cancelled (default 3, 1 to 4: a cancelled job's prolog
    /// must end within 5 s).
    pub job_poll_s: u32,
    /// Bound on one scontrol call (default 5).
    pub scontrol_s: u32,
    /// How long PyTorch may take to start (default 30): two seconds from a local disk, many more from a network file
    /// system that all nodes of a job read at once.
    pub torch_start_s: u32,
}

/// `[network]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Network {
    /// First TCP port of the range (default 27000: below the range that Linux deals out by itself).
    pub port_first: u16,
    /// Last TCP port of the range, inclusive (default 27199; at least 16 ports).
    pub port_last: u16,
    /// Interface whose address is used; empty: NodeAddr of slurm.conf, then the resolver.
    pub interface: String,
    /// Addresses by node name; they win over everything else.
    pub addresses: BTreeMap<String, IpAddr>,
}

/// `[host]`: the host engine.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HostEngine {
    /// Ranks a node (default 2); rank i is rail i and has a port of its own.
    pub ranks_per_node: u32,
    /// Window of one check (default 0.6). A check's own limit is ten windows.
    pub seconds_per_check: f64,
}

/// `[cuda]`: the CUDA engine. A library is a file, a folder that holds it, or empty: the loader's own search.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CudaEngine {
    /// Window of one check (default 0.4): some hundred products of a large matrix. A check's own limit is ten windows
    /// and the start of its communicators.
    pub seconds_per_check: f64,
    /// How long libraries and contexts may take at the start, and NCCL for its communicators in each round (default 20).
    pub start_s: u32,
    /// Whether NCCL may use NVLink multicast (NVLS) in the checks (default: false).
    pub nvls: bool,
    /// NCCL (libnccl.so.2).
    pub nccl: PathBuf,
    /// cuBLASLt (libcublasLt.so.13 or .12).
    pub cublas_lt: PathBuf,
    /// The driver (libcuda.so.1).
    pub driver: PathBuf,
    /// NVML (libnvidia-ml.so.1).
    pub nvml: PathBuf,
}

/// `[paths]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Paths {
    /// Absolute path of scontrol (default /usr/bin/scontrol); squeue and sinfo are taken from the same folder.
    pub scontrol: PathBuf,
    /// Absolute path of scancel (default /usr/bin/scancel).
    pub scancel: PathBuf,
    /// Folder of reports (default /var/log/aimaster/reports).
    pub report_dir: PathBuf,
    /// Whose the reports are (default root).
    pub report_owner: ReportOwner,
    /// Who but root may read them (default group).
    pub report_readers: ReportReaders,
    /// Folder of node_exporter's textfile collector, for metrics; empty: none are written (default).
    pub metrics_dir: PathBuf,
    /// Folder of baselines: `<gpu>.toml` and `host.toml` (default /etc/aimaster/baselines).
    pub baseline_dir: PathBuf,
    /// Folder of what a node keeps over restarts: its history, in `<node>/` (default /var/lib/aimaster).
    pub state_dir: PathBuf,
    /// User that the worker runs as; empty: `aimaster` where that user exists, else `nobody`.
    pub worker_user: String,
    /// Socket of munged; empty: from AuthInfo of slurm.conf, else /run/munge/munge.socket.2.
    pub munge_socket: PathBuf,
    /// libmunge (default libmunge.so.2, found by the loader).
    pub libmunge: PathBuf,
    /// Python with torch, for `pytorch_gloo_2` (default /usr/bin/python3).
    pub python: PathBuf,
    /// Socket of syslog (default /dev/log).
    pub syslog: PathBuf,
}

impl Default for Policy {
    fn default() -> Self {
        use FailAction::{Drain, Fail, Requeue, Retain};
        Self {
            engine: Engine::Cuda,
            scope: Scope::default(),
            checks: Checks { always: Vec::new(), users_may_weaken: true, users_may_switch_off: true },
            actions: Actions {
                fail_action: Fail,
                allowed: vec![Retain, Drain, Fail, Requeue],
                drain_on: vec![Fail, Drain, Requeue],
                drain_on_user_request: true,
                max_drain_nodes: 4,
                max_drain_fraction: 0.34,
                max_requeues: 3,
                requeue_nice: None,
                on_error: Undecided::Start,
                on_suspect: Undecided::Start,
                on_environment: None,
                on_controller_lost: ControllerLost::Start,
            },
            budget: Budget::default(),
            runtime: Runtime {
                enabled: true,
                always: false,
                telemetry: true,
                nccl_deny: vec![c4d_keys::BROKEN.to_owned()],
                xid: XidTable::default(),
            },
            c4d: Settings::default(),
            history: History { enabled: true },
            time: Time { join_s: 60, max_deadline_s: 300, job_poll_s: 3, scontrol_s: 5, torch_start_s: 30 },
            network: Network {
                port_first: 27_000,
                port_last: 27_199,
                interface: String::new(),
                addresses: BTreeMap::new(),
            },
            host: HostEngine { ranks_per_node: 2, seconds_per_check: 0.6 },
            cuda: CudaEngine {
                seconds_per_check: 0.4,
                start_s: 20,
                nvls: false,
                nccl: PathBuf::new(),
                cublas_lt: PathBuf::new(),
                driver: PathBuf::new(),
                nvml: PathBuf::new(),
            },
            paths: Paths {
                scontrol: "/usr/bin/scontrol".into(),
                scancel: "/usr/bin/scancel".into(),
                report_dir: "/var/log/aimaster/reports".into(),
                report_owner: ReportOwner::Root,
                report_readers: ReportReaders::Group,
                metrics_dir: PathBuf::new(),
                baseline_dir: "/etc/aimaster/baselines".into(),
                state_dir: "/var/lib/aimaster".into(),
                worker_user: String::new(),
                munge_socket: PathBuf::new(),
                libmunge: "libmunge.so.2".into(),
                python: "/usr/bin/python3".into(),
                syslog: "/dev/log".into(),
            },
            nccl_env: BTreeMap::new(),
        }
    }
}
