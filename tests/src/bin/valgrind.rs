//! The plugin inside srun, sbatch, salloc, slurmd and slurmstepd under valgrind: jobs of all kinds, then a table of the errors
//! and lost blocks with the plugin in their stacks. A second plugin with planted errors shows that they would be seen.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use aimaster_tests::memcheck::{Finding, Seen, read};
use aimaster_tests::product::{OPTIONAL, plugstack};
use aimaster_tests::{
    CTL, Cluster, Exec, Install, NODE_DIR, Running, Signal, SlurmVersion, product, stamp, wait,
};
use anyhow::{Context, Result, bail, ensure};

/// Everything takes some thirty times as long as usual.
const SOON: Duration = Duration::from_secs(300);

/// slurmstepd's word for a task that was gone before it was told to begin: it happens to some under valgrind.
const LOST_TASK: &str = "write to unblock task";
/// How often a job is tried that lost a task so.
const ATTEMPTS: usize = 5;

/// Where batch jobs print, beside the logs of valgrind.
const PRINTED: &str = "batch.out";

const PLUGIN: &str = "spank_aimaster.so";
const PLANT: &str = "plant.so";

/// Loses a block, and reads beyond another, wherever a plugin is called.
const PLANT_SOURCE: &str = r#"
#![no_std]
#![allow(non_upper_case_globals)]
use core::ffi::{c_char, c_int, c_void};
#[unsafe(no_mangle)] pub static plugin_name: [u8; 6] = *b"plant\0";
#[unsafe(no_mangle)] pub static plugin_type: [u8; 6] = *b"spank\0";
#[unsafe(no_mangle)] pub static plugin_version: u32 = 0;
unsafe extern "C" { fn malloc(size: usize) -> *mut u8; fn free(block: *mut u8); }
#[inline(never)]
fn plant() -> c_int {
    unsafe {
        let lost = malloc(77);
        lost.write_volatile(1);
        let short = malloc(8);
        let beyond = short.add(8).read_volatile();
        short.write_volatile(beyond);
        free(short);
    }
    0
}
macro_rules! hook { ($($name:ident)*) => { $(
    #[unsafe(no_mangle)]
    pub extern "C" fn $name(_: *mut c_void, _: c_int, _: *mut *mut c_char) -> c_int { plant() }
)* } }
hook!(slurm_spank_init slurm_spank_task_init slurm_spank_job_prolog slurm_spank_job_epilog);
#[panic_handler] fn panic(_: &core::panic::PanicInfo) -> ! { loop {} }
"#;

/// The programs that load plugins, and how often each must have been watched to its end at least.
const PROGRAMS: [(&str, usize); 7] = [
    ("srun", 4),
    ("sbatch", 2),
    ("salloc", 1),
    ("slurmd", 2),
    ("slurmstepd", 10),
    ("slurmstepd spank prolog", 8),
    ("slurmstepd spank epilog", 8),
];

fn main() -> Result<()> {
    let version = SlurmVersion::installed()?;
    let folder = tempfile::tempdir()?;
    let plant = build_plant(folder.path(), version)?;
    let lines = format!("{} \noptional {NODE_DIR}/{PLANT}\n", plugstack(OPTIONAL).trim_end());
    // Slurm's own patience is for programs at full speed.
    let builder =
        Cluster::builder().nodes(2).plugstack(&lines).install(Install::from_target()?.program(&plant));
    let builder =
        builder.set("MessageTimeout", 100).set("SlurmdTimeout", 300).set("PrologEpilogTimeout", 200);
    let cluster = builder.set("BatchStartTimeout", 200).set("KillWait", 60).boot()?;
    product::set_policy(
        &cluster,
        "host.seconds_per_check = 0.2\ntime.join_s = 60\ntime.max_deadline_s = 120\n",
    )?;
    let logs = cluster.base().join("memcheck");
    std::fs::create_dir(&logs)?;
    std::fs::set_permissions(&logs, std::fs::Permissions::from_mode(0o1777))?;
    jobs(&cluster, &logs)?;
    report(&seen(&logs)?, version)
}

fn build_plant(dir: &Path, version: SlurmVersion) -> Result<PathBuf> {
    let (source, plugin) = (dir.join("plant.rs"), dir.join(PLANT));
    std::fs::write(&source, PLANT_SOURCE)?;
    let options = ["--edition", "2024", "--crate-type", "cdylib", "-C", "panic=abort", "-O", "-g", "-o"];
    let status = Command::new("rustc").args(options).args([&plugin, &source]).status().context("rustc")?;
    ensure!(status.success(), "rustc failed");
    stamp(&plugin, version)?;
    Ok(plugin)
}

/// The command line of valgrind on a machine, up to the program. Each machine counts its processes for itself.
fn valgrind(logs: &Path, machine: &str) -> Vec<String> {
    let file = format!("--xml-file={}/{machine}.%p.xml", logs.display());
    // Slurm takes plugins out of memory before it ends, and user programs are not looked at.
    [
        "valgrind",
        "--quiet",
        "--xml=yes",
        &file,
        "--leak-check=full",
        "--show-leak-kinds=definite,indirect",
        "--keep-debuginfo=yes",
        "--num-callers=40",
        "--trace-children=yes",
        "--trace-children-skip=*/aimaster*,/bin/*,/usr/bin/*,*/env",
    ]
    .map(str::to_owned)
    .to_vec()
}

/// A user's command under valgrind.
fn user<'c>(cluster: &'c Cluster, logs: &Path, program: &str, arguments: &[&str]) -> Exec<'c> {
    let path = format!("/usr/bin/{program}");
    let line =
        valgrind(logs, CTL).into_iter().chain([path]).chain(arguments.iter().map(|one| (*one).to_owned()));
    cluster.command(CTL, line).user("alice").timeout(SOON)
}

/// Starts slurmd of all nodes anew, watched.
fn daemons(cluster: &Cluster, logs: &Path) -> Result<Vec<Running>> {
    let mut daemons = Vec::new();
    for node in cluster.nodes() {
        cluster.stop_slurmd(node)?;
        let line =
            valgrind(logs, node).into_iter().chain(["/usr/sbin/slurmd", "-D", "-N", node].map(str::to_owned));
        daemons.push(cluster.command(node, line).spawn()?);
    }
    cluster.wait_idle(daemons.len(), SOON)?;
    Ok(daemons)
}

/// Runs a job, which has to succeed or not and to say `words`.
fn run<'c>(
    cluster: &Cluster,
    printed: &Path,
    what: &str,
    (command, good, words): (&dyn Fn() -> Exec<'c>, bool, &str),
) -> Result<()> {
    eprintln!("{what}");
    for attempt in 1.. {
        let output = command().run()?;
        cluster.wait_idle(cluster.nodes().len(), SOON)?;
        // What a batch job printed; there is none before the first.
        let batch = std::fs::read_to_string(printed).unwrap_or_default();
        let text = format!("{}{}{batch}", output.stdout, output.stderr);
        if output.success() == good && text.contains(words) {
            break;
        }
        ensure!(
            attempt < ATTEMPTS && text.contains(LOST_TASK),
            "{what}: {} and {words:?} were wanted, exit code {}: {text}\n{}",
            if good { "success" } else { "failure" },
            output.code(),
            cluster.log_tails()
        );
        eprintln!("once more: slurmstepd lost a task before it called a plugin for it");
    }
    Ok(())
}

/// Jobs of all kinds, on nodes whose slurmd is watched.
fn jobs<'c>(cluster: &'c Cluster, logs: &Path) -> Result<()> {
    let nodes = cluster.nodes();
    let daemons = daemons(cluster, logs)?;
    let printed = logs.join(PRINTED);
    let run = |what: &str, command: &dyn Fn() -> Exec<'c>, good: bool, words: &str| {
        run(cluster, &printed, what, (command, good, words))
    };
    let checks = "--sanity-check=gemm_flops,all_reduce_2";
    let srun = |arguments: &[&str]| user(cluster, logs, "srun", arguments);
    run("srun that asks for nothing", &|| srun(&["-N2", "echo", "ran"]), true, "ran")?;
    let all = ["-N2", checks, "--runtime-check", "--sanity-fail-action=fail", "echo", "ran"];
    run("srun with checks", &|| srun(&all), true, "ran")?;
    let document = format!("--aimaster={}", include_str!("../../../conf/aimaster.json"));
    let mistakes = [document.as_str(), "--sanity-check=none,such", "true"];
    run("srun with a document and mistakes", &|| srun(&mistakes), false, "such")?;
    let twins = || {
        let twins = srun(&["-N1", "echo", "ran"]).env("AIMASTER_SANITY_CHECK", "gemm_flops");
        twins.env("AIMASTER_SANITY_TIMEOUT", "1")
    };
    run("srun with environment twins", &twins, true, "ran")?;
    let conflict = || srun(&["-N1", "true"]).env("AIMASTER_SANITY_TIMEOUT", "soon");
    run("srun with a wrong twin", &conflict, false, "AIMASTER_SANITY_TIMEOUT")?;
    let script = format!("#!/bin/bash\n#SBATCH -N2 {checks} --runtime-check\necho ran\nsrun -N2 echo step\n");
    let output = format!("--output={}", printed.display());
    let sbatch = |arguments: &[&str]| {
        let arguments: Vec<&str> =
            std::iter::once(output.as_str()).chain(arguments.iter().copied()).collect();
        user(cluster, logs, "sbatch", &arguments).stdin(script.clone())
    };
    run("sbatch with checks", &|| sbatch(&["--wait"]), true, "")?;
    run("sbatch with a mistake", &|| sbatch(&["--sanity-check=nothing"]), false, "nothing")?;
    let salloc = || user(cluster, logs, "salloc", &["-N2", checks, "srun", "echo", "ran"]);
    run("salloc with checks", &salloc, true, "ran")?;

    // A closed gate: no helper, and a policy that lets no job start without a verdict.
    let gone = cluster.remove_helper("n2", "aimaster-prolog")?;
    product::set_policy(cluster, "time.join_s = 5\ntime.max_deadline_s = 120\nactions.on_error = 'fail'\n")?;
    run(
        "srun before a closed gate",
        &|| srun(&["-wn2", "-n2", checks, "echo", "ran"]),
        false,
        "left no verdict",
    )?;
    run("sbatch before a closed gate", &|| sbatch(&["--wait", "-N1", "-wn2"]), false, "")?;
    gone.undo()?;

    eprintln!("a job that is cancelled in its prolog");
    product::set_policy(cluster, "host.seconds_per_check = 20\ntime.max_deadline_s = 120\n")?;
    let job = cluster.submit("echo ran", ["-N2", checks])?;
    wait::until(SOON, "its workers run", || {
        let at = |node: &&str| {
            cluster.processes(node).map(|all| all.iter().any(|one| one.comm == "aimaster-worker"))
        };
        Ok((at(&"n1")? && at(&"n2")?).then_some(()))
    })?;
    cluster.scancel([job.to_string()]).ok()?;
    cluster.wait_idle(nodes.len(), SOON)?;

    eprintln!("the end of slurmd");
    for (node, daemon) in nodes.iter().zip(daemons) {
        cluster.signal_processes(node, "slurmd -D", Signal::TERM)?;
        daemon.wait(SOON)?;
    }
    Ok(())
}

fn seen(logs: &Path) -> Result<Vec<Seen>> {
    let mut seen = Vec::new();
    for entry in std::fs::read_dir(logs)? {
        let path = entry?.path();
        if path.ends_with(PRINTED) {
            continue;
        }
        let bytes = std::fs::read(path)?;
        seen.extend(read(&String::from_utf8_lossy(&bytes)));
    }
    Ok(seen)
}

/// What one program's processes showed.
#[derive(Default)]
struct Row {
    processes: usize,
    finished: usize,
    plants: [usize; 2],
    ours: [usize; 2],
}

/// Errors and lost blocks with a library in their stacks.
fn count(findings: &[Finding], library: &str) -> [usize; 2] {
    let of = |leak: bool| findings.iter().filter(|one| one.has(library) && one.is_leak() == leak).count();
    [of(false), of(true)]
}

fn report(seen: &[Seen], version: SlurmVersion) -> Result<()> {
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    for one in seen {
        let row = rows.entry(&one.program).or_default();
        row.processes += 1;
        row.finished += usize::from(one.finished);
        for (sums, library) in [(&mut row.plants, PLANT), (&mut row.ours, PLUGIN)] {
            let counted = count(&one.findings, library);
            sums[0] += counted[0];
            sums[1] += counted[1];
        }
        for finding in one.findings.iter().filter(|finding| finding.has(PLUGIN)) {
            println!("{}: {}\n    {}", one.program, finding.kind, finding.stack.join("\n    "));
        }
    }
    println!("\nSlurm {version}\n");
    println!(
        "| program | processes | watched to their end | planted errors, lost blocks | the plugin's errors | its lost blocks |"
    );
    println!("|---|---|---|---|---|---|");
    let mut wrong = Vec::new();
    for (program, least) in PROGRAMS {
        let row = rows.remove(program).unwrap_or_default();
        println!(
            "| {program} | {} | {} | {}, {} | {} | {} |",
            row.processes, row.finished, row.plants[0], row.plants[1], row.ours[0], row.ours[1]
        );
        if row.ours != [0, 0] {
            wrong.push(format!(
                "{program}: {} errors and {} lost blocks are the plugin's",
                row.ours[0], row.ours[1]
            ));
        }
        if row.finished < least {
            wrong.push(format!(
                "{program}: {} processes were watched to their end, {least} were wanted",
                row.finished
            ));
        }
        // slurmd loads plugins and calls none of them but for init.
        if row.plants.contains(&0) {
            wrong.push(format!(
                "{program}: planted errors were not seen, so the plugin's would not be either"
            ));
        }
    }
    let others: Vec<&str> = rows.into_keys().collect();
    println!("\nother programs: {}", others.join(", "));
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
}
