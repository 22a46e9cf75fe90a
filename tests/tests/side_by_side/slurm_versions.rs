//! What depends on the release of Slurm more than other things do: whether it takes the plugin, and who starts the helpers
//! where the plugin's prolog is not called. `cargo xtask versions` runs these and others on newer releases.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use aimaster_tests::c4d::FLAG as WATCH;
use aimaster_tests::product::{self, OPTIONAL, plugstack};
use aimaster_tests::{Cluster, ClusterBuilder, Install, NODE_DIR, SlurmVersion, side_by_side, stamp, wait};

const SOON: Duration = Duration::from_secs(60);

/// From a job's end to idle nodes.
const IDLE: Duration = Duration::from_secs(20);

/// Rate of a slow network in kbit/s: a twentieth of the limit.
const SLOW: u64 = 20_000;

/// A short window: the faults are gross.
const QUICK: &str = "host.seconds_per_check = 0.3\nhost.ranks_per_node = 1\n";

const CHECK: &str = "--sanity-check=all_reduce_2";

/// A release that no cluster here has.
const ANOTHER: SlurmVersion = SlurmVersion { major: 23, minor: 11, micro: 4 };

/// Puts a plugin with another stamp in a plugin's place; running programs keep the file that they have.
fn restamp(plugin: &Path, version: SlurmVersion) {
    let fresh = plugin.with_extension("new");
    std::fs::copy(plugin, &fresh).unwrap();
    stamp(&fresh, version).unwrap();
    std::fs::rename(&fresh, plugin).unwrap();
}

fn slurmd_log(cluster: &Cluster, node: &str) -> String {
    std::fs::read_to_string(cluster.log_file(&format!("slurmd.{node}.log"))).unwrap()
}

/// No job of these tests may cost a node.
fn nodes_are_fine(cluster: &Cluster) {
    let reasons = cluster.sinfo(["-h", "-R"]).ok().unwrap();
    assert!(reasons.stdout.is_empty(), "{}", reasons.stdout);
}

// B01.
#[test]
fn a_plugin_of_another_release_is_refused_and_does_no_harm() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(3), QUICK).unwrap();

    // On one node only, as an upgrade half way leaves it: the others name it, and nobody is blamed.
    let own = cluster.own_folder("n2", NODE_DIR).unwrap();
    restamp(&cluster.own_path("n2", NODE_DIR).unwrap().join("spank_aimaster.so"), ANOTHER);
    cluster.restart_slurmd("n2").unwrap();
    cluster.wait_idle(3, IDLE).unwrap();
    // The node is idle for slurmctld all the time.
    wait::until(IDLE, "slurmd refuses the plugin", || {
        Ok(slurmd_log(&cluster, "n2").contains("ncompatible").then_some(()))
    })
    .unwrap();
    let said = cluster.told(["-N3", "--sanity-check=gemm_flops,all_reduce_2"]).unwrap();
    println!("{said}");
    assert_eq!((said.outcome(), said.started()), ("ERROR", true), "{said}");
    assert!(said.items("ERROR").iter().all(|item| item[2] == "n2"), "{said}");
    assert!(said.items("FAIL").is_empty() && said.drained.is_empty(), "{said}");
    own.undo().unwrap();
    cluster.restart_slurmd("n2").unwrap();
    cluster.wait_idle(3, IDLE).unwrap();

    // Everywhere, as an upgrade of Slurm leaves it: jobs run, and who asks for checks is told that there are none.
    restamp(&cluster.base().join("opt/spank_aimaster.so"), ANOTHER);
    for node in cluster.nodes() {
        cluster.restart_slurmd(node).unwrap();
    }
    cluster.wait_idle(3, IDLE).unwrap();
    let srun = cluster.srun(["-N3", "echo", "ran"]).ok().unwrap();
    assert_eq!(srun.stdout, "ran\nran\nran\n", "{}", srun.stderr);
    println!("srun says: {}", srun.stderr);
    assert!(srun.stderr.contains("ncompatible") && srun.stderr.contains("23.11.4"), "{}", srun.stderr);
    let job = cluster.submit("echo script; srun echo step", ["-N2"]).unwrap();
    cluster.wait_state(job, "COMPLETED", SOON).unwrap();
    let salloc = cluster.salloc(["-N2", "srun", "echo", "ran"]).ok().unwrap();
    assert_eq!(salloc.stdout, "ran\nran\n", "{}", salloc.stderr);
    let before = cluster.last_job().unwrap();
    for command in [cluster.srun([CHECK, "true"]), cluster.salloc([CHECK, "true"]), cluster.sbatch([CHECK])] {
        let refused = command.stdin("#!/bin/sh\ntrue\n").run().unwrap();
        assert!(!refused.success() && refused.stderr.contains("unrecognized option"), "{}", refused.stderr);
    }
    assert_eq!(cluster.last_job().unwrap(), before, "nothing was queued");
    cluster.wait_idle(3, IDLE).unwrap();
    nodes_are_fine(&cluster);

    // Stamped anew it is taken again.
    restamp(&cluster.base().join("opt/spank_aimaster.so"), cluster.slurm());
    for node in cluster.nodes() {
        cluster.restart_slurmd(node).unwrap();
    }
    cluster.wait_idle(3, IDLE).unwrap();
    let said = cluster.told(["-N3", CHECK]).unwrap();
    assert_eq!((said.outcome(), said.started()), ("PASS", true), "{said}");
}

/// Puts a script of `conf/` where the site's configuration has it.
fn script(cluster: &Cluster, folder: &str, name: &str, text: &str) {
    let folder = cluster.base().join("etc/slurm").join(folder);
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A site's own script: it takes a while, and must have ended before anything is measured.
const OWN: &str = "#!/bin/sh\nsleep 0.5\ndate +%s.%N >/run/own.$SLURM_JOB_ID\n";

/// A cluster whose Prolog and Epilog are folders of scripts, ours in them.
fn site(builder: ClusterBuilder) -> Cluster {
    let line = format!("{} prolog=off\n", plugstack(OPTIONAL).trim_end());
    let builder = builder.set("Prolog", "/etc/slurm/prolog.d/*").set("Epilog", "/etc/slurm/epilog.d/*");
    let cluster = builder.install(Install::from_target().unwrap()).plugstack(&line).boot().unwrap();
    for (folder, text) in [
        ("prolog.d", include_str!("../../../conf/prolog.d/00-aimaster")),
        ("epilog.d", include_str!("../../../conf/epilog.d/00-aimaster")),
    ] {
        script(&cluster, folder, "00-aimaster", &text.replace("/usr/libexec/aimaster", NODE_DIR));
    }
    script(&cluster, "prolog.d", "50-own", OWN);
    product::set_policy(&cluster, QUICK).unwrap();
    cluster
}

/// What holds where the site's Prolog starts the helpers, whoever runs it.
fn the_prolog_script_does_what_the_plugin_does(cluster: &Cluster) {
    // Nobody asked: nothing is told, and nothing is left.
    let srun = cluster.srun(["-N3", "echo", "ran"]).ok().unwrap();
    assert!(srun.stdout == "ran\nran\nran\n" && !srun.stderr.contains("aimaster"), "{}", srun.stderr);

    // A healthy job, after the site's own script.
    let said = cluster.told(["-N3", "--sanity-check=gemm_flops,all_reduce_2"]).unwrap();
    println!("{said}");
    assert_eq!((said.outcome(), said.started()), ("PASS", true), "{said}");
    let own: f64 =
        cluster.read_file("n1", &format!("/run/own.{}", said.job)).unwrap().trim().parse().unwrap();
    let began: jiff::Timestamp = said.report["started_at"].as_str().unwrap().parse().unwrap();
    assert!(began.as_millisecond() as f64 >= own * 1000.0, "measured at {began}, own script ended at {own}");

    // The runtime check: an agent on each node for as long as the job, and no trace of it afterwards.
    let nodes = ["n1", "n2", "n3"];
    let job = cluster.submit("sleep 300", ["-N3", WATCH]).unwrap();
    cluster.wait_agents(&nodes, SOON).unwrap();
    let report = cluster.runtime_report("n1", job, 0).unwrap();
    assert_eq!(report["check_number"], 1, "{report:#}");
    cluster.scancel([job.to_string()]).ok().unwrap();
    cluster.wait_end(job, SOON).unwrap();
    cluster.wait_no_trace(&nodes, IDLE).unwrap();
    cluster.wait_idle(3, IDLE).unwrap();

    // A slow node: the batch job fails by the launch gate, srun is cancelled.
    let slow = cluster.rate("n2", SLOW).unwrap();
    let job = cluster.submit("echo script", ["-N3", CHECK]).unwrap();
    let record = cluster.wait_end(job, SOON).unwrap();
    assert_eq!((record.state(), record.get("ExitCode")), ("FAILED", "1:0"), "{record:?}");
    let text = cluster.job_output(job).unwrap();
    assert!(text.contains("n2: all_reduce_2") && !text.contains("script"), "{text}");
    let drained = cluster.drained().unwrap();
    assert!(drained.len() == 1 && drained[0].0 == "n2", "{drained:?}");
    cluster.put_back().unwrap();
    let said = cluster.told(["-N3", CHECK]).unwrap();
    assert!(!said.started() && said.srun.stderr.contains("n2: all_reduce_2"), "{said}");
    cluster.put_back().unwrap();
    slow.undo().unwrap();

    // A helper that hangs is stopped by the script: the job starts, and no node is lost.
    let own = cluster.own_folder("n3", NODE_DIR).unwrap();
    let hangs = cluster.own_path("n3", NODE_DIR).unwrap().join("aimaster-prolog");
    std::fs::write(hangs, "#!/bin/bash\nexport PATH=/usr/bin:/bin\nexec sleep 600\n").unwrap();
    let said = cluster.told(["-N3", CHECK]).unwrap();
    println!("{said}");
    assert!(said.started() && said.drained.is_empty(), "{said}");
    assert!(said.items("ERROR").iter().any(|item| item[2] == "n3"), "{said}");
    own.undo().unwrap();
    cluster.wait_idle(3, IDLE).unwrap();
    nodes_are_fine(cluster);
    let left = cluster.exec("n1", ["sh", "-c", "ls /run/aimaster/aim/n1"]).unwrap();
    assert_eq!(left.stdout, "", "run folders are left");
}

#[test]
fn a_site_s_own_prolog_starts_the_helpers() {
    let _machine = side_by_side().unwrap();
    the_prolog_script_does_what_the_plugin_does(&site(Cluster::builder().nodes(3)));
}

// A18.
#[test]
#[ignore = "RunInJob came with Slurm 24.05: cargo xtask versions"]
fn a_prolog_that_runs_in_the_job_starts_the_helpers() {
    let _machine = side_by_side().unwrap();
    let cluster = site(Cluster::builder().nodes(3).set("PrologFlags", "Alloc,DeferBatch,RunInJob"));
    the_prolog_script_does_what_the_plugin_does(&cluster);
}
