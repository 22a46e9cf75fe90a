//! What a node says of its GPUs, its network devices and its settings before anything is measured, as plain values
//! without an opinion.

use serde::{Deserialize, Serialize};

pub use super::gpu_reading::*;

/// One node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct NodeReading {
    /// Slurm's name of it.
    pub name: String,
    /// Version of the GPU driver.
    pub driver_version: Option<String>,
    /// Newest CUDA that the driver can run, 13000 for 13.0.
    pub cuda_version: Option<u32>,
    /// All GPUs that NVML shows.
    pub present: Vec<Device>,
    /// The job's GPUs that are there.
    pub gpus: Vec<GpuReading>,
    /// The job's GPUs that are not there, as Slurm names them.
    pub absent: Vec<String>,
    /// How Slurm lets several jobs use one GPU, where it does so for this job.
    pub shared: Option<Sharing>,
    /// What could not be read at all and why, such as an NVML that is missing or does not answer.
    pub trouble: Vec<String>,
    /// The rest of the node.
    pub machine: MachineReading,
}

/// How several jobs use one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Slurm's `gres/mps`.
    Mps,
    /// Slurm's `gres/shard`.
    Shard,
}

/// What the kernel says of a node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct MachineReading {
    /// Seconds since the start of the machine.
    pub uptime_s: Option<u64>,
    /// `/dev/shm`.
    pub shm: Option<Shm>,
    /// Memory that the measuring process may lock.
    pub memlock: Option<Memlock>,
    /// Loaded kernel modules.
    pub modules: Option<Vec<String>>,
    /// What lets an RDMA device reach GPU memory.
    pub peer_memory: Option<PeerMemory>,
    /// What NVLink between nodes needs; `None` where it was not asked.
    pub imex: Option<Imex>,
    /// RDMA devices.
    pub rdma: Vec<RdmaDevice>,
    /// Network interfaces.
    pub net: Vec<NetDevice>,
    /// Network and display controllers on the bus.
    pub pci: Vec<PciDevice>,
    /// The ways of devices through the PCIe tree.
    pub paths: Vec<PciePath>,
}

/// Size of `/dev/shm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shm {
    /// All of it, in bytes.
    pub total_bytes: u64,
    /// What is free, in bytes.
    pub free_bytes: u64,
}

/// How much memory a process may lock; `None`: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memlock {
    /// What holds now, in bytes.
    pub soft_bytes: Option<u64>,
    /// What an ordinary user may raise it to, in bytes.
    pub hard_bytes: Option<u64>,
}

/// What lets an RDMA device reach GPU memory through a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerMemory {
    /// Whether the module is loaded.
    pub loaded: bool,
    /// Whether it is registered with the RDMA stack, where the stack says so.
    pub registered: Option<bool>,
}

/// What NVLink between nodes needs beside the fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imex {
    /// Channel devices.
    pub channels: u32,
    /// Whether its daemon runs.
    pub daemon: bool,
}

/// One RDMA device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RdmaDevice {
    /// Its name on this node.
    pub name: String,
    /// The PCI function behind it.
    pub pci: Option<String>,
    /// Whether programs can open it: a uverbs device belongs to it.
    pub verbs: bool,
    /// Network interfaces of the same PCI function.
    pub net_devices: Vec<String>,
    /// Version of its firmware.
    pub firmware: Option<String>,
    /// Its ports.
    pub ports: Vec<RdmaPort>,
}

/// One port of an RDMA device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RdmaPort {
    /// Its number, from 1.
    pub number: u32,
    /// Logical state, such as `ACTIVE`.
    pub state: Option<String>,
    /// State of the cable, such as `LinkUp`.
    pub physical_state: Option<String>,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: Option<String>,
    /// Gbit/s.
    pub rate_gbit_s: Option<f64>,
    /// How often the link went down since the driver was loaded.
    pub downs: Option<u64>,
}

/// What a port of an RDMA device has sent and received.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// The device's name on this node.
    pub device: String,
    /// The port's number, from 1.
    pub port: u32,
    /// Bytes, both ways together.
    pub bytes: u64,
}

/// One network interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetDevice {
    /// Its name on this node.
    pub name: String,
    /// The PCI function behind it.
    pub pci: Option<String>,
    /// The kernel's word for its state.
    pub state: Option<String>,
    /// Whether it hears the other end.
    pub carrier: Option<bool>,
    /// Its speed in Mbit/s.
    pub speed_mbit_s: Option<u32>,
    /// Largest packet in bytes.
    pub mtu: Option<u32>,
}

/// A PCI function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciDevice {
    /// Its address.
    pub address: String,
    /// Vendor.
    pub vendor: u32,
    /// The vendor's number of the device.
    pub device: u32,
    /// Class, subclass and interface.
    pub class: u32,
    /// Name of its driver, if one is bound.
    pub driver: Option<String>,
}

/// The way of a device to the processor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PciePath {
    /// The device.
    pub address: String,
    /// The device and what lies above it: two ends of a link, then two ends of the next link, and so on.
    pub nodes: Vec<PcieNode>,
}

/// One end of a PCIe link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PcieNode {
    /// Its address.
    pub address: String,
    /// Speed of its link now, GT/s a lane.
    pub speed_gt_s: Option<f64>,
    /// Lanes of its link now.
    pub width: Option<u32>,
    /// Highest speed that it can do itself, GT/s a lane.
    pub speed_max_gt_s: Option<f64>,
    /// Most lanes that it can do itself.
    pub width_max: Option<u32>,
}
