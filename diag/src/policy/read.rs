//! Reads `aimaster.toml`: every mistake at once, by path and line. Values that are not given keep the defaults
//! of [`Policy::default`]; rules between values are in [`check_rules`].

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::check::{ALL, CheckName};
use crate::facts::Engine;
use crate::fields::{Field, File, Section, Value};
use crate::hostlist::MAX_NAME_BYTES;
use crate::policy::slots::{
    PathRule, choose, read_action_list, read_boolean, read_integer, read_number, read_path, read_text,
    read_words,
};
use crate::policy::tree::read_toml;
use crate::policy::{
    Actions, BY_ACTION, Checks, ControllerLost, CudaEngine, HostEngine, KEEP_NICE, Network, Paths, Policy,
    ReportOwner, ReportReaders, Time, Undecided,
};
use crate::policy::{budget, c4d_keys, xid_rows};
use crate::request::FailAction;
use crate::request::mistake::{Mistake, Mistakes, Origin, quoted};
use crate::request::values::{CheckList, name_list, parse_action};

/// Fewest ports in the range: one to listen on for each of several jobs on a node, and a port a rank.
const MIN_PORTS: u16 = 16;

/// Ports below this one need root.
const FIRST_FREE_PORT: u16 = 1024;

/// Longest name of an interface in Linux (IFNAMSIZ less its end).
const MAX_INTERFACE_BYTES: usize = 15;

/// Longest name of a user in Linux.
const MAX_USER_BYTES: usize = 32;

/// Longest value in `[nccl.env]`.
const MAX_ENV_BYTES: usize = 4096;

/// Nice values that Slurm takes.
const NICE: RangeInclusive<i32> = -2_147_483_645..=2_147_483_645;

impl Policy {
    /// Reads a policy; an empty text gives the defaults.
    ///
    /// # Errors
    /// Every mistake, by path and line; of a text that is not TOML only what makes it so.
    pub fn parse(toml_text: &str) -> Result<Self, Vec<Mistake>> {
        let mut mistakes = Mistakes::default();
        let mut policy = Self::default();
        let Some(top) = read_toml(toml_text, &mut mistakes) else {
            return mistakes.into_result(policy);
        };
        if let Some(mut top) = Field::top(File::Policy, "", &top).section(&mut mistakes) {
            let m = &mut mistakes;
            if let Some(field) = top.field("engine") {
                choose(&field, &[("cuda", Engine::Cuda), ("host", Engine::Host)], &mut policy.engine, m);
            }
            with(&mut top, "scope", m, |section, m| {
                read_words(section, "partitions", &mut policy.scope.partitions, m);
                read_words(section, "features", &mut policy.scope.features, m);
                read_words(section, "gpu_types", &mut policy.scope.gpu_types, m);
            });
            let engine = policy.engine;
            with(&mut top, "checks", m, |section, m| read_checks(section, engine, &mut policy.checks, m));
            with(&mut top, "actions", m, |section, m| read_actions(section, &mut policy.actions, m));
            with(&mut top, "budget", m, |section, m| budget::read(section, &mut policy.budget, m));
            with(&mut top, "runtime", m, |section, m| {
                read_boolean(section, "enabled", &mut policy.runtime.enabled, m);
                read_boolean(section, "always", &mut policy.runtime.always, m);
                read_boolean(section, "telemetry", &mut policy.runtime.telemetry, m);
                c4d_keys::read_denied(section, &mut policy.runtime.nccl_deny, m);
                xid_rows::read(section, &mut policy.runtime.xid, m);
            });
            with(&mut top, "c4d", m, |section, m| c4d_keys::read(section, &mut policy.c4d, m));
            with(&mut top, "history", m, |section, m| {
                read_boolean(section, "enabled", &mut policy.history.enabled, m);
            });
            with(&mut top, "time", m, |section, m| read_time(section, &mut policy.time, m));
            with(&mut top, "network", m, |section, m| read_network(section, &mut policy.network, m));
            with(&mut top, "host", m, |section, m| read_host(section, &mut policy.host, m));
            with(&mut top, "cuda", m, |section, m| read_cuda(section, &mut policy.cuda, m));
            with(&mut top, "paths", m, |section, m| read_paths(section, &mut policy.paths, m));
            with(&mut top, "nccl", m, |section, m| {
                if let Some(env) = section.section("env", m) {
                    read_env(&env, &mut policy.nccl_env, m);
                }
            });
            top.finish(m);
        }
        check_rules(&policy, &mut mistakes);
        mistakes.into_result(policy)
    }
}

/// Rules between values. They hold for the defaults too, so a mistake here is always in what was written.
fn check_rules(policy: &Policy, mistakes: &mut Mistakes) {
    mistakes.extend(policy.c4d.check().err().unwrap_or_default());
    let mut refuse = |path: &str, wrong: String, right: &str| {
        mistakes.push(Origin::Policy { path: path.to_owned(), line: None }, wrong, right);
    };
    let Time { join_s, max_deadline_s, scontrol_s, .. } = policy.time;
    if join_s >= max_deadline_s {
        let wrong = format!("{join_s} is not below time.max_deadline_s ({max_deadline_s})");
        refuse("time.join_s", wrong, "leave time for the checks after the nodes have met");
    }
    if scontrol_s >= max_deadline_s {
        let wrong = format!("{scontrol_s} is not below time.max_deadline_s ({max_deadline_s})");
        refuse("time.scontrol_s", wrong, "leave time for the checks");
    }
    let Network { port_first, port_last, .. } = policy.network;
    if port_last < port_first || port_last - port_first < MIN_PORTS - 1 {
        let wrong = format!("{port_first} to {port_last} are fewer than {MIN_PORTS} ports");
        refuse("network.port_last", wrong, "give a wider range");
    } else if policy.host.ranks_per_node > u32::from(port_last - port_first) {
        let wrong = format!("{} ranks do not fit in the range of ports", policy.host.ranks_per_node);
        refuse("host.ranks_per_node", wrong, "give a wider range in network.port_first and port_last");
    }
    if !policy.scope.gpu_types.is_empty() {
        let wrong = "GPU types can't be told apart by this build".to_owned();
        refuse("scope.gpu_types", wrong, "leave it empty; choose by partitions or features");
    }
    for (path, window_s) in [
        ("host.seconds_per_check", policy.host.seconds_per_check),
        ("cuda.seconds_per_check", policy.cuda.seconds_per_check),
    ] {
        if window_s * 2.0 > f64::from(max_deadline_s) {
            let wrong = format!("two windows of {window_s} s are longer than time.max_deadline_s");
            refuse(path, wrong, "give a shorter window");
        }
    }
}

fn with<'a>(
    top: &mut Section<'a>,
    key: &'static str,
    mistakes: &mut Mistakes,
    read: impl FnOnce(&mut Section<'a>, &mut Mistakes),
) {
    if let Some(mut section) = top.section(key, mistakes) {
        read(&mut section, mistakes);
        section.finish(mistakes);
    }
}

fn read_checks(section: &mut Section<'_>, engine: Engine, checks: &mut Checks, m: &mut Mistakes) {
    if let Some(field) = section.field("always")
        && let Some(items) = field.list(m, "a list of checks")
    {
        let mut wanted = [false; ALL.len()];
        for item in &items {
            let Some(text) = item.text(m, "the name of a check") else { continue };
            match CheckList::parse(text, &item.origin(), m) {
                Some(CheckList::Checks { names, .. }) => {
                    names.iter().for_each(|name| wanted[*name as usize] = true);
                }
                Some(CheckList::Off) => item.refuse(m, "an empty list for no checks"),
                None => {}
            }
        }
        checks.always = ALL.iter().map(|spec| spec.name).filter(|name| wanted[*name as usize]).collect();
        let unbuilt = |name: &CheckName| !name.spec().engines.contains(&engine);
        let unbuilt: Vec<CheckName> = checks.always.iter().copied().filter(unbuilt).collect();
        if !unbuilt.is_empty() {
            let wrong = format!("not built yet for engine {engine}: {}", name_list(&unbuilt));
            m.push(field.origin(), wrong, "leave them out");
        }
    }
    read_boolean(section, "users_may_weaken", &mut checks.users_may_weaken, m);
    read_boolean(section, "users_may_switch_off", &mut checks.users_may_switch_off, m);
}

fn read_actions(section: &mut Section<'_>, actions: &mut Actions, m: &mut Mistakes) {
    use FailAction::{Drain, Fail, Requeue, Retain};
    const EVERY: &[FailAction] = &[Retain, Drain, Fail, Requeue];
    const UNDECIDED: &[(&str, Undecided)] = &[("start", Undecided::Start), ("fail", Undecided::Fail)];
    if let Some(field) = section.field("fail_action")
        && let Some(text) = field.text(m, "the name of an action")
        && let Some(action) = parse_action(text, EVERY, &field.origin(), m)
    {
        actions.fail_action = action;
    }
    read_action_list(section, "allowed", EVERY, &mut actions.allowed, m);
    // retain is left out: it touches no node.
    read_action_list(section, "drain_on", &[Drain, Fail, Requeue], &mut actions.drain_on, m);
    read_boolean(section, "drain_on_user_request", &mut actions.drain_on_user_request, m);
    read_integer(section, "max_drain_nodes", 0..=65_536, &mut actions.max_drain_nodes, m);
    read_number(
        section,
        "max_drain_fraction",
        (|share| share > 0.0 && share <= 1.0, "a number above 0, at most 1"),
        &mut actions.max_drain_fraction,
        m,
    );
    read_integer(section, "max_requeues", 0..=1000, &mut actions.max_requeues, m);
    if let Some(field) = section.field("requeue_nice") {
        match field.value {
            Value::Text(text) if text == KEEP_NICE => actions.requeue_nice = None,
            Value::Text(_) => field.refuse(m, "a whole number, or \"keep\""),
            _ => actions.requeue_nice = field.integer(NICE, m),
        }
    }
    for (key, slot) in [("on_error", &mut actions.on_error), ("on_suspect", &mut actions.on_suspect)] {
        if let Some(field) = section.field(key) {
            choose(&field, UNDECIDED, slot, m);
        }
    }
    if let Some(field) = section.field("on_environment") {
        let choices = [(BY_ACTION, None), ("start", Some(Undecided::Start)), ("fail", Some(Undecided::Fail))];
        choose(&field, &choices, &mut actions.on_environment, m);
    }
    if let Some(field) = section.field("on_controller_lost") {
        let choices = [("start", ControllerLost::Start), ("hold", ControllerLost::Hold)];
        choose(&field, &choices, &mut actions.on_controller_lost, m);
    }
}

fn read_time(section: &mut Section<'_>, time: &mut Time, m: &mut Mistakes) {
    read_integer(section, "join_s", 1..=3600, &mut time.join_s, m);
    // A day: no prolog should ever run longer, and a slip of a digit shows.
    read_integer(section, "max_deadline_s", 5..=86_400, &mut time.max_deadline_s, m);
    // A cancelled job's prolog must end within 5 s.
    read_integer(section, "job_poll_s", 1..=4, &mut time.job_poll_s, m);
    read_integer(section, "scontrol_s", 1..=60, &mut time.scontrol_s, m);
    read_integer(section, "torch_start_s", 1..=600, &mut time.torch_start_s, m);
}

fn read_network(section: &mut Section<'_>, network: &mut Network, m: &mut Mistakes) {
    read_integer(section, "port_first", FIRST_FREE_PORT..=u16::MAX, &mut network.port_first, m);
    read_integer(section, "port_last", FIRST_FREE_PORT..=u16::MAX, &mut network.port_last, m);
    let is_interface = |text: &str| {
        text.len() <= MAX_INTERFACE_BYTES && text.bytes().all(|b| b.is_ascii_graphic() && b != b'/')
    };
    let wanted = "the name of an interface, at most 15 characters, or nothing";
    read_text(section, "interface", (is_interface, wanted), &mut network.interface, m);
    if let Some(table) = section.section("addresses", m) {
        for (name, field) in table.all() {
            let is_name = !name.is_empty()
                && name.len() <= MAX_NAME_BYTES
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
            if !is_name {
                m.push(
                    field.origin(),
                    format!("{} is no node name", quoted(name)),
                    "give one node name a line",
                );
                continue;
            }
            let Some(text) = field.text(m, "an IP address in quotes") else { continue };
            let address = text.parse::<IpAddr>().ok();
            match address.filter(|address| !address.is_unspecified() && !address.is_multicast()) {
                Some(address) => drop(network.addresses.insert(name.to_owned(), address)),
                None => field.refuse(m, "the IP address of one node"),
            }
        }
    }
}

fn read_host(section: &mut Section<'_>, host: &mut HostEngine, m: &mut Mistakes) {
    read_integer(section, "ranks_per_node", 1..=64, &mut host.ranks_per_node, m);
    read_window(section, &mut host.seconds_per_check, m);
}

fn read_window(section: &mut Section<'_>, window: &mut f64, m: &mut Mistakes) {
    // Below 50 ms a window measures the scheduler; a minute of each check is no longer a check before start.
    let accepts = |seconds: f64| (0.05..=60.0).contains(&seconds);
    read_number(section, "seconds_per_check", (accepts, "a number from 0.05 to 60"), window, m);
}

fn read_cuda(section: &mut Section<'_>, cuda: &mut CudaEngine, m: &mut Mistakes) {
    read_window(section, &mut cuda.seconds_per_check, m);
    read_integer(section, "start_s", 1..=600, &mut cuda.start_s, m);
    read_boolean(section, "nvls", &mut cuda.nvls, m);
    read_path(section, "nccl", PathRule::AbsoluteOrNone, &mut cuda.nccl, m);
    read_path(section, "cublas_lt", PathRule::AbsoluteOrNone, &mut cuda.cublas_lt, m);
    read_path(section, "driver", PathRule::AbsoluteOrNone, &mut cuda.driver, m);
    read_path(section, "nvml", PathRule::AbsoluteOrNone, &mut cuda.nvml, m);
}

fn read_paths(section: &mut Section<'_>, paths: &mut Paths, m: &mut Mistakes) {
    read_path(section, "scontrol", PathRule::Absolute, &mut paths.scontrol, m);
    read_path(section, "scancel", PathRule::Absolute, &mut paths.scancel, m);
    read_path(section, "report_dir", PathRule::Absolute, &mut paths.report_dir, m);
    if let Some(field) = section.field("report_owner") {
        let choices = [("root", ReportOwner::Root), ("user", ReportOwner::User)];
        choose(&field, &choices, &mut paths.report_owner, m);
    }
    if let Some(field) = section.field("report_readers") {
        let choices = [("group", ReportReaders::Group), ("user", ReportReaders::User)];
        choose(&field, &choices, &mut paths.report_readers, m);
    }
    read_path(section, "metrics_dir", PathRule::AbsoluteOrNone, &mut paths.metrics_dir, m);
    read_path(section, "baseline_dir", PathRule::Absolute, &mut paths.baseline_dir, m);
    read_path(section, "state_dir", PathRule::Absolute, &mut paths.state_dir, m);
    let is_user = |text: &str| {
        text.len() <= MAX_USER_BYTES
            && text != "root"
            && !text.starts_with(|c: char| c.is_ascii_digit() || c == '-')
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    let wanted = "the name of a user other than root, or nothing";
    read_text(section, "worker_user", (is_user, wanted), &mut paths.worker_user, m);
    read_path(section, "munge_socket", PathRule::AbsoluteOrNone, &mut paths.munge_socket, m);
    read_path(section, "libmunge", PathRule::AbsoluteOrName, &mut paths.libmunge, m);
    read_path(section, "python", PathRule::Absolute, &mut paths.python, m);
    read_path(section, "syslog", PathRule::Absolute, &mut paths.syslog, m);
}

fn read_env(section: &Section<'_>, env: &mut BTreeMap<String, String>, m: &mut Mistakes) {
    for (name, field) in section.all() {
        let is_name = name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
            && name.starts_with(|c: char| c.is_ascii_uppercase());
        if !is_name {
            let wrong = format!("{} is no environment variable", quoted(name));
            m.push(field.origin(), wrong, "give capitals, digits and underscores");
            continue;
        }
        let wanted = "a text without control characters";
        if let Some(text) = field.text(m, wanted) {
            if text.len() <= MAX_ENV_BYTES && !text.contains(char::is_control) {
                env.insert(name.to_owned(), text.to_owned());
            } else {
                field.refuse(m, wanted);
            }
        }
    }
}

#[cfg(test)]
mod tests;
