//! Slurm's own settings: how its prologs run, how long they may take, and what becomes of a job that goes back to the queue.

use super::Findings;
use super::facts::{Facts, Is, Machine, Release, SiteProlog, Slurm};

/// Slurm's numbers for "not set", of 16 and 32 bits.
const UNSET: [u64; 2] = [65_534, 4_294_967_294];

/// Slurm's numbers for "for ever".
const FOREVER: [u64; 2] = [65_535, 4_294_967_295];

/// What a prolog needs beside the checks: it stops its helpers, acts and reports.
pub(super) const MARGIN_S: u64 = 15;

/// A requeued job that waits so long is waited for by a person.
const LONG_REQUEUE_S: u64 = 60;

/// A requeued job that waits so long looks lost.
const LOST_REQUEUE_S: u64 = 300;

/// How long a requeued job waits where nobody says.
const CRED_EXPIRE_S: u64 = 120;

/// How often Slurm requeues a job by itself where nobody says.
const BATCH_REQUEUES: u64 = 5;

/// Slurm's default of BatchStartTimeout and MessageTimeout.
const DEFAULT_TIMEOUT_S: u64 = 10;

/// The exit code with which the launch gate ends a task.
const GATE_CODE: &str = "1";

/// Clocks that differ by more: MUNGE refuses at 300 s, and drains are counted by the second.
const MOST_SKEW_S: f64 = 10.0;

impl Slurm {
    /// A setting, unless it is not set.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        let value = self.settings.get(&key.to_ascii_lowercase())?.trim();
        (!matches!(value, "" | "(null)" | "N/A" | "NONE" | "none")).then_some(value)
    }

    /// A number, with or without a unit behind it.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<u64> {
        let number = self.get(key)?.split_whitespace().next()?.parse().ok()?;
        (!UNSET.contains(&number) && !FOREVER.contains(&number)).then_some(number)
    }

    /// Whether a list of words has this one.
    #[must_use]
    pub fn has(&self, key: &str, word: &str) -> bool {
        self.words(key).any(|one| one.eq_ignore_ascii_case(word))
    }

    fn words(&self, key: &str) -> impl Iterator<Item = &str> {
        self.get(key).unwrap_or_default().split(',').map(str::trim)
    }

    /// The value of `name=value` in a list of words.
    #[must_use]
    pub fn option(&self, key: &str, name: &str) -> Option<&str> {
        self.words(key).find_map(|word| {
            let (own, value) = word.split_once('=')?;
            own.trim().eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The time that a prolog has, and the setting that says so.
    #[must_use]
    pub fn prolog_limit(&self) -> Option<(&'static str, u64)> {
        ["PrologTimeout", "PrologEpilogTimeout"].into_iter().find_map(|key| Some((key, self.number(key)?)))
    }

    /// How long a requeued job waits, and the setting that says so.
    #[must_use]
    pub fn requeue_wait(&self) -> (&'static str, u64) {
        let delay = self.option("SchedulerParameters", "requeue_delay").and_then(|text| text.parse().ok());
        match delay {
            Some(delay) => ("SchedulerParameters=requeue_delay", delay),
            None => {
                let expire = self.option("AuthInfo", "cred_expire").and_then(|text| text.parse().ok());
                ("AuthInfo=cred_expire", expire.unwrap_or(CRED_EXPIRE_S) + 1)
            }
        }
    }
}

pub(super) fn rules(facts: &Facts, findings: &mut Findings) {
    controller(facts, findings);
    if facts.slurm.settings.is_empty() {
        return;
    }
    prolog_flags(facts, findings);
    timeouts(facts, findings);
    nodes(facts, findings);
    if facts.site.knows_policy() {
        prolog_time(facts, findings);
        requeues(facts, findings);
        ports(facts, findings);
    }
    site_prolog(facts, findings);
}

fn controller(facts: &Facts, findings: &mut Findings) {
    let slurm = &facts.slurm;
    let missing: Vec<String> = slurm
        .programs
        .iter()
        .filter(|one| one.is != Is::Hidden && !one.is_program())
        .map(|one| one.path.display().to_string())
        .collect();
    if !missing.is_empty() {
        findings.mistake(
            "slurm_commands",
            format!("no program at {}", missing.join(", ")),
            "install Slurm's client commands there, or set paths.scontrol and paths.scancel in the policy; squeue and sinfo are \
             taken from scontrol's folder",
            "verdicts are acted on by these commands",
        );
    } else if let Some(words) = &slurm.silent {
        findings.mistake(
            "controller",
            format!("slurmctld does not answer: {words}"),
            "start slurmctld, or mend the way to it; then run this again: its own settings were not looked at, those of \
             slurm.conf were",
            "no node can be drained and no job be requeued without it",
        );
    }
    if let Some(release) = slurm.release.filter(|release| !release.is_from(22, 5)) {
        findings.mistake(
            "slurm_release",
            format!("Slurm {release}"),
            "upgrade to 22.05 or newer",
            "older releases don't give a prolog the job's nodes",
        );
    }
    if let Some(hash) = slurm.get("HASH_VAL").filter(|hash| hash.starts_with("Different")) {
        findings.mistake(
            "slurm_conf_differs",
            format!("slurm.conf here is not slurmctld's: {hash}"),
            "copy slurm.conf from the controller, then `scontrol reconfigure`",
            "nodes would be looked for under old names and addresses",
        );
    }
    if let Some(ahead) = slurm.clock_ahead_s.filter(|ahead| ahead.abs() > MOST_SKEW_S) {
        let way = if ahead > 0.0 { "ahead of" } else { "behind" };
        findings.mistake(
            "clock",
            format!("this machine's clock is {:.0} s {way} the controller's", ahead.abs()),
            "let chrony or ntpd set it",
            "MUNGE refuses credentials at 300 s, and drains of all jobs are counted by their times",
        );
    }
}

fn prolog_flags(facts: &Facts, findings: &mut Findings) {
    const WANTED: &str =
        "set PrologFlags=Alloc,DeferBatch,Contain in slurm.conf, and restart slurmctld and slurmd";
    let slurm = &facts.slurm;
    let has = |flag: &str| slurm.has("PrologFlags", flag);
    let shown = format!("PrologFlags={}", slurm.get("PrologFlags").unwrap_or("(nothing)"));
    let newest = slurm.release.is_some_and(|release| release.is_from(26, 5));
    let contains = has("Contain") || has("X11") || has("RunInJob");
    if !(has("Alloc") || contains || newest) {
        findings.mistake(
            "prolog_flags_alloc",
            format!("{shown} lacks Alloc"),
            WANTED,
            "without it a node's prolog runs when its first task starts, so that the nodes of a job can't meet: each is checked by \
             itself",
        );
    }
    if !has("DeferBatch") {
        findings.mistake(
            "prolog_flags_defer_batch",
            format!("{shown} lacks DeferBatch"),
            WANTED,
            "without it a batch script starts when the first node's prolog ends, beside the checks of the others",
        );
    }
    if !contains {
        findings.mistake(
            "prolog_flags_contain",
            format!("{shown} lacks Contain"),
            WANTED,
            "without it a node has no step of the job between two of its steps, and the runtime check takes the job to be over",
        );
    }
    for (flag, rule, why) in [
        (
            "Serial",
            "prolog_flags_serial",
            "two jobs can each hold a node that the other one's prolog waits for",
        ),
        (
            "NoHold",
            "prolog_flags_no_hold",
            "salloc and tasks do not wait for the prologs, and start beside the checks",
        ),
    ] {
        if has(flag) {
            findings.mistake(rule, format!("{shown} has {flag}"), format!("take {flag} out: {WANTED}"), why);
        }
    }
    let wrapped = slurm.prologs.iter().any(|prolog| prolog.calls_us);
    if has("RunInJob") && !wrapped {
        findings.mistake(
            "prolog_flags_run_in_job",
            format!("{shown} has RunInJob"),
            "take RunInJob out; or call /usr/libexec/aimaster/aimaster-prolog and aimaster-epilog from the site's Prolog and \
             Epilog, and say prolog=off in plugstack.conf",
            "Slurm calls no plugin's prolog then: nothing would be checked, in silence",
        );
    }
}

fn prolog_time(facts: &Facts, findings: &mut Findings) {
    let Some((key, limit_s)) = facts.slurm.prolog_limit() else { return };
    let ours_s = u64::from(facts.site.policy.time.max_deadline_s);
    if limit_s < ours_s + MARGIN_S {
        let most = limit_s.saturating_sub(MARGIN_S);
        let or = if most > u64::from(facts.site.policy.time.join_s) {
            format!(", or time.max_deadline_s={most} in the policy")
        } else {
            String::new()
        };
        findings.mistake(
            "prolog_timeout",
            format!("{key}={limit_s} s, and checks may take {ours_s} s (time.max_deadline_s)"),
            format!("set {key}={} in slurm.conf{or}", ours_s + MARGIN_S),
            format!(
                "Slurm kills a prolog at its limit without a word; {MARGIN_S} s are for the action, the report and a gentle end"
            ),
        );
    }
}

fn timeouts(facts: &Facts, findings: &mut Findings) {
    let slurm = &facts.slurm;
    if let Some(limit_s) = slurm.number("BatchStartTimeout").filter(|limit| *limit < DEFAULT_TIMEOUT_S) {
        findings.note(
            "batch_start_timeout",
            format!("BatchStartTimeout={limit_s} s is below Slurm's default"),
            format!("set BatchStartTimeout={DEFAULT_TIMEOUT_S}"),
            "a batch script that starts late on a loaded node is taken for lost; with DeferBatch it does not bound the checks",
        );
    }
    if let Some(limit_s) = slurm.number("MessageTimeout") {
        if limit_s < DEFAULT_TIMEOUT_S {
            findings.note(
                "message_timeout",
                format!("MessageTimeout={limit_s} s is below Slurm's default"),
                format!("set MessageTimeout={DEFAULT_TIMEOUT_S}"),
                "a busy slurmctld answers later, and then drains and requeues fail",
            );
        } else if slurm.release.is_some_and(|release| release.is_from(24, 11)) {
            findings.note(
                "prolog_hung_message",
                format!("MessageTimeout={limit_s} s"),
                "nothing; tell your users",
                format!(
                    "from Slurm 24.11 on srun prints \"Prolog hung on node\" when checks take longer than {} s: it is harmless",
                    limit_s.saturating_sub(2)
                ),
            );
        }
    }
    if slurm.get("SlurmdTimeout").is_some_and(|text| text.starts_with("0 ") || text == "0") {
        findings.mistake(
            "slurmd_timeout",
            "SlurmdTimeout=0",
            "set SlurmdTimeout=300",
            "Slurm never marks a dead node DOWN then, and a node that died is only named by the checks, not drained",
        );
    }
}

fn requeues(facts: &Facts, findings: &mut Findings) {
    let slurm = &facts.slurm;
    let actions = &facts.site.policy.actions;
    if !actions.allowed.contains(&crate::request::FailAction::Requeue) {
        return;
    }
    let (key, wait_s) = slurm.requeue_wait();
    let advice = if slurm.release.is_some_and(|release| release.is_from(25, 11)) {
        "set SchedulerParameters=requeue_delay=5"
    } else {
        "set AuthInfo=cred_expire=10 (with what else stands in AuthInfo), if all clocks agree"
    };
    let found = format!("a requeued job waits {wait_s} s ({key})");
    let why = "so long it stays in the queue before it can start on other nodes";
    if wait_s > LOST_REQUEUE_S {
        findings.mistake("requeue_wait", found, advice, why);
    } else if wait_s > LONG_REQUEUE_S {
        findings.note("requeue_wait", found, advice, why);
    }
    if slurm.get("JobRequeue") == Some("0") {
        findings.mistake(
            "job_requeue",
            "JobRequeue=0",
            "set JobRequeue=1, or take \"requeue\" out of actions.allowed in the policy",
            "a job that did not say --requeue ends where its user asked for --sanity-fail-action=requeue",
        );
    }
    let most = slurm.option("SchedulerParameters", "max_batch_requeue").and_then(|text| text.parse().ok());
    let most: u64 = most.unwrap_or(BATCH_REQUEUES);
    let ours = u64::from(actions.max_requeues);
    if most <= ours {
        findings.mistake(
            "max_batch_requeue",
            format!("SchedulerParameters=max_batch_requeue={most}, and this software requeues a job {ours} times (actions.max_requeues)"),
            format!("set max_batch_requeue={} in SchedulerParameters, or a smaller actions.max_requeues", ours + 2),
            "Slurm holds a job that was requeued so often, until an admin releases it",
        );
    }
    for key in ["RequeueExit", "RequeueExitHold"] {
        if slurm.words(key).any(|word| word == GATE_CODE || range_has_gate_code(word)) {
            findings.mistake(
                "requeue_exit",
                format!("{key}={} has the exit code 1", slurm.get(key).unwrap_or_default()),
                format!("take 1 out of {key}"),
                "a job that the launch gate ends has the exit code 1: Slurm would requeue it again and again",
            );
        }
    }
}

/// `1-5`.
fn range_has_gate_code(word: &str) -> bool {
    let Some((first, last)) = word.split_once('-') else { return false };
    let number = |text: &str| text.trim().parse::<u32>().ok();
    matches!((number(first), number(last)), (Some(first), Some(last)) if (first..=last).contains(&1))
}

fn nodes(facts: &Facts, findings: &mut Findings) {
    let slurm = &facts.slurm;
    let user = slurm.get("SlurmdUser").unwrap_or("root").split('(').next().unwrap_or("root");
    if user != "root" {
        findings.mistake(
            "slurmd_user",
            format!("SlurmdUser={user}"),
            "set SlurmdUser=root",
            "prologs run as that user: without root nobody can keep what users must not read or write",
        );
    }
    let saves_power = slurm.get("ResumeProgram").is_some() && slurm.number("SuspendTime").is_some();
    let lacking: Vec<&str> = ["sbatch_wait_nodes", "salloc_wait_nodes"]
        .into_iter()
        .filter(|word| !slurm.has("SchedulerParameters", word))
        .collect();
    if saves_power && !lacking.is_empty() {
        findings.mistake(
            "wait_nodes",
            format!(
                "nodes are powered down (SuspendTime), and SchedulerParameters lacks {}",
                lacking.join(" and ")
            ),
            format!("add {} to SchedulerParameters", lacking.join(",")),
            "else the first node's prolog runs while others still boot, and they don't meet in time.join_s",
        );
    }
    if slurm.get("ReturnToService") == Some("2") {
        findings.note(
            "return_to_service",
            "ReturnToService=2",
            "nothing, or ReturnToService=1",
            "a node that fell out comes back by itself; what this software drained stays drained",
        );
    }
    if let Some(track) = slurm.get("ProctrackType").filter(|track| !track.contains("cgroup")) {
        findings.note(
            "proctrack",
            format!("ProctrackType={track}"),
            "set ProctrackType=proctrack/cgroup",
            "processes that a job leaves behind live on, and the next job's checks measure beside them",
        );
    }
}

fn ports(facts: &Facts, findings: &mut Findings) {
    let network = &facts.site.policy.network;
    for key in ["SlurmctldPort", "SlurmdPort", "SrunPortRange"] {
        let Some(value) = facts.slurm.get(key) else { continue };
        let mut ends = value.split('-').map(|text| text.trim().parse::<u16>().ok());
        let Some(Some(first)) = ends.next() else { continue };
        let last = ends.next().flatten().unwrap_or(first);
        if first != 0 && first <= network.port_last && last >= network.port_first {
            findings.mistake(
                "ports_of_slurm",
                format!(
                    "{key}={value} is inside the ports of the checks, {} to {}",
                    network.port_first, network.port_last
                ),
                "choose others: network.port_first and port_last in the policy",
                "Slurm and the checks would take each other's ports",
            );
        }
    }
}

fn site_prolog(facts: &Facts, findings: &mut Findings) {
    // What a node has is told on that node.
    if facts.machine == Machine::Login {
        return;
    }
    for SiteProlog { pattern, files, .. } in &facts.slurm.prologs {
        if files.is_empty() {
            findings.mistake(
                "prolog_pattern",
                format!("Prolog={pattern} fits no file on this node"),
                "put the script there, or take the line out of slurm.conf",
                "Slurm drains a node whose Prolog is missing with its first job, with the reason \"Prolog error\"",
            );
        }
        for file in files.iter().filter(|file| !file.is_program() && file.is != Is::Hidden) {
            findings.mistake(
                "prolog_program",
                format!("Prolog {} is no program that can be run", file.path.display()),
                format!("chmod 755 {}", file.path.display()),
                "Slurm drains a node whose Prolog fails",
            );
        }
    }
    let starts = super::plugin::arguments(facts).starts_helpers;
    if starts && facts.slurm.prologs.iter().any(|prolog| !prolog.calls_us && !prolog.files.is_empty()) {
        findings.note(
            "prolog_order",
            "the site has a Prolog of its own, which runs after the checks",
            "nothing, if it does not prepare GPUs; else call aimaster-prolog as its last script (Slurm runs them in reverse order \
             of name: 00-aimaster), aimaster-epilog in the Epilog, and say prolog=off in plugstack.conf",
            "clocks, MIG and the like would be set after they were measured",
        );
    }
}

/// The release as a plugin has to be stamped.
pub(super) fn major_minor(release: Release) -> String {
    format!("{}.{:02}", release.major, release.minor)
}
