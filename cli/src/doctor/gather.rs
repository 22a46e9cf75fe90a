//! All facts of this machine, put together for the rules of [`diag::doctor`]. Nothing is changed, and nothing is judged.

use std::path::{Path, PathBuf};
use std::time::Duration;

use diag::action::drains::Picture;
use diag::doctor::facts::{Entry, Facts, Is, Machine, Node, Plugin, Site};
use diag::gate::RUN_ROOT;
use diag::plugstack::{Arguments as PlugArguments, HELPERS as HELPERS_FOLDER, Line};
use diag::policy::{POLICY_FILE, Policy, ReportOwner};
use prolog::history::store;

use super::{entries, node, plugstack, slurm};
use crate::config;
use crate::plugin::UNSTAMPED;

/// How long the storage of reports may take to answer: as long as a job waits for it.
const STORAGE: Duration = Duration::from_secs(2);

/// How many other nodes are knocked at.
const KNOCKS: usize = 3;

/// States in which a node is not there to answer.
const AWAY: [&str; 7] =
    ["DOWN", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_UP", "POWERING_DOWN", "UNKNOWN", "FUTURE"];

/// plugstack.conf where Slurm does not say it.
const PLUGSTACK: &str = "/etc/slurm/plugstack.conf";

/// The helpers.
const HELPERS: [&str; 5] =
    ["aimaster-prolog", "aimaster-worker", "aimaster-epilog", "aimaster-c4d", "aimaster-watcher"];

/// NCCL's profiler plugin, beside them.
const PROFILER: &str = "libnccl-profiler-aimaster.so";

/// The user that measures.
const WORKER: &str = "aimaster";

/// Gathers them. `named`: the policy's file, where the caller names one; else plugstack.conf does.
pub async fn facts(named: Option<&Path>, node_named: Option<&str>) -> Facts {
    let first_file = named.unwrap_or(Path::new(POLICY_FILE)).to_owned();
    let (first, _) = policy(&first_file);
    let asked = slurm::ask(&first).await;
    let plugin = plugin(&asked);
    let arguments = arguments(&plugin);
    let file = named.map_or_else(|| arguments.policy.clone(), Path::to_owned);
    let (policy, mistakes) = policy(&file);
    let machine = machine(node_named, asked.picture.as_ref());
    let cluster = asked.slurm.get("ClusterName").map(str::to_owned);
    let mut site = site(&policy, (&file, mistakes), &arguments);
    let mut slurm = asked.slurm;
    let mut seen = Node::default();
    let mut unseen = Vec::new();
    if let Machine::Compute { node } = &machine {
        of_node(&mut site, &policy, node, cluster.as_deref(), &mut unseen);
        let others = asked.picture.as_ref().map_or_else(Vec::new, |picture| others(picture, node));
        seen = node::look(node, &others, &policy, asked.conf.as_ref()).await;
        let until = tokio::time::Instant::now() + STORAGE;
        slurm.gpus = asked.scontrol.node_place(node, until).await.ok().map(|place| place.gpus);
        if seen.slurmd == Some(true) && seen.memlock.is_none() {
            unseen.push("slurmd's limits: run this as root".to_owned());
        }
    }
    let hidden = slurm.prologs.iter().flat_map(|prolog| &prolog.files).filter(|file| file.is == Is::Hidden);
    unseen.extend(hidden.map(|file| format!("{}: run this as root", file.path.display())));
    seen.munge = node::munge(&policy, asked.conf.as_ref()).await;
    Facts { machine, cluster, slurm, plugin, site, node: seen, unseen }
}

/// The policy and its mistakes; the defaults where there is no file, or a wrong one.
fn policy(file: &Path) -> (Policy, Vec<String>) {
    match config::parse(file) {
        Ok(Ok(policy)) => (policy, Vec::new()),
        Ok(Err(mistakes)) => (Policy::default(), mistakes.iter().map(ToString::to_string).collect()),
        Err(error) => (Policy::default(), vec![format!("{error:#}")]),
    }
}

fn plugin(asked: &slurm::Asked) -> Plugin {
    let told = asked.slurm.get("PlugStackConfig").map(PathBuf::from);
    // A configless node has its own copy beside slurm.conf.
    let beside = asked.conf_file.as_ref().map(|conf| conf.with_file_name("plugstack.conf"));
    let known = told.iter().chain(&beside).find(|path| path.exists()).cloned();
    let conf = known.or(told).or(beside).unwrap_or_else(|| PLUGSTACK.into());
    let folders = asked.slurm.get("PluginDir").unwrap_or_default();
    let folders: Vec<PathBuf> =
        folders.split(':').filter(|text| !text.is_empty()).map(PathBuf::from).collect();
    let packaged = Path::new(HELPERS_FOLDER).join(UNSTAMPED).is_file();
    Plugin { packaged, ..plugstack::look(&conf, &folders) }
}

fn arguments(plugin: &Plugin) -> PlugArguments {
    match plugin.lines.first().map(|line| Line::parse(&line.text)) {
        Some(Line::Plugin(line)) => PlugArguments::parse(line.words.iter().map(String::as_str)),
        _ => PlugArguments::default(),
    }
}

/// A node is one that Slurm knows by this machine's name, or that the caller names.
fn machine(named: Option<&str>, picture: Option<&Picture>) -> Machine {
    if let Some(node) = named {
        return Machine::Compute { node: node.to_owned() };
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let short = host.trim().split('.').next().unwrap_or_default().to_owned();
    let known = picture.is_some_and(|picture| picture.node(&short).is_some());
    let runs = picture.is_none() && node::has_slurmd();
    if known || runs { Machine::Compute { node: short } } else { Machine::Login }
}

/// The next nodes behind this one that are up.
fn others(picture: &Picture, node: &str) -> Vec<String> {
    let up = picture.rows.iter().filter(|row| !AWAY.iter().any(|state| row.alike.state.contains(*state)));
    let mut names: Vec<&String> = up.flat_map(|row| &row.nodes).filter(|name| *name != node).collect();
    names.sort_unstable();
    names.dedup();
    let behind = names.partition_point(|name| name.as_str() < node);
    let (before, after) = names.split_at(behind);
    after.iter().chain(before).take(KNOCKS).map(|name| (*name).clone()).collect()
}

fn site(policy: &Policy, (file, policy_mistakes): (&Path, Vec<String>), arguments: &PlugArguments) -> Site {
    let folder = &policy.paths.baseline_dir;
    let baseline_mistakes = match config::baselines(folder) {
        Ok(found) => found.into_iter().filter(|one| one.is_error).map(|one| one.words).collect(),
        Err(error) => vec![format!("{error:#}")],
    };
    let worker = kernels::confined::look_up(&policy.paths.worker_user);
    let unnamed = policy.paths.worker_user.is_empty();
    Site {
        policy_file: entries::guarded(file),
        policy: policy.clone(),
        policy_mistakes,
        baseline_mistakes,
        has_limits: config::has_limits(folder, policy.engine),
        helpers: HELPERS.iter().map(|name| entries::guarded(&arguments.helpers.join(name))).collect(),
        worker_is_nobody: unnamed && worker.is_ok() && kernels::confined::look_up(WORKER).is_err(),
        worker_user: worker.err().map(|error| error.to_string()),
        report_dir: entries::within(policy.paths.report_dir.clone(), STORAGE),
        report_cluster_dir: None,
        metrics_dir: None,
        run_dir: None,
        state_dir: None,
        history: None,
        syslog: None,
        named: named(policy),
        profiler: policy.runtime.telemetry.then(|| entries::guarded(&arguments.helpers.join(PROFILER))),
    }
}

/// What the policy names and root or its worker uses.
fn named(policy: &Policy) -> Vec<Entry> {
    let cuda = &policy.cuda;
    let all =
        [&cuda.nccl, &cuda.cublas_lt, &cuda.driver, &cuda.nvml, &policy.paths.python, &policy.paths.libmunge];
    all.into_iter().filter(|path| path.is_absolute()).map(|path| entries::guarded(path)).collect()
}

fn of_node(site: &mut Site, policy: &Policy, node: &str, cluster: Option<&str>, unseen: &mut Vec<String>) {
    site.run_dir = Some(entries::look(Path::new(RUN_ROOT)));
    site.syslog = Some(entries::look(&policy.paths.syslog));
    if let Some(cluster) = cluster.filter(|_| policy.paths.report_owner == ReportOwner::User) {
        site.report_cluster_dir = entries::within(policy.paths.report_dir.join(cluster), STORAGE);
    }
    let metrics = &policy.paths.metrics_dir;
    if !metrics.as_os_str().is_empty() {
        site.metrics_dir = entries::within(metrics.clone(), STORAGE);
        if site.metrics_dir.is_none() {
            unseen.push(format!("{}: it does not answer", metrics.display()));
        }
    }
    if policy.history.enabled {
        let folder = store::folder(&policy.paths.state_dir, node);
        site.state_dir = Some(entries::guarded(&folder));
        let file = entries::look(&folder.join(store::FILE));
        match file.is {
            Is::Hidden => unseen.push(format!("{}: run this as root", file.path.display())),
            Is::Folder | Is::Other => {
                site.history = Some(format!("{} is no plain file", file.path.display()));
            }
            Is::File if file.owner != 0 => {
                site.history = Some(format!("{} belongs to uid {}", file.path.display(), file.owner));
            }
            Is::File | Is::Nothing => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use diag::action::drains::Row;
    use diag::job::NodeView;

    use super::*;

    fn row(nodes: &[&str], state: &str) -> Row {
        let alike = NodeView {
            name: String::new(),
            state: [state.to_owned()].into(),
            reason: String::new(),
            reason_at: None,
            comment: String::new(),
        };
        Row { partition: "main".into(), nodes: nodes.iter().map(|name| (*name).to_owned()).collect(), alike }
    }

    #[test]
    fn the_next_nodes_that_are_up_are_knocked_at() {
        let picture = Picture {
            rows: vec![
                row(&["n1", "n2", "n5", "n6"], "IDLE"),
                row(&["n3"], "DOWN"),
                row(&["n4"], "ALLOCATED"),
            ],
        };
        assert_eq!(others(&picture, "n2"), ["n4", "n5", "n6"]);
        assert_eq!(others(&picture, "n6"), ["n1", "n2", "n4"]);
        assert!(others(&Picture { rows: vec![row(&["n1"], "IDLE")] }, "n1").is_empty());
    }

    #[test]
    fn a_policy_with_mistakes_tells_all_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.toml");
        assert_eq!(policy(&file), (Policy::default(), Vec::new()));
        std::fs::write(&file, "engin = 'host'\ntime.join_s = 0\n").unwrap();
        let (held, mistakes) = policy(&file);
        assert_eq!((held, mistakes.len()), (Policy::default(), 2));
    }
}
