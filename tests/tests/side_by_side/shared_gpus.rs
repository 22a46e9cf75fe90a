//! Shares of GPUs, as Slurm gives them out by gres/shard and gres/mps: nothing is measured on them, and the user is told.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::Duration;

use aimaster_tests::{Cluster, product, side_by_side};

const SOON: Duration = Duration::from_secs(60);

#[test]
fn a_job_that_shares_its_gpus_is_skipped_with_the_reason() {
    let _machine = side_by_side().unwrap();
    let gres = "Gres=gpu:2,shard:8,mps:200";
    let builder = Cluster::builder().nodes(2).gpus(2).set("GresTypes", "gpu,shard,mps");
    let builder = builder.node_options("n1", gres).node_options("n2", gres);
    let each = ["Name=shard Count=4 File=/dev/fakegpu", "Name=mps Count=100 File=/dev/fakegpu"];
    let lines = each.iter().flat_map(|line| [0, 1].map(|gpu| format!("{line}{gpu}")));
    let builder = lines.fold(builder, |builder, line| builder.gres_line(&line));
    let cluster = product::boot(builder, "engine = 'cuda'").unwrap();
    // What a job of one GRES is told in its output.
    let told = |gres: &str, nodes: &str, name: &str| {
        let options = [nodes, &format!("--gres={gres}"), "-J", name, "--sanity-check"];
        let job = cluster.submit("echo started", options).unwrap();
        assert_eq!(cluster.wait_end(job, SOON).unwrap().state(), "COMPLETED");
        cluster.job_output(job).unwrap()
    };
    // Slurm 22.05 tells a prolog of no GPU at all where the job holds shards.
    for (gres, nodes, why) in
        [("shard:1", "-N2", "SKIP: the job holds no GPU"), ("mps:50", "-N1", "SKIP: the job shares its GPUs")]
    {
        let said = told(gres, nodes, "shares");
        // A newer one does, and then the job is asked about.
        let shares = said.contains("SKIP: the job shares its GPUs");
        assert!((said.contains(why) || shares) && said.contains("started"), "{gres}: {said}");
    }
    // A whole GPU is to be measured, which here fails for want of a driver. A name that imitates Slurm's word on shares
    // makes it unreadable, which is no way out of the checks either.
    for (name, why) in [("plain", "NVIDIA driver"), ("x\n   JOB_GRES=shard:1", "JOB_GRES more than once")] {
        let said = told("gpu:1", "-N1", name);
        assert!(said.contains("ERROR") && said.contains(why) && !said.contains("SKIP"), "{name}: {said}");
    }
    assert!(cluster.drained().unwrap().is_empty());
}
