//! InfiniBand and RoCE devices and their ports. Which of them a job uses is for who compares nodes to say.

use std::path::Path;

use super::{Root, link_name, names, text};

/// One RDMA device.
#[derive(Debug, Clone, PartialEq)]
pub struct RdmaDevice {
    /// Its name on this node.
    pub name: String,
    /// The PCI function behind it.
    pub pci: Option<String>,
    /// Whether programs can open it: a uverbs device belongs to it. Management devices (umad, issm) don't matter.
    pub verbs: bool,
    /// Network interfaces of the same PCI function.
    pub net_devices: Vec<String>,
    /// Version of its firmware.
    pub firmware: Option<String>,
    /// Its ports, by number.
    pub ports: Vec<RdmaPort>,
}

/// One port of an RDMA device.
#[derive(Debug, Clone, PartialEq)]
pub struct RdmaPort {
    /// Its number, from 1.
    pub number: u32,
    /// Logical state in the kernel's word, such as `ACTIVE` or `DOWN`.
    pub state: Option<String>,
    /// State of the cable, such as `LinkUp`, `Polling` or `Disabled`.
    pub physical_state: Option<String>,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: Option<String>,
    /// Gbit/s.
    pub rate_gbit_s: Option<f64>,
    /// How often the link went down since the driver was loaded.
    pub downs: Option<u64>,
}

/// All RDMA devices, by name.
#[must_use]
pub fn rdma_devices(root: &Root) -> Vec<RdmaDevice> {
    let class = root.path("sys/class/infiniband");
    let verbs_class = root.path("sys/class/infiniband_verbs");
    let opened: Vec<String> =
        names(&verbs_class).iter().filter_map(|name| text(&verbs_class.join(name).join("ibdev"))).collect();
    let each = |name: String| {
        let folder = class.join(&name);
        RdmaDevice {
            pci: link_name(&folder.join("device")).filter(|name| super::pci_address(name).is_some()),
            verbs: opened.contains(&name),
            net_devices: names(&folder.join("device/net")),
            firmware: text(&folder.join("fw_ver")),
            ports: ports(&folder.join("ports")),
            name,
        }
    };
    names(&class).into_iter().map(each).collect()
}

fn ports(folder: &Path) -> Vec<RdmaPort> {
    let each = |number: u32| {
        let port = folder.join(number.to_string());
        RdmaPort {
            number,
            state: word(&port.join("state")),
            physical_state: word(&port.join("phys_state")),
            link_layer: text(&port.join("link_layer")),
            rate_gbit_s: super::number(&port.join("rate")),
            downs: super::number(&port.join("counters/link_downed")),
        }
    };
    let mut numbers: Vec<u32> = names(folder).iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    numbers.into_iter().map(each).collect()
}

/// `ACTIVE` of `4: ACTIVE`.
fn word(path: &Path) -> Option<String> {
    let text = text(path)?;
    Some(text.split_once(": ").map_or(text.as_str(), |(_, word)| word).to_owned())
}
