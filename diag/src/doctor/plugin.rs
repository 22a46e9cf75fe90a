//! The plugin: the line that loads it, its file, its stamp, and who starts the helpers.

use std::path::{Path, PathBuf};

use super::Findings;
use super::facts::{Facts, Is, Machine};
use super::settings::major_minor;
use crate::plugstack::{Arguments, HELPERS, Line, PLUGIN, Plugin};

/// Where a package makes the plugin.
fn of_package() -> PathBuf {
    Path::new(HELPERS).join(PLUGIN)
}

/// The line as it is to be. Slurm looks for a name without a path in its own folders, where no package puts anything.
fn wanted(facts: &Facts) -> String {
    let path = if facts.plugin.packaged { of_package() } else { PLUGIN.into() };
    format!("optional {}", path.display())
}

/// The arguments of the plugin's line, with the defaults.
pub(super) fn arguments(facts: &Facts) -> Arguments {
    first(facts)
        .map_or_else(Arguments::default, |plugin| Arguments::parse(plugin.words.iter().map(String::as_str)))
}

fn first(facts: &Facts) -> Option<Plugin> {
    match Line::parse(&facts.plugin.lines.first()?.text) {
        Line::Plugin(plugin) => Some(plugin),
        _ => None,
    }
}

pub(super) fn rules(facts: &Facts, findings: &mut Findings) {
    line(facts, findings);
    words(facts, findings);
    file(facts, findings);
    starter(facts, findings);
}

fn line(facts: &Facts, findings: &mut Findings) {
    let plugin = &facts.plugin;
    let conf = plugin.conf.display();
    let configless = facts.slurm.has("SlurmctldParameters", "enable_configless");
    let (line, restart) = (wanted(facts), "then restart slurmd on all nodes");
    // It makes the file, too. In a configless cluster nodes have what the controller hands out.
    let on = (plugin.packaged && !configless)
        .then(|| format!("run `aimaster plugin on` on all nodes and login machines, {restart}"));
    if let Some(words) = &plugin.unreadable {
        let advice = if configless {
            format!("make {conf} on the controller, with the line `{line}`, {restart}")
        } else {
            format!("make {conf} on all nodes and login machines, with the line `{line}`, {restart}")
        };
        findings.mistake(
            "plugstack",
            format!("{conf} can't be read: {words}"),
            on.unwrap_or(advice),
            "Slurm does not load the plugin",
        );
        return;
    }
    for pattern in &plugin.empty_includes {
        let why = if configless {
            "a configless node gets plugstack.conf itself, and not the files that it includes: they have to be on each machine"
        } else {
            "what stands in the files that are missing here does not hold on this machine"
        };
        findings.note(
            "plugstack_include",
            format!("`include {pattern}` in {conf} fits no file"),
            "put the file there, or write its line into plugstack.conf itself",
            why,
        );
    }
    match plugin.lines.as_slice() {
        [] => findings.mistake(
            "plugstack_line",
            format!("no line of {conf} loads spank_aimaster.so"),
            on.unwrap_or_else(|| format!("add `{line}`, {restart}")),
            "nothing is checked, and --sanity-check is an unknown option",
        ),
        [_] => {}
        [one, others @ ..] => findings.mistake(
            "plugstack_twice",
            format!(
                "{} lines load spank_aimaster.so: {}:{} and others",
                others.len() + 1,
                one.file.display(),
                one.line
            ),
            "keep one of them",
            "Slurm takes the first one and complains at every job about the options of the others",
        ),
    }
}

/// What the line says.
fn words(facts: &Facts, findings: &mut Findings) {
    let plugin = &facts.plugin;
    let Some(own) = first(facts) else { return };
    for mistake in arguments(facts).mistakes {
        findings.mistake(
            "plugstack_arguments",
            mistake,
            format!("mend it in {}:{}", plugin.lines[0].file.display(), plugin.lines[0].line),
            "the default holds in its place",
        );
    }
    if own.required {
        findings.note(
            "plugstack_required",
            format!("the line in {} says `required`", plugin.conf.display()),
            format!(
                "write `optional {}`",
                [&[own.path.display().to_string()], &own.words[..]].concat().join(" ")
            ),
            "a plugin of another Slurm release would then stop every srun; an optional one is only left out",
        );
    }
}

fn file(facts: &Facts, findings: &mut Findings) {
    let Some(file) = &facts.plugin.file else { return };
    let path = file.path.display();
    let packaged = facts.plugin.packaged && file.path == of_package();
    if file.is == Is::Nothing {
        findings.mistake(
            "plugin_missing",
            format!("there is no {path}"),
            if packaged {
                "make it: `aimaster plugin stamp`"
            } else {
                "install the plugin on this machine, or mend its path in plugstack.conf"
            },
            "Slurm leaves out an optional plugin that is missing, without a word to the user",
        );
        return;
    }
    if let Some(words) = &file.open {
        findings.mistake(
            "plugin_open",
            words.clone(),
            "chown root:root and chmod go-w what is named, up to /",
            "whoever can change the plugin is root on every node",
        );
    }
    let Some(wanted) = facts.slurm.release else { return };
    match &facts.plugin.stamp {
        Some(Ok(stamp)) if !stamp.fits(wanted) => findings.mistake(
            "plugin_stamp",
            format!("{path} is stamped for Slurm {}, and this machine has {wanted}", major_minor(*stamp)),
            if packaged {
                "make it for the Slurm that is there: `aimaster plugin stamp`, then restart slurmd"
            } else {
                "stamp it for the Slurm that is there (`aimaster plugin stamp` where it is from a package, else cargo xtask install), then restart slurmd"
            },
            "Slurm loads no plugin of another release: jobs run unchecked",
        ),
        Some(Err(words)) => findings.mistake(
            "plugin_stamp",
            format!("{path} is no plugin: {words}"),
            "install it again",
            "Slurm can't load it",
        ),
        _ => {}
    }
}

/// Who starts the helpers on a node: the plugin or the site's Prolog, one of the two.
fn starter(facts: &Facts, findings: &mut Findings) {
    if facts.machine == Machine::Login || first(facts).is_none() {
        return;
    }
    let starts = arguments(facts).starts_helpers;
    let called = facts.slurm.prologs.iter().any(|prolog| prolog.calls_us);
    let hidden =
        facts.slurm.prologs.iter().flat_map(|prolog| &prolog.files).any(|file| file.is == Is::Hidden);
    if !starts && !called && !hidden {
        findings.mistake(
            "prolog_off",
            "plugstack.conf says prolog=off, and no Prolog of this node calls aimaster-prolog",
            "take prolog=off out, or call `/usr/libexec/aimaster/aimaster-prolog --policy FILE` from the site's Prolog and \
             aimaster-epilog from its Epilog",
            "nobody starts the checks",
        );
    }
    if starts && called {
        findings.mistake(
            "prolog_twice",
            "the site's Prolog calls aimaster-prolog, and the plugin does so too",
            "say prolog=off in plugstack.conf, on all machines",
            "the job would be checked twice, one after the other",
        );
    }
}
