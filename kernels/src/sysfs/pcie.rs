//! The PCI bus: which devices of interest are on it, and the way of a device through bridges and switches up to the
//! processor, with the speed of each link. It compares nothing.

use std::path::Component;

use diag::gpu_facts::ids::pci_address;
use diag::gpu_facts::reading::{PciDevice, PcieNode};

use super::{Root, link_name, names, number, text};

/// Deepest chain of bridges that is followed: the deepest known servers have six.
const MOST_NODES: usize = 32;

/// Network and display controllers, with or without a driver, in the order of the bus.
#[must_use]
pub fn pci_devices(root: &Root) -> Vec<PciDevice> {
    /// Class bytes of network and of display controllers.
    const OF_INTEREST: [u32; 2] = [0x02, 0x03];
    let bus = root.path("sys/bus/pci/devices");
    let each = |address: String| {
        let folder = bus.join(&address);
        let hex = |file: &str| {
            let text = text(&folder.join(file))?;
            u32::from_str_radix(text.trim_start_matches("0x"), 16).ok()
        };
        let class = hex("class").filter(|class| OF_INTEREST.contains(&(class >> 16)))?;
        Some(PciDevice {
            vendor: hex("vendor")?,
            device: hex("device")?,
            class,
            driver: link_name(&folder.join("driver")),
            address,
        })
    };
    names(&bus).into_iter().filter_map(each).collect()
}

/// The functions from a device up to the processor, the device first: the device and the port above it are the two
/// ends of one link, then come the two ends of the next link, and so on. Empty where there is no such device.
#[must_use]
pub fn pcie_path(root: &Root, address: &str) -> Vec<PcieNode> {
    let Some(address) = pci_address(address) else { return Vec::new() };
    let Ok(folder) = root.path("sys/bus/pci/devices").join(address).canonicalize() else { return Vec::new() };
    let on_the_way = folder.ancestors().filter(|folder| {
        let last = folder.components().next_back();
        let Some(Component::Normal(name)) = last else { return false };
        name.to_str().is_some_and(|name| pci_address(name).is_some_and(|address| address == name))
    });
    let each = |folder: &std::path::Path| PcieNode {
        address: folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        // "Unknown" where there is no link.
        speed_gt_s: number(&folder.join("current_link_speed")),
        width: width(number(&folder.join("current_link_width"))),
        speed_max_gt_s: number(&folder.join("max_link_speed")),
        width_max: width(number(&folder.join("max_link_width"))),
    };
    on_the_way.take(MOST_NODES).map(each).collect()
}

/// The kernel writes 0 or 255 where there is no link.
fn width(lanes: Option<u32>) -> Option<u32> {
    lanes.filter(|lanes| (1..=32).contains(lanes))
}
