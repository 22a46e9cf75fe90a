//! The demo: a 4-node Slurm on this machine, a healthy job, then a node with a slow network that is found, named
//! and left out. What stands after `$` is what a user would type; the output below it is real.

use std::time::Duration;

use aimaster_tests::{Cluster, Output, product};
use anyhow::{Context, Result};

/// No step of the demo takes longer.
const SOON: Duration = Duration::from_secs(90);

/// The slow network: 20 Mbit/s are 0.0025 GB/s, a twentieth of the floor for a pair.
const SLOW_KBIT: u64 = 20_000;

fn main() -> Result<()> {
    say("a Slurm of 4 nodes, each a set of namespaces with its own slurmd and munged");
    let cluster = product::boot(Cluster::builder().nodes(4), "")?;
    let job_program = ["bash", "-c", "echo \"training on $(hostname)\""];

    say("a healthy job");
    let mut healthy = vec!["-N4", "--sanity-check"];
    healthy.extend(job_program);
    command("srun -N4 --sanity-check bash -c 'echo \"training on $(hostname)\"'");
    print(&cluster.srun(healthy).timeout(SOON).run()?);

    say("the network of n2 becomes slow (20 Mbit/s); a batch job asks for three nodes and for a requeue");
    let slow = cluster.rate("n2", SLOW_KBIT)?;
    let script = "srun bash -c 'echo \"training on $(hostname)\"'";
    command("sbatch -N3 --sanity-check --sanity-fail-action=requeue job.sh");
    let job = cluster.submit(script, ["-N3", "--sanity-check", "--sanity-fail-action=requeue"])?;
    println!("Submitted batch job {job}");
    cluster.wait_end(job, SOON).context("the job does not end")?;

    command("sinfo -R -o '%E|%N'");
    print(&cluster.sinfo(["-R", "-o", "%E|%N"]).run()?);
    command(&format!("cat slurm-{job}.out"));
    print_text(&cluster.job_output(job)?);
    command(&format!("aimaster report {job} --check 1"));
    let report =
        cluster.command("n1", ["/opt/aimaster/aimaster", "report", &job.to_string(), "--check", "1"]);
    print(&report.run()?);
    command(&format!("scontrol show job {job} | grep -oE ' (NodeList|ExcNodeList|AdminComment)=.*'"));
    let record = cluster.job(job)?;
    print_text(&format!(
        "NodeList={}\nAdminComment={}\n",
        record.get("NodeList"),
        record.get("AdminComment")
    ));
    slow.undo()?;
    Ok(())
}

fn say(text: &str) {
    println!("\n=== {text}");
}

fn command(text: &str) {
    println!("$ {text}");
}

fn print(output: &Output) {
    print_text(&output.stderr);
    print_text(&output.stdout);
}

fn print_text(text: &str) {
    for line in text.lines() {
        println!("{line}");
    }
}
