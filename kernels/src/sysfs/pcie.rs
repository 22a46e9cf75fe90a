//! The PCI bus: which devices of interest are on it, and the way of a device through bridges and switches up to the
//! processor, with the speed of each link. It compares nothing.

use std::path::Component;

use super::{Root, link_name, names, number, text};

/// Deepest chain of bridges that is followed: the deepest known servers have six.
const MOST_NODES: usize = 32;

/// A PCI function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PciDevice {
    /// Its address as sysfs writes it, `0000:81:00.0`.
    pub address: String,
    /// Vendor, 0x10de for NVIDIA, 0x15b3 for Mellanox.
    pub vendor: u32,
    /// The vendor's number of the device.
    pub device: u32,
    /// Class, subclass and interface: 0x03 and 0x02 in the third byte for display and network controllers.
    pub class: u32,
    /// Name of the driver that is bound; `None`: no driver, so no other folder shows this device.
    pub driver: Option<String>,
}

/// The way of a device to the processor.
#[derive(Debug, Clone, PartialEq)]
pub struct PciePath {
    /// The device.
    pub address: String,
    /// What [`pcie_path`] gives for it.
    pub nodes: Vec<PcieNode>,
}

/// One PCI function on the way from a device to the processor, as one end of a link.
#[derive(Debug, Clone, PartialEq)]
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

/// An address as sysfs writes it, `0000:81:00.0`, from any of its forms: the domain may be missing or have eight
/// digits, as NVML writes it, and letters may be large. `None` for anything else.
#[must_use]
pub fn pci_address(text: &str) -> Option<String> {
    /// `domain:bus:device.function` with NVML's eight digits of the domain.
    const LONGEST: usize = 16;
    if text.len() > LONGEST || !text.is_ascii() {
        return None;
    }
    let hex = |part: &str, digits: std::ops::RangeInclusive<usize>| {
        let fits = digits.contains(&part.len()) && part.bytes().all(|digit| digit.is_ascii_hexdigit());
        fits.then(|| u32::from_str_radix(part, 16).ok()).flatten()
    };
    let (rest, function) = text.rsplit_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
    let domain = hex(domain, 1..=8)?;
    let (bus, device, function) = (hex(bus, 2..=2)?, hex(device, 2..=2)?, hex(function, 1..=1)?);
    (device < 32 && function < 8).then(|| format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_one_spelling() {
        for text in ["0000:81:00.0", "00000000:81:00.0", "81:00.0"] {
            assert_eq!(pci_address(text).as_deref(), Some("0000:81:00.0"), "{text}");
        }
        assert_eq!(pci_address("00010000:3B:1F.7").as_deref(), Some("10000:3b:1f.7"));
        for text in
            ["", "0", "81:00", "pci0000:80", "0000:81:20.0", "0000:81:00.8", "0000:81:00.0 ", "8é:00.0"]
        {
            assert_eq!(pci_address(text), None, "{text}");
        }
    }
}
