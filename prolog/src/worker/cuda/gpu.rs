//! One GPU of this node, as the thread that drives it holds it: its context, kernels, product and communicators. What is
//! measured with them is in the files beside.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use kernels::collective::Memory;
use kernels::cuda::{Context, CublasLt, Driver, Gemm, Kernels, Limit, Operand, Output, Shape, Stream};
use kernels::nccl::Comm;
use kernels::{Libraries, cuda};

use super::super::timed::Until;
use super::agreement::UniqueId;
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
    blas: CublasLt,
}

impl Gpu {
    /// Opens the GPU that the driver knows by this UUID.
    pub(super) fn open(
        libraries: &Libraries,
        driver: &Driver,
        found: &Found,
        until: &Until,
    ) -> Result<(Self, Device), String> {
        let device = driver.device(&found.uuid).map_err(words)?;
        let context = device.context().map_err(words)?;
        let (free, total) = context.memory().map_err(words)?;
        let blas = CublasLt::open(libraries, &context).map_err(words)?;
        let kernels = Kernels::load(&context).map_err(words)?;
        let (stream, beside) = (Stream::new(&context).map_err(words)?, Stream::new(&context).map_err(words)?);
        if until.over() {
            return Err(format!("{}: it took too long to open", found.uuid));
        }
        let opened = Device {
            index: found.index,
            name: device.info().name.clone(),
            uuid: device.info().uuid.clone(),
            pci: device.info().bus_id.clone(),
            memory_bytes: total as u64,
            free_bytes: free as u64,
        };
        let (gemm, memory, comms) = (None, None, BTreeMap::new());
        Ok((Self { context, kernels, stream, beside, gemm, memory, comms, blas }, opened))
    }

    /// What multiplies, with its version.
    pub(super) fn library(&self) -> String {
        format!("cuBLASLt {}", self.blas.version())
    }

    /// The product, made at its first use and kept.
    pub(super) fn product(&mut self, limit: Limit<'_>) -> Result<&Gemm, String> {
        if self.gemm.is_none() {
            let shape = Shape { n: SIZE, operand: Operand::Bf16, output: Output::Bf16 };
            let gemm = Gemm::new(&self.blas, &self.kernels, &self.stream, shape, limit).map_err(words)?;
            self.gemm = Some(gemm);
        }
        self.gemm.as_ref().ok_or_else(|| "the product is gone".to_owned())
    }

    /// The product in fp8; `None` where the GPU or the library offers none. It is not kept: one check needs it.
    pub(super) fn fp8_product(&self, limit: Limit<'_>) -> Result<Option<Gemm>, String> {
        let shape = Shape { n: SIZE, operand: Operand::E4m3, output: Output::Bf16 };
        match Gemm::new(&self.blas, &self.kernels, &self.stream, shape, limit) {
            Ok(gemm) => Ok(Some(gemm)),
            Err(error) if error.is_not_offered() => Ok(None),
            Err(error) => Err(words(error)),
        }
    }

    /// The memory of collectives: as much as there is, up to the largest message.
    pub(super) fn memory(&mut self) -> Result<&mut Memory, String> {
        if self.memory.is_none() {
            let mut bytes = LARGEST;
            let (free, _) = self.context.memory().map_err(words)?;
            // NCCL takes memory of its own for each communicator.
            while bytes > SMALLEST && 2 * bytes + SPARE > free {
                bytes /= 4;
            }
            let memory = loop {
                match Memory::new(&self.context, bytes) {
                    Ok(memory) => break memory,
                    Err(cuda::CudaError::OutOfMemory { .. }) if bytes > SMALLEST => bytes /= 4,
                    Err(error) => return Err(words(error)),
                }
            };
            self.memory = Some(memory);
        }
        self.memory.as_mut().ok_or_else(|| "the memory of collectives is gone".to_owned())
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
}

/// Where the driver describes its GPUs.
pub(super) const PROC: &str = "/proc/driver/nvidia/gpus";

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
            found.push(Found { index, uuid, pci: pci.to_ascii_lowercase() });
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
    let given = |path: &std::path::PathBuf| (path.as_os_str() != "").then(|| path.clone());
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
