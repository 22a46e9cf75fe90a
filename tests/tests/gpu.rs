//! The CUDA engine on real GPUs under a real Slurm, behind one switch: `AIMASTER_GPU_TESTS=1`, on a machine that has a
//! GPU, Slurm and what else the local cluster needs. Two nodes share one GPU, so their speed means nothing; the way
//! of the data, the verdicts and the actions are real. `AIMASTER_PYTHON`, `AIMASTER_NCCL` and `AIMASTER_CUBLAS_LT` name
//! a python with torch and libraries that the loader does not find by itself.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]

use std::time::{Duration, Instant};

use aimaster_tests::{Cluster, JobId, Signal, product, serial, wait};
use serde_json::Value;

/// Contexts, communicators and torch on a machine that others use too.
const LONG: Duration = Duration::from_secs(180);

/// Floors that any GPU passes that two nodes share.
const BASELINES: &str = "engine = 'cuda'\n
[[limit]]\ncheck = 'gemm_flops'\nmetric = 'flops'\nvalue = 1.0\nsource = 'shared GPU: any that works'\n
[[limit]]\ncheck = 'kernel_launch'\nmetric = 'launch'\nvalue = 1000.0\nsource = 'shared GPU: any that works'\n
[[limit]]\ncheck = 'all_reduce_2'\nmetric = 'busbw'\nvalue = 0.001\nsource = 'shared GPU: any that works'\n";

/// The library that puts a wrong bit into each product.
const FLIPPING: &str = "libflipping_cublas_lt.so";

struct Site {
    cluster: Cluster,
    policy: String,
}

impl Site {
    /// Two nodes that share the first GPU; `None`, with a word, where the switch is off.
    fn boot() -> Option<Self> {
        Self::sharing(2)
    }

    /// So many nodes that share the first GPU.
    fn sharing(nodes: usize) -> Option<Self> {
        Self::sharing_gpus(nodes, &["/dev/nvidia0"])
    }

    /// So many nodes that share these GPUs.
    fn sharing_gpus(nodes: usize, gpus: &[&str]) -> Option<Self> {
        let site = Self::with(nodes, gpus)?;
        let baselines = site.cluster.base().join("opt/baselines");
        std::fs::create_dir_all(&baselines).unwrap();
        std::fs::write(baselines.join("cuda.toml"), BASELINES).unwrap();
        let policy = format!("paths.baseline_dir = '/opt/aimaster/baselines'\n{}", site.policy);
        let site = Self { policy, ..site };
        site.set("");
        Some(site)
    }

    /// Nodes that all have these GPUs, and the limits that ship with the product.
    fn with(nodes: usize, gpus: &[&str]) -> Option<Self> {
        if std::env::var("AIMASTER_GPU_TESTS").as_deref() != Ok("1") {
            eprintln!("skipped: needs a GPU and AIMASTER_GPU_TESTS=1");
            return None;
        }
        if let Some(missing) = gpus.iter().find(|gpu| !std::path::Path::new(gpu).exists()) {
            eprintln!("skipped: there is no {missing}");
            return None;
        }
        let builder = Cluster::builder().nodes(nodes).cpus(8).gpu_devices(gpus.iter().copied());
        let cluster = product::boot(builder.set("PrologEpilogTimeout", 240), "").unwrap();
        let path = |name: &str| std::env::var(name).unwrap_or_default();
        let mut policy = format!(
            "engine = 'cuda'\ntime.max_deadline_s = 150\n[cuda]\nnccl = '{}'\ncublas_lt = '{}'\n",
            path("AIMASTER_NCCL"),
            path("AIMASTER_CUBLAS_LT")
        );
        if !path("AIMASTER_PYTHON").is_empty() {
            policy = format!("paths.python = '{}'\n{policy}", path("AIMASTER_PYTHON"));
        }
        let site = Self { cluster, policy };
        site.set("");
        Some(site)
    }

    fn set(&self, more: &str) {
        product::set_policy(&self.cluster, &format!("{}{more}", self.policy)).unwrap();
    }

    /// The report of a job of both nodes and what its user saw.
    fn run(&self, number: u32, checks: &str) -> (Value, String) {
        self.run_on(&["-N2"], number, checks)
    }

    /// The same of a job on these nodes.
    fn run_on(&self, nodes: &[&str], number: u32, checks: &str) -> (Value, String) {
        let args = ["--gres=gpu:1", "--sanity-fail-action=retain", checks, "echo", "started"];
        let srun = self.cluster.srun(nodes.iter().copied().chain(args)).timeout(LONG).run().unwrap();
        let said = format!("{}{}", srun.stderr, srun.stdout);
        let report = self.cluster.report(JobId(number), 1).unwrap_or_else(|_| panic!("{said}"));
        self.cluster.wait_idle(self.cluster.nodes().len(), LONG).unwrap();
        (report, said)
    }

    /// Puts a cuBLASLt that computes wrongly beside the helpers. `element` says which one of a product is wrong: `seen`
    /// is compared with its exact value, `unseen` is told by the bits of the whole product alone.
    fn install_flipping(&self, element: &str) {
        let built =
            std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples").join(FLIPPING);
        assert!(
            built.exists(),
            "{} is not built; `cargo build -p kernels --examples` makes it",
            built.display()
        );
        let folder = self.cluster.base().join("opt");
        std::fs::copy(built, folder.join(FLIPPING)).unwrap();
        let real = std::env::var("AIMASTER_CUBLAS_LT").unwrap_or_default();
        let conf = format!("cublas_lt={real}\nelement={element}\n");
        std::fs::write(folder.join(format!("{FLIPPING}.conf")), conf).unwrap();
    }
}

fn items(report: &Value) -> impl Iterator<Item = &Value> {
    report["items"].as_array().map_or(&[][..], Vec::as_slice).iter()
}

fn table(report: &Value) {
    println!("engine {}, {} to {}", report["engine"], report["started_at"], report["finished_at"]);
    for item in items(report) {
        let time =
            |field: &str| item[field].as_str().and_then(|time| time.get(14..23)).unwrap_or("-").to_owned();
        println!(
            "{} {} {:<22} {:<10} {:<6} {} {}",
            time("started_at"),
            time("finished_at"),
            item["check"].as_str().unwrap_or_default(),
            item["subject"]["name"].as_str().unwrap_or_default(),
            item["status"].as_str().unwrap_or_default(),
            item["value"],
            item["message"].as_str().unwrap_or_default()
        );
    }
}

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

/// Windows and limits of the tests that hit a worker: long enough to be hit, short enough to be waited for.
const HIT: &str = "seconds_per_check = 0.6\nstart_s = 2\n[host]\nseconds_per_check = 1.0\n";

/// When a check of the first phase runs, from the start of its worker: after the GPU is open, which takes about a second.
const IN_THE_FIRST_PHASE_MS: [u64; 6] = [900, 1100, 700, 1300, 500, 1600];

/// When one of a later phase runs, from the line that ends the first.
const LATER_MS: [u64; 4] = [0, 0, 100, 200];

/// Hits the worker of n2 with a signal while it measures this check, and says what came of it.
fn hit(site: &Site, nodes_and_gpus: &[&str], check: &str, signal: Signal) -> Value {
    // Of the first phase nothing is seen before it is over.
    let first_phase = matches!(check, "gemm_flops" | "kernel_launch");
    let checks = format!("--sanity-check={}{check}", if first_phase { "" } else { "gemm_flops," });
    let delays = if first_phase { &IN_THE_FIRST_PHASE_MS[..] } else { &LATER_MS };
    for delay_ms in delays {
        let args = [checks.as_str(), "echo", "started"];
        let srun =
            site.cluster.srun(nodes_and_gpus.iter().copied().chain(args)).timeout(LONG).spawn().unwrap();
        if first_phase {
            wait::until(LONG, "the worker of n2", || {
                let processes = site.cluster.processes("n2")?;
                Ok(processes.iter().any(|one| one.comm.starts_with("aimaster-worker")).then_some(()))
            })
            .unwrap();
        } else {
            // PASS or not: nodes that share a GPU may look slow.
            srun.wait_line(|line| line.contains("DeviceCheck:"), LONG).unwrap();
        }
        std::thread::sleep(Duration::from_millis(*delay_ms));
        let struck = Instant::now();
        let hit = site.cluster.signal_processes("n2", "aimaster-worker", signal).unwrap();
        let srun = srun.wait(LONG).unwrap();
        let took = struck.elapsed();
        let report = site.cluster.report(site.cluster.last_job().unwrap(), 1).unwrap();
        site.cluster.wait_idle(site.cluster.nodes().len(), LONG).unwrap();
        // A worker that was early or late had nothing to lose: once more.
        if hit.is_empty() || report["outcome"] == "PASS" {
            continue;
        }
        println!("{check} {signal:?}: {} after {:.1} s", report["outcome"], took.as_secs_f64());
        println!("{}", srun.stderr);
        assert!(took < Duration::from_secs(40), "{took:?}");
        return report;
    }
    panic!("{check} was not hit");
}

/// A worker that is gone is its node's ERROR; one that is silent may be anything, so the run fails and says whose.
fn each_is_hit_in(site: &Site, nodes_and_gpus: &[&str], checks: &[&str]) {
    for check in checks {
        for signal in [Signal::KILL, Signal::STOP] {
            let report = hit(site, nodes_and_gpus, check, signal);
            let named = |item: &Value| item["message"].as_str().is_some_and(|text| text.starts_with("n2: "));
            assert!(items(&report).any(|item| item["status"] != "PASS" && named(item)), "{report:#}");
            assert!(site.cluster.drained().unwrap().is_empty());
        }
    }
    // The GPU serves the next job.
    let srun = site.cluster.srun(nodes_and_gpus.iter().copied().chain(["--sanity-check=gemm_flops", "true"]));
    assert!(srun.timeout(LONG).run().unwrap().success());
    let report = site.cluster.report(site.cluster.last_job().unwrap(), 1).unwrap();
    assert_eq!(report["outcome"], "PASS", "{report:#}");
}

#[test]
fn a_worker_that_is_killed_or_stopped_in_a_check_is_named_and_the_gpu_lives_on() {
    let _machine = serial().unwrap();
    let Some(site) = Site::boot() else { return };
    site.set(HIT);
    let checks = [
        "gemm_flops",
        "kernel_launch",
        // network_connectivity is over in milliseconds here: its worker is hit on a slow link, in lost_helpers.rs.
        "pytorch_gloo_2",
        "all_reduce_2",
        "all_gather_2",
        "all_to_all_2",
        "multi_all_reduce_2",
        "all_reduce",
        "all_gather",
        "multi_all_reduce",
    ];
    each_is_hit_in(&site, &["-N2", "--gres=gpu:1"], &checks);
}

#[test]
fn a_worker_that_is_killed_or_stopped_in_a_check_of_two_gpus_is_named_too() {
    let _machine = serial().unwrap();
    let Some(site) = Site::sharing_gpus(2, &["/dev/nvidia0", "/dev/nvidia1"]) else { return };
    site.set(HIT);
    each_is_hit_in(&site, &["-N2", "--gres=gpu:2"], &["all_reduce_1", "comp_comm_overlap"]);
}

/// The GPUs with this status, in order.
fn with_status<'r>(report: &'r Value, status: &str) -> Vec<&'r str> {
    let gpus = items(report).filter(|item| item["status"] == status && item["subject"]["kind"] == "gpu");
    gpus.filter_map(|item| item["subject"]["name"].as_str()).collect()
}

/// The GPUs that compute wrongly. How fast each is does not count here: those of nodes that share one take turns.
fn wrong(report: &Value) -> Vec<&str> {
    let failed = items(report).filter(|item| item["status"] == "FAIL" && item["subject"]["kind"] == "gpu");
    let wrong = failed.filter(|item| {
        item["message"].as_str().is_some_and(|text| text.contains("of the results are right"))
    });
    wrong.filter_map(|item| item["subject"]["name"].as_str()).collect()
}

#[test]
fn a_wrong_bit_of_one_gpu_is_its_fail_and_nobody_elses() {
    let _machine = serial().unwrap();
    let Some(site) = Site::sharing(3) else { return };
    // Nodes that share a GPU are alike in speed only over a while.
    let policy = format!("{}seconds_per_check = 2.0\n", site.policy);
    product::set_policy(&site.cluster, &policy).unwrap();
    let own: String = policy
        .lines()
        .filter(|line| !line.starts_with("cublas_lt"))
        .fold(String::new(), |text, line| text + line + "\n");
    let own = format!("{own}cublas_lt = '/opt/aimaster/{FLIPPING}'\n");
    let own = product::policy_text(&site.cluster, &own).unwrap();
    let _fault = site.cluster.set_node_policy("n2", &own).unwrap();
    let (bits, exact) = ("other bits than that of 2 others", "sampled elements of the product are wrong");
    for (number, element, why) in [(1, "unseen", bits), (2, "seen", exact)] {
        site.install_flipping(element);
        let (report, said) = site.run_on(&["-N3"], number, "--sanity-check=gemm_flops");
        println!("{said}");
        table(&report);
        // Where their turns make others look slow as well, it is too many for one verdict.
        assert!(report["outcome"] == "FAIL" || report["outcome"] == "ENVIRONMENT", "{report:#}");
        assert_eq!(wrong(&report), ["n2/gpu0"]);
        assert!(items(&report).any(|item| item["message"].as_str().is_some_and(|text| text.contains(why))));
    }
    // Of two that differ nobody knows which is wrong, unless one of them is seen to be.
    for (number, element, outcome) in [(3, "unseen", "SUSPECT"), (4, "seen", "FAIL")] {
        site.install_flipping(element);
        let (report, said) = site.run_on(&["-N2", "-wn1,n2"], number, "--sanity-check=gemm_flops");
        println!("{said}");
        table(&report);
        assert_eq!(report["outcome"], outcome, "{report:#}");
        let named = if outcome == "FAIL" { wrong(&report) } else { with_status(&report, outcome) };
        let expected = if outcome == "FAIL" { vec!["n2/gpu0"] } else { vec!["n1/gpu0", "n2/gpu0"] };
        assert_eq!(named, expected);
    }
    assert!(site.cluster.drained().unwrap().is_empty());
}

/// Multiplies on the first GPU until its input ends.
const LOAD: &str = "import os, sys, threading, torch\n\
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()\n\
    a = torch.randn(8192, 8192, dtype=torch.bfloat16, device='cuda')\n\
    torch.mm(a, a)\ntorch.cuda.synchronize()\nprint('busy', flush=True)\n\
    while True:\n    for _ in range(8): torch.mm(a, a)\n    torch.cuda.synchronize()";

#[test]
fn a_foreign_process_that_loads_the_gpu_is_named_and_nobody_is_drained() {
    let _machine = serial().unwrap();
    let Some(site) = Site::with(1, &["/dev/nvidia0"]) else { return };
    let Ok(python) = std::env::var("AIMASTER_PYTHON") else {
        eprintln!("skipped: AIMASTER_PYTHON names no python with torch");
        return;
    };
    // By the limits that ship, and with an action that drains.
    let run = || {
        let args = ["-N1", "--gres=gpu:1", "--sanity-check=gemm_flops", "echo", "started"];
        let srun = site.cluster.srun(args).timeout(LONG).run().unwrap();
        format!("{}{}", srun.stderr, srun.stdout)
    };
    let other = site.cluster.command("n1", [python.as_str(), "-c", LOAD]).keep_stdin().spawn().unwrap();
    other.wait_line(|line| line == "busy", LONG).unwrap();
    let said = run();
    println!("{said}");
    let report = site.cluster.report(JobId(1), 1).unwrap();
    table(&report);
    assert_eq!(report["outcome"], "ERROR", "{report:#}");
    let named = |item: &Value| {
        item["subject"]["name"] == "n1/gpu0"
            && item["message"].as_str().is_some_and(|text| text.contains("is used by another process"))
    };
    assert!(items(&report).any(|item| item["status"] == "ERROR" && named(item)), "{report:#}");
    assert!(said.contains("is used by another process") && said.contains("started"), "{said}");
    assert!(site.cluster.drained().unwrap().is_empty());
    drop(other);
    site.cluster.wait_idle(1, LONG).unwrap();
    println!("{}", run());
    let report = site.cluster.report(JobId(2), 1).unwrap();
    table(&report);
    assert_eq!(report["outcome"], "PASS", "{report:#}");
}

/// Takes all but a little of the first GPU's memory and says so.
const HOG: &str = "import torch\nfree, total = torch.cuda.mem_get_info()\n\
    kept = torch.empty(free - 600 * 2**20, dtype=torch.uint8, device='cuda')\nprint('full', flush=True)\ninput()";

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
