//! Of what a node says of itself the part that is compared with the other nodes of a job. It travels to all of them, so
//! it is small and bounded, and like nodes say the same.

use serde::{Deserialize, Serialize};

use super::just_started;
use super::number;
use super::reading::{GpuReading, NodeReading, PciDevice};

/// Most of each list that is told: more than any machine has.
const MOST: usize = 32;

/// Longest text that is told.
const MOST_BYTES: usize = 64;

/// PCI class of network controllers, third byte.
const CLASS_NETWORK: u32 = 0x02;

/// What is compared of one node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Compared {
    /// Version of the GPU driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Whether the node was started a moment ago.
    pub just_started: bool,
    /// GPUs with NVLinks.
    pub gpus: Vec<Links>,
    /// Ports of RDMA devices.
    pub ports: Vec<Port>,
    /// RDMA devices without ports.
    pub portless: Vec<String>,
    /// PCI addresses of network controllers that no driver is bound to.
    pub driverless: Vec<String>,
}

/// The NVLinks of one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Links {
    /// Its number on its node.
    pub gpu: u32,
    /// Its product's name.
    pub model: String,
    /// Links that carry traffic, bit by bit.
    pub up: u64,
    /// Links that say that they don't.
    pub down: u64,
}

/// A port of an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Where its device sits on the bus, since names differ between nodes (field case J09); its name where there is no
    /// bus.
    pub at: String,
    /// Its device's name.
    pub device: String,
    /// Its number.
    pub number: u32,
    /// Logical state, such as `ACTIVE`.
    pub state: Option<String>,
    /// State of the cable.
    pub physical: Option<String>,
    /// Whether programs can open its device.
    pub verbs: bool,
    /// Gbit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_gbit_s: Option<u32>,
}

impl Port {
    pub(super) fn is_up(&self) -> bool {
        self.state.as_deref() == Some("ACTIVE")
    }
}

impl From<&NodeReading> for Compared {
    fn from(reading: &NodeReading) -> Self {
        let rdma = &reading.machine.rdma;
        let ports = rdma.iter().flat_map(|device| {
            device.ports.iter().map(move |port| Port {
                at: short(device.pci.as_ref().unwrap_or(&device.name)),
                device: short(&device.name),
                number: port.number,
                state: port.state.as_deref().map(short),
                physical: port.physical_state.as_deref().map(short),
                verbs: device.verbs,
                rate_gbit_s: port.rate_gbit_s.and_then(whole),
            })
        });
        let alone = |one: &&PciDevice| one.class >> 16 == CLASS_NETWORK && one.driver.is_none();
        let portless = rdma.iter().filter(|device| device.ports.is_empty());
        Self {
            driver: reading.driver_version.as_deref().map(short),
            just_started: just_started(reading),
            gpus: reading.gpus.iter().filter_map(links).take(MOST).collect(),
            ports: ports.take(MOST).collect(),
            portless: portless.map(|device| short(&device.name)).take(MOST).collect(),
            driverless: reading
                .machine
                .pci
                .iter()
                .filter(alone)
                .map(|one| short(&one.address))
                .take(MOST)
                .collect(),
        }
    }
}

fn links(gpu: &GpuReading) -> Option<Links> {
    let bits = |active: bool| {
        let these = gpu.links.iter().filter(|link| link.active == Some(active) && link.link < u64::BITS);
        these.fold(0, |bits, link| bits | (1 << link.link))
    };
    let (up, down) = (bits(true), bits(false));
    let model = short(gpu.device.name.as_deref().unwrap_or_default());
    (gpu.lost.is_none() && up | down != 0).then(|| Links { gpu: number(&gpu.device), model, up, down })
}

/// A rate in whole Gbit/s; `None` where it is none.
fn whole(rate: f64) -> Option<u32> {
    /// Far above any port that there is.
    const MOST: u32 = 100_000;
    // Counting by the text avoids a float-to-integer cast.
    let rate: u32 = format!("{rate:.0}").parse().ok()?;
    (1..=MOST).contains(&rate).then_some(rate)
}

fn short(text: impl AsRef<str>) -> String {
    let text = text.as_ref();
    text[..text.floor_char_boundary(MOST_BYTES)].to_owned()
}
