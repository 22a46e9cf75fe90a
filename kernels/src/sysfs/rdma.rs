//! InfiniBand and RoCE devices and their ports. Which of them a job uses is for who compares nodes to say.

use std::path::Path;

use diag::gpu_facts::reading::{RdmaDevice, RdmaPort};

use super::{Root, names, pci_function, text};

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
            pci: pci_function(&folder.join("device")),
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
pub(super) fn word(path: &Path) -> Option<String> {
    let text = text(path)?;
    Some(text.split_once(": ").map_or(text.as_str(), |(_, word)| word).to_owned())
}
