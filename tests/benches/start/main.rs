//! `cargo xtask bench start`: what jobs pay that ask for nothing, and what the agent takes beside eight ranks that tell it of a
//! thousand collectives a second, on the local Slurm and of the builds that ship. It prints numbers and judges nothing.
//! Arguments: pairs of jobs, seconds of the agent.
#![forbid(unsafe_code)]

mod agent;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use aimaster_tests::{
    ALICE, BUILT_PLUGIN, CTL, Cluster, Install, NODE_DIR, NODE_PLUGIN, product, serial, target_dir,
};
use anyhow::{Context, Result, ensure};

/// The configuration without the plugin, for srun and for the slurmd of the second node.
const PLAIN: &str = "/etc/slurm/plain.conf";

/// A configuration with a plugin that does nothing, for the slurmd of the third node.
const NULL: &str = "/etc/slurm/null.conf";

/// Node with the plugin, without, and with one that does nothing.
const WITH: &str = "n1";
const WITHOUT: &str = "n2";
const IDLE: &str = "n3";
const NODES: usize = 3;

/// One side of a pair: the node, and whether srun has the plugin.
type Side = (&'static str, bool);

/// A job that does nothing, its epilog included, takes far less.
const SOON: Duration = Duration::from_secs(30);

/// Pairs that are run first and not counted: caches are cold.
const WARM: usize = 5;

/// Suites of the default checks, and the loader's calls.
const SUITES: usize = 5;
const CALLS: &str = "500";

fn main() -> Result<()> {
    // `cargo test --all-targets` starts benches too, without this flag: it has no time for them.
    if std::env::args().all(|word| word != "--bench") {
        return Ok(());
    }
    let mut numbers = std::env::args().skip(1).filter_map(|word| word.parse::<usize>().ok());
    let (pairs, seconds) = (numbers.next().unwrap_or(200), numbers.next().unwrap_or(60));
    let _machine = serial()?;
    if pairs > 0 {
        let cluster = boot()?;
        jobs(&cluster, pairs)?;
        prologs(&cluster)?;
        suites(&cluster)?;
    }
    if seconds > 0 {
        agent::bench(Duration::from_secs(seconds as u64))?;
    }
    Ok(())
}

/// The product with the plugin as packages have it.
fn install() -> Result<Install> {
    let target = target_dir()?;
    let programs =
        ["aimaster-prolog", "aimaster-worker", "aimaster-epilog", "aimaster-c4d", "aimaster-watcher"];
    let install = Install::new().plugin(target.join("../spank").join(BUILT_PLUGIN));
    programs.iter().fold(install, |install, name| install.program(target.join(name))).built()
}

/// Nodes whose slurmd has the plugin, none, and one that does nothing.
fn boot() -> Result<Cluster> {
    let builder = Cluster::builder().nodes(NODES).set("SlurmdDebug", "error").set("SlurmctldDebug", "error");
    let cluster = product::boot_with(builder, install()?, "")?;
    let conf = cluster.base().join("etc/slurm");
    let text = std::fs::read_to_string(conf.join("slurm.conf"))?;
    std::fs::write(conf.join("none.conf"), "")?;
    std::fs::write(conf.join("nothing.conf"), format!("optional {NODE_DIR}/null.so\n"))?;
    for (node, file, plugstack) in [(WITHOUT, PLAIN, "none"), (IDLE, NULL, "nothing")] {
        let other = text.replace("/etc/slurm/plugstack.conf", &format!("/etc/slurm/{plugstack}.conf"));
        ensure!(other != text, "slurm.conf names no plugstack.conf");
        std::fs::write(cluster.base().join(file.trim_start_matches('/')), other)?;
        if node == IDLE {
            let version = format!("-DVERSION={}", cluster.slurm().number());
            compile(&cluster, "null.c", "null.so", &["-shared", "-fPIC", &version])?;
        }
        cluster.stop_slurmd(node)?;
        cluster.command(node, ["slurmd", "-N", node, "-f", file]).ok()?;
    }
    cluster.wait_idle(NODES, SOON)?;
    Ok(cluster)
}

/// Compiles a file beside this one into the folder of programs that all nodes see.
fn compile(cluster: &Cluster, source: &str, program: &str, options: &[&str]) -> Result<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/start").join(source);
    let program = cluster.base().join("opt").join(program);
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-w"]).args(options).arg("-o").args([&program, &source]).arg("-ldl");
    ensure!(gcc.status().context("gcc")?.success(), "{} can't be built", source.display());
    Ok(())
}

/// One job that does nothing, in ms; on a node that has nothing of an earlier one to clean up.
fn job(cluster: &Cluster, node: &str, plugin_in_srun: bool) -> Result<f64> {
    cluster.wait_idle(NODES, SOON)?;
    let srun = cluster.command(CTL, ["srun", "-N1", "-w", node, "true"]).user(ALICE);
    let srun = if plugin_in_srun { srun } else { srun.env("SLURM_CONF", PLAIN) };
    Ok(ms(srun.ok()?.elapsed))
}

fn jobs(cluster: &Cluster, pairs: usize) -> Result<()> {
    println!("srun -N1 true, ms, {pairs} alternating pairs");
    println!(
        "| plugin in | without: median | with: median | median difference | quarter to three quarters |"
    );
    println!("|---|---|---|---|---|");
    let rows: [(&str, Side, Side); 3] = [
        ("srun", (WITHOUT, false), (WITHOUT, true)),
        ("srun, slurmd, slurmstepd", (WITHOUT, false), (WITH, true)),
        ("the same, beside a plugin that does nothing", (IDLE, false), (WITH, true)),
    ];
    for (name, without, with) in rows {
        let (mut base, mut loaded, mut more) = (Vec::new(), Vec::new(), Vec::new());
        for pair in 0..WARM + pairs {
            // Who begins changes from pair to pair.
            let (first, second) = if pair % 2 == 0 { (without, with) } else { (with, without) };
            let (first, second) = (job(cluster, first.0, first.1)?, job(cluster, second.0, second.1)?);
            let (plain, plugin) = if pair % 2 == 0 { (first, second) } else { (second, first) };
            if pair >= WARM {
                base.push(plain);
                loaded.push(plugin);
                more.push(plugin - plain);
            }
        }
        let (low, high) = (at(&mut more, 0.25), at(&mut more, 0.75));
        println!(
            "| {name} | {:.1} | {:.1} | {:.2} | {low:.2} to {high:.2} |",
            at(&mut base, 0.5),
            at(&mut loaded, 0.5),
            at(&mut more, 0.5)
        );
    }
    Ok(())
}

/// The hook alone, helper included, in a process on the node that loads the plugin as Slurm's does.
fn prologs(cluster: &Cluster) -> Result<()> {
    compile(cluster, "loader.c", "loader", &["-rdynamic"])?;
    let helpers = format!("helpers={NODE_DIR}");
    let mut command =
        cluster.command(WITH, [&format!("{NODE_DIR}/loader"), NODE_PLUGIN, CALLS, helpers.as_str()]);
    for (name, value) in [
        ("SLURM_JOB_ID", "4000000"),
        ("SLURM_JOB_UID", "0"),
        ("SLURM_JOB_NODELIST", WITH),
        ("SLURM_NODELIST", WITH),
        ("SLURM_JOB_PARTITION", "main"),
        ("SLURM_CLUSTER_NAME", "aim"),
        ("SLURMD_NODENAME", WITH),
        ("SLURM_CONF", "/etc/slurm/slurm.conf"),
        ("SLURM_SCRIPT_CONTEXT", "prolog_slurmd"),
    ] {
        command = command.env(name, value);
    }
    let output = command.ok()?;
    ensure!(output.stderr.is_empty(), "the plugin complains: {}", output.stderr);
    let mut times: Vec<f64> =
        output.stdout.lines().map(|line| Ok(line.parse::<f64>()? / 1000.0)).collect::<Result<_>>()?;
    println!(
        "\njob_prolog without a request, its helper included: median {:.2} ms, 95 % within {:.2} ms, {} calls",
        at(&mut times, 0.5),
        at(&mut times, 0.95),
        times.len()
    );
    Ok(())
}

/// The default checks on the node with the plugin: one node has all but the pairs.
fn suites(cluster: &Cluster) -> Result<()> {
    let mut times = Vec::new();
    for _ in 0..SUITES {
        cluster.wait_idle(NODES, SOON)?;
        let asked = ["-N1", "-w", WITH, "--sanity-check", "--sanity-fail-action=retain", "true"];
        times.push(ms(cluster.srun(asked).ok()?.elapsed));
    }
    println!(
        "srun -N1 --sanity-check true, default checks on one node: median {:.0} ms, {:.0} to {:.0}, {SUITES} jobs",
        at(&mut times, 0.5),
        at(&mut times, 0.0),
        at(&mut times, 1.0)
    );
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The number below which a share of them lies.
fn at(numbers: &mut [f64], share: f64) -> f64 {
    numbers.sort_by(f64::total_cmp);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a length")]
    let place = (share * numbers.len().saturating_sub(1) as f64).round() as usize;
    numbers.get(place).copied().unwrap_or(f64::NAN)
}
