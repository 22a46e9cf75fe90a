//! This software's own files: policy, limits, helpers, folders, and the user that measures.

use std::path::Path;

use super::Findings;
use super::facts::{Entry, Facts, Is, Machine};
use super::plugin::arguments;
use crate::policy::ReportOwner;

/// Bits that let others than the owner write.
const OTHERS_WRITE: u32 = 0o022;

/// Bits of a folder in which everybody makes files of his own.
const SHARED: u32 = 0o1777;

pub(super) fn rules(facts: &Facts, findings: &mut Findings) {
    policy(facts, findings);
    if facts.machine != Machine::Login {
        helpers(facts, findings);
    }
    if !facts.site.knows_policy() {
        return;
    }
    limits(facts, findings);
    if facts.machine == Machine::Login {
        return;
    }
    user(facts, findings);
    reports(facts, findings);
    state(facts, findings);
    open(findings, "paths_open", facts.site.named.iter());
}

fn policy(facts: &Facts, findings: &mut Findings) {
    let site = &facts.site;
    let file = &site.policy_file;
    let path = file.path.display();
    for mistake in &site.policy_mistakes {
        findings.mistake(
            "policy",
            format!("{path}: {mistake}"),
            "mend it, then run this again: what depends on the policy was not looked at",
            "with a policy that can't be read nothing is checked, and jobs start",
        );
    }
    match file.is {
        Is::Nothing => findings.note(
            "policy_missing",
            format!("there is no {path}"),
            "install conf/aimaster.toml there, on all nodes and login machines",
            "the defaults hold",
        ),
        Is::File if file.mode & 0o004 == 0 => findings.mistake(
            "policy_hidden",
            format!("{path} can't be read by users (mode {:o})", file.mode),
            format!("chmod 644 {path}"),
            "requests are held against it where users submit, as the user",
        ),
        Is::File => {}
        Is::Hidden | Is::Folder | Is::Other => findings.mistake(
            "policy",
            format!("{path} can't be read as a file"),
            "make it a plain file, readable by all",
            "without it the defaults hold on this machine only",
        ),
    }
    open(findings, "policy_open", std::iter::once(file));
}

fn limits(facts: &Facts, findings: &mut Findings) {
    let site = &facts.site;
    for mistake in &site.baseline_mistakes {
        findings.mistake(
            "baselines",
            mistake.clone(),
            "mend it, or install conf/baselines again; `aimaster baseline lint` says whether it is good",
            "a limit that can't be read is an ERROR of every job; one that no part reaches fails good nodes",
        );
    }
    if site.baseline_mistakes.is_empty() && !site.has_limits {
        findings.note(
            "baselines_built_in",
            format!(
                "no limits for engine {} in {}",
                site.policy.engine,
                site.policy.paths.baseline_dir.display()
            ),
            "nothing; or install conf/baselines there, on all nodes",
            "those that are built in hold",
        );
    }
}

fn helpers(facts: &Facts, findings: &mut Findings) {
    let site = &facts.site;
    let why = "a job whose helper does not run is an ERROR: on_error of the policy decides whether it starts";
    let lacking = |wanted: fn(&Entry) -> bool| -> Vec<String> {
        site.helpers.iter().filter(|one| wanted(one)).map(|one| one.path.display().to_string()).collect()
    };
    let missing = lacking(|one| !matches!(one.is, Is::File | Is::Hidden));
    if !missing.is_empty() {
        findings.mistake(
            "helper",
            format!("there is no program {}", missing.join(", ")),
            "install the helpers there, or set helpers=DIR in plugstack.conf",
            why,
        );
    }
    let shut = lacking(|one| one.is == Is::File && !one.is_program());
    if !shut.is_empty() {
        let shut = shut.join(" ");
        findings.mistake("helper", format!("not all users can run {shut}"), format!("chmod 755 {shut}"), why);
    }
    open(findings, "helpers_open", site.helpers.iter().chain(&site.profiler));
    if let Some(profiler) = site.profiler.as_ref().filter(|one| one.is == Is::Nothing) {
        findings.mistake(
            "profiler",
            format!("there is no {}", profiler.path.display()),
            "install it beside the helpers, or set runtime.telemetry=false in the policy",
            "no rank tells the runtime check what NCCL does",
        );
    }
}

fn user(facts: &Facts, findings: &mut Findings) {
    let site = &facts.site;
    if let Some(words) = &site.worker_user {
        findings.mistake(
            "worker_user",
            words.clone(),
            "useradd --system --no-create-home --shell /usr/sbin/nologin aimaster; or name another in paths.worker_user",
            "measuring is done without rights, and there is nobody to do it",
        );
    } else if site.worker_is_nobody {
        findings.note(
            "worker_is_nobody",
            "there is no user aimaster: nobody measures",
            "useradd --system --no-create-home --shell /usr/sbin/nologin aimaster",
            "other services run as nobody too, and could disturb a check",
        );
    }
}

fn reports(facts: &Facts, findings: &mut Findings) {
    let site = &facts.site;
    let shown = site.policy.paths.report_dir.display();
    let Some(folder) = &site.report_dir else {
        findings.mistake(
            "report_dir_silent",
            format!("{shown} does not answer"),
            "mend its storage, or set paths.report_dir to another folder",
            "each job waits for it for two seconds and loses its report",
        );
        return;
    };
    if matches!(folder.is, Is::File | Is::Other) {
        findings.mistake(
            "report_dir",
            format!("{shown} is no folder"),
            "remove it; the first report makes the folder",
            "reports are lost",
        );
        return;
    }
    if site.policy.paths.report_owner == ReportOwner::User {
        let Some(cluster) = &site.report_cluster_dir else { return };
        let path = cluster.path.display();
        if cluster.is != Is::Hidden
            && (cluster.is != Is::Folder || cluster.owner != 0 || cluster.mode & SHARED != SHARED)
        {
            findings.mistake(
                "report_dir_shared",
                format!("{path} is no folder of root's in which all users can make theirs"),
                format!("mkdir -p {path} && chown root {path} && chmod 1777 {path}"),
                "paths.report_owner is \"user\": each job's user writes his report there",
            );
        }
    } else {
        // Below it nothing is trusted, so a folder that others write in only lets them be in the way.
        let open = folder.is == Is::Folder && folder.mode & OTHERS_WRITE != 0;
        if open {
            findings.mistake(
                "report_dir_open",
                format!("{shown} can be written to by others than root (mode {:o})", folder.mode),
                format!("chmod 755 {shown}"),
                "a user could make the cluster's folder first, and no report would be written any more",
            );
        }
    }
}

fn state(facts: &Facts, findings: &mut Findings) {
    let site = &facts.site;
    if let Some(run) = &site.run_dir {
        let wrong = match run.is {
            Is::Folder => run.owner != 0 || run.mode & OTHERS_WRITE != 0,
            Is::File | Is::Other => true,
            Is::Nothing | Is::Hidden => false,
        };
        if wrong {
            let path = run.path.display();
            findings.mistake(
                "run_dir",
                format!("{path} is not root's own folder (owner {}, mode {:o})", run.owner, run.mode),
                format!("remove {path}: the next job makes it anew"),
                "launch gates stand there: whoever writes in it decides which jobs start",
            );
        }
    }
    if site.policy.history.enabled {
        let state = site.state_dir.as_ref();
        let open = state.and_then(|one| one.open.clone());
        if let Some(words) = open.or_else(|| site.history.clone()) {
            findings.mistake(
                "history",
                words,
                "give the folder to root alone (chown root:root, chmod go-w, up to /), or set history.enabled=false in the policy",
                "the node does not keep its results, and does not see that a part declines",
            );
        }
    }
    if let Some(folder) = site.metrics_dir.as_ref().filter(|one| one.is != Is::Hidden) {
        let path = folder.path.display();
        if folder.is != Is::Folder || folder.owner != 0 || folder.mode & OTHERS_WRITE != 0 {
            findings.mistake(
                "metrics_dir",
                format!("{path} is no folder that root alone can write into"),
                format!(
                    "mkdir -p {path} && chown root {path} && chmod 755 {path}, or leave paths.metrics_dir out"
                ),
                "no numbers for Prometheus are written",
            );
        }
    }
    if let Some(syslog) = site.syslog.as_ref().filter(|one| one.is == Is::Nothing) {
        findings.note(
            "syslog",
            format!("there is no {}", syslog.path.display()),
            "start rsyslog or journald, or set paths.syslog",
            "events such as SanityCheckFailed are lost",
        );
    }
    let arguments = arguments(facts);
    if arguments.policy != site.policy_file.path {
        findings.note(
            "policy_other",
            format!(
                "plugstack.conf names the policy {}, and {} was looked at",
                arguments.policy.display(),
                site.policy_file.path.display()
            ),
            "run this without --policy",
            "the plugin and its helpers use the one that plugstack.conf names",
        );
    }
}

/// What others than root can change.
fn open<'a>(findings: &mut Findings, rule: &'static str, entries: impl Iterator<Item = &'a Entry>) {
    let mut told: Vec<&str> = Vec::new();
    for entry in entries {
        let Some(words) = entry.open.as_deref().filter(|words| !told.contains(words)) else { continue };
        told.push(words);
        findings.mistake(
            rule,
            words,
            "chown root:root and chmod go-w what is named",
            format!("root uses {}: whoever can change it is root", name(&entry.path)),
        );
    }
}

fn name(path: &Path) -> String {
    path.display().to_string()
}
