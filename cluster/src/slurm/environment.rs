//! The job as slurmd describes it to a prolog or epilog: environment variables only, no call to the controller.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;

use diag::facts::NodeId;
use diag::hostlist::expand;

/// Longest name of a cluster or node; both become names of folders.
const MAX_NAME: usize = 255;
/// Longest of the other texts.
const MAX_TEXT: usize = 4096;

/// One thing that is wrong with the environment. Slurm sets it, so each of these is a fault of the setup.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// Not set.
    #[error("{0} is not set: is this a prolog of Slurm?")]
    Missing(&'static str),
    /// Set to something that it can't be.
    #[error("{name}={value:?}: {because}")]
    Invalid {
        /// The variable.
        name: &'static str,
        /// Its value, shortened.
        value: String,
        /// What is wrong.
        because: String,
    },
}

/// What the environment says of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobEnv {
    /// The job's own id.
    pub job_id: u32,
    /// How often it was restarted.
    pub restart: u32,
    /// Its user.
    pub uid: u32,
    /// Its group, where Slurm says it.
    pub gid: Option<u32>,
    /// Its user's name; may be missing.
    pub user: Option<String>,
    /// Name of the cluster.
    pub cluster: String,
    /// This node.
    pub node: String,
    /// All nodes, in order.
    pub nodes: Vec<String>,
    /// This node's place among them.
    pub me: NodeId,
    /// Partition.
    pub partition: Option<String>,
    /// Node features that the job asks for.
    pub constraints: Option<String>,
    /// GPUs of the job on this node, as Slurm lists them.
    pub gpus: Option<String>,
    /// The configuration in use.
    pub slurm_conf: Option<PathBuf>,
    /// The heterogeneous job that it is a component of.
    pub het_job_id: Option<u32>,
}

impl JobEnv {
    /// Reads and checks the variables.
    ///
    /// # Errors
    /// All mistakes at once.
    pub fn from_vars(get: impl Fn(&str) -> Option<String>) -> Result<Self, Vec<EnvError>> {
        let mut vars = Vars { get, errors: Vec::new() };
        let job_id = vars.required("SLURM_JOB_ID");
        let uid = vars.required("SLURM_JOB_UID");
        let cluster = vars.name("SLURM_CLUSTER_NAME");
        let node = vars.name("SLURMD_NODENAME");
        let nodes = vars.nodes();
        let me = vars.place(&nodes, node.as_deref());
        let restart = vars.number("SLURM_JOB_RESTART_COUNT");
        let gid = vars.number("SLURM_JOB_GID");
        let het_job_id = vars.number("HET_JOB_ID").or_else(|| vars.number("SLURM_HET_JOB_ID"));
        let user = vars.text("SLURM_JOB_USER");
        let partition = vars.text("SLURM_JOB_PARTITION");
        let constraints = vars.text("SLURM_JOB_CONSTRAINTS");
        let gpus = vars.text("SLURM_JOB_GPUS");
        let slurm_conf = vars.path("SLURM_CONF");
        match (job_id, uid, cluster, node, me) {
            (Some(job_id), Some(uid), Some(cluster), Some(node), Some(me)) if vars.errors.is_empty() => {
                let restart = restart.unwrap_or(0);
                let het_job_id = het_job_id.filter(|id| *id != 0);
                Ok(Self {
                    job_id,
                    restart,
                    uid,
                    gid,
                    user,
                    cluster,
                    node,
                    nodes,
                    me,
                    partition,
                    constraints,
                    gpus,
                    slurm_conf,
                    het_job_id,
                })
            }
            _ => Err(vars.errors),
        }
    }
}

/// Whether a name is safe as the name of a folder and as an argument.
#[must_use]
pub fn is_plain_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    name.len() <= MAX_NAME && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(plain)
}

struct Vars<F> {
    get: F,
    errors: Vec<EnvError>,
}

impl<F: Fn(&str) -> Option<String>> Vars<F> {
    fn wrong(&mut self, name: &'static str, value: &str, because: impl Into<String>) {
        let value = crate::log::shown(value, 80);
        self.errors.push(EnvError::Invalid { name, value, because: because.into() });
    }

    fn value(&self, name: &str) -> Option<String> {
        (self.get)(name).filter(|value| !value.is_empty())
    }

    fn number<N: FromStr>(&mut self, name: &'static str) -> Option<N> {
        let value = self.value(name)?;
        let number = value.parse().ok();
        if number.is_none() {
            self.wrong(name, &value, "is not a number");
        }
        number
    }

    fn required<N: FromStr>(&mut self, name: &'static str) -> Option<N> {
        if self.value(name).is_none() {
            self.errors.push(EnvError::Missing(name));
        }
        self.number(name)
    }

    fn text(&mut self, name: &'static str) -> Option<String> {
        let value = self.value(name)?;
        if value.len() > MAX_TEXT || value.chars().any(char::is_control) {
            self.wrong(name, &value, "is longer than 4096 bytes or holds control characters");
            return None;
        }
        Some(value)
    }

    fn path(&mut self, name: &'static str) -> Option<PathBuf> {
        let path = PathBuf::from(self.text(name)?);
        if !path.is_absolute() {
            self.wrong(name, &path.to_string_lossy(), "is not an absolute path");
            return None;
        }
        Some(path)
    }

    fn name(&mut self, name: &'static str) -> Option<String> {
        let Some(value) = self.value(name) else {
            self.errors.push(EnvError::Missing(name));
            return None;
        };
        if is_plain_name(&value) {
            return Some(value);
        }
        self.wrong(
            name,
            &value,
            "must be letters, digits, '.', '_' and '-', beginning with a letter or digit",
        );
        None
    }

    /// `SLURM_NODELIST` up to 22.05, `SLURM_JOB_NODELIST` from 23.02.
    fn nodes(&mut self) -> Vec<String> {
        let (new, old) = ("SLURM_JOB_NODELIST", "SLURM_NODELIST");
        let name = if self.value(new).is_some() { new } else { old };
        let Some(list) = self.value(name) else {
            self.errors.push(EnvError::Missing(new));
            return Vec::new();
        };
        let nodes = match expand(&list) {
            Ok(nodes) => nodes,
            Err(error) => {
                self.wrong(name, &list, error.to_string());
                return Vec::new();
            }
        };
        if let Some(odd) = nodes.iter().find(|node| !is_plain_name(node)) {
            self.wrong(name, odd, "is not a node name");
        }
        if nodes.iter().collect::<BTreeSet<_>>().len() != nodes.len() {
            self.wrong(name, &list, "names a node twice");
        }
        let count: Option<usize> = self.number("SLURM_JOB_NUM_NODES");
        if let Some(count) = count.filter(|count| *count != nodes.len()) {
            self.wrong(name, &list, format!("names {} nodes, SLURM_JOB_NUM_NODES is {count}", nodes.len()));
        }
        nodes
    }

    fn place(&mut self, nodes: &[String], node: Option<&str>) -> Option<NodeId> {
        let node = node?;
        let place = (0..).zip(nodes).find(|(_, name)| *name == node).map(|(place, _)| place);
        if place.is_none() && !nodes.is_empty() {
            self.wrong("SLURMD_NODENAME", node, "is not in the job's node list");
        }
        place
    }
}
