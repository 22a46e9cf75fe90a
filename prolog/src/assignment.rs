//! What this prolog has to do: the job, the node's copy of the policy and the user's request, put together. Reads
//! files and the environment; asks nobody.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use cluster::slurm::config::{self, SlurmConf};
use cluster::slurm::environment::JobEnv;
use cluster::trusted_path::{self, PathError};
use diag::baseline::{BaselineError, Baselines};
use diag::check::CheckName;
use diag::facts::{Engine, Roster};
use diag::judge::{Hardware, Suite};
use diag::policy::{Policy, Scope};
use diag::request::effective::{Effective, Source, effective};
use diag::request::mistake::Mistake;
use diag::request::{Ask, Request};
use rustix::fs::OFlags;
use serde::Serialize;

/// The variable that carries the request; slurmd gives it this prefix.
pub const REQUEST_VARIABLE: &str = "SPANK_AIMASTER_REQUEST";

/// The variable that carries Slurm's release, as the plugin is stamped with it.
const RELEASE_VARIABLE: &str = "AIMASTER_SLURM_RELEASE";

/// Largest policy or file of limits: room for a map of addresses of the largest cluster.
const MOST_BYTES: u64 = 4 << 20;

/// The limits that serve where the site has no files of its own for the engine.
const BUILT_IN_BASELINES: &[&str] = &[
    include_str!("../../conf/baselines/host.toml"),
    include_str!("../../conf/baselines/a100.toml"),
    include_str!("../../conf/baselines/b200.toml"),
    include_str!("../../conf/baselines/b300.toml"),
    include_str!("../../conf/baselines/gb200.toml"),
    include_str!("../../conf/baselines/gh200.toml"),
    include_str!("../../conf/baselines/h100.toml"),
    include_str!("../../conf/baselines/h200.toml"),
];

/// Everything that is known before anything is measured.
#[derive(Debug, Clone)]
pub struct Assignment {
    /// The job.
    pub job: JobEnv,
    /// The node's copy of the policy.
    pub policy: Policy,
    /// What was asked for, under the policy.
    pub asked: Effective,
    /// What is measured and by which limits.
    pub suite: Suite,
    /// What all nodes of the job must agree on, hashed.
    pub digest: String,
}

/// Why an assignment can't be read.
#[derive(Debug, thiserror::Error)]
pub enum AssignmentError {
    /// A file is there but can't be read.
    #[error("can't read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// Others than root could have written it.
    #[error(transparent)]
    Untrusted(#[from] PathError),
    /// The policy has mistakes.
    #[error("{} has mistakes: {}", .path.display(), .mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Policy {
        /// The file.
        path: PathBuf,
        /// All of them.
        mistakes: Vec<Mistake>,
    },
    /// A baseline file has a mistake.
    #[error("{}", .path.display())]
    Baseline {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: BaselineError,
    },
    /// The request that came with the job is not one.
    #[error("the job's request can't be read ({0}); were the plugin and this helper installed together?")]
    Request(String),
}

/// The site's policy; the defaults where there is no file.
///
/// # Errors
/// If the file can't be read or has mistakes.
pub fn policy(path: &Path) -> Result<Policy, AssignmentError> {
    match read(path)? {
        None => Ok(Policy::default()),
        Some(text) => Policy::parse(&text)
            .map_err(|mistakes| AssignmentError::Policy { path: path.to_owned(), mistakes }),
    }
}

/// What is to be done for a job; `None`: nothing was asked for, or the feature does not apply to this job.
///
/// # Errors
/// If a baseline file can't be read, or the request can't and the site itself asks for nothing.
pub fn assignment(
    job: JobEnv,
    policy: Policy,
    request: Option<&str>,
) -> Result<Option<Assignment>, AssignmentError> {
    let (request, broken) = match request.map(Request::decode) {
        None => (Request::default(), None),
        Some(Ok(request)) => (request, None),
        Some(Err(error)) => (Request::default(), Some(AssignmentError::Request(error.to_string()))),
    };
    let mut asked = effective(&request, &policy);
    let nothing = asked.checks.is_empty() && asked.watch.is_none();
    if nothing || !in_scope(&policy.scope, &job) {
        return broken.map_or(Ok(None), Err);
    }
    // Nobody gets out of the site's checks by a request that can't be read.
    asked
        .notices
        .extend(broken.map(|error| format!("{error}: only what this site always checks was checked")));
    let baselines = baselines(&policy)?;
    let built = |check: &CheckName| !asked.unbuilt.contains(check);
    let suite = Suite {
        checks: asked.checks.iter().copied().filter(built).collect(),
        unbuilt: asked.unbuilt.clone(),
        engine: policy.engine,
        baselines,
        hardware: Hardware { nvls: policy.cuda.nvls, rdma: policy.named_rdma(), ..Hardware::default() },
    };
    let digest = digest(&suite, &policy);
    Ok(Some(Assignment { job, policy, asked, suite, digest }))
}

impl Assignment {
    /// The checks that the site's own rule asked for.
    #[must_use]
    pub fn site_checks(&self) -> BTreeSet<CheckName> {
        let by_site = |check: &CheckName| self.asked.source_of(*check) == Some(Source::Site);
        self.asked.checks.iter().copied().filter(by_site).collect()
    }

    /// The same for the nodes that met: limits depend on their GPUs.
    #[must_use]
    pub fn on(&self, roster: &Roster) -> Self {
        Self { suite: self.suite.on(roster), ..self.clone() }
    }

    /// The same for this node by itself, where the nodes' prologs can't meet.
    #[must_use]
    pub fn alone(&self, why: &str) -> Self {
        let mut alone = self.clone();
        alone.job.nodes = vec![self.job.node.clone()];
        alone.job.me = 0;
        alone.asked.notices.push(format!(
            "{why}: the nodes can't be checked together, each was by itself (wanted: PrologFlags=Alloc,DeferBatch,Contain)"
        ));
        alone
    }

    /// 1 for the first start of the job, 2 after its first restart, ...
    #[must_use]
    pub fn check_number(&self) -> u32 {
        self.job.restart.saturating_add(1)
    }
}

/// Why this job's prologs can't meet, if they can't (field case A29). One that is alone meets nobody; a configuration that can't
/// be read says nothing, and what can't meet then waits for its deadline.
#[must_use]
pub fn apart(job: &JobEnv) -> Option<&'static str> {
    if job.nodes.len() < 2 {
        return None;
    }
    let conf = SlurmConf::read(&config::locate(job.slurm_conf.as_deref()).ok()?).ok()?;
    let release = std::env::var(RELEASE_VARIABLE).ok().and_then(|text| text.parse().ok());
    conf.prologs_apart(release)
}

/// What a user who asked for checks is told where the site's policy leaves the job out, or has switched off what he
/// asked for: skipped is not passed.
#[must_use]
pub fn left_out(policy: &Policy, job: &JobEnv, request: Option<&str>) -> Option<String> {
    let request = request.and_then(|text| Request::decode(text).ok())?;
    let watch = matches!(request.runtime, Ask::On(_));
    if !in_scope(&policy.scope, job) {
        let asked = watch || matches!(request.sanity, Ask::On(_));
        let line = "SKIP: nothing was checked: this site's policy leaves this job out ([scope])";
        return asked.then(|| line.to_owned());
    }
    let off = watch && !policy.runtime.enabled;
    off.then(|| {
        "SKIP: the job is not watched: this site has switched the runtime check off (runtime.enabled)"
            .to_owned()
    })
}

fn in_scope(scope: &Scope, job: &JobEnv) -> bool {
    let partition = scope.partitions.is_empty()
        || job.partition.as_ref().is_some_and(|partition| scope.partitions.contains(partition));
    let constraints = job.constraints.as_deref().unwrap_or_default();
    let asked_features: Vec<&str> =
        constraints.split(|c: char| !(c.is_alphanumeric() || "_-.".contains(c))).collect();
    let features = scope.features.is_empty()
        || scope.features.iter().any(|feature| asked_features.contains(&feature.as_str()));
    partition && features
}

/// The site's baseline files of the engine, in the order of their names; without a folder those that were built in.
///
/// # Errors
/// If the folder or a file can't be read.
pub fn baselines(policy: &Policy) -> Result<Vec<Baselines>, AssignmentError> {
    let folder = &policy.paths.baseline_dir;
    let unreadable = |source| AssignmentError::Read { path: folder.clone(), source };
    let mut paths = match std::fs::read_dir(folder) {
        Ok(entries) => entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<Vec<PathBuf>, _>>()
            .map_err(unreadable)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(source) => return Err(unreadable(source)),
    };
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort_unstable();
    let mut texts = Vec::new();
    for path in paths {
        if let Some(text) = read(&path)? {
            texts.push((path, text));
        }
    }
    let own = of_engine(policy.engine, texts)?;
    if !own.is_empty() {
        return Ok(own);
    }
    of_engine(policy.engine, BUILT_IN_BASELINES.iter().map(|text| (PathBuf::from("(built in)"), *text)))
}

fn of_engine(
    engine: Engine,
    texts: impl IntoIterator<Item = (PathBuf, impl AsRef<str>)>,
) -> Result<Vec<Baselines>, AssignmentError> {
    let mut files = Vec::new();
    for (path, text) in texts {
        let file =
            Baselines::parse(text.as_ref()).map_err(|source| AssignmentError::Baseline { path, source })?;
        files.push(file);
    }
    files.retain(|file| file.engine == engine);
    Ok(files)
}

/// A file's text; `None` where there is no file.
fn read(path: &Path) -> Result<Option<String>, AssignmentError> {
    let unreadable = |source| AssignmentError::Read { path: path.to_owned(), source };
    // What root does hangs on it; to others it is as good as they like it.
    if rustix::process::geteuid().is_root() && path.is_absolute() {
        trusted_path::file_of_now(path)?;
    }
    // To open a pipe must not wait for its writer.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(unreadable(source)),
    };
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err(unreadable(io::Error::other("it is no regular file")));
    }
    let mut text = String::new();
    let read = file.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if read as u64 > MOST_BYTES {
        return Err(unreadable(io::Error::other(format!("it is longer than {} MiB", MOST_BYTES >> 20))));
    }
    Ok(Some(text))
}

/// Nodes that differ in any of this would plan or judge differently.
fn digest(suite: &Suite, policy: &Policy) -> String {
    #[derive(Serialize)]
    struct Agreed<'a> {
        checks: &'a [CheckName],
        unbuilt: &'a [CheckName],
        engine: Engine,
        host: diag::policy::HostEngine,
        nvls: bool,
        rdma: &'a BTreeSet<String>,
        max_drain: (u32, f64),
        baselines: String,
    }
    let agreed = Agreed {
        checks: &suite.checks,
        unbuilt: &suite.unbuilt,
        engine: suite.engine,
        host: policy.host,
        nvls: policy.cuda.nvls,
        rdma: &suite.hardware.rdma,
        max_drain: (policy.actions.max_drain_nodes, policy.actions.max_drain_fraction),
        baselines: format!("{:?}", suite.baselines),
    };
    let bytes = serde_json::to_vec(&agreed).unwrap_or_default();
    blake3::hash(&bytes).to_hex().to_string()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Job 7 of one node, n1.
    pub(crate) fn job() -> JobEnv {
        job_with(&[])
    }

    /// The same with more variables.
    pub(crate) fn job_with(more: &[(&str, &str)]) -> JobEnv {
        let variables = [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_JOB_UID", "1000"),
            ("SLURM_CLUSTER_NAME", "aim"),
            ("SLURMD_NODENAME", "n1"),
            ("SLURM_NODELIST", "n1"),
        ];
        let value = |name: &str| {
            let found = variables.iter().chain(more).find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        JobEnv::from_vars(value).unwrap()
    }

    #[test]
    fn a_policy_that_others_could_have_written_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("aimaster.toml");
        let put = |mode| {
            std::fs::write(&path, "engine = 'host'").unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        };
        assert_eq!(policy(&path).unwrap(), Policy::default());
        put(0o644);
        assert_eq!(policy(&path).unwrap().engine, Engine::Host);
        if rustix::process::geteuid().is_root() {
            put(0o646);
            assert!(matches!(policy(&path), Err(AssignmentError::Untrusted(_))));
        }
        // Neither of these keeps a job waiting.
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
            .unwrap();
        assert!(policy(&path).unwrap_err().to_string().contains("can't read"));
        let zero = policy(Path::new("/dev/zero")).unwrap_err();
        assert!(matches!(zero, AssignmentError::Read { .. } | AssignmentError::Untrusted(_)));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, " ".repeat(5 << 20)).unwrap();
        let long = policy(&path).unwrap_err();
        assert!(cluster::chain(&long).contains("longer than 4 MiB"), "{long:?}");
    }

    #[test]
    fn a_request_that_cannot_be_read_does_not_switch_the_sites_checks_off() {
        let site = "engine = 'host'\nchecks.always = ['gemm_flops']\nchecks.users_may_switch_off = false";
        for request in ["", "x", "e30", "bnVsbA", "%00", "{}"] {
            let got = assignment(job(), Policy::parse(site).unwrap(), Some(request)).unwrap().unwrap();
            assert_eq!(got.suite.checks, [CheckName::GemmFlops], "{request:?}");
            assert!(got.asked.notices[0].contains("can't be read"), "{:?}", got.asked.notices);
            let elsewhere = format!("{site}\nscope.partitions = ['p']");
            let left_out = assignment(job(), Policy::parse(&elsewhere).unwrap(), Some(request));
            assert!(matches!(left_out, Err(AssignmentError::Request(_))), "{request:?}");
        }
    }
}
