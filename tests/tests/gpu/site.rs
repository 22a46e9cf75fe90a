//! Nodes of the local Slurm that have real GPUs, their policy, and what a job there was told.

use std::time::Duration;

use aimaster_tests::{Cluster, JobId, c4d, product};
use serde_json::Value;

/// Contexts, communicators and torch on a machine that others use too.
pub const LONG: Duration = Duration::from_secs(180);

/// Floors that any GPU passes that two nodes share.
const BASELINES: &str = "engine = 'cuda'\n
[[limit]]\ncheck = 'gemm_flops'\nmetric = 'flops'\nvalue = 1.0\nsource = 'shared GPU: any that works'\n
[[limit]]\ncheck = 'kernel_launch'\nmetric = 'launch'\nvalue = 1000.0\nsource = 'shared GPU: any that works'\n
[[limit]]\ncheck = 'all_reduce_2'\nmetric = 'busbw'\nvalue = 0.001\nsource = 'shared GPU: any that works'\n";

/// The library that puts a wrong bit into each product.
pub const FLIPPING: &str = "libflipping_cublas_lt.so";

pub struct Site {
    pub cluster: Cluster,
    pub policy: String,
}

impl Site {
    /// Two nodes that share the first GPU; `None`, with a word, where the switch is off.
    pub fn boot() -> Option<Self> {
        Self::sharing(2)
    }

    /// So many nodes that share the first GPU, or the one that `AIMASTER_GPU` names.
    pub fn sharing(nodes: usize) -> Option<Self> {
        let gpu = std::env::var("AIMASTER_GPU");
        Self::sharing_gpus(nodes, &[gpu.as_deref().unwrap_or("/dev/nvidia0")])
    }

    /// So many nodes that share these GPUs.
    pub fn sharing_gpus(nodes: usize, gpus: &[&str]) -> Option<Self> {
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
    pub fn with(nodes: usize, gpus: &[&str]) -> Option<Self> {
        if std::env::var("AIMASTER_GPU_TESTS").as_deref() != Ok("1") {
            eprintln!("skipped: needs a GPU and AIMASTER_GPU_TESTS=1");
            return None;
        }
        if let Some(missing) = gpus.iter().find(|gpu| !std::path::Path::new(gpu).exists()) {
            eprintln!("skipped: there is no {missing}");
            return None;
        }
        let builder = Cluster::builder().nodes(nodes).cpus(8).gpu_devices(gpus.iter().copied());
        let cluster = c4d::boot(builder.set("PrologEpilogTimeout", 240), "").unwrap();
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

    pub fn set(&self, more: &str) {
        product::set_policy(&self.cluster, &format!("{}{more}", self.policy)).unwrap();
    }

    /// The report of a job of both nodes and what its user saw.
    pub fn run(&self, number: u32, checks: &str) -> (Value, String) {
        self.run_on(&["-N2"], number, checks)
    }

    /// The same of a job on these nodes.
    pub fn run_on(&self, nodes: &[&str], number: u32, checks: &str) -> (Value, String) {
        let args = ["--gres=gpu:1", "--sanity-fail-action=retain", checks, "echo", "started"];
        let srun = self.cluster.srun(nodes.iter().copied().chain(args)).timeout(LONG).run().unwrap();
        let said = format!("{}{}", srun.stderr, srun.stdout);
        let report = self.cluster.report(JobId(number), 1).unwrap_or_else(|_| panic!("{said}"));
        self.cluster.wait_idle(self.cluster.nodes().len(), LONG).unwrap();
        (report, said)
    }

    /// Puts a cuBLASLt that computes wrongly beside the helpers. `element` says which one of a product is wrong: `seen`
    /// is compared with its exact value, `unseen` is told by the bits of the whole product alone.
    pub fn install_flipping(&self, element: &str) {
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

pub fn items(report: &Value) -> impl Iterator<Item = &Value> {
    report["items"].as_array().map_or(&[][..], Vec::as_slice).iter()
}

pub fn table(report: &Value) {
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
