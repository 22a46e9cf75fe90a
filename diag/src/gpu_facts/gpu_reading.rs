//! What a GPU says of itself before and during a measurement, as plain values without an opinion. A field is `None`
//! where the driver, its version or the GPU has no such number.

use serde::{Deserialize, Serialize};

use super::reading::PciePath;

/// A GPU by its names.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Device {
    /// NVML's number for it, which changes when a GPU is lost.
    pub index: u32,
    /// The number of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// `GPU-…`.
    pub uuid: Option<String>,
    /// PCI address as sysfs writes it.
    pub pci: Option<String>,
    /// The product's name.
    pub name: Option<String>,
    /// What NVML said instead, where the GPU can't even be opened.
    pub lost: Option<String>,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GpuReading {
    /// Which.
    pub device: Device,
    /// The first call that said the GPU is lost or wants a reset, and what it said.
    pub lost: Option<String>,
    /// Calls that failed for a reason of their own, such as an unknown error of the driver: call and NVML's words.
    pub unreadable: Vec<String>,
    /// Memory of the GPU.
    pub memory: Option<Memory>,
    /// Processes with a CUDA context, less our own.
    pub processes: Option<Vec<Process>>,
    /// Memory in use that no process has which can be seen from here, ours included; `None` where the driver doesn't say.
    pub hidden_bytes: Option<u64>,
    /// Share of the last moments in which it computed, in percent.
    pub busy_percent: Option<u32>,
    /// Whether the driver stays loaded without a client.
    pub persistence: Option<bool>,
    /// Who may use it.
    pub compute_mode: Option<ComputeMode>,
    /// Whether it is split into instances.
    pub mig: Option<bool>,
    /// Clocks.
    pub clocks: Clocks,
    /// Power.
    pub power: Power,
    /// Temperatures.
    pub temperature: Temperature,
    /// Memory errors.
    pub ecc: Ecc,
    /// Rows of memory that were or will be replaced by spare ones.
    pub rows: Option<RemappedRows>,
    /// How many spare rows the banks of memory have left.
    pub spare_rows: Option<SpareRows>,
    /// Pages of memory that were taken out of use (before Ampere).
    pub pages: RetiredPages,
    /// What the driver says must be done before the GPU can be used again.
    pub recovery: Option<Recovery>,
    /// NVLinks, by number; empty where there are none.
    pub links: Vec<NvLink>,
    /// The PCIe link.
    pub pcie: Pcie,
    /// Registration with the NVLink fabric.
    pub fabric: Option<Fabric>,
    /// How long NVML took for all this, in ms: a driver in trouble is slow.
    pub took_ms: u64,
}

/// Memory of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// All of it.
    pub total_bytes: u64,
    /// What nobody uses.
    pub free_bytes: u64,
}

/// A process that uses a GPU and is not ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// What it holds of the GPU's memory.
    pub memory_bytes: Option<u64>,
    /// Whether it uses the GPU through MPS.
    pub mps: bool,
    /// Who it is; `None` where it ended meanwhile or can't be seen from here.
    pub owner: Option<ProcessOwner>,
}

/// Who a process is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessOwner {
    /// The first 15 bytes of its name.
    pub command: String,
    /// The user that it runs as.
    pub uid: u32,
    /// That user's name.
    pub user: Option<String>,
    /// The kernel's letter for its state.
    pub state: Option<char>,
}

/// Who may use a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputeMode {
    /// Any number of processes.
    Shared,
    /// One process at a time.
    Exclusive,
    /// Nobody.
    Prohibited,
}

/// Clocks of a GPU in MHz.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Clocks {
    /// Of the multiprocessors, now.
    pub sm_mhz: Option<u32>,
    /// The highest they can go.
    pub sm_max_mhz: Option<u32>,
    /// What applications are set to run at.
    pub sm_set_mhz: Option<u32>,
    /// What that is when nobody sets it.
    pub sm_default_mhz: Option<u32>,
    /// Of the memory, now.
    pub memory_mhz: Option<u32>,
    /// The highest it can go.
    pub memory_max_mhz: Option<u32>,
    /// What applications are set to run at.
    pub memory_set_mhz: Option<u32>,
    /// What that is when nobody sets it.
    pub memory_default_mhz: Option<u32>,
    /// NVML's bits that say what holds the clocks down, also those that have no name yet.
    pub reasons: Option<u64>,
}

/// Power of a GPU in mW.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Power {
    /// What it draws now.
    pub usage_mw: Option<u32>,
    /// What somebody set as limit.
    pub limit_mw: Option<u32>,
    /// What the limit is when nobody sets it.
    pub default_limit_mw: Option<u32>,
    /// The highest that can be set.
    pub max_limit_mw: Option<u32>,
    /// What holds, after all other limits such as the chassis's.
    pub enforced_limit_mw: Option<u32>,
}

/// Temperatures of a GPU in °C.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Temperature {
    /// Of the GPU, now.
    pub gpu_c: Option<u32>,
    /// At which it slows down.
    pub slowdown_c: Option<u32>,
    /// How far it is from slowing down; negative: beyond.
    pub margin_c: Option<i32>,
    /// Of the memory, now.
    pub memory_c: Option<u32>,
    /// The highest that the memory may have.
    pub memory_max_c: Option<u32>,
}

/// Counts of memory errors: volatile since the driver was loaded, aggregate in the GPU's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ecc {
    /// Whether errors are detected at all.
    pub enabled: Option<bool>,
    /// Errors that could not be corrected.
    pub volatile_uncorrected: Option<u64>,
    /// The same, in its life.
    pub aggregate_uncorrected: Option<u64>,
    /// Errors that were corrected.
    pub volatile_corrected: Option<u64>,
    /// The memory inside the chip, where it counts by itself.
    pub sram: Option<SramEcc>,
}

/// Counts of the memory inside the chip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SramEcc {
    /// Errors that could not be corrected, parity and SECDED.
    pub volatile_uncorrected: u64,
    /// The same, in its life.
    pub aggregate_uncorrected: u64,
    /// Whether the vendor's limit for replacing the GPU is passed.
    pub threshold_exceeded: bool,
}

/// Rows of memory that were or will be replaced by spare ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemappedRows {
    /// After corrected errors.
    pub corrected: u32,
    /// After errors that could not be corrected.
    pub uncorrected: u32,
    /// A replacement waits for the next reset of the GPU.
    pub pending: bool,
    /// A replacement failed: no spare row was left.
    pub failed: bool,
}

/// Banks of memory by how many spare rows they have left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpareRows {
    /// All.
    pub all: u32,
    /// Most.
    pub high: u32,
    /// Some.
    pub partial: u32,
    /// One.
    pub low: u32,
    /// None.
    pub none: u32,
}

/// Pages of memory that were taken out of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RetiredPages {
    /// After several corrected errors.
    pub corrected: Option<u32>,
    /// After an error that could not be corrected.
    pub uncorrected: Option<u32>,
    /// Some wait for the next start of the driver.
    pub pending: Option<bool>,
}

/// What the driver says must be done before a GPU can be used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recovery {
    /// Nothing.
    None,
    /// End its processes and reset it.
    Reset,
    /// Restart the node.
    Reboot,
    /// End the processes of all GPUs that reach it by NVLink, then reset them.
    DrainP2p,
    /// Finish what runs, start nothing new, then reset it.
    DrainAndReset,
    /// A number that has no name yet.
    Other(u64),
}

/// One NVLink of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NvLink {
    /// Its number.
    pub link: u32,
    /// Whether it carries traffic.
    pub active: Option<bool>,
    /// Packets with a wrong checksum.
    pub crc_errors: Option<u64>,
    /// Packets that were sent again.
    pub replays: Option<u64>,
    /// How often it had to be trained again.
    pub recoveries: Option<u64>,
}

/// The PCIe link of a GPU. An idle GPU lowers its generation to save power.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Pcie {
    /// Generation now.
    pub generation: Option<u32>,
    /// The highest that this GPU reaches in this slot.
    pub generation_max: Option<u32>,
    /// The highest that the GPU can do in any slot.
    pub card_generation_max: Option<u32>,
    /// Lanes now.
    pub width: Option<u32>,
    /// The most that this GPU reaches in this slot.
    pub width_max: Option<u32>,
    /// Packets that were sent again.
    pub replays: Option<u32>,
}

/// Registration of a GPU with the NVLink fabric.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fabric {
    /// How far it got.
    pub state: FabricState,
    /// NVML's code and words for how it ended; counts only when the state is complete, 0 is success.
    pub status: (u32, String),
    /// The fabric's UUID; `None` where it spans one node only.
    pub cluster_uuid: Option<String>,
    /// Its part of the fabric.
    pub clique: u32,
    /// NVML's bits of what is wrong with it.
    pub health_mask: Option<u32>,
    /// NVML's sum of that: 1 healthy, 2 not healthy, 3 limited.
    pub health_summary: Option<u32>,
}

/// How far a registration with the fabric got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FabricState {
    /// The GPU has no fabric.
    NotSupported,
    /// Nobody began.
    NotStarted,
    /// It is under way.
    InProgress,
    /// It ended, well or not.
    Completed,
    /// A number that has no name yet.
    Other(u32),
}

/// What changes while a GPU works; taken several times during a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GpuSample {
    /// Clocks now and what holds them down.
    pub clocks: Clocks,
    /// Power now and its limits.
    pub power: Power,
    /// Temperatures now.
    pub temperature: Temperature,
    /// The PCIe link now.
    pub pcie: Pcie,
    /// Memory errors so far.
    pub ecc: Ecc,
    /// Share of the last moments in which something ran on it, in percent.
    pub busy_percent: Option<u32>,
    /// How long NVML took for all this, in ms.
    pub took_ms: u64,
}

/// What was seen of a GPU while it worked.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Load {
    /// Taken at even distances.
    pub samples: Vec<GpuSample>,
    /// From the first sample to the last, in seconds.
    pub seconds: f64,
    /// Processes of others that were on it at any of them.
    pub processes: Vec<Process>,
    /// Its way through the PCIe tree when its own link was fastest.
    pub path: Option<PciePath>,
}
