//! `cargo xtask versions`: the main scenarios on newer releases of Slurm. The tests are the same as on this machine's own
//! Slurm; the test cluster is booted from a folder that holds another release of Debian.

mod root;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::stage::{SIDE_BY_SIDE, cargo};

/// Releases of Slurm, and those of Debian in which they are looked for, the steadiest first.
const RELEASES: &[(&str, &[&str])] = &[("24.11", &["trixie"]), ("26.05", &["forky", "sid"])];

/// Names the folder for the test cluster (`aimaster_tests::ROOT_VARIABLE`).
const ROOT_VARIABLE: &str = "AIMASTER_TESTS_ROOT";

/// The programs of tests that are run.
const PROGRAMS: [&str; 3] = ["healthy", "deadlines", "side_by_side"];

/// What must hold on each release, and the tests that show it.
const SCENARIOS: &[(&str, &[&str])] = &[
    (
        "healthy jobs of srun, sbatch and salloc start after the PASS",
        &["four_nodes_pass_and_the_program_starts_after_the_verdict"],
    ),
    ("wrong input never queues; the request arrives however the environment is exported", &["submission::"]),
    (
        "a slow node is named and drained; the job is requeued, ends, or starts, by action and command",
        &["actions::each_action_for_each_command"],
    ),
    (
        "a requeue keeps what is the user's and the admin's",
        &["actions::a_requeued_job_keeps_what_is_the_user_s_and_the_admin_s"],
    ),
    (
        "arrays and heterogeneous jobs: exactly the job that is meant",
        &[
            "targets::only_the_task_on_the_bad_node_is_acted_on",
            "targets::a_heterogeneous_job_is_handled_as_a_whole",
        ],
    ),
    (
        "scancel and requeue by somebody else during the prolog",
        &["targets::a_job_that_somebody_else_ends_is_left_alone"],
    ),
    (
        "a helper that is lost, or does not come, is an ERROR and blames nobody",
        &[
            "lost_helpers::a_helper_or_worker_that_is_killed_is_an_error_of_its_node",
            "lost_helpers::a_node_that_does_not_join_is_named",
        ],
    ),
    ("the launch gate, the helper's deadline, the epilog", &["launch_gate::"]),
    ("a helper whose slurmd is gone ends", &["a_helper_whose_slurmd_is_gone_ends_and_blames_nobody"]),
    (
        "the agent of the runtime check starts and ends with its job",
        &[
            "c4d_life::an_agent_lives_as_long_as_its_job_however_that_starts_and_ends",
            "c4d_life::a_requeued_job_starts_with_a_new_agent",
            "c4d_life::an_agent_ends_without_an_epilog_and_a_frozen_one_holds_no_node",
        ],
    ),
    (
        "ranks find their agent; what it finds is told, kept and shown",
        &[
            "c4d_ranks::watched_tasks_get_both_variables_and_a_user_s_own_profiler_stays",
            "c4d_report::a_finding_is_told_kept_shown_and_followed_and_drains_nobody_by_itself",
        ],
    ),
    (
        "undrain returns what is ours and passed; reasons are read back to the letter",
        &[
            "drains::undrain_returns_what_is_ours_and_passed_and_nothing_else",
            "drains::reasons_come_back_from_slurm_to_the_letter",
        ],
    ),
    ("shares of GPUs are skipped with the reason", &["shared_gpus::"]),
    (
        "a plugin that is stamped for another release is refused in clear words and does no harm",
        &["a_plugin_of_another_release_is_refused_and_does_no_harm"],
    ),
    ("a site with a Prolog of its own (prolog=off)", &["a_site_s_own_prolog_starts_the_helpers"]),
    ("PrologFlags=RunInJob", &["a_prolog_that_runs_in_the_job_starts_the_helpers"]),
    ("plugin and helpers are replaced under running jobs", &["replaced_under_running_jobs"]),
    (
        "nodes of one job with different versions of the helpers",
        &["nodes_of_a_job_with_different_versions_are_an_error_that_names_both"],
    ),
];

/// Those of them that show what a release could change: how it parses options, what reaches a prolog, drains, requeues, epilogs,
/// and which plugin it takes. They are quick enough for every change.
const SURFACE: &[&str] = &[
    "submission::wrong_input_never_queues_with_an_optional_plugin",
    "submission::the_request_arrives_however_the_environment_is_exported",
    "actions::a_requeued_job_keeps_what_is_the_user_s_and_the_admin_s",
    "launch_gate::the_epilog_removes_the_job_s_run_folder",
    "a_plugin_of_another_release_is_refused_and_does_no_harm",
    "plugin_and_helpers_are_replaced_under_running_jobs",
];

/// One test's end.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Passed,
    Failed,
}

/// What a release showed.
struct Shown {
    slurm: String,
    seconds: f64,
    tests: BTreeMap<String, End>,
}

/// Runs the scenarios; `wanted` is a release such as `24.11`, all of them if it is missing.
///
/// # Errors
/// A release can't be had, or a scenario fails or is not there.
pub fn versions(wanted: Option<&str>) -> Result<()> {
    let chosen: Vec<_> =
        RELEASES.iter().filter(|(release, _)| wanted.is_none_or(|wanted| wanted == *release)).collect();
    if chosen.is_empty() {
        let known: Vec<&str> = RELEASES.iter().map(|(release, _)| *release).collect();
        bail!("the releases are {}", known.join(" and "));
    }
    let mut roots = Vec::new();
    for (release, suites) in chosen {
        let start = Instant::now();
        let root = root::ready(suite_of(release, suites)?)?;
        eprintln!("Slurm {} is ready after {:.1} s", root.version, start.elapsed().as_secs_f64());
        roots.push(root);
    }
    // The helpers, and the ranks that tests play.
    cargo(&["build", "--quiet", "--workspace", "--all-targets"])?;
    let mut shown = Vec::new();
    let all: Vec<&str> = SCENARIOS.iter().flat_map(|(_, tests)| tests.iter().copied()).collect();
    for root in &roots {
        eprintln!("== Slurm {}", root.version);
        shown.push(run(root, &PROGRAMS, &all)?);
    }
    print_table(&shown)
}

/// What was fetched of all releases earlier; `None`: not all of it is here. It asks no package source.
#[must_use]
pub fn fetched() -> Option<Vec<root::Root>> {
    RELEASES
        .iter()
        .map(|(release, suites)| {
            let here = |suite: &&str| root::fetched(suite).filter(|root| root.version.starts_with(release));
            suites.iter().find_map(here)
        })
        .collect()
}

/// Runs what a release could change on all of them at once: their jobs mostly wait.
///
/// # Errors
/// A test fails or is not there.
pub fn surface(roots: &[root::Root]) -> Result<()> {
    let shown = std::thread::scope(|scope| {
        let all: Vec<_> =
            roots.iter().map(|root| scope.spawn(move || run(root, &["side_by_side"], SURFACE))).collect();
        all.into_iter().map(|one| one.join().unwrap_or_else(|_| bail!("a thread ended"))).collect::<Vec<_>>()
    });
    let mut bad = Vec::new();
    for one in shown {
        let one = one?;
        println!("Slurm {}: {} tests, {:.0} s", one.slurm, one.tests.len(), one.seconds);
        let cells = SURFACE.iter().map(|test| cell(&one, &[test]));
        bad.extend(cells.filter(|cell| !cell.starts_with("ok")).map(|cell| format!("{}: {cell}", one.slurm)));
    }
    if !bad.is_empty() {
        bail!("{}", bad.join("; "));
    }
    Ok(())
}

/// The release of Debian that has this Slurm today; the newest where none has it.
fn suite_of(release: &str, suites: &'static [&'static str]) -> Result<&'static str> {
    let mut last = None;
    for suite in suites {
        match root::slurm_in(suite) {
            Ok(version) if version.starts_with(release) => return Ok(suite),
            Ok(version) => last = Some((*suite, version)),
            Err(error) => eprintln!("{suite}: {error:#}"),
        }
    }
    let (suite, version) = last.with_context(|| format!("no Debian release with Slurm {release}"))?;
    eprintln!("Slurm {release} is in none of {}: {version} of {suite} is taken", suites.join(", "));
    Ok(suite)
}

fn run(root: &root::Root, programs: &[&str], tests: &[&str]) -> Result<Shown> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["test", "--workspace", "--no-fail-fast"]);
    command.args(programs.iter().flat_map(|program| ["--test", program]));
    // Those that need a newer Slurm than this machine's are marked as ignored.
    command.args(["--", SIDE_BY_SIDE, "--include-ignored"]);
    command.args(tests);
    command.env(ROOT_VARIABLE, &root.path).stdout(Stdio::piped());
    let start = Instant::now();
    let mut child = command.spawn().context("can't start cargo")?;
    let lines = BufReader::new(child.stdout.take().context("cargo has no output")?).lines();
    let mut tests = BTreeMap::new();
    for line in lines {
        let line = line.context("can't read the tests' output")?;
        println!("{}: {line}", root.version);
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["test", name, "...", "ok"] => drop(tests.insert(name.to_owned(), End::Passed)),
            ["test", name, "...", ..] => drop(tests.insert(name.to_owned(), End::Failed)),
            _ => {}
        }
    }
    // Failures are in the table.
    child.wait().context("cargo")?;
    Ok(Shown { slurm: root.version.clone(), seconds: start.elapsed().as_secs_f64(), tests })
}

/// The table of docs/slurm-versions.md.
fn print_table(shown: &[Shown]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let mut bad = 0;
    let versions: Vec<&str> = shown.iter().map(|one| one.slurm.as_str()).collect();
    writeln!(out, "\n| scenario | {} |", versions.join(" | "))?;
    writeln!(out, "|---|{}", "---|".repeat(shown.len()))?;
    for (scenario, filters) in SCENARIOS {
        write!(out, "| {scenario} |")?;
        for one in shown {
            let cell = cell(one, filters);
            bad += usize::from(!cell.starts_with("ok"));
            write!(out, " {cell} |")?;
        }
        writeln!(out)?;
    }
    let seconds: Vec<String> = shown.iter().map(|one| format!("{:.0}", one.seconds)).collect();
    writeln!(out, "| seconds | {} |", seconds.join(" | "))?;
    if bad > 0 {
        bail!("{bad} scenarios failed or have no test");
    }
    Ok(())
}

/// How the tests of a scenario ended; every filter must have met one.
fn cell(shown: &Shown, filters: &[&str]) -> String {
    let of = |filter: &&str| -> Vec<(&String, &End)> {
        shown.tests.iter().filter(|(name, _)| name.contains(*filter)).collect()
    };
    if let Some(filter) = filters.iter().find(|filter| of(filter).is_empty()) {
        return format!("no test {filter}");
    }
    let all: BTreeMap<&String, &End> = filters.iter().flat_map(of).collect();
    let failed: Vec<&str> =
        all.iter().filter(|(_, end)| ***end == End::Failed).map(|(name, _)| name.as_str()).collect();
    if failed.is_empty() { format!("ok ({})", all.len()) } else { format!("FAILED: {}", failed.join(", ")) }
}
