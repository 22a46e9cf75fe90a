//! What is said about a node's GPUs and the libraries that drive them. How they are opened is in [`crate::worker`].

use std::path::PathBuf;

use diag::gpu_facts::ids::GpuId;
use serde::{Deserialize, Serialize};

/// What [`super::Request::Open`] needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Devices {
    /// The job's GPUs on this node as Slurm names them: indexes, UUIDs or PCI addresses, in order.
    pub gpus: Vec<String>,
    /// Where the libraries are.
    pub libraries: Libraries,
    /// The folder that holds `proc`.
    pub root: PathBuf,
    /// How long all of it may take.
    pub limit_ms: u64,
}

/// Files of libraries, or folders that hold them; empty: the loader's own search.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Libraries {
    /// The driver.
    pub driver: PathBuf,
    /// cuBLASLt.
    pub cublas_lt: PathBuf,
    /// NCCL.
    pub nccl: PathBuf,
    /// NVML.
    pub nvml: PathBuf,
}

/// What [`super::Request::Look`] needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// The job's GPUs on this node.
    pub gpus: Vec<GpuId>,
    /// NVML: a file, a folder that holds it, or empty: the loader's own search.
    pub nvml: PathBuf,
    /// The folder that holds `sys`, `proc` and `dev`.
    pub root: PathBuf,
    /// Free memory that the checks need on each GPU, bytes. Less is looked at again for a while.
    pub gpu_free_bytes: u64,
    /// How long NVML and the kernel's files may take.
    pub limit_ms: u64,
}

/// A rank whose GPU did not do its part, and why. The GPUs of the other ranks did theirs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// The rank.
    pub rank: u32,
    /// What kind of trouble.
    pub kind: TroubleKind,
    /// What happened, with the GPU's UUID and PCI address; one line.
    pub message: String,
}

/// Kinds of [`Trouble`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TroubleKind {
    /// A library, the driver or the worker says that something did not work.
    Failed,
    /// No answer when the limit came.
    Silent,
    /// The driver says that the GPU is broken.
    Broken,
}

/// What was opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Rank i is GPU i, those among them that could not be opened.
    pub gpus: Vec<Device>,
    /// Why some could not.
    pub troubles: Vec<Trouble>,
    /// Version of the CUDA driver interface, such as `13.0`.
    pub cuda: String,
    /// Version of NCCL, such as `2.28.9`.
    pub nccl: String,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Slurm's index: the minor number of its device file.
    pub index: u32,
    /// Model, such as `NVIDIA H200`.
    pub name: String,
    /// `GPU-...`.
    pub uuid: String,
    /// Address on the PCI bus.
    pub pci: String,
    /// Memory in all, bytes; 0 where it could not be opened.
    pub memory_bytes: u64,
    /// Free memory when it was opened, bytes.
    pub free_bytes: u64,
}
