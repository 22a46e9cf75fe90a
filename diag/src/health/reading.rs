//! What is read of GPUs and network devices while a job runs, as plain values without an opinion.

use serde::{Deserialize, Serialize};

use super::nic::COUNTERS;
use crate::gpu_facts::reading::{GpuReading, GpuSample};

/// What a process that asks NVML tells of the job's GPUs, in the order in which it sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// First of all, and once: the job's GPUs at its start, those that are not there, and what could not be read.
    Start {
        /// Those that are there.
        gpus: Vec<GpuReading>,
        /// Those that are not, as Slurm names them.
        absent: Vec<String>,
        /// What does not work, in words.
        trouble: Vec<String>,
    },
    /// Everything of one GPU.
    Whole(Box<GpuReading>),
    /// What changes while a GPU works.
    Sample {
        /// Which.
        uuid: String,
        /// What was seen.
        sample: Box<GpuSample>,
    },
    /// A GPU that can't be asked any more.
    Lost {
        /// Which.
        uuid: String,
        /// NVML's words.
        words: String,
    },
    /// A driver that owes an answer.
    Silent {
        /// Which GPU was asked.
        uuid: String,
        /// For how long.
        for_ms: u64,
    },
    /// An event.
    Event {
        /// Which.
        uuid: String,
        /// What.
        event: GpuEvent,
    },
}

/// What NVML tells by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuEvent {
    /// An Xid; of several at once NVML tells the last one.
    Xid(u32),
    /// An error of memory that could not be corrected.
    DoubleBit,
}

/// A port of an RDMA device, with its counters since the driver was loaded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NicReading {
    /// The device's name.
    pub device: String,
    /// Its PCI function.
    pub pci: Option<String>,
    /// The port's number, from 1.
    pub port: u32,
    /// Logical state, such as `ACTIVE`.
    pub state: Option<String>,
    /// State of the cable, such as `LinkUp`.
    pub physical_state: Option<String>,
    /// How often the link went down, as the port counts.
    pub downs: Option<u64>,
    /// The same, as the network interface of the port counts.
    pub carrier_downs: Option<u64>,
    /// Bytes sent and received.
    pub moved_bytes: Option<u64>,
    /// The counters of [`COUNTERS`], in their order.
    pub counts: [Option<u64>; COUNTERS.len()],
}
