//! `aimaster check` as a job step, by an ordinary user: its nodes measure each other, one of its tasks shows the report, and
//! nothing in Slurm changes, whatever was found. By MUNGE, and by what the tasks tell each other by MPI.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use aimaster_tests::{Cluster, NODE_DIR, Output, product, side_by_side};
use serde_json::Value;

const POLICY: &str = "host.seconds_per_check = 0.3\n";

/// 20 Mbit/s are 0.0025 GB/s, a twentieth of the floor for a pair.
const SLOW_KBIT: u64 = 20_000;

/// Names the command line that was built with MPI; `cargo xtask mpi` sets it.
const MPI_PROGRAM: &str = "AIMASTER_MPI_PROGRAM";

/// How `aimaster` is started.
struct Way {
    program: String,
    srun: Vec<&'static str>,
}

impl Way {
    fn check(&self, cluster: &Cluster, srun: &[&str], check: &[&str]) -> Output {
        let (program, helpers) = (self.program.as_str(), ["--helpers", NODE_DIR]);
        let whole = [self.srun.as_slice(), srun, &[program, "check"], &helpers, check].concat();
        let done = cluster.srun(whole.iter().copied()).run().unwrap();
        eprintln!("---- {whole:?}: {}\n{}{}", done.code(), done.stdout, done.stderr);
        assert!(cluster.drained().unwrap().is_empty());
        done
    }
}

/// Items of a status: check, kind of subject, name.
fn items(report: &Value, status: &str) -> Vec<[String; 3]> {
    let all = report["items"].as_array().unwrap().iter().filter(|item| item["status"] == status);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    all.map(|item| [text(&item["check"]), text(&item["subject"]["kind"]), text(&item["subject"]["name"])])
        .collect()
}

fn a_step_measures_its_nodes(cluster: &Cluster, way: &Way) {
    // More tasks than nodes: the others have nothing to do, and there is one report.
    let checks = "all_reduce_1,network_connectivity,all_reduce_2,all_reduce";
    let fine = way.check(cluster, &["-N3", "-n6", "--overcommit"], &[checks, "--json"]);
    assert_eq!(fine.code(), 0, "{fine:?}");
    let report: Value = serde_json::from_str(&fine.stdout).unwrap();
    assert_eq!(
        (&report["outcome"], &report["nodes"]),
        (&"PASS".into(), &serde_json::json!(["n1", "n2", "n3"]))
    );
    let mut passed: Vec<String> = items(&report, "PASS").into_iter().map(|[check, ..]| check).collect();
    passed.dedup();
    assert_eq!(passed, checks.split(',').collect::<Vec<_>>(), "{report:#}");

    let fault = cluster.rate("n2", SLOW_KBIT).unwrap();
    let slow = way.check(cluster, &["-N3"], &["all_reduce_2", "--json"]);
    fault.undo().unwrap();
    assert_eq!(slow.code(), 1, "{slow:?}");
    let report: Value = serde_json::from_str(&slow.stdout).unwrap();
    assert_eq!(items(&report, "FAIL"), [["all_reduce_2", "node", "n2"]], "{report:#}");
    assert_eq!(report["drained"].as_array().unwrap().len(), 0, "{report:#}");
    assert_ne!(report["job_id"], 0, "{report:#}");

    // Several tasks of one node: one of them measures.
    let one = way.check(cluster, &["-N1", "-n2", "--overcommit", "-w", "n3"], &["kernel_launch"]);
    assert_eq!((one.code(), one.stdout.matches("on demand, on aim").count()), (0, 1), "{one:?}");
    let between = way.check(cluster, &["-N1"], &["all_reduce_2"]);
    assert!(
        between.code() == 2 && between.stderr.contains("srun -N2 aimaster check all_reduce_2"),
        "{between:?}"
    );
}

#[test]
fn a_user_s_step_measures_its_nodes_and_changes_nothing() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(3), POLICY).unwrap();
    let way = Way { program: format!("{NODE_DIR}/aimaster"), srun: Vec::new() };
    a_step_measures_its_nodes(&cluster, &way);

    // A node on which the step's task ends at once is missed, not waited for longer than nodes may take to join.
    product::set_policy(&cluster, &format!("{POLICY}time.join_s = 3\nhost.ranks_per_node = 1")).unwrap();
    let script = format!("[ $SLURMD_NODENAME = n3 ] || exec {NODE_DIR}/aimaster check all_reduce_2 --json");
    let missed = cluster.srun(["-N3", "sh", "-c", &script]).run().unwrap();
    let report: Value = serde_json::from_str(&missed.stdout).unwrap();
    assert_eq!((missed.code(), &report["outcome"]), (3, &"ERROR".into()), "{missed:?}");
    assert!(items(&report, "ERROR").iter().any(|[.., name]| name == "n3"), "{report:#}");
}

#[test]
#[ignore = "takes the command line with its feature `mpi`: cargo xtask mpi"]
fn tasks_of_mpi_need_no_munge() {
    let _machine = side_by_side().unwrap();
    let cluster = product::boot(Cluster::builder().nodes(3), POLICY).unwrap();
    let built = std::env::var(MPI_PROGRAM).unwrap();
    // The folder of the cluster is there on all nodes.
    let program = cluster.base().join("aimaster-mpi");
    std::fs::copy(built, &program).unwrap();
    let way = Way { program: program.display().to_string(), srun: vec!["--mpi=pmix"] };
    a_step_measures_its_nodes(&cluster, &way);

    // What MUNGE would say is never asked.
    product::set_policy(&cluster, &format!("{POLICY}paths.munge_socket = '/nowhere'")).unwrap();
    let without = way.check(&cluster, &["-N3"], &["all_reduce_2", "--json"]);
    assert_eq!(without.code(), 0, "{without:?}");
    let by_munge = Way { program: format!("{NODE_DIR}/aimaster"), srun: Vec::new() };
    let none = by_munge.check(&cluster, &["-N3"], &["all_reduce_2"]);
    assert_eq!(none.code(), 2, "{none:?}");

    // A task that never comes to MPI does not hold the others for ever.
    product::set_policy(&cluster, &format!("{POLICY}time.join_s = 3")).unwrap();
    let path = program.display();
    let script = format!("[ $SLURMD_NODENAME = n3 ] && sleep 300; exec {path} check all_reduce_2");
    let held = cluster.srun(["--mpi=pmix", "-K", "-N3", "sh", "-c", &script]).run().unwrap();
    assert!(!held.success() && held.stderr.contains("did not meet by MPI"), "{held:?}");
}
