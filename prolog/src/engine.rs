//! What the worker is given to measure with: the job's GPUs and their libraries, and an environment that is made here
//! and nowhere else.

use std::path::Path;

use diag::facts::Engine;

use crate::assignment::Assignment;
use crate::protocol::{Devices, Libraries};
use crate::trusted_path::{self, PathError};

/// The only words about NVLink multicast that NCCL gets unless the policy allows it: a program that uses it can put the
/// GPUs of a host out of service.
const NO_MULTICAST: (&str, &str) = ("NCCL_NVLS_ENABLE", "0");

/// An MPS daemon of the node would mix the checks with somebody else's work; here is none.
const NO_MPS: (&str, &str) = ("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent");

/// The prolog has no home to keep compiled kernels in.
const NO_CACHE: (&str, &str) = ("CUDA_CACHE_DISABLE", "1");

/// CUDA's own order is by speed; Slurm's is by device file, which follows the bus.
const BUS_ORDER: (&str, &str) = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID");

/// The GPUs of the job on this node, as Slurm names them.
#[must_use]
pub(crate) fn gpus(assignment: &Assignment) -> Vec<String> {
    let list = assignment.job.gpus.as_deref().unwrap_or_default();
    list.split(',').map(str::trim).filter(|gpu| !gpu.is_empty()).map(str::to_owned).collect()
}

/// How many ranks this node has.
#[must_use]
pub(crate) fn ranks(assignment: &Assignment) -> u32 {
    match assignment.policy.engine {
        Engine::Host => assignment.policy.host.ranks_per_node,
        Engine::Cuda => u32::try_from(gpus(assignment).len()).unwrap_or(u32::MAX),
    }
}

/// What the worker is to open; `None` on the host engine.
///
/// # Errors
/// If others than root can change a library that the policy names.
pub(crate) fn devices(assignment: &Assignment) -> Result<Option<Devices>, PathError> {
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
        gpus: gpus(assignment),
        libraries: Libraries {
            driver: cuda.driver.clone(),
            cublas_lt: cuda.cublas_lt.clone(),
            nccl: cuda.nccl.clone(),
            nvml: cuda.nvml.clone(),
        },
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
