//! The cluster: booting it, finding its machines, killing and starting nodes, and taking it all
//! down. Daemons, jobs, faults, files and processes have files of their own.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::base::Base;
use crate::builder::ClusterBuilder;
use crate::conf::{self, CTL};
use crate::cpu::Cgroups;
use crate::exec::Exec;
use crate::fault::Faults;
use crate::node::{Node, Shared};
use crate::process::Output;
use crate::serial::need_root;
use crate::slurm_version::SlurmVersion;
use crate::switch::Switch;
use crate::users;

/// From the start of the daemons to all nodes idle; it takes well under a second.
const IDLE: Duration = Duration::from_secs(30);
/// Folders that `node_init.sh` replaces in every node.
const PRIVATE: [&str; 8] = ["/tmp", "/run", "/home", "/dev", "/etc", "/opt", "/var/lib", "/var/spool"];
/// Length of the key in bytes, as `mungekey` makes it.
const MUNGE_KEY: usize = 128;
/// How much of each log an error shows.
const LOG_LINES: usize = 15;

/// A running Slurm cluster on this machine. Dropping it takes everything away.
pub struct Cluster {
    pub(crate) switch: Switch,
    pub(crate) faults: Faults,
    cgroups: Option<Cgroups>,
    version: SlurmVersion,
    machines: Vec<Node>,
    // The last, so that the folder goes after all that lives in it.
    pub(crate) base: Base,
}

impl Cluster {
    /// Starts the description of a cluster.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    pub(crate) fn boot(wishes: &ClusterBuilder) -> Result<Self> {
        need_root()?;
        if !(1..=conf::MAX_NODES).contains(&wishes.nodes) {
            bail!("a cluster has 1 to {} nodes, not {}", conf::MAX_NODES, wishes.nodes);
        }
        if PRIVATE.iter().any(|dir| wishes.parent.starts_with(dir)) {
            bail!("the base folder cannot lie in {}: every node has its own", wishes.parent.display());
        }
        let version = SlurmVersion::of(wishes.root.as_deref())?;
        users::ensure()?;
        let base = Base::create(&wishes.parent)?;
        let cluster = Self::prepare(wishes, base, version)?;
        cluster.start(wishes).map_err(|error| {
            let logs = cluster.log_tails();
            error.context(format!("the cluster did not come up; its logs end with:\n{logs}"))
        })?;
        Ok(cluster)
    }

    fn prepare(wishes: &ClusterBuilder, base: Base, version: SlurmVersion) -> Result<Self> {
        let path = base.path.clone();
        let cgroups = Cgroups::find().ok();
        let shared = Shared {
            id: base.id.clone(),
            base: path.clone(),
            // Without control groups everything but the processor limit works.
            cgroups: cgroups.clone().filter(|groups| {
                let names = (1..=wishes.nodes).map(conf::node_name).chain([CTL.to_owned()]);
                names.into_iter().all(|name| groups.create(&base.id, &name).is_ok())
            }),
            shown: wishes.shown.clone(),
            gpus: wishes.gpus,
            root: wishes.root.clone(),
        };
        let mut machines = vec![Node::new(CTL, &conf::address(0), &shared)];
        for index in 1..=wishes.nodes {
            machines.push(Node::new(&conf::node_name(index), &conf::address(index), &shared));
        }
        let faults = Faults::default();
        let switch = Switch::start(&base.id)?;
        let cluster = Self { switch, faults, cgroups, version, machines, base };
        conf::write(wishes, &path, version)?;
        users::make_homes(&path.join("home"))?;
        wishes.install.put(&path.join("opt"), version)?;
        let mut key = [0; MUNGE_KEY];
        File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut key)).context("/dev/urandom")?;
        fs::write(path.join("munge.key"), key).context("munge key")?;
        Ok(cluster)
    }

    fn start(&self, wishes: &ClusterBuilder) -> Result<()> {
        self.each(&self.machines, Node::begin)?;
        let ids =
            self.machines.iter().map(|m| Ok((m.name.as_str(), m.init()?))).collect::<Result<Vec<_>>>()?;
        self.switch.connect(&ids)?;
        self.each(&self.machines, |machine| {
            machine.finish()?;
            self.start_munged(&machine.name)
        })?;
        self.start_slurmctld()?;
        self.each(&self.machines[1..], |machine| self.start_slurmd(&machine.name))?;
        self.wait_idle(wishes.nodes, IDLE)
    }

    /// Does something with several machines at the same time; the first error counts.
    fn each(&self, machines: &[Node], work: impl Fn(&Node) -> Result<()> + Sync) -> Result<()> {
        thread::scope(|scope| {
            let threads: Vec<_> = machines
                .iter()
                .map(|m| scope.spawn(|| work(m).with_context(|| format!("machine {}", m.name))))
                .collect();
            let mut results = threads.into_iter().map(|t| t.join());
            results.try_for_each(|r| r.unwrap_or_else(|_| bail!("a thread panicked")))
        })
    }

    /// Unique name of this cluster among all on this machine.
    pub fn id(&self) -> &str {
        &self.base.id
    }

    /// The Slurm that it runs.
    pub fn slurm(&self) -> SlurmVersion {
        self.version
    }

    /// The base folder: `log/`, `etc/`, `opt/`, `home/` and a folder for each machine.
    pub fn base(&self) -> &Path {
        &self.base.path
    }

    /// The names of the nodes, without the controller.
    pub fn nodes(&self) -> Vec<&str> {
        self.machines[1..].iter().map(|m| m.name.as_str()).collect()
    }

    /// The address of a machine.
    pub fn address(&self, node: &str) -> Result<String> {
        Ok(self.find(node)?.address.clone())
    }

    pub(crate) fn find(&self, name: &str) -> Result<&Node> {
        let found = self.machines.iter().find(|m| m.name == name);
        found.with_context(|| format!("no machine {name:?} in this cluster"))
    }

    /// A command in a node (or `"ctl"`), as root unless a user is set.
    pub fn command<S: Into<String>>(&self, node: &str, argv: impl IntoIterator<Item = S>) -> Exec<'_> {
        Exec::new(self, node, argv)
    }

    /// Runs a command in a node as root.
    pub fn exec<S: Into<String>>(&self, node: &str, argv: impl IntoIterator<Item = S>) -> Result<Output> {
        self.command(node, argv).run()
    }

    /// Runs a command in a node as a user.
    pub fn exec_as<S: Into<String>>(
        &self,
        node: &str,
        user: &str,
        argv: impl IntoIterator<Item = S>,
    ) -> Result<Output> {
        self.command(node, argv).user(user).run()
    }

    /// Takes a node away as a power cut does: no farewell reaches the others.
    pub fn kill_node(&self, node: &str) -> Result<()> {
        let machine = self.find(node)?;
        if machine.is_up() {
            self.switch.set_link(node, false)?;
        }
        machine.kill()
    }

    /// Starts a killed node with its daemons; listed faults hold again. It does not wait for Slurm
    /// to see the node (see [`Cluster::wait_node`]).
    pub fn start_node(&self, node: &str) -> Result<()> {
        let machine = self.find(node)?;
        machine.begin()?;
        self.switch.connect(&[(&machine.name, machine.init()?)])?;
        machine.finish()?;
        self.remount_folders(node)?;
        self.start_munged(node)?;
        self.render_faults(node)?;
        if node == CTL { self.start_slurmctld() } else { self.start_slurmd(node) }
    }

    /// Whether something listens on a TCP port of a node, seen without connecting.
    pub fn listens(&self, node: &str, port: u16) -> Result<bool> {
        Ok(crate::node::listens(self.find(node)?.init()?, port))
    }

    pub(crate) fn limit_node(&self, node: &str, percent: Option<u32>) -> Result<()> {
        let groups = match &self.cgroups {
            Some(groups) => groups,
            None => return Cgroups::find().map(drop),
        };
        groups.create(&self.base.id, node)?;
        groups.limit(&self.base.id, node, percent)
    }

    /// Control groups that somebody made on the machines of this cluster.
    pub(crate) fn groups_below(&self) -> Vec<String> {
        let below = self.cgroups.as_ref().map(|groups| groups.below(&self.base.id)).unwrap_or_default();
        below.into_iter().map(|group| group.display().to_string()).collect()
    }

    /// A file in `<base>/log`.
    pub fn log_file(&self, name: &str) -> PathBuf {
        self.base.path.join("log").join(name)
    }

    /// The end of each log of Slurm and of each node, for messages.
    pub fn log_tails(&self) -> String {
        let Ok(entries) = fs::read_dir(self.base.path.join("log")) else { return String::new() };
        let mut paths: Vec<_> = entries.flatten().map(|e| e.path()).collect();
        paths.sort();
        let mut text = String::new();
        for path in paths {
            let bytes = fs::read(&path).unwrap_or_default();
            let log = String::from_utf8_lossy(&bytes);
            let lines: Vec<&str> = log.lines().collect();
            if lines.is_empty() {
                continue;
            }
            text += &format!("== {}\n", path.display());
            for line in &lines[lines.len().saturating_sub(LOG_LINES)..] {
                text += line;
                text.push('\n');
            }
        }
        text
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("a test with cluster {} failed; its logs end with:\n{}", self.id(), self.log_tails());
        }
        if let Err(error) = self.each(&self.machines, Node::kill) {
            eprintln!("cluster {}: {error:#}", self.id());
        }
        if let Some(groups) = &self.cgroups {
            groups.remove(&self.base.id);
            if groups.exists(&self.base.id) {
                eprintln!("cluster {}: control groups are left", self.id());
            }
        }
    }
}
