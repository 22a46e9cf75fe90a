//! One GPU of this node, as the thread that drives it holds it: its context, kernels, product and communicators. What is
//! measured with them is in the files beside.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kernels::Libraries;
use kernels::collective::Memory;
use kernels::cuda::{
    Context, CublasLt, CudaError, Driver, Gemm, Kernels, Limit, Operand, Output, Shape, Stream,
};
use kernels::nccl::Comm;

use super::super::timed::Until;
use super::agreement::UniqueId;
use super::doing::{Doing, Flaw};
use crate::protocol::{self, Device};

/// Rows and columns of the product: what gpu.md's published rates are for, and large enough to fill any GPU.
pub(super) const SIZE: u32 = 8192;

/// The largest message of a collective, where memory allows: from here on NVLink's bandwidth is reached.
pub(super) const LARGEST: usize = 1 << 30;

/// The smallest that is tried where memory is short.
const SMALLEST: usize = 4 << 20;

/// What is left for NCCL: some hundred MB a communicator, a handful of which are kept.
const SPARE: usize = 4 << 30;

/// Who is in a communicator, in order: node and rank.
pub(super) type Members = Vec<(u32, u32)>;

/// A communicator that stays for later checks, with its name.
pub(super) struct Held {
    pub id: UniqueId,
    pub comm: Comm,
}

/// A GPU and all that belongs to it. Never leaves its thread.
pub(super) struct Gpu {
    pub context: Context,
    pub kernels: Kernels,
    pub stream: Stream,
    /// For work beside other work.
    pub beside: Stream,
    pub gemm: Option<Gemm>,
    pub memory: Option<Memory>,
    pub comms: BTreeMap<Members, Held>,
    /// What its thread is at.
    pub doing: Arc<Doing>,
    blas: CublasLt,
}

/// The first step of [`Gpu::open`].
pub(super) const FINDING: &str = "looking for the GPU in the driver (cuDeviceGet)";

impl Gpu {
    /// Opens the GPU that the driver knows by this UUID.
    pub(super) fn open(
        libraries: &Libraries,
        driver: &Driver,
        found: &Found,
        doing: &Arc<Doing>,
    ) -> Result<(Self, Device), Flaw> {
        let device = driver.device(&found.uuid)?;
        doing.at("making its context (cuDevicePrimaryCtxRetain)");
        let context = device.context()?;
        let (free, total) = context.memory()?;
        doing.at("starting cuBLASLt on it");
        let blas = CublasLt::open(libraries, &context)?;
        doing.at("having its kernels compiled by the driver (cuModuleLoadDataEx)");
        let kernels = Kernels::load(&context)?;
        doing.at("making its streams");
        let (stream, beside) = (Stream::new(&context)?, Stream::new(&context)?);
        let opened = Device {
            index: found.index,
            name: device.info().name.clone(),
            uuid: device.info().uuid.clone(),
            pci: device.info().bus_id.clone(),
            memory_bytes: total as u64,
            free_bytes: free as u64,
        };
        let (gemm, memory, comms, doing) = (None, None, BTreeMap::new(), Arc::clone(doing));
        Ok((Self { context, kernels, stream, beside, gemm, memory, comms, doing, blas }, opened))
    }

    /// What multiplies, with its version.
    pub(super) fn library(&self) -> String {
        format!("cuBLASLt {}", self.blas.version())
    }

    /// The product, made at its first use and kept.
    pub(super) fn product(&mut self, limit: Limit<'_>) -> Result<&mut Gemm, CudaError> {
        self.doing.at("making its product: memory, operands, the trial of cuBLASLt's algorithms");
        let gemm = match self.gemm.take() {
            Some(gemm) => gemm,
            None => {
                let shape = Shape { n: SIZE, operand: Operand::Bf16, output: Output::Bf16 };
                Gemm::new(&self.blas, &self.kernels, &self.stream, shape, limit)?
            }
        };
        Ok(self.gemm.insert(gemm))
    }

    /// The product in fp8; `None` where the GPU or the library offers none. It is not kept: one check needs it.
    pub(super) fn fp8_product(&self, limit: Limit<'_>) -> Result<Option<Gemm>, CudaError> {
        self.doing.at("making its product in fp8");
        let shape = Shape { n: SIZE, operand: Operand::E4m3, output: Output::Bf16 };
        match Gemm::new(&self.blas, &self.kernels, &self.stream, shape, limit) {
            Ok(gemm) => Ok(Some(gemm)),
            Err(error) if error.is_not_offered() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The memory of collectives: as much as there is, up to the largest message.
    pub(super) fn memory(&mut self) -> Result<&mut Memory, CudaError> {
        self.doing.at("taking memory for collectives");
        let memory = match self.memory.take() {
            Some(memory) => memory,
            None => self.take_memory()?,
        };
        Ok(self.memory.insert(memory))
    }

    fn take_memory(&self) -> Result<Memory, CudaError> {
        let mut bytes = LARGEST;
        let (free, _) = self.context.memory()?;
        // NCCL takes memory of its own for each communicator.
        while bytes > SMALLEST && 2 * bytes + SPARE > free {
            bytes /= 4;
        }
        loop {
            match Memory::new(&self.context, bytes) {
                Err(CudaError::OutOfMemory { .. }) if bytes > SMALLEST => bytes /= 4,
                other => return other,
            }
        }
    }
}

/// The limit of a wait for the GPU.
pub(super) fn limit(until: &Until) -> Limit<'_> {
    Limit { deadline: until.deadline, cancel: flag(until) }
}

/// The limit of a wait for NCCL.
pub(super) fn nccl_limit(until: &Until) -> kernels::nccl::Until<'_> {
    kernels::nccl::Until { deadline: until.deadline, cancel: flag(until) }
}

fn flag(until: &Until) -> &AtomicBool {
    &until.cancel
}

/// An error with all that it stands on.
pub(super) fn words(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}

/// A GPU of the job on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// Slurm's index: the minor number of its device file.
    pub index: u32,
    /// `GPU-...`.
    pub uuid: String,
    /// Its PCI address, lower case.
    pub pci: String,
    /// Its model, as the driver calls it.
    pub model: String,
}

impl Found {
    /// What is known of it where it can't be opened.
    pub(super) fn closed(&self) -> Device {
        Device {
            index: self.index,
            name: self.model.clone(),
            uuid: self.uuid.clone(),
            pci: self.pci.clone(),
            memory_bytes: 0,
            free_bytes: 0,
        }
    }

    /// What is said of this GPU, with its name.
    pub(super) fn named(&self, said: String) -> String {
        let names_it = said.contains(&self.uuid);
        if names_it { said } else { format!("{} at {}: {said}", self.uuid, self.pci) }
    }
}

/// Where the driver describes its GPUs, below the folder that holds `proc`.
pub(super) fn described(root: &Path) -> PathBuf {
    root.join("proc/driver/nvidia/gpus")
}

/// Every GPU of this machine, by its minor number.
pub(super) fn installed(proc: &Path) -> Result<Vec<Found>, String> {
    let unreadable = |error: std::io::Error| {
        format!("the NVIDIA driver is not loaded here: {} can't be read: {error}", proc.display())
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(proc).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path().join("information");
        let text = std::fs::read_to_string(&path).map_err(unreadable)?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim().to_owned())
        };
        let index = field("Device Minor:").and_then(|minor| minor.parse().ok());
        if let (Some(index), Some(uuid), Some(pci)) = (index, field("GPU UUID:"), field("Bus Location:")) {
            let model = field("Model:").unwrap_or_default();
            found.push(Found { index, uuid, pci: pci.to_ascii_lowercase(), model });
        }
    }
    found.sort_by_key(|gpu| gpu.index);
    Ok(found)
}

/// The GPUs that Slurm names, in its order: by index, UUID or PCI address.
pub(super) fn chosen(names: &[String], installed: &[Found]) -> Result<Vec<Found>, String> {
    let mut chosen: Vec<Found> = Vec::new();
    for name in names {
        let lower = name.to_ascii_lowercase();
        if lower.starts_with("mig-") {
            return Err(format!(
                "{name} is a part of a GPU (MIG): it has no rate of its own to be held against"
            ));
        }
        let is_it = |gpu: &&Found| {
            lower.parse() == Ok(gpu.index)
                || gpu.uuid.to_ascii_lowercase() == lower
                || (lower.contains(':') && gpu.pci.ends_with(&lower))
        };
        let gpu = installed.iter().find(is_it).ok_or_else(|| {
            let present: Vec<String> =
                installed.iter().map(|gpu| format!("{} ({}, {})", gpu.index, gpu.uuid, gpu.pci)).collect();
            format!("the job's GPU {name} is not on this node; here are: {}", present.join(", "))
        })?;
        if !chosen.contains(gpu) {
            chosen.push(gpu.clone());
        }
    }
    Ok(chosen)
}

/// The policy's word on the libraries.
pub(super) fn libraries(wanted: &protocol::Libraries) -> Libraries {
    let given = |path: &PathBuf| (path.as_os_str() != "").then(|| path.clone());
    Libraries {
        cuda: given(&wanted.driver),
        nvml: given(&wanted.nvml),
        cublas_lt: given(&wanted.cublas_lt),
        nccl: given(&wanted.nccl),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Vec<Found> {
        let gpu = |index: u32, pci: &str| Found {
            index,
            uuid: format!("GPU-afbedc2d-d2f8-75af-1112-00000000000{index}"),
            pci: pci.to_owned(),
            model: "NVIDIA H200".to_owned(),
        };
        vec![gpu(0, "0000:17:00.0"), gpu(1, "0000:3d:00.0")]
    }

    fn indexes(names: &[&str]) -> Result<Vec<u32>, String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Ok(chosen(&names, &two())?.into_iter().map(|gpu| gpu.index).collect())
    }

    #[test]
    fn a_gpu_is_found_by_index_uuid_and_address() {
        assert_eq!(indexes(&["1", "0"]).unwrap(), [1, 0]);
        assert_eq!(indexes(&["gpu-AFBEDC2D-d2f8-75af-1112-000000000001"]).unwrap(), [1]);
        assert_eq!(indexes(&["0000:3D:00.0", "17:00.0"]).unwrap(), [1, 0]);
        assert_eq!(indexes(&["1", "0000:3d:00.0"]).unwrap(), [1]);
    }

    #[test]
    fn what_is_not_there_is_an_error_with_what_is() {
        let error = indexes(&["7"]).unwrap_err();
        assert!(error.contains("GPU 7 is not on this node") && error.contains("0000:3d:00.0"), "{error}");
        // An address ends with a figure too: it is no index.
        let second = &two()[1..];
        assert!(chosen(&["0".to_owned()], second).unwrap_err().contains("GPU 0 is not on this node"));
        assert!(indexes(&["MIG-1234"]).unwrap_err().contains("MIG"));
    }

    #[test]
    fn what_is_said_names_its_gpu_once() {
        let gpu = &two()[0];
        for said in ["no answer".to_owned(), format!("{} at 0000:17:00.0: no answer", gpu.uuid)] {
            let named = gpu.named(said);
            assert_eq!(named, "GPU-afbedc2d-d2f8-75af-1112-000000000000 at 0000:17:00.0: no answer");
        }
    }

    #[test]
    fn the_driver_s_own_list_is_read() {
        let root = tempfile::tempdir().unwrap();
        for (bus, minor) in [("0000:3d:00.0", 1), ("0000:17:00.0", 0)] {
            let folder = root.path().join(bus);
            std::fs::create_dir(&folder).unwrap();
            let text = format!(
                "Model: \t\t NVIDIA H200\nIRQ:   \t\t 41\nGPU UUID: \t GPU-afbedc2d-d2f8-75af-1112-00000000000{minor}\n\
                 Bus Location: \t {}\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n",
                bus.to_ascii_uppercase()
            );
            std::fs::write(folder.join("information"), text).unwrap();
        }
        assert_eq!(installed(root.path()).unwrap(), two());
        assert!(installed(&root.path().join("none")).unwrap_err().contains("not loaded"));
    }
}
