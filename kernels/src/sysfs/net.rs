//! Network interfaces and whether they are up. Which of them a job uses is not known here: no name means anything.

use diag::gpu_facts::reading::NetDevice;

use super::{Root, names, number, pci_function, text};

/// All interfaces but the loopback, by name.
#[must_use]
pub fn net_devices(root: &Root) -> Vec<NetDevice> {
    let class = root.path("sys/class/net");
    let each = |name: String| {
        let folder = class.join(&name);
        NetDevice {
            pci: pci_function(&folder.join("device")),
            state: text(&folder.join("operstate")),
            carrier: number::<u8>(&folder.join("carrier")).map(|carrier| carrier != 0),
            // -1: unknown.
            speed_mbit_s: number::<i64>(&folder.join("speed")).and_then(|speed| u32::try_from(speed).ok()),
            mtu: number(&folder.join("mtu")),
            name,
        }
    };
    names(&class).into_iter().filter(|name| name != "lo").map(each).collect()
}
