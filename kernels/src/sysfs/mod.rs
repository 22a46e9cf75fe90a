//! What the kernel says of a node below `/sys`, `/proc` and `/dev`: RDMA ports, network interfaces, the way of a
//! device through the PCIe tree, modules, limits. It reads text and judges nothing; what can't be read is `None`.
//!
//! The folder that holds `sys`, `proc` and `dev` is a parameter. A file of the kernel may block when a driver hangs:
//! the caller reads in a process of its own that it can leave behind.

mod net;
mod nics;
mod nvidia;
mod pcie;
mod process;
mod rdma;
mod system;

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use diag::gpu_facts::ids::pci_address;
use diag::gpu_facts::reading::{MachineReading, PciePath};

pub use net::net_devices;
pub use nics::{moved, nics};
pub use nvidia::gpus;
pub use pcie::{pci_devices, pcie_path};
pub use process::process_owner;
pub use rdma::rdma_devices;
pub use system::{boot_id, imex, memlock, modules, peer_memory, shm, uptime_s};

/// Most bytes of one file that are read: /proc/modules of a machine with a thousand modules fits.
const MOST_BYTES: u64 = 256 * 1024;

/// Most entries of one folder that are looked at: more processes than a node runs.
const MOST_ENTRIES: usize = 65_536;

/// The folder that holds `sys`, `proc` and `dev`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    folder: PathBuf,
}

impl Default for Root {
    /// This machine's own.
    fn default() -> Self {
        Self::new("/")
    }
}

impl Root {
    /// Another one than the machine's, for tests and for what a container sees.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.folder.join(below)
    }
}

/// Reads everything. `gpus` are PCI addresses; `fabric_spans_nodes`: whether to look for IMEX, which takes a look at
/// every process.
#[must_use]
pub fn machine(root: &Root, gpus: &[String], fabric_spans_nodes: bool) -> MachineReading {
    let rdma = rdma_devices(root);
    let addresses = gpus.iter().chain(rdma.iter().filter_map(|device| device.pci.as_ref()));
    let mut paths: Vec<PciePath> = addresses
        .map(|address| PciePath { address: address.clone(), nodes: pcie_path(root, address) })
        .filter(|path| !path.nodes.is_empty())
        .collect();
    paths.sort_by(|one, other| one.address.cmp(&other.address));
    paths.dedup_by(|one, other| one.address == other.address);
    MachineReading {
        uptime_s: uptime_s(root),
        shm: shm(root),
        memlock: memlock(root),
        modules: modules(root),
        peer_memory: peer_memory(root),
        imex: fabric_spans_nodes.then(|| imex(root)),
        rdma,
        net: net_devices(root),
        pci: pci_devices(root),
        paths,
    }
}

/// A file's text without the white space around it; `None` where there is no such file, it can't be read or it is
/// empty. What is not UTF-8 is replaced.
fn text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    // Some files give EINVAL or EIO for hardware that is not there: no value, as if the file were missing.
    File::open(path).ok()?.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// The number that a file begins with, such as 16 of `16` and 400 of `400 Gb/sec (4X NDR)`.
fn number<T: FromStr>(path: &Path) -> Option<T> {
    text(path)?.split_whitespace().next()?.parse().ok()
}

/// Names in a folder, sorted; none where there is no such folder.
fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .take(MOST_ENTRIES)
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

/// The last part of what a link points at, such as the PCI address of a device or the name of its driver.
fn link_name(link: &Path) -> Option<String> {
    Some(std::fs::read_link(link).ok()?.file_name()?.to_str()?.to_owned())
}

/// The PCI address that a link `device` points at.
fn pci_function(link: &Path) -> Option<String> {
    link_name(link).filter(|name| pci_address(name).is_some())
}
