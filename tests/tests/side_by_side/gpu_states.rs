//! What a user and `scontrol show node` see of a GPU that is out of order: the whole way from NVML and the driver to the
//! drain. Driver, cuBLASLt, NCCL and NVML are stand-ins whose states are planted; their speed means nothing, and
//! products (8192 in each dimension) are more than they can do, so launches are what is measured.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]

#[path = "../../../kernels/tests/cuda/built.rs"]
mod built;

use std::time::Duration;

use aimaster_tests::{Cluster, product, side_by_side};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(90);

/// Where each node has its own libraries and states.
const FOLDER: &str = "/var/lib/gpus";

/// The GPUs as the stand-in for the driver shows them.
const GPUS: [(&str, &str); 2] = [
    ("GPU-00000000-0000-0000-0000-000000000000", "0000:a1:00.0"),
    ("GPU-01010101-0101-0101-0101-010101010101", "0000:b1:00.0"),
];

struct Site {
    cluster: Cluster,
}

/// What came of a job.
struct Ran {
    said: String,
    report: Value,
    drained: Vec<(String, String)>,
}

impl Site {
    fn boot() -> Self {
        let policy = format!(
            "engine = 'cuda'\n[cuda]\ndriver = '{FOLDER}'\ncublas_lt = '{FOLDER}'\nnccl = '{FOLDER}'\nnvml = '{FOLDER}'\n\
             start_s = 5\nseconds_per_check = 0.1\n"
        );
        let cluster = product::boot(Cluster::builder().nodes(2).gpus(2), &policy).unwrap();
        let libraries = cluster.base().join("opt/gpus");
        std::fs::create_dir_all(&libraries).unwrap();
        built::build(&libraries, "libcuda.so.1", built::DRIVER);
        built::build(&libraries, "libcublasLt.so.13", built::CUBLAS_LT);
        for (example, name) in [("worker_nccl", "libnccl.so.2"), ("worker_nvml", "libnvidia-ml.so.1")] {
            let built = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples");
            let built = built.join(format!("lib{example}.so"));
            assert!(built.exists(), "{} is missing: cargo build -p prolog --examples", built.display());
            std::fs::copy(built, libraries.join(name)).unwrap();
        }
        let site = Self { cluster };
        for node in ["n1", "n2"] {
            let script = format!("cp -r /opt/aimaster/gpus {FOLDER} && mount -t tmpfs gpus /proc/driver");
            site.cluster.command(node, ["sh", "-c", &script]).ok().unwrap();
            for (minor, (uuid, bus)) in GPUS.iter().enumerate() {
                let folder = format!("/proc/driver/nvidia/gpus/{bus}");
                site.cluster.command(node, ["mkdir", "-p", &folder]).ok().unwrap();
                let text = format!(
                    "Model: Fake GPU\nGPU UUID: {uuid}\nBus Location: {bus}\nDevice Minor: {minor}\n"
                );
                site.cluster.write_file(node, &format!("{folder}/information"), &text).unwrap();
            }
            site.plant(node, &json!({}), "");
        }
        site
    }

    /// Has a node's second GPU answer otherwise: what NVML says of it, and the driver's switches.
    fn plant(&self, node: &str, nvml: &Value, driver: &str) {
        let mut gpus: Vec<Value> = GPUS.iter().enumerate().map(|(minor, gpu)| h200(minor, *gpu)).collect();
        for (key, value) in nvml.as_object().unwrap() {
            gpus[1][key] = value.clone();
        }
        let state = json!({
            "nvmlInit_v2": 0,
            "nvmlSystemGetDriverVersion": "580.159.03",
            "nvmlSystemGetCudaDriverVersion_v2": 13000,
            "gpus": gpus,
        });
        let file = |name: &str| format!("{FOLDER}/{name}");
        self.cluster.write_file(node, &file("libnvidia-ml.so.1.json"), &state.to_string()).unwrap();
        self.cluster.write_file(node, &file("libcuda.so.1.conf"), driver).unwrap();
    }

    /// A job of both nodes and all GPUs, which ends on a FAIL.
    fn run(&self) -> Ran {
        let args = ["-N2", "--gres=gpu:2", "--sanity-check=kernel_launch", "echo", "started"];
        let srun = self.cluster.srun(args).timeout(SOON).run().unwrap();
        let report = self.cluster.report(self.cluster.last_job().unwrap(), 1).unwrap();
        let drained = self.cluster.drained().unwrap();
        self.cluster.put_back().unwrap();
        Ran { said: format!("{}{}", srun.stderr, srun.stdout), report, drained }
    }
}

/// A healthy, idle H200.
fn h200(minor: usize, (uuid, bus): (&str, &str)) -> Value {
    let mut gpu: Value =
        serde_json::from_str(include_str!("../../../kernels/tests/fakes/h200.json")).unwrap();
    gpu["nvmlDeviceGetUUID"] = json!(uuid);
    gpu["nvmlDeviceGetMinorNumber"] = json!(minor);
    gpu["nvmlDeviceGetPciInfo_v3"] = json!(format!("0000{}", bus.to_ascii_uppercase()));
    for link in 0..18 {
        gpu[format!("nvmlDeviceGetNvLinkState:{link}")] = json!(1);
    }
    gpu
}

/// The GPUs that were measured, in order.
fn measured(report: &Value) -> Vec<&str> {
    let items = report["items"].as_array().unwrap().iter();
    let gpus = items.filter(|item| item["subject"]["kind"] == "gpu" && item["status"] == "PASS");
    let mut names: Vec<&str> = gpus.filter_map(|item| item["subject"]["name"].as_str()).collect();
    names.sort_unstable();
    names
}

/// Status of the findings about this subject.
fn statuses<'r>(report: &'r Value, subject: &str) -> Vec<&'r str> {
    let items = report["items"].as_array().unwrap().iter();
    items
        .filter(|item| item["subject"]["name"] == subject)
        .filter_map(|item| item["status"].as_str())
        .collect()
}

#[test]
fn a_gpu_that_is_out_of_order_is_named_to_the_user_and_where_it_is_broken_to_the_admin() {
    let _machine = side_by_side().unwrap();
    let site = Site::boot();
    let ran = site.run();
    assert_eq!(ran.report["outcome"], "PASS", "{:#}\n{}", ran.report, ran.said);
    assert!(ran.said.contains("started") && ran.drained.is_empty(), "{}", ran.said);

    // NVML's word or the driver's that the part is broken: the job ends, the node is drained with a reason.
    for (nvml, driver, why) in [
        (json!({"nvmlDeviceGetTotalEccErrors:1:0": 2}), "", "2 uncorrected memory errors"),
        (json!({"nvmlDeviceGetRemappedRows": {"pending": 1}}), "", "waits to be replaced"),
        (json!({}), "fake_gpu=1\nfake_context=214\n", "CUDA_ERROR_ECC_UNCORRECTABLE (214)"),
        (json!({}), "fake_gpu=1\nfake_launch=214\n", "CUDA_ERROR_ECC_UNCORRECTABLE (214)"),
    ] {
        site.plant("n2", &nvml, driver);
        let ran = site.run();
        assert_eq!(ran.report["outcome"], "FAIL", "{why}: {:#}", ran.report);
        assert!(statuses(&ran.report, "n2/gpu1").contains(&"FAIL"), "{why}: {:#}", ran.report);
        assert!(ran.said.contains(why) && !ran.said.contains("started"), "{why}: {}", ran.said);
        let [(node, reason)] = ran.drained.as_slice() else { panic!("{why}: {:?}", ran.drained) };
        assert_eq!(node, "n2");
        assert!(reason.starts_with("aimaster: ") && reason.contains(why), "{reason}");
        println!("{reason}");
    }

    // What somebody else has done, or nobody knows the cause of: the job starts, nobody is drained, the user is told.
    for (nvml, driver, outcome, why) in [
        (
            json!({"nvmlDeviceGetComputeRunningProcesses_v3": [{"pid": 1, "bytes": 5_u64 << 30}]}),
            "",
            "PASS",
            "is used by another process",
        ),
        (
            json!({"nvmlDeviceGetCurrentClocksEventReasons": 2, "nvmlDeviceGetClockInfo:1": 1200}),
            "",
            "PASS",
            "SM clock locked at 1200 of 1980",
        ),
        (json!({}), "fake_gpu=1\nfake_context=719\n", "ERROR", "CUDA_ERROR_LAUNCH_FAILED (719)"),
        (json!({}), "fake_gpu=1\nfake_launch=719\n", "ERROR", "CUDA_ERROR_LAUNCH_FAILED (719)"),
        (json!({}), "fake_gpu=1\nfake_context_ms=600000\n", "ERROR", "no answer in making its context"),
        (json!({}), "fake_init_ms=600000\n", "ERROR", "no answer in cuInit, which did not return, after"),
    ] {
        site.plant("n2", &nvml, driver);
        let ran = site.run();
        assert_eq!(ran.report["outcome"], outcome, "{why}: {:#}", ran.report);
        let whole = ran.report.to_string();
        assert!(whole.contains(why), "{why}: {whole}");
        assert!(ran.said.contains("started") && ran.drained.is_empty(), "{why}: {}", ran.said);
        if outcome == "ERROR" {
            assert!(ran.said.contains(why), "{why}: {}", ran.said);
        }
        if driver.contains("fake_gpu") {
            assert_eq!(statuses(&ran.report, "n2/gpu1"), ["ERROR"], "{why}: {:#}", ran.report);
            assert_eq!(statuses(&ran.report, "n2/gpu0"), ["PASS"], "{why}: {:#}", ran.report);
            assert!(whole.contains("GPU-01010101-0101-0101-0101-010101010101 at 0000:b1:00.0"), "{whole}");
        }
    }
}

// L03, L10.
#[test]
fn a_job_is_checked_on_its_own_gpus_whoever_has_the_others() {
    let _machine = side_by_side().unwrap();
    let site = Site::boot();
    // Unequal numbers of GPUs on its nodes.
    let args = ["-N2", "--gpus=3", "--sanity-check=kernel_launch", "echo", "started"];
    let srun = site.cluster.srun(args).timeout(SOON).ok().unwrap();
    assert!(srun.stdout.contains("started"), "{srun:?}");
    let report = site.cluster.report(site.cluster.last_job().unwrap(), 1).unwrap();
    let three = measured(&report);
    assert!(three.len() == 3 && three.contains(&"n1/gpu0") && three.contains(&"n2/gpu0"), "{report:#}");
    site.cluster.wait_idle(2, SOON).unwrap();
    // Two jobs at once on one node: the GPU that is out of order is only the second one's.
    site.plant("n1", &json!({"nvmlDeviceGetTotalEccErrors:1:0": 2}), "");
    let args = ["-N1", "-wn1", "--gpus=1", "-c1", "--sanity-check=kernel_launch"];
    let options = args.into_iter().chain(["--sanity-fail-action=retain"]);
    let jobs = [(); 2].map(|()| site.cluster.submit("echo started; sleep 4", options.clone()).unwrap());
    let outcomes = jobs.map(|job| {
        assert_eq!(site.cluster.wait_end(job, SOON).unwrap().state(), "COMPLETED");
        let report = site.cluster.report(job, 1).unwrap();
        let outcome = report["outcome"].as_str().unwrap().to_owned();
        (outcome, measured(&report).into_iter().map(str::to_owned).collect::<Vec<_>>())
    });
    let fine = ("PASS".to_owned(), vec!["n1/gpu0".to_owned()]);
    assert!(outcomes.contains(&fine), "{outcomes:?}");
    assert!(outcomes.contains(&("FAIL".to_owned(), Vec::new())), "{outcomes:?}");
    let [one, other] = jobs.map(|job| site.cluster.job(job).unwrap());
    // Both ended after the other had started.
    assert!(one.get("EndTime") > other.get("StartTime"), "{one:?} {other:?}");
    assert!(other.get("EndTime") > one.get("StartTime"), "{one:?} {other:?}");
}
