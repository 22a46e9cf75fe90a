//! What the worker is given to measure with: the job's GPUs and their libraries, and an environment that is made here
//! and nowhere else.

use std::path::Path;

use cluster::slurm::config::{self, ConfigError, SlurmConf};
use cluster::slurm::environment::JobEnv;
use cluster::slurm::scontrol::Scontrol;
use cluster::trusted_path::{self, PathError};
use diag::facts::Engine;
use diag::gpu_facts::ids::{self, GpuId, GpuIdError};
use tokio::time::Instant;

use crate::assignment::Assignment;
use crate::protocol::{Devices, Libraries};

/// The only words about NVLink multicast that NCCL gets unless the policy allows it: a program that uses it can put the
/// GPUs of a host out of service.
const NO_MULTICAST: (&str, &str) = ("NCCL_NVLS_ENABLE", "0");

/// An MPS daemon of the node would mix the checks with somebody else's work; here is none.
const NO_MPS: (&str, &str) = ("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent");

/// The prolog has no home to keep compiled kernels in.
const NO_CACHE: (&str, &str) = ("CUDA_CACHE_DISABLE", "1");

/// CUDA's own order is by speed; Slurm's is by device file, which follows the bus.
const BUS_ORDER: (&str, &str) = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID");

/// Why shares of GPUs are not measured.
const SHARED: &str =
    "the job shares its GPUs with other jobs (MPS or shard): it would measure them, and they it";

/// Why there is nothing to open.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Slurm's list of the job's GPUs.
    #[error("the job's GPUs on this node (SLURM_JOB_GPUS)")]
    Gpus(#[from] GpuIdError),
    /// A library that others than root can change.
    #[error(transparent)]
    Library(#[from] PathError),
}

/// The GPUs of the job on this node, as Slurm names them.
pub(crate) fn gpus(job: &JobEnv) -> Result<Vec<GpuId>, GpuIdError> {
    ids::parse(job.gpus.as_deref().unwrap_or_default())
}

/// Why the CUDA engine has nothing to measure on this node: a skip, never a pass.
#[must_use]
pub fn nothing_to_measure(engine: Engine, job: &JobEnv) -> Option<&'static str> {
    match gpus(job) {
        _ if engine == Engine::Host => None,
        Ok(gpus) if gpus.is_empty() => Some("the job holds no GPU on this node"),
        _ if job.mps => Some(SHARED),
        Ok(gpus) if gpus.iter().any(|gpu| matches!(gpu, GpuId::Mig(_))) => {
            Some("the job holds parts of GPUs (MIG), which have no rates of their own to be held against")
        }
        // What can't be read is an error of the worker, which says why.
        Ok(_) | Err(_) => None,
    }
}

/// Whether there is no GPU of this job on this node, where GPUs are what is watched.
#[must_use]
pub fn holds_no_gpu(engine: Engine, job: &JobEnv) -> bool {
    engine == Engine::Cuda && gpus(job).is_ok_and(|gpus| gpus.is_empty())
}

/// Whether the job's GPUs are shares (gres/shard), which Slurm's environment of a prolog does not tell: one question to
/// the controller, only on nodes of sites that have shards.
///
/// # Errors
/// If the configuration can't be read, or the controller can't be asked.
pub async fn shares(
    assignment: &Assignment,
    scontrol: &Scontrol,
    deadline: Instant,
) -> anyhow::Result<Option<&'static str>> {
    let job = &assignment.job;
    if assignment.policy.engine == Engine::Host || !has_shards(job)? {
        return Ok(None);
    }
    let gres = scontrol.job_gres(job.job_id, deadline).await?;
    Ok(gres.contains("shard").then_some(SHARED))
}

/// Whether this site's GPUs can be shared by gres/shard.
fn has_shards(job: &JobEnv) -> Result<bool, ConfigError> {
    let conf = SlurmConf::read(&config::locate(job.slurm_conf.as_deref())?)?;
    let types = conf.get("GresTypes").unwrap_or_default();
    Ok(types.split(',').any(|kind| kind.trim().trim_start_matches("gres/") == "shard"))
}

/// How many ranks this node has.
#[must_use]
pub(crate) fn ranks(assignment: &Assignment) -> u32 {
    match assignment.policy.engine {
        Engine::Host => assignment.policy.host.ranks_per_node,
        Engine::Cuda => gpus(&assignment.job).map_or(1, |gpus| u32::try_from(gpus.len()).unwrap_or(u32::MAX)),
    }
}

/// What the worker is to open; `None` on the host engine.
///
/// # Errors
/// If Slurm's list can't be read, or others than root can change a library that the policy names.
pub(crate) fn devices(assignment: &Assignment) -> Result<Option<Devices>, EngineError> {
    let cuda = &assignment.policy.cuda;
    if assignment.policy.engine == Engine::Host {
        return Ok(None);
    }
    for library in [&cuda.driver, &cuda.cublas_lt, &cuda.nccl, &cuda.nvml] {
        // One that is not there is an error of the loader, which knows where it looked.
        if *library != Path::new("") {
            trusted_path::anything(library)?;
        }
    }
    Ok(Some(Devices {
        gpus: gpus(&assignment.job)?.iter().map(ToString::to_string).collect(),
        libraries: Libraries {
            driver: cuda.driver.clone(),
            cublas_lt: cuda.cublas_lt.clone(),
            nccl: cuda.nccl.clone(),
            nvml: cuda.nvml.clone(),
        },
        root: "/".into(),
        limit_ms: u64::from(cuda.start_s) * 1000,
    }))
}

/// All of the worker's environment: the user's and the machine's NCCL settings do not reach the checks.
#[must_use]
pub(crate) fn environment(assignment: &Assignment) -> Vec<(String, String)> {
    let policy = &assignment.policy;
    if policy.engine == Engine::Host {
        return Vec::new();
    }
    let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let mut environment = vec![own(NO_MPS), own(NO_CACHE), own(BUS_ORDER)];
    if !policy.network.interface.is_empty() {
        environment.push(("NCCL_SOCKET_IFNAME".to_owned(), format!("={}", policy.network.interface)));
    }
    for (name, value) in &policy.nccl_env {
        environment.retain(|(other, _)| other != name);
        environment.push((name.clone(), value.replace("{node}", &assignment.job.node)));
    }
    if !policy.cuda.nvls {
        environment.retain(|(name, _)| name != NO_MULTICAST.0);
        environment.push(own(NO_MULTICAST));
    }
    environment
}

#[cfg(test)]
mod tests {
    use diag::policy::Policy;

    use super::*;
    use crate::assignment::{self, tests};

    fn job(gpus: &str) -> JobEnv {
        job_with(gpus, &[])
    }

    fn job_with(gpus: &str, more: &[(&str, &str)]) -> JobEnv {
        tests::job_with(&[&[("SLURM_JOB_GPUS", gpus)], more].concat())
    }

    fn assignment(gpus: &str, policy: &str) -> Assignment {
        let policy = Policy::parse(&format!("checks.always = ['gemm_flops']\n{policy}")).unwrap();
        assignment::assignment(job(gpus), policy, None).unwrap().unwrap()
    }

    fn value(assignment: &Assignment, name: &str) -> Option<String> {
        let all = environment(assignment);
        let mut found = all.iter().filter(|(key, _)| key == name).map(|(_, value)| value.clone());
        let first = found.next();
        assert_eq!(found.next(), None, "{name} twice");
        first
    }

    #[test]
    fn multicast_is_off_unless_the_policy_says_so_outright() {
        assert_eq!(value(&assignment("0", ""), "NCCL_NVLS_ENABLE").as_deref(), Some("0"));
        let sneaked = "nccl.env.NCCL_NVLS_ENABLE = '1'";
        assert_eq!(value(&assignment("0", sneaked), "NCCL_NVLS_ENABLE").as_deref(), Some("0"));
        let allowed = format!("cuda.nvls = true\n{sneaked}");
        assert_eq!(value(&assignment("0", &allowed), "NCCL_NVLS_ENABLE").as_deref(), Some("1"));
    }

    #[test]
    fn the_policy_s_settings_are_the_node_s_own() {
        let policy = "network.interface = 'bond0'\nnccl.env.NCCL_HOSTID = '{node}'";
        let cuda = assignment("0", policy);
        assert_eq!(value(&cuda, "NCCL_HOSTID").as_deref(), Some("n1"));
        assert_eq!(value(&cuda, "NCCL_SOCKET_IFNAME").as_deref(), Some("=bond0"));
        assert_eq!(value(&cuda, "CUDA_DEVICE_ORDER").as_deref(), Some("PCI_BUS_ID"));
        let host = assignment("0", "engine = 'host'");
        assert!(environment(&host).is_empty() && devices(&host).unwrap().is_none());
    }

    // G01: which one a site names is its own business; we have none, and a user's does not get here.
    #[test]
    fn no_topology_but_the_site_s_own_is_given_to_nccl() {
        let names = |assignment: &Assignment| -> Vec<String> {
            let all = environment(assignment).into_iter().map(|(name, _)| name);
            all.filter(|name| name.contains("TOPO") || name.contains("GRAPH")).collect()
        };
        assert_eq!(names(&assignment("0", "")), [""; 0]);
        let named = assignment("0", "nccl.env.NCCL_TOPO_FILE = '/etc/nccl/{node}.xml'");
        assert_eq!(names(&named), ["NCCL_TOPO_FILE"]);
        assert_eq!(value(&named, "NCCL_TOPO_FILE").as_deref(), Some("/etc/nccl/n1.xml"));
    }

    // L13: the job's own and no others.
    #[test]
    fn the_job_s_gpus_are_the_ranks() {
        let cuda = assignment("0,2-3", "");
        assert_eq!(
            (ranks(&cuda), devices(&cuda).unwrap().unwrap().gpus),
            (3, ["0", "2", "3"].map(str::to_owned).to_vec())
        );
        assert!(devices(&assignment("first", "")).unwrap_err().to_string().contains("SLURM_JOB_GPUS"));
        assert!(nothing_to_measure(Engine::Cuda, &job("")).unwrap().contains("no GPU"));
        assert!(
            nothing_to_measure(Engine::Cuda, &job("MIG-6ab6e1a4-5a7f-5b1f-a6c1-0a3b4c5d6e7f"))
                .unwrap()
                .contains("MIG")
        );
        assert_eq!(nothing_to_measure(Engine::Cuda, &job("1")), None);
        assert_eq!(nothing_to_measure(Engine::Host, &job("")), None);
    }

    // L13.
    #[test]
    fn shares_of_gpus_are_a_skip() {
        let share = [("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50")];
        let why = nothing_to_measure(Engine::Cuda, &job_with("0", &share));
        assert!(why.unwrap().contains("MPS or shard"));
        assert_eq!(nothing_to_measure(Engine::Host, &job_with("0", &share)), None);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("slurm.conf");
        for (types, shards) in [
            ("GresTypes=gpu", false),
            ("GresTypes=gpu,shard", true),
            ("GresTypes = gres/shard", true),
            ("", false),
        ] {
            std::fs::write(&file, format!("ClusterName=aim\n{types}\n")).unwrap();
            let job = job_with("0", &[("SLURM_CONF", file.to_str().unwrap())]);
            assert_eq!(has_shards(&job).unwrap(), shards, "{types}");
        }
    }

    #[test]
    fn a_library_that_others_can_change_is_refused() {
        let cuda = assignment("0", "cuda.nccl = '/tmp/libnccl.so.2'");
        assert!(matches!(devices(&cuda), Err(EngineError::Library(_))));
    }
}
