//! NVML, loaded at run time: what the driver says of the GPUs of a job. It reads and sets nothing, and judges
//! nothing. A library, a function or a value that is missing is a value, never a panic.
//!
//! A call into a driver that hangs does not come back: the caller reads in a process of its own that it can leave
//! behind. Nothing here waits or repeats beyond one second question for a list that grew.

mod answer;
mod events;
mod gpu;
mod raw;

use std::collections::BTreeSet;
use std::error::Error as _;
use std::ffi::OsStr;
use std::path::Path;

use diag::gpu_facts::ids::{self, GpuId, pci_address};
use diag::gpu_facts::reading::{Device, GpuReading, GpuSample, NodeReading, Process};
use nvml_wrapper::error::NvmlError as Error;

use self::answer::{Failures, is_refused, words};
pub use self::events::Events;

/// The name that the driver's packages install; without a folder the dynamic loader looks for it.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// Most GPUs that are read: beyond any machine, and a bound on a broken driver's answer.
const MOST_GPUS: u32 = 256;

/// Why NVML can't be asked.
#[derive(Debug, thiserror::Error)]
pub enum NvmlError {
    /// The library is not there, or is no library.
    #[error("NVML: can't load {library} ({loader}); {searched}")]
    Library {
        /// What was tried.
        library: String,
        /// What the loader said.
        loader: String,
        /// Where it was looked for.
        searched: &'static str,
    },
    /// The library is there and refuses to work, as without a driver.
    #[error("NVML: {library} does not start: {words}")]
    Start {
        /// The library.
        library: String,
        /// NVML's words.
        words: String,
    },
    /// It doesn't say how many GPUs there are.
    #[error("NVML does not count the GPUs: {words}")]
    Count {
        /// NVML's words.
        words: String,
    },
    /// A GPU that was there can't be opened again.
    #[error("NVML can't open {gpu}: {words}")]
    Gpu {
        /// How it was named.
        gpu: String,
        /// NVML's words.
        words: String,
    },
}

/// NVML, ready to answer.
#[derive(Debug)]
pub struct Nvml {
    inner: nvml_wrapper::Nvml,
}

impl Nvml {
    /// Loads and starts the library, a path or the name of the driver's packages.
    ///
    /// # Errors
    /// If it can't be loaded, or says that it can't work.
    pub fn open(library: Option<&Path>) -> Result<Self, NvmlError> {
        let name = library.map_or(OsStr::new(LIBRARY), Path::as_os_str);
        let searched = if library.is_some() {
            "named by the policy"
        } else {
            "searched by the dynamic loader: LD_LIBRARY_PATH, /etc/ld.so.cache, /lib, /usr/lib"
        };
        let library = name.to_string_lossy().into_owned();
        match nvml_wrapper::Nvml::builder().lib_path(name).init() {
            // The wrapper would panic when it is dropped.
            Ok(inner) if inner.lib().nvmlShutdown.is_err() => {
                std::mem::forget(inner);
                Err(NvmlError::Start { library, words: "it has no nvmlShutdown".to_owned() })
            }
            Ok(inner) => Ok(Self { inner }),
            Err(Error::LibloadingError(error)) => {
                // libloading keeps the loader's message in the source.
                let loader = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                Err(NvmlError::Library { library, loader, searched })
            }
            Err(error) => Err(NvmlError::Start { library, words: error.to_string() }),
        }
    }

    /// All GPUs that NVML shows, also those that can't be opened.
    ///
    /// # Errors
    /// If it doesn't say how many there are.
    pub fn devices(&self) -> Result<Vec<Device>, NvmlError> {
        let count =
            self.inner.device_count().map_err(|error| NvmlError::Count { words: error.to_string() })?;
        Ok((0..count.min(MOST_GPUS)).map(|index| self.device(index)).collect())
    }

    /// What NVML says of the node, without its GPUs, and which of those are wanted.
    ///
    /// # Errors
    /// If NVML doesn't say how many GPUs there are.
    pub fn find(&self, wanted: &[GpuId]) -> Result<(NodeReading, Vec<Device>), NvmlError> {
        let present = self.devices()?;
        let mut absent = Vec::new();
        let mut meant = BTreeSet::new();
        for id in wanted {
            match ids::find(self.whole_gpu(id).as_ref().unwrap_or(id), &present) {
                Some(at) => _ = meant.insert(at),
                None => absent.push(id.to_string()),
            }
        }
        let devices = meant.iter().filter_map(|at| present.get(*at)).cloned().collect();
        let reading = NodeReading {
            driver_version: self.inner.sys_driver_version().ok(),
            cuda_version: self.inner.sys_cuda_driver_version().ok().and_then(|it| u32::try_from(it).ok()),
            present,
            absent,
            ..NodeReading::default()
        };
        Ok((reading, devices))
    }

    /// The node and the GPUs that are wanted, one after the other, in the order in which NVML counts.
    ///
    /// # Errors
    /// If NVML doesn't say how many GPUs there are.
    pub fn read(&self, wanted: &[GpuId], own_pids: &[u32]) -> Result<NodeReading, NvmlError> {
        let (reading, devices) = self.find(wanted)?;
        let gpus = devices.iter().map(|device| self.gpu(device, own_pids)).collect();
        Ok(NodeReading { gpus, ..reading })
    }

    /// What changes while a GPU works, by its UUID. Meant to be taken several times during a measurement.
    ///
    /// # Errors
    /// If the GPU can't be opened, or is lost.
    pub fn sample(&self, uuid: &str) -> Result<GpuSample, NvmlError> {
        let lost = |words: String| NvmlError::Gpu { gpu: uuid.to_owned(), words };
        let device = self.inner.device_by_uuid(uuid).map_err(|error| lost(error.to_string()))?;
        let mut failures = Failures::default();
        let sample = gpu::sample(&device, &mut failures);
        failures.lost.map_or(Ok(sample), |words| Err(lost(words)))
    }

    /// Everything about one GPU; of its processes those that are not among `own_pids`.
    #[must_use]
    pub fn gpu(&self, device: &Device, own_pids: &[u32]) -> GpuReading {
        match self.inner.device_by_index(device.index) {
            Ok(handle) => gpu::read(&handle, device.clone(), own_pids),
            Err(error) if is_refused(&error) => {
                let unreadable = vec![format!("opening it: {}", words(&error))];
                GpuReading { device: device.clone(), unreadable, ..GpuReading::default() }
            }
            Err(error) => {
                let lost = device.lost.clone().or_else(|| Some(error.to_string()));
                GpuReading { device: device.clone(), lost, ..GpuReading::default() }
            }
        }
    }

    /// Processes with a CUDA context on a GPU, by its UUID, that are not among `own_pids`.
    ///
    /// # Errors
    /// If the GPU can't be opened, or is lost.
    pub fn processes(&self, uuid: &str, own_pids: &[u32]) -> Result<Vec<Process>, NvmlError> {
        let lost = |words: String| NvmlError::Gpu { gpu: uuid.to_owned(), words };
        let device = self.inner.device_by_uuid(uuid).map_err(|error| lost(error.to_string()))?;
        let mut failures = Failures::default();
        let processes = gpu::processes(&device, &mut failures).map(|all| gpu::others(all, own_pids));
        failures.lost.map_or(Ok(processes.unwrap_or_default()), |words| Err(lost(words)))
    }

    fn device(&self, index: u32) -> Device {
        let opened = match self.inner.device_by_index(index) {
            Ok(opened) => opened,
            Err(error) if is_refused(&error) => return Device { index, ..Device::default() },
            Err(error) => return Device { index, lost: Some(error.to_string()), ..Device::default() },
        };
        let mut failures = Failures::default();
        Device {
            index,
            minor: failures.value("minor number", opened.minor_number()),
            uuid: failures.value("UUID", opened.uuid()),
            pci: failures.value("PCI address", opened.pci_info()).and_then(|pci| pci_address(&pci.bus_id)),
            name: failures.value("name", opened.name()),
            lost: failures.lost,
        }
    }

    /// The GPU that a MIG instance is a part of; `None` for whole GPUs, for instances whose name holds their GPU's,
    /// and where NVML doesn't know the instance.
    fn whole_gpu(&self, id: &GpuId) -> Option<GpuId> {
        let GpuId::Mig(uuid) = id else { return None };
        let part = self.inner.device_by_uuid(uuid.as_str()).ok()?;
        part.mig_parent_device().and_then(|parent| parent.uuid()).ok().map(GpuId::Gpu)
    }
}
