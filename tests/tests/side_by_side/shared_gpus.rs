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
    let builder = builder.gres_line("Name=shard Count=8").gres_line("Name=mps Count=200");
    let cluster = product::boot(builder, "engine = 'cuda'").unwrap();
    for (gres, nodes) in [("shard:1", "-N2"), ("mps:50", "-N1")] {
        let job = cluster.srun([nodes, &format!("--gres={gres}"), "--sanity-check", "echo", "started"]);
        let output = job.timeout(SOON).run().unwrap();
        let said = format!("{}{}", output.stderr, output.stdout);
        assert!(said.contains("SKIP: the job shares its GPUs") && said.contains("started"), "{gres}: {said}");
    }
    // A whole GPU is to be measured, which here fails for want of a driver, whatever its job is called.
    for name in ["plain", "x\n   JOB_GRES=shard:1"] {
        let job = cluster.srun(["-N1", "--gres=gpu:1", "-J", name, "--sanity-check", "echo", "started"]);
        let output = job.timeout(SOON).run().unwrap();
        let said = format!("{}{}", output.stderr, output.stdout);
        assert!(said.contains("ERROR") && !said.contains("SKIP"), "{name}: {said}");
    }
    assert!(cluster.drained().unwrap().is_empty());
}
