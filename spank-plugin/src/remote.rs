//! The `remote` context: slurmstepd. As root, before the change of user, the launch gate is read, and the tasks'
//! environment is prepared for the runtime check; in each task
//! the gate is obeyed: the task ends with the verdict, or starts. A job without a gate is one whose helper did not
//! run; the policy's `on_error` decides about it, if it was to be checked at all.

use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use diag::gate::{Gate, MAX_LINE_CHARS, MAX_LINES, RUN_ROOT};
use diag::plain::is_plain;
use diag::policy::{Policy, Undecided};
use diag::request::submission::Flag;
use diag::request::{Ask, Request};
use slurm_spank::SpankHandle;

use crate::arguments::Arguments;
use crate::boundary::error;
use crate::files;
use crate::gate_file::{self, GateError, RunFolder, Wanted};
use crate::{job_script, options, policy, telemetry};

/// The step that holds a job's cgroup and adopts ssh sessions; it runs nothing of the user's.
const EXTERN_STEP: u32 = 0xffff_fffc;

/// The step that runs a batch script.
const BATCH_STEP: u32 = 0xffff_fffb;

/// How long the other tasks of a node wait for the first one's message: srun may end the step with the first
/// task that fails.
const MESSAGE_FIRST: Duration = Duration::from_millis(300);

/// Largest slurm.conf that is looked through for the cluster's name.
const MAX_CONF_BYTES: usize = 4 << 20;

/// Name under which Slurm hands the request of a batch job and of a salloc to the job's own environment.
const REQUEST_VARIABLE: &str = "SLURM_SPANK_AIMASTER_REQUEST";

/// What the tasks of this step do, once it is known. Empty: they start, and nothing is printed.
static DECISION: Mutex<Option<Decision>> = Mutex::new(None);

/// Gives its memory back.
pub fn forget_decision() {
    *DECISION.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Decision {
    start: bool,
    text: String,
    /// Whether the first task of this step prints the text although it starts.
    says_so: bool,
}

impl Decision {
    fn of(gate: &Gate, says_so: bool) -> Self {
        let mut text = String::new();
        for line in gate.lines.iter().take(MAX_LINES) {
            text.push_str("aimaster: ");
            text.extend(line.chars().filter(|c| is_plain(*c)).take(MAX_LINE_CHARS));
            text.push('\n');
        }
        Self { start: gate.start, text, says_so }
    }
}

/// Reads the launch gate and prepares the tasks' environment.
pub fn post_opt(spank: &SpankHandle, arguments: &Arguments) {
    let step = spank.job_stepid().unwrap_or(0);
    if step == EXTERN_STEP {
        return;
    }
    let Ok(job) = spank.job_id() else {
        error("Slurm does not say which job this is: its launch gate can't be read, and it starts");
        return;
    };
    let (folder, gate) = match run_folder(job).and_then(|folder| Ok((folder.gate()?, folder))) {
        Ok((gate, folder)) => (Some(folder), Ok(gate)),
        Err(cause) => (None, Err(cause)),
    };
    telemetry::inject(spank, folder.as_ref());
    let decision = match gate {
        Ok(gate) => {
            let says_so = if gate.untold { tells_the_user(spank, step) } else { step == BATCH_STEP };
            Some(Decision::of(&gate, says_so))
        }
        Err(cause) => without_gate(spank, arguments, step, &cause),
    };
    *DECISION.lock().unwrap_or_else(PoisonError::into_inner) = decision;
}

/// Runs in the new process of each task, as the user, just before the user's program.
pub fn task_init(spank: &SpankHandle) {
    // The process was forked: a lock that another thread held then would never be released.
    let decision = match DECISION.try_lock() {
        Ok(decision) => decision.clone(),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner().clone(),
        Err(std::sync::TryLockError::WouldBlock) => None,
    };
    let Some(decision) = decision else { return };
    if decision.start {
        if decision.says_so && spank.task_global_id().unwrap_or(0) == 0 {
            print(&decision.text);
        }
        return;
    }
    // Once a node: every node of the job has the same verdict, but not every node may be able to say it.
    if spank.task_id().unwrap_or(0) == 0 {
        print(&decision.text);
    } else {
        std::thread::sleep(MESSAGE_FIRST);
    }
    // SAFETY: ends this forked process at once; handlers and buffers in it belong to slurmstepd.
    unsafe { libc::_exit(1) }
}

fn print(text: &str) {
    // The output may be closed or full; there is nobody left to tell.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn run_folder(job: u32) -> Result<RunFolder, GateError> {
    // slurmd sets it, and SLURM_CONF, in slurmstepd's own environment. The job's environment is the user's word, and is
    // never asked where the folder is.
    let node = node_name();
    let wanted = Wanted { root: Path::new(RUN_ROOT), owner: 0, cluster: None, node: node.as_deref(), job };
    match gate_file::find(&wanted) {
        Err(GateError::Ambiguous) => {
            let cluster = cluster_name();
            gate_file::find(&Wanted { cluster: cluster.as_deref(), ..wanted })
        }
        other => other,
    }
}

fn node_name() -> Option<String> {
    std::env::var("SLURMD_NODENAME").ok()
}

/// The cluster's name, from the slurm.conf of the slurmd that started this process.
fn cluster_name() -> Option<String> {
    let path = std::env::var_os("SLURM_CONF").unwrap_or_else(|| "/etc/slurm/slurm.conf".into());
    let conf = files::read(Path::new(&path), MAX_CONF_BYTES).ok()?;
    cluster_of(&String::from_utf8_lossy(&conf))
}

fn cluster_of(conf: &str) -> Option<String> {
    conf.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        let name = value.split('#').next()?.trim();
        // The name is a folder's: what leads elsewhere is no name.
        let plain = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
        // Slurm keeps cluster names in lower case.
        (key.trim().eq_ignore_ascii_case("ClusterName") && plain).then(|| name.to_lowercase())
    })
}

/// What happens to a job that has no gate.
fn without_gate(
    spank: &SpankHandle,
    arguments: &Arguments,
    step: u32,
    cause: &GateError,
) -> Option<Decision> {
    let policy = policy::load(&arguments.policy).unwrap_or_else(|broken| {
        error(&format!("{broken}: the built-in policy holds"));
        None
    });
    let policy = policy.unwrap_or_default();
    let partition = spank.getenv_lossy("SLURM_JOB_PARTITION").ok().flatten();
    if !(asked(spank) || site_checks(&policy, partition.as_deref())) {
        return None;
    }
    let helper = job_script::prolog_helper(arguments);
    let node = node_name().unwrap_or_else(|| "this node".to_owned());
    let what = format!("ERROR: {node} was not checked: {cause}");
    let hint =
        format!("for the admin: {} left no verdict, slurmd's log on {node} says why", helper.display());
    error(&format!("{what}; {hint}"));
    let start = policy.actions.on_error == Undecided::Start;
    let then = if start {
        "the job starts, because the policy says on_error = \"start\""
    } else {
        "the job does not start, because the policy says on_error = \"fail\""
    };
    let lines = vec![what, then.to_owned(), hint];
    let gate = if start { Gate::open(lines) } else { Gate::closed(lines) };
    Some(Decision::of(&gate, tells_the_user(spank, step)))
}

/// Whether this step is where the job's user looks first: the batch step, or the first step of a job that has
/// none. (srun prints a verdict while it waits, but there is none.)
fn tells_the_user(spank: &SpankHandle, step: u32) -> bool {
    // Only what is printed hangs on this variable of the user's environment.
    let in_batch_job = spank.getenv_lossy("ENVIRONMENT").is_ok_and(|value| value.as_deref() == Some("BATCH"));
    step == BATCH_STEP || (step == 0 && !in_batch_job)
}

/// Whether the user asked for checks, as far as it shows in a step: the request itself in a batch job and
/// under salloc, the options in srun. A user who hides it only gives up the check.
fn asked(spank: &SpankHandle) -> bool {
    if let Ok(Some(text)) = spank.getenv(REQUEST_VARIABLE) {
        return Request::decode(&text).is_ok_and(|request| matches!(request.sanity, Ask::On(_)));
    }
    match &options::seen()[options::SANITY_CHECK] {
        Flag::Absent => options::seen()[options::AIMASTER] != Flag::Absent,
        Flag::Bare => true,
        Flag::Value(value) => !value.trim().eq_ignore_ascii_case("off"),
    }
}

/// Whether the site checks this job anyway. Where that hangs on features or GPU types, which can't be told
/// here, the job gets the benefit of the doubt.
fn site_checks(policy: &Policy, partition: Option<&str>) -> bool {
    let scope = &policy.scope;
    let in_partition = scope.partitions.is_empty()
        || partition.is_some_and(|partition| scope.partitions.iter().any(|name| name == partition));
    !policy.checks.always.is_empty()
        && in_partition
        && scope.features.is_empty()
        && scope.gpu_types.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use diag::check::CheckName;

    #[test]
    fn lines_are_bounded_and_clean() {
        let lines = vec!["a\x1b[2J\u{202e}b".to_owned(), "ü".repeat(2 * MAX_LINE_CHARS)];
        let decision = Decision::of(&Gate { lines: lines.clone(), ..Gate::closed(Vec::new()) }, true);
        assert_eq!(decision.text, format!("aimaster: a[2Jb\naimaster: {}\n", "ü".repeat(MAX_LINE_CHARS)));
        let many = Decision::of(&Gate { lines: vec![String::new(); 1000], ..Gate::open(Vec::new()) }, true);
        assert_eq!(many.text.lines().count(), MAX_LINES);
    }

    #[test]
    fn the_cluster_s_name_is_found_in_a_conf() {
        assert_eq!(cluster_of("# ClusterName=x\n clustername = Aim # ours\n"), Some("aim".into()));
        assert_eq!(cluster_of("ClusterName=../x\n"), None);
        assert_eq!(cluster_of(""), None);
    }

    #[test]
    fn a_site_s_own_checks_count_where_their_scope_is_known() {
        let mut policy = Policy::default();
        assert!(!site_checks(&policy, Some("main")));
        policy.checks.always = vec![CheckName::GemmFlops];
        assert!(site_checks(&policy, None));
        policy.scope.partitions = vec!["gpu".into()];
        assert!(site_checks(&policy, Some("gpu")));
        assert!(!site_checks(&policy, Some("main")) && !site_checks(&policy, None));
        policy.scope.features = vec!["lingjun".into()];
        assert!(!site_checks(&policy, Some("gpu")));
    }
}
