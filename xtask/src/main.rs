//! Tasks of the project. `cargo xtask demo` and `cargo xtask test` do everything on a fresh Debian 12 machine, as root, with
//! rustup and git.
#![forbid(unsafe_code)]

mod chromium;
mod dist;
mod fuzz;
mod install;
mod instructions;
mod packages;
mod screenshots;
mod share;
mod stage;
mod versions;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};
use stage::{SIDE_BY_SIDE, Stages, cargo};

/// Tasks of the project.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what is missing, build, boot a 4-node Slurm on this machine and show the main job on it.
    Demo,
    /// Install what the tests need and run them all, with the seconds of each stage.
    Test {
        /// Only stages whose name contains this.
        #[arg(long)]
        only: Option<String>,
    },
    /// Run healthy jobs with all checks while builds load this machine: none may find a fault.
    Soak {
        /// How many.
        #[arg(long, default_value_t = 10)]
        runs: u32,
    },
    /// Faults in every phase of a job with checks, on the local Slurm; rewrites docs/faults.md.
    Matrix {
        /// Only cells whose names contain all these words, such as `stop coordinator`.
        words: Vec<String>,
        /// Only those without a good result of an earlier run.
        #[arg(long)]
        unfinished: bool,
        /// How many clusters run side by side.
        #[arg(long, default_value_t = 6)]
        clusters: u32,
    },
    /// Run the main scenarios on newer releases of Slurm, which are fetched where they are missing.
    Versions {
        /// Only this release, such as 24.11.
        release: Option<String>,
    },
    /// Run jobs with the plugin inside srun, sbatch, salloc, slurmd and slurmstepd under valgrind.
    Valgrind,
    /// Build `aimaster` with its feature `mpi` against Debian's Open MPI, and try it under `srun --mpi=pmix`.
    Mpi,
    /// Run thousands of jobs without checks and hundreds with them: none may leave memory, descriptors, files or processes
    /// behind. Prints a table; takes a quarter of an hour.
    Leaks {
        /// How many jobs that ask for nothing.
        #[arg(long, default_value_t = 10_000)]
        plain: u32,
        /// How many with the default checks.
        #[arg(long, default_value_t = 200)]
        suites: u32,
    },
    /// Count the instructions of the parts without IO and hold them against the table: more than 10 % more fails.
    Instructions {
        /// Write the table anew.
        #[arg(long)]
        accept: bool,
    },
    /// Measure beside what others measure with.
    Bench {
        #[command(subcommand)]
        what: Bench,
    },
    /// Try what foreign bytes can do to the parsers, with libFuzzer: each target for some minutes.
    Fuzz {
        /// How long each.
        #[arg(long, default_value_t = 1)]
        minutes: u32,
        /// How many at once.
        #[arg(long, default_value_t = 1)]
        jobs: usize,
        /// Which; all without a name.
        targets: Vec<String>,
    },
    /// Rewrite the parts of the documentation that are made from the code.
    Docs,
    /// Show reports of simulated jobs as pages in Chromium, which is installed where it is missing; rewrites docs/screenshots.
    Screenshots,
    /// Write the manual pages and completions that packages ship, below target/share.
    Man,
    /// Make a Debian package and an RPM of the product, below target/dist.
    Dist {
        /// Of the debug build: sooner there, for trying the packages themselves.
        #[arg(long)]
        debug: bool,
        /// Try them as well, in a Debian of its own: the .deb installed, upgraded, removed and purged beside jobs, the .rpm without.
        #[arg(long)]
        check: bool,
    },
    /// Build for production and copy plugin, helpers, policy and baselines to where Slurm looks for them.
    Install {
        /// Install below this folder in place of /.
        #[arg(long, default_value = "/")]
        root: PathBuf,
    },
}

#[derive(Subcommand)]
enum Bench {
    /// Products, launches and collectives on this machine's GPUs, by turns with PyTorch, a plain launch loop and
    /// nccl-tests.
    Gpu {
        /// How many turns, at least 5.
        #[arg(long, default_value_t = 5)]
        repeats: u32,
    },
    /// What the check while a job runs costs an all-reduce on this machine's GPUs, by turns without it.
    Telemetry {
        /// How many turns, at least 3.
        #[arg(long, default_value_t = 3)]
        repeats: u32,
    },
    /// The rules of the check before start on a simulated cluster: healthy jobs, faults at every place, their cost, and
    /// other published rules beside them.
    Trust {
        /// What to change of the numbers of runs, such as `healthy=1000`: see diag/benches/trust.rs.
        counts: Vec<String>,
    },
    /// What it costs thousands of nodes to meet, all of them on this machine, by MUNGE and by a key file.
    Scale {
        /// Which and how often, such as `nodes=1024` or `runs=5`: see cluster/benches/scale.rs.
        settings: Vec<String>,
    },
    /// What the parts without IO take: plan, verdict, report, page, digests.
    Pure {
        /// Nodes of the job.
        #[arg(long, default_value_t = 1024)]
        nodes: u32,
        /// How many turns.
        #[arg(long, default_value_t = 11)]
        repeats: u32,
    },
    /// What jobs pay that ask for nothing, and what the agent takes beside busy ranks, on the local Slurm.
    Start {
        /// Pairs of jobs, with the plugin and without.
        #[arg(long, default_value_t = 200)]
        pairs: u32,
    },
    /// The rules of the running job on a simulated job of 16,384 ranks.
    C4d {
        /// Faults, and clean runs.
        counts: Vec<String>,
    },
}

fn main() -> Result<()> {
    match Arguments::parse().task {
        Task::Demo => demo(),
        Task::Test { only } => test(only.as_deref()),
        Task::Soak { runs } => soak(runs),
        Task::Matrix { words, unfinished, clusters } => matrix(&words, unfinished, clusters),
        Task::Versions { release } => versions(release.as_deref()),
        Task::Valgrind => valgrind(),
        Task::Mpi => mpi(),
        Task::Leaks { plain, suites } => leaks(plain, suites),
        Task::Instructions { accept } => instructions::instructions(accept),
        Task::Bench { what: Bench::Pure { nodes, repeats } } => bench_pure(nodes, repeats),
        Task::Bench { what: Bench::Start { pairs } } => bench_start(pairs),
        Task::Bench { what: Bench::Gpu { repeats } } => bench("prolog", "gpu", repeats),
        Task::Bench { what: Bench::Telemetry { repeats } } => bench_telemetry(repeats),
        Task::Bench { what: Bench::Trust { counts } } => bench_tables("diag", "trust", &counts),
        Task::Bench { what: Bench::C4d { counts } } => bench_tables("diag", "c4d", &counts),
        Task::Bench { what: Bench::Scale { settings } } => bench_tables("cluster", "scale", &settings),
        Task::Fuzz { minutes, jobs, targets } => fuzz::fuzz(minutes, jobs, &targets),
        Task::Docs => docs(),
        Task::Screenshots => screenshots::screenshots(),
        Task::Man => share::write(Path::new("target/share"), || {
            let mut command = stage::cargo_command();
            command.args(["run", "--quiet", "--package", "cli", "--bin", "aimaster", "--"]);
            command
        }),
        Task::Dist { debug, check } => dist::dist(debug, check),
        Task::Install { root } => install::install(&root),
    }
}

fn demo() -> Result<()> {
    packages::install()?;
    let mut stages = Stages::new(None);
    eprintln!("the first build takes some minutes");
    stages.run("build", || cargo(&["build", "--quiet", "--workspace"]));
    if stages.failed() {
        bail!("the build failed");
    }
    cargo(&["run", "--quiet", "--package", "aimaster-tests", "--bin", "demo"])
}

fn soak(runs: u32) -> Result<()> {
    packages::install()?;
    cargo(&["build", "--quiet", "--workspace"])?;
    cargo(&["run", "--quiet", "--package", "aimaster-tests", "--bin", "soak", "--", &runs.to_string()])
}

fn matrix(words: &[String], unfinished: bool, clusters: u32) -> Result<()> {
    packages::install()?;
    cargo(&["build", "--quiet", "--workspace"])?;
    let clusters = clusters.to_string();
    let mut all = vec!["run", "--quiet", "--package", "aimaster-tests", "--bin", "matrix", "--"];
    all.extend(["--clusters", &clusters]);
    all.extend(unfinished.then_some("--unfinished"));
    all.extend(words.iter().map(String::as_str));
    cargo(&all)
}

fn versions(release: Option<&str>) -> Result<()> {
    packages::install()?;
    versions::versions(release)
}

fn mpi() -> Result<()> {
    const TEST: &str = "check_in_a_step::tasks_of_mpi_need_no_munge";
    packages::install()?;
    packages::install_these(packages::MPI)?;
    cargo(&["build", "--quiet", "--workspace"])?;
    // A folder of its own, so that the other programs and tests keep the one without.
    let folder = std::path::absolute("target/mpi")?;
    let build = ["build", "--quiet", "--package", "cli", "--features", "mpi", "--target-dir"];
    stage::run(stage::cargo_command().args(build).arg(&folder))?;
    let with =
        ["test", "--quiet", "--package", "cli", "--features", "mpi", "--bin", "aimaster", "--target-dir"];
    stage::run(stage::cargo_command().args(with).arg(&folder).args(["--", "check::"]))?;
    let test =
        ["test", "--workspace", "--test", "side_by_side", "--", "--ignored", "--exact", TEST, "--nocapture"];
    stage::run(stage::cargo_command().args(test).env("AIMASTER_MPI_PROGRAM", folder.join("debug/aimaster")))
}

fn valgrind() -> Result<()> {
    packages::install()?;
    packages::install_these(packages::VALGRIND)?;
    cargo(&["build", "--quiet", "--workspace"])?;
    cargo(&["run", "--quiet", "--package", "aimaster-tests", "--bin", "valgrind"])
}

fn leaks(plain: u32, suites: u32) -> Result<()> {
    packages::install()?;
    cargo(&["build", "--quiet", "--workspace"])?;
    let (plain, suites) = (plain.to_string(), suites.to_string());
    cargo(&["run", "--quiet", "--package", "aimaster-tests", "--bin", "leaks", "--", &plain, &suites])
}

/// A machine with GPUs is not one that packages are installed on: what is missing there is said by the bench.
fn bench(package: &str, name: &str, repeats: u32) -> Result<()> {
    let repeats = repeats.to_string();
    cargo(&["bench", "--quiet", "--package", package, "--bench", name, "--", "--repeats", &repeats])
}

fn bench_telemetry(repeats: u32) -> Result<()> {
    cargo(&["build", "--quiet", "--profile", "plugin", "--package", "nccl-profiler-plugin"])?;
    cargo(&["build", "--quiet", "--release", "--package", "nccl-profiler", "--examples"])?;
    bench("epilog", "telemetry", repeats)
}

/// A bench that prints its own tables.
fn bench_tables(package: &str, name: &str, settings: &[String]) -> Result<()> {
    let words = ["bench", "--quiet", "--package", package, "--bench", name, "--"];
    cargo(&words.into_iter().chain(settings.iter().map(String::as_str)).collect::<Vec<_>>())
}

fn bench_pure(nodes: u32, repeats: u32) -> Result<()> {
    let (nodes, repeats) = (nodes.to_string(), repeats.to_string());
    let words = ["run", "--quiet", "--release", "--package", "cli", "--example", "pure", "--", "time"];
    cargo(&[&words[..], &[&nodes, &repeats]].concat())
}

/// Of what ships: helpers in release, plugins in the profiles that packages have.
fn bench_start(pairs: u32) -> Result<()> {
    packages::install()?;
    install::build("release")?;
    cargo(&["build", "--quiet", "--release", "--package", "nccl-profiler", "--examples"])?;
    cargo(&["bench", "--quiet", "--package", "aimaster-tests", "--bench", "start", "--", &pairs.to_string()])
}

/// The test that finds drift also mends it; the second run says whether that was all. First the pages that say what `aimaster`
/// says, which the others are held against.
fn docs() -> Result<()> {
    for (package, test) in [("cli", "book"), ("aimaster-tests", "docs")] {
        let run = || cargo(&["test", "--quiet", "--package", package, "--test", test, "--no-fail-fast"]);
        run().or_else(|_| run())?;
    }
    Ok(())
}

fn test(only: Option<&str>) -> Result<()> {
    let mut stages = Stages::new(only);
    stages.run("packages", packages::install);
    stages.run("format", || cargo(&["fmt", "--all", "--check"]));
    stages.run("lint", || cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]));
    // The cluster tests run the built plugin and helpers, so everything is built before they start.
    stages.run("build", || cargo(&["build", "--workspace", "--lib", "--bins", "--tests", "--examples"]));
    // All packages in one call: alone, a package's dependencies have other features and are compiled again.
    stages.run("tests", || cargo(&["test", "--workspace", "--no-fail-fast", "--", SIDE_BY_SIDE]));
    stages.run("instructions", || instructions::instructions(false));
    match versions::fetched() {
        Some(roots) => stages.run("versions", || versions::surface(&roots)),
        None => stages.skip("versions", "not fetched yet, run `cargo xtask versions` once"),
    }
    stages.finish()
}
