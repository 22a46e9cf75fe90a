//! Somebody else on the GPU: its load explains a slow number, its memory leaves no room.

use aimaster_tests::{JobId, serial, wait};
use serde_json::Value;

use crate::site::{LONG, Site, items, table};

/// Multiplies on the first GPU until its input ends.
const LOAD: &str = "import os, sys, threading, torch\n\
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()\n\
    a = torch.randn(8192, 8192, dtype=torch.bfloat16, device='cuda')\n\
    torch.mm(a, a)\ntorch.cuda.synchronize()\nprint('busy', flush=True)\n\
    while True:\n    for _ in range(8): torch.mm(a, a)\n    torch.cuda.synchronize()";

/// A job on n1 while `on` multiplies on its GPU is told `whose` load it is, and starts; nobody is drained. Without the load
/// it passes. By the limits that ship, and with an action that drains.
fn load_is_named_and_nobody_is_drained(nodes: usize, on: &str, whose: &str) {
    let _machine = serial().unwrap();
    let Some(site) = Site::with(nodes, &["/dev/nvidia0"]) else { return };
    let Ok(python) = std::env::var("AIMASTER_PYTHON") else {
        eprintln!("skipped: AIMASTER_PYTHON names no python with torch");
        return;
    };
    let run = || {
        let args = ["-N1", "-wn1", "--gres=gpu:1", "--sanity-check=gemm_flops", "echo", "started"];
        let srun = site.cluster.srun(args).timeout(LONG).run().unwrap();
        format!("{}{}", srun.stderr, srun.stdout)
    };
    let other = site.cluster.command(on, [python.as_str(), "-c", LOAD]).keep_stdin().spawn().unwrap();
    other.wait_line(|line| line == "busy", LONG).unwrap();
    let said = run();
    println!("{said}");
    let report = site.cluster.report(JobId(1), 1).unwrap();
    table(&report);
    assert_eq!(report["outcome"], "ERROR", "{report:#}");
    let named = |item: &Value| {
        item["subject"]["name"] == "n1/gpu0"
            && item["message"]
                .as_str()
                .is_some_and(|text| text.contains("is used by another") && text.contains(whose))
    };
    assert!(items(&report).any(|item| item["status"] == "ERROR" && named(item)), "{report:#}");
    assert!(said.contains("is used by another process") && said.contains("started"), "{said}");
    assert!(site.cluster.drained().unwrap().is_empty());
    drop(other);
    site.cluster.wait_idle(nodes, LONG).unwrap();
    println!("{}", run());
    let report = site.cluster.report(JobId(2), 1).unwrap();
    table(&report);
    assert_eq!(report["outcome"], "PASS", "{report:#}");
}

// A10.
#[test]
fn a_foreign_process_that_loads_the_gpu_is_named_and_nobody_is_drained() {
    load_is_named_and_nobody_is_drained(1, "n1", "python");
}

// A10: the nodes have process namespaces of their own, as containers have.
#[test]
fn load_of_a_process_that_cannot_be_seen_is_named_and_nobody_is_drained() {
    load_is_named_and_nobody_is_drained(2, "n2", "that can't be seen from here");
}

/// Takes all but a little of the first GPU's memory and says so.
const HOG: &str = "import torch\nfree, total = torch.cuda.mem_get_info()\n\
    kept = torch.empty(free - 600 * 2**20, dtype=torch.uint8, device='cuda')\nprint('full', flush=True)\ninput()";

// E13.
#[test]
fn a_gpu_that_somebody_else_has_filled_is_an_error_and_no_fault() {
    let _machine = serial().unwrap();
    let Some(site) = Site::boot() else { return };
    let Ok(python) = std::env::var("AIMASTER_PYTHON") else {
        eprintln!("skipped: AIMASTER_PYTHON names no python with torch");
        return;
    };
    // In a node, so that it ends with the test.
    let hog = site.cluster.command("n2", [python.as_str(), "-c", HOG]).keep_stdin().spawn().unwrap();
    hog.wait_line(|line| line == "full", LONG).unwrap();
    let (report, said) = site.run(1, "--sanity-check=gemm_flops");
    println!("{said}");
    assert_eq!(report["outcome"], "ERROR", "{report:#}");
    assert!(said.contains("no room for") || said.contains("OUT_OF_MEMORY"), "{said}");
    // Known before anything was measured, and by whom.
    let short = |item: &Value| {
        item["check"] == ""
            && item["message"].as_str().is_some_and(|text| text.contains("free, the checks need 2.0 GiB"))
    };
    assert!(items(&report).any(|item| item["status"] == "ERROR" && short(item)), "{report:#}");
    assert!(site.cluster.drained().unwrap().is_empty() && said.contains("started"));
    drop(hog);
    wait::until(LONG, "the driver has the memory back", || {
        let free = ["nvidia-smi", "-i", "0", "--query-gpu=memory.free", "--format=csv,noheader,nounits"];
        let free = site.cluster.exec("n1", free)?.stdout.trim().parse::<u64>().ok();
        Ok(free.is_some_and(|mib| mib > 16 << 10).then_some(()))
    })
    .unwrap();
    let (report, _) = site.run(2, "--sanity-check=gemm_flops");
    assert_eq!(report["outcome"], "PASS", "{report:#}");
}
