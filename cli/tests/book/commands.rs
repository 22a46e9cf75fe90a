//! The commands of `aimaster` that the pages show: each is run in `docs/samples`, and prints what the page says.

use super::root;

/// Pages whose blocks of a console are read. Pages with `aimaster` in such a block are held to stand here, by the program `docs`.
const PAGES: [&str; 6] =
    ["quick-start", "user-guide", "admin-guide", "commands", "containers", "coming-from"];

/// Commands that need Slurm, root or a build: the program `docs` holds for each which test runs it.
const OTHERS: [&str; 13] = [
    "srun",
    "sbatch",
    "salloc",
    "scontrol",
    "sinfo",
    "squeue",
    "scancel",
    "cargo",
    "cat",
    "sudo",
    "echo",
    "rm",
    "journalctl",
];

#[test]
fn every_command_prints_what_its_page_says() {
    // No test beside this one asks where it is.
    std::env::set_current_dir(root("docs/samples")).unwrap();
    let cases = trycmd::TestCases::new();
    cases.register_bin("aimaster", std::path::Path::new(env!("CARGO_BIN_EXE_aimaster")));
    cases.register_bins(OTHERS.map(|name| (name, trycmd::schema::Bin::Ignore)));
    for page in PAGES {
        cases.case(root(&format!("docs/{page}.md")));
    }
}
