//! The suite as it ships, and libraries or interfaces that are not there.

use aimaster_tests::{JobId, product, serial};

use crate::site::{LONG, Site, table};

#[test]
fn all_thirteen_checks_pass_on_two_nodes_that_share_a_gpu() {
    let _machine = serial().unwrap();
    let Some(site) = Site::boot() else { return };
    for (number, checks) in [(1, "--sanity-check"), (2, "--sanity-check=all")] {
        let (report, said) = site.run(number, checks);
        println!("{said}");
        table(&report);
        assert_eq!((report["outcome"].as_str(), report["engine"].as_str()), (Some("PASS"), Some("cuda")));
        assert!(said.contains("started"));
    }
}

#[test]
fn the_gpus_of_one_node_pass_by_the_limits_that_ship() {
    let _machine = serial().unwrap();
    let Some(site) = Site::with(1, &["/dev/nvidia0", "/dev/nvidia1"]) else { return };
    let checks = "--sanity-check=gemm_flops,kernel_launch,all_reduce_1,comp_comm_overlap";
    let args = ["-N1", "--gres=gpu:2", checks, "echo", "started"];
    let srun = site.cluster.srun(args).timeout(LONG).run().unwrap();
    println!("{}{}", srun.stderr, srun.stdout);
    let report = site.cluster.report(JobId(1), 1).unwrap();
    table(&report);
    assert_eq!(report["outcome"], "PASS", "{report:#}");
}

// G02.
#[test]
fn a_library_that_is_missing_is_an_error_with_its_name() {
    let _machine = serial().unwrap();
    let Some(site) = Site::boot() else { return };
    for (number, key, name) in
        [(1, "nccl", "NCCL"), (2, "cublas_lt", "cuBLASLt"), (3, "driver", "NVIDIA driver")]
    {
        let policy: String = site
            .policy
            .lines()
            .filter(|line| !line.starts_with(key))
            .map(|line| format!("{line}\n"))
            .collect();
        product::set_policy(&site.cluster, &format!("{policy}{key} = '/opt/none'\n")).unwrap();
        let (report, said) = site.run(number, "--sanity-check=gemm_flops");
        println!("{said}");
        assert_eq!(report["outcome"], "ERROR", "{report:#}");
        assert!(said.contains("/opt/none") && said.contains(name), "{said}");
    }
}

// N02.
#[test]
fn a_dead_interface_ends_within_the_limit_and_is_named() {
    let _machine = serial().unwrap();
    let Some(site) = Site::boot() else { return };
    site.set("start_s = 10\n[nccl.env]\nNCCL_SOCKET_IFNAME = '=nosuch0'\n");
    let (report, said) = site.run(1, "--sanity-check=all_reduce_2");
    println!("{said}");
    table(&report);
    assert_ne!(report["outcome"], "PASS");
    assert!(site.cluster.drained().unwrap().is_empty());
}
