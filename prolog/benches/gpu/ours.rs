//! Our side: the worker of a job on this one node, started and asked as the coordinator does it, with the policy's own
//! window.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cluster::slurm::environment::JobEnv;
use diag::policy::Policy;
use prolog::protocol::{Collected, Collective, DataKey, Member, Products, Reply, Request, Tag, WakeUps};
use prolog::worker_client::Worker;
use prolog::{assignment, meeting};

use super::turns::Reading;

/// Another worker than the one that was built with this bench, such as on a machine without its sources.
const PROGRAM: &str = "AIMASTER_WORKER";

/// How long one request may take: some windows, and what the first of its kind sets up.
const LIMIT: Duration = Duration::from_secs(60);

/// What the coordinator waits beyond that.
const GRACE: Duration = Duration::from_secs(5);

/// The sizes of messages that are looked at.
pub const SIZES: [u64; 3] = [4 << 20, 64 << 20, 1 << 30];

/// The worker, ready to measure.
pub struct Ours {
    worker: Worker,
    members: Vec<Member>,
    window: Duration,
    round: u32,
    /// CUDA, NCCL and, once there was a product, cuBLASLt.
    pub versions: Vec<String>,
    /// Where the worker's program lies; gone with it.
    _folder: tempfile::TempDir,
}

impl Ours {
    /// Starts the worker on these GPUs.
    pub async fn start(uuids: &[String]) -> Result<Self> {
        let policy = policy()?;
        let window = Duration::try_from_secs_f64(policy.cuda.seconds_per_check)?;
        let asked = assignment::assignment(job(uuids)?, policy, None)?;
        let assignment = asked.context("the bench's own policy asks for nothing")?;
        let folder = tempfile::tempdir().context("a folder for the worker")?;
        let (mut worker, ports) = meeting::worker(&program(folder.path())?, &assignment).await?;
        let opened = worker.open().await?;
        let mut key = [0; 32];
        getrandom::fill(&mut key).context("no random numbers")?;
        worker.join(0, DataKey(key), GRACE).await?;
        let member = |(rank, port)| Member { node: 0, rank, address: [127, 0, 0, 1].into(), port };
        let members = (0..).zip(ports).map(member).collect();
        let versions = vec![format!("CUDA {} (driver)", opened.cuda), format!("NCCL {}", opened.nccl)];
        Ok(Self { worker, members, window, round: 0, versions, _folder: folder })
    }

    /// How long a check measures.
    pub fn window(&self) -> Duration {
        self.window
    }

    /// Its process.
    pub fn pid(&self) -> Option<u32> {
        self.worker.pid()
    }

    /// TFLOP/s of each GPU.
    pub async fn products(&mut self) -> Reading {
        let (window_ms, limit_ms, ranks) = self.times();
        match self.ask(Request::Product { window_ms, limit_ms, ranks }).await? {
            Reply::Product(Products { wrong, .. }) if !wrong.is_empty() => Err(format!("wrong: {wrong:?}")),
            Reply::Product(Products { troubles, .. }) if !troubles.is_empty() => Err(format!("{troubles:?}")),
            Reply::Product(products) => {
                if !self.versions.contains(&products.library) {
                    self.versions.push(products.library);
                }
                Ok(products.per_rank.into_iter().map(Some).collect())
            }
            other => Err(format!("{other:?}")),
        }
    }

    /// Of each GPU: the launch call's median and 99th percentile, and the median of launch and end, µs.
    pub async fn launches(&mut self) -> Reading {
        let (window_ms, limit_ms, ranks) = self.times();
        match self.ask(Request::WakeUp { window_ms, limit_ms, ranks }).await? {
            Reply::WakeUp(WakeUps { troubles, .. }) if !troubles.is_empty() => Err(format!("{troubles:?}")),
            Reply::WakeUp(WakeUps { per_rank, .. }) => {
                let numbers = |one: &prolog::protocol::Launches| [one.call_us, one.call_tail_us, one.done_us];
                Ok(per_rank.iter().flatten().flat_map(numbers).map(Some).collect())
            }
            other => Err(format!("{other:?}")),
        }
    }

    /// Busbw of each of [`SIZES`], GB/s.
    pub async fn collective(&mut self, collective: Collective) -> Reading {
        let (window_ms, limit_ms, _) = self.times();
        let tag = Tag { round: self.round, group: 0 };
        let communicators = vec![self.members.clone()];
        let request = Request::Collective { tag, collective, communicators, window_ms, limit_ms };
        match self.ask(request).await? {
            Reply::Collective(collected) => match collected.as_slice() {
                [Collected::Measured(busbw)] if busbw.right == Some(1.0) => {
                    let mut found = busbw.smaller.clone();
                    found.push((busbw.bytes, busbw.gb_per_s));
                    let of =
                        |size: u64| found.iter().find(|(bytes, _)| *bytes == size).map(|(_, rate)| *rate);
                    Ok(SIZES.map(of).to_vec())
                }
                other => Err(format!("{other:?}")),
            },
            other => Err(format!("{other:?}")),
        }
    }

    /// Ends the worker.
    pub async fn stop(self) -> Result<()> {
        Ok(self.worker.stop().await?)
    }

    fn times(&self) -> (u64, u64, u32) {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        (ms(self.window), ms(LIMIT), u32::try_from(self.members.len()).unwrap_or(u32::MAX))
    }

    async fn ask(&mut self, request: Request) -> Result<Reply, String> {
        self.round += 1;
        self.worker
            .call(request, LIMIT + GRACE)
            .await
            .map_err(|error| format!("{:#}", anyhow::Error::from(error)))
    }
}

/// What a site would say of this machine: the defaults, and where the libraries are.
fn policy() -> Result<Policy> {
    let path = |name: &str| std::env::var(name).unwrap_or_default();
    // One node: NCCL's ranks meet on the loopback interface, on both sides.
    let text = format!(
        "engine = 'cuda'\nchecks.always = ['gemm_flops']\nnccl.env.NCCL_SOCKET_IFNAME = 'lo'\n\
         [cuda]\nnccl = '{}'\ncublas_lt = '{}'\n",
        path(super::theirs::NCCL),
        path("AIMASTER_CUBLAS_LT"),
    );
    match Policy::parse(&text) {
        Ok(policy) => Ok(policy),
        Err(mistakes) => bail!("the bench's own policy: {mistakes:?}"),
    }
}

/// A job that holds these GPUs on this node.
fn job(uuids: &[String]) -> Result<JobEnv> {
    let gpus = uuids.join(",");
    let variables = [
        ("SLURM_JOB_ID", "1"),
        ("SLURM_JOB_UID", "0"),
        ("SLURM_CLUSTER_NAME", "bench"),
        ("SLURMD_NODENAME", "here"),
        ("SLURM_NODELIST", "here"),
        ("SLURM_JOB_GPUS", gpus.as_str()),
    ];
    let value = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, v)| (*v).to_owned());
    match JobEnv::from_vars(value) {
        Ok(job) => Ok(job),
        Err(errors) => bail!("the bench's own job: {errors:?}"),
    }
}

/// A copy of the worker where its unprivileged user can reach it; the build folder may be closed.
fn program(folder: &Path) -> Result<PathBuf> {
    let built = std::env::var_os(PROGRAM).unwrap_or_else(|| env!("CARGO_BIN_EXE_aimaster-worker").into());
    let program = folder.join("aimaster-worker");
    std::fs::copy(&built, &program).with_context(|| format!("the worker {}", Path::new(&built).display()))?;
    for path in [folder, &program] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).context("the worker's folder")?;
    }
    Ok(program)
}
