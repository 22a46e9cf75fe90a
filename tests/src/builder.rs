//! What a cluster is to be like. Nothing happens before [`ClusterBuilder::boot`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::cluster::Cluster;
use crate::install::Install;
use crate::slurm_version::other_root;

/// Base folders lie here: not below /tmp, which is private in every node.
const PARENT: &str = "/var/tmp";

/// The wishes for a cluster; see [`Cluster::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ClusterBuilder {
    pub(crate) nodes: usize,
    pub(crate) cpus: u32,
    pub(crate) gpus: u32,
    pub(crate) gpu_devices: Vec<String>,
    pub(crate) gres_lines: Vec<String>,
    pub(crate) keys: Vec<(String, String)>,
    pub(crate) lines: Vec<String>,
    pub(crate) node_options: BTreeMap<String, String>,
    pub(crate) plugstack: String,
    pub(crate) policy: Option<String>,
    pub(crate) shown: Vec<PathBuf>,
    pub(crate) install: Install,
    pub(crate) parent: PathBuf,
    pub(crate) root: Option<PathBuf>,
}

impl Default for ClusterBuilder {
    fn default() -> Self {
        Self {
            nodes: 4,
            cpus: 4,
            gpus: 0,
            gpu_devices: Vec::new(),
            gres_lines: Vec::new(),
            keys: Vec::new(),
            lines: Vec::new(),
            node_options: BTreeMap::new(),
            plugstack: String::new(),
            policy: None,
            shown: Vec::new(),
            install: Install::default(),
            parent: PARENT.into(),
            root: other_root(),
        }
    }
}

impl ClusterBuilder {
    /// How many nodes (4 otherwise): `n1`, `n2`, ...
    pub fn nodes(mut self, count: usize) -> Self {
        self.nodes = count;
        self
    }

    /// Processors that each node claims (4 otherwise), whatever this machine has.
    pub fn cpus(mut self, count: u32) -> Self {
        self.cpus = count;
        self
    }

    /// Pretended GPUs of each node (none otherwise): `/dev/fakegpu0`, ...
    pub fn gpus(mut self, count: u32) -> Self {
        self.gpus = count;
        self
    }

    /// Real GPUs: each node offers these devices, such as `/dev/nvidia0`. Nodes share them.
    pub fn gpu_devices<S: Into<String>>(mut self, devices: impl IntoIterator<Item = S>) -> Self {
        self.gpu_devices = devices.into_iter().map(Into::into).collect();
        self
    }

    /// Adds a line to the end of gres.conf.
    pub fn gres_line(mut self, line: &str) -> Self {
        self.gres_lines.push(line.to_owned());
        self
    }

    /// Sets one key of slurm.conf, in place of the cluster's own value.
    pub fn set(mut self, key: &str, value: impl ToString) -> Self {
        self.keys.push((key.to_owned(), value.to_string()));
        self
    }

    /// Adds a line to the end of slurm.conf.
    pub fn line(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// Adds to the `NodeName=` line of one node, such as `Feature=rack1`.
    pub fn node_options(mut self, node: &str, options: &str) -> Self {
        self.node_options.insert(node.to_owned(), options.to_owned());
        self
    }

    /// The content of plugstack.conf.
    pub fn plugstack(mut self, text: &str) -> Self {
        text.clone_into(&mut self.plugstack);
        self
    }

    /// The content of `/etc/aimaster/aimaster.toml`.
    pub fn policy(mut self, text: &str) -> Self {
        self.policy = Some(text.to_owned());
        self
    }

    /// Shows a folder of this machine in every node, read-only and at the same path. Needed for
    /// folders below `/tmp`, `/run`, `/home` and `/var/spool`, which are private.
    pub fn show(mut self, folder: impl AsRef<Path>) -> Self {
        self.shown.push(folder.as_ref().to_owned());
        self
    }

    /// Puts plugin and programs into `/opt/aimaster` of every node.
    pub fn install(mut self, install: Install) -> Self {
        self.install = install;
        self
    }

    /// Makes the base folder below this one, not below `/var/tmp`.
    pub fn parent(mut self, folder: impl AsRef<Path>) -> Self {
        self.parent = folder.as_ref().to_owned();
        self
    }

    /// Boots it with the programs of this folder, a system with another Slurm, in place of this machine's. The variable
    /// [`crate::ROOT_VARIABLE`] sets it for clusters that don't.
    pub fn root(mut self, folder: impl AsRef<Path>) -> Self {
        self.root = Some(folder.as_ref().to_owned());
        self
    }

    /// Boots it and waits until every node is idle.
    ///
    /// # Errors
    /// Not root, Slurm not installed, or a daemon did not come up: the error shows its log.
    pub fn boot(self) -> Result<Cluster> {
        Cluster::boot(&self)
    }
}
