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
    /// Whether these are shares of a GPU by MPS: gres/mps says so to a prolog by the share, gres/shard says nothing.
    pub mps: bool,
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
        let mps = vars.value("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").is_some();
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
                    mps,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(changes: &[(&str, &str)]) -> Result<JobEnv, Vec<EnvError>> {
        // As slurmd 22.05 sets them.
        let fixed = [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_JOB_UID", "1000"),
            ("SLURM_CLUSTER_NAME", "aim"),
            ("SLURMD_NODENAME", "n02"),
            ("SLURM_NODELIST", "n[01-03]"),
            ("SLURM_JOB_NUM_NODES", "3"),
            ("SLURM_CONF", "/etc/slurm/slurm.conf"),
        ];
        JobEnv::from_vars(|name| {
            changes.iter().chain(&fixed).find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn a_job_is_read_from_old_and_new_variables() {
        let job = read(&[("SLURM_JOB_USER", "alice"), ("HET_JOB_ID", "0")]).unwrap();
        assert_eq!((job.job_id, job.uid, job.me, job.restart, job.nodes.len()), (7, 1000, 1, 0, 3));
        assert_eq!((job.user.as_deref(), job.het_job_id, job.gid), (Some("alice"), None, None));
        let newer = [
            ("SLURM_JOB_NODELIST", "n02,n01"),
            ("SLURM_JOB_NUM_NODES", "2"),
            ("SLURM_JOB_RESTART_COUNT", "2"),
        ];
        let job = read(&newer).unwrap();
        assert_eq!((job.me, job.restart, job.nodes), (0, 2, vec!["n02".to_owned(), "n01".to_owned()]));
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        let wrong = [
            ("SLURM_JOB_ID", "x"),
            ("SLURM_CLUSTER_NAME", "../../etc"),
            ("SLURM_NODELIST", "n[01-03],n01"),
            ("SLURM_CONF", "relative"),
            ("SLURM_JOB_UID", ""),
            ("SLURM_JOB_PARTITION", "a\nb"),
        ];
        let errors = read(&wrong).unwrap_err();
        let text = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        for name in [
            "SLURM_JOB_ID",
            "CLUSTER_NAME",
            "twice",
            "SLURM_JOB_NUM_NODES is 3",
            "SLURM_CONF",
            "SLURM_JOB_UID",
        ] {
            assert!(text.contains(name), "{name} in {text}");
        }
        assert!(text.contains("SLURM_JOB_PARTITION") && errors.len() == 7, "{text}");
        assert!(read(&[("SLURMD_NODENAME", "elsewhere")]).is_err());
        assert!(read(&[("SLURM_NODELIST", "n[1-")]).is_err());
    }

    #[test]
    fn plain_names_are_safe_as_folders_and_arguments() {
        for name in ["n1", "gpu-01.rack_2"] {
            assert!(is_plain_name(name));
        }
        for name in ["", ".", "..", "-n", "a/b", "a b", "a,b", "n[1]", "é", "a\n"] {
            assert!(!is_plain_name(name), "{name:?}");
        }
    }
}
