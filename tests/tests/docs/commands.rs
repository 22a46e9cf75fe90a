//! Every command that the pages show: those of `aimaster` that need no Slurm are run by `cli/tests/book`; for each other one the
//! table says which test runs it, or why none does. No command can be added without either.

use std::collections::BTreeSet;

use super::book::{pages, root};

/// Who shows that a command does what the page says.
enum Shown {
    /// A test: its file from the root, and its name.
    By(&'static str, &'static str),
    /// Nobody, for this reason.
    No(&'static str),
}

use Shown::{By, No};

const HEALTHY: &str = "tests/tests/healthy.rs";
const FOUR_NODES: &str = "four_nodes_pass_and_the_program_starts_after_the_verdict";
const SIZES: &str = "tests/tests/sizes.rs";
const ALL_CHECKS: &str = "one_node_skips_what_takes_two";
const SUBMISSION: &str = "tests/tests/side_by_side/submission.rs";
const WRONG_INPUT: &str = "wrong_input_never_queues_with_an_optional_plugin";
const DOCTOR: &str = "tests/tests/side_by_side/doctor.rs";
const DRAINS: &str = "tests/tests/side_by_side/drains.rs";
const UNDRAIN: &str = "undrain_returns_what_is_ours_and_passed_and_nothing_else";
const LIFE: &str = "tests/tests/side_by_side/c4d_life.rs";
const AGENT: &str = "an_agent_lives_as_long_as_its_job_however_that_starts_and_ends";
const REPORTED: &str = "tests/tests/side_by_side/c4d_report.rs";
const FOUND: &str = "a_finding_is_told_kept_shown_and_followed_and_drains_nobody_by_itself";
const ACTIONS: &str = "tests/tests/side_by_side/actions.rs";
const EACH_ACTION: &str = "each_action_for_each_command";

/// Commands, to the letter, and who shows them.
const TABLE: &[(&str, Shown)] = &[
    ("cargo xtask demo", No("it installs packages; its two jobs are those of the tests of the next rows")),
    ("cargo xtask test", No("it is what runs this test")),
    ("cargo xtask bench gpu", No("it needs GPUs, and what others measure with")),
    (
        "cargo xtask install",
        No("it builds for production and writes below /; tests/src/install.rs does it for the tests' nodes"),
    ),
    ("srun -N4 --sanity-check bash -c 'echo \"training on $(hostname)\"'", By(HEALTHY, FOUR_NODES)),
    ("sbatch -N3 --sanity-check --sanity-fail-action=requeue job.sh", By(ACTIONS, EACH_ACTION)),
    ("cat slurm-2.out", By(ACTIONS, EACH_ACTION)),
    ("sinfo -R -o '%E|%N'", By(ACTIONS, "a_requeued_job_keeps_what_is_the_user_s_and_the_admin_s")),
    ("echo 'optional spank_aimaster.so' >>/etc/slurm/plugstack.conf", By(HEALTHY, FOUR_NODES)),
    ("aimaster doctor", By(DOCTOR, "what_is_planted_is_found_and_what_is_mended_is_found_no_more")),
    ("aimaster undrain n3 --check", By(DRAINS, UNDRAIN)),
    ("aimaster undrain n3 --after-pass 1240", By(DRAINS, UNDRAIN)),
    ("aimaster undrain --all --dry-run", By(DRAINS, UNDRAIN)),
    ("srun -N4 --gres=gpu:8 --sanity-check python train.py", By(HEALTHY, FOUR_NODES)),
    ("sbatch -N16 --gres=gpu:8 --sanity-check --sanity-fail-action=requeue job.sh", By(ACTIONS, EACH_ACTION)),
    ("salloc -N2 --gres=gpu:8 --sanity-check=all", By(HEALTHY, FOUR_NODES)),
    ("srun -N4 --gres=gpu:8 --sanity-check --runtime-check python train.py", By(LIFE, AGENT)),
    ("srun -N4 --sanity-check=all bash -c 'echo \"training on $(hostname)\"'", By(SIZES, ALL_CHECKS)),
    ("srun -N3 --sanity-check python train.py", By(ACTIONS, EACH_ACTION)),
    (
        "srun -N2 --sanity-check=gemm_flop --sanity-fail-action=retry python train.py",
        By(SUBMISSION, WRONG_INPUT),
    ),
    ("aimaster check gemm_flops", By(DOCTOR, "machines_that_differ_are_told_apart")),
    ("scontrol show job 1234", By(REPORTED, FOUND)),
    ("cp conf/containers/90-aimaster.fstab /etc/enroot/mounts.d/", No("it needs enroot, which no test has")),
    (
        "srun -N4 --gres=gpu:8 --sanity-check --runtime-check --container-image=nvcr.io#nvidia/pytorch:25.10-py3 python train.py",
        No("it needs pyxis and an image"),
    ),
];

/// A command on a page.
#[derive(Debug, PartialEq, Eq)]
struct Command {
    text: String,
    /// Whether the block is one that `cli/tests/book` reads.
    is_read: bool,
}

/// What root's commands stand behind, in blocks whose first line begins with it.
const ROOT: &str = "# ";

/// The commands of a page's blocks of a console: after `$ `, or of root. A comment behind one is not part of it.
fn commands(page: &str) -> Vec<Command> {
    let mut found = Vec::new();
    let (mut inside, mut block, mut indent) = (false, None, "");
    let mut lines = page.lines().peekable();
    while let Some(whole) = lines.next() {
        // A block of a list stands further in, with all of its lines.
        let line = whole.strip_prefix(indent).unwrap_or(whole);
        if let Some((before, info)) = whole.split_once("```").filter(|(before, _)| before.trim().is_empty()) {
            indent = before;
            inside = !inside;
            let mut words = info.split(',').map(str::trim);
            let console = inside && words.next() == Some("console");
            let of_root = lines.peek().is_some_and(|first| first.trim_start().starts_with(ROOT));
            block = console.then(|| (!words.any(|word| word == "ignore"), of_root));
            continue;
        }
        let Some((is_read, of_root)) = block else { continue };
        let own = line.strip_prefix("$ ");
        if let Some(text) = own.or_else(|| line.strip_prefix(ROOT).filter(|_| of_root)) {
            let text = text.split("  ").next().unwrap_or_default().trim_end().to_owned();
            found.push(Command { text, is_read });
        }
    }
    found
}

/// What is this software's in a command, options and subcommands: the test that is said to run it has to have them too.
fn options(command: &str) -> impl Iterator<Item = &str> {
    let ours = ["--sanity-", "--runtime-", "--aimaster"];
    let own = command.starts_with("aimaster ");
    let names = command.split(' ').map(|word| word.split('=').next().unwrap_or_default());
    names.enumerate().filter_map(move |(at, name)| {
        let counts =
            own && (at == 1 || name.starts_with("--")) || ours.iter().any(|one| name.starts_with(one));
        counts.then_some(name)
    })
}

/// What is wrong with a row.
fn wrong(command: &str, shown: &Shown) -> Option<String> {
    let (file, name) = match shown {
        By(file, name) => (file, name),
        No(reason) => return reason.is_empty().then(|| format!("{command}: no reason")),
    };
    let Ok(text) = std::fs::read_to_string(root().join(file)) else {
        return Some(format!("{command}: there is no {file}"));
    };
    if !text.contains(&format!("#[test]\nfn {name}(")) {
        return Some(format!("{command}: {file} has no test {name}"));
    }
    let lacking = options(command).find(|option| !text.contains(option));
    lacking.map(|option| format!("{command}: {file} never says {option}"))
}

#[test]
fn every_command_of_the_pages_is_run_by_a_test_or_says_why_not() {
    let reader = std::fs::read_to_string(root().join("cli/tests/book/commands.rs")).unwrap();
    let mut shown: BTreeSet<&str> = BTreeSet::new();
    let mut mistakes = Vec::new();
    for page in pages() {
        let stem = page.trim_start_matches("docs/").trim_end_matches(".md");
        let is_read = page.starts_with("docs/") && reader.contains(&format!("\"{stem}\""));
        for command in commands(&std::fs::read_to_string(root().join(&page)).unwrap()) {
            let run = is_read && command.is_read && command.text.starts_with("aimaster ");
            match TABLE.iter().find(|(text, _)| *text == command.text) {
                Some((_, _)) if run => {
                    mistakes.push(format!("{page}: {:?} is run, and in the table", command.text))
                }
                Some((text, _)) => _ = shown.insert(text),
                None if run => {}
                None => mistakes.push(format!("{page}: nobody runs {:?}", command.text)),
            }
        }
    }
    for (text, by) in TABLE {
        mistakes.extend(wrong(text, by));
        if !shown.contains(text) {
            mistakes.push(format!("no page shows {text:?}"));
        }
    }
    assert!(mistakes.is_empty(), "{mistakes:#?}");
}

#[test]
fn commands_are_found_and_wrong_rows_are_told() {
    let page = "```console\n$ a --b  # c\nout\n# no\n```\n$ no\n```console\n# d\n```\n```console,ignore\n$ e\n```\n```text\n$ no\n```\n\
                1. x:\n   ```console\n   # f\n   $ g\n   out\n   ```\n";
    let found: Vec<(String, bool)> = commands(page).into_iter().map(|one| (one.text, one.is_read)).collect();
    let of = |text: &str, is_read: bool| (text.to_owned(), is_read);
    assert_eq!(found, [of("a --b", true), of("d", true), of("e", false), of("f", true), of("g", true)]);
    let told = |command: &str, by: Shown| wrong(command, &by).unwrap_or_default();
    assert!(told("srun", By("tests/none.rs", "x")).contains("no tests/none.rs"));
    assert!(told("srun", By(ACTIONS, "x")).contains("no test x"));
    assert!(told("srun --sanity-none=1", By(ACTIONS, EACH_ACTION)).contains("never says --sanity-none"));
    assert_eq!(told("srun --sanity-fail-action=fail", By(ACTIONS, EACH_ACTION)), "");
    assert_eq!(told("x", No("it is a word")), "");
    assert_eq!(told("x", No("")), "x: no reason");
}
