//! Network interfaces and whether they are up. Which of them a job uses is not known here: no name means anything.

use super::{Root, link_name, names, number, text};

/// One network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetDevice {
    /// Its name on this node; names differ between nodes of one kind.
    pub name: String,
    /// The PCI function behind it; `None` for bridges, tunnels and the like.
    pub pci: Option<String>,
    /// What the kernel calls its state: `up`, `down`, `unknown`, …
    pub state: Option<String>,
    /// Whether it hears the other end; `None` where the interface is switched off.
    pub carrier: Option<bool>,
    /// Its speed in Mbit/s; `None` where it has none, as when the cable is out.
    pub speed_mbit_s: Option<u32>,
    /// Largest packet in bytes.
    pub mtu: Option<u32>,
}

/// All interfaces but the loopback, by name.
#[must_use]
pub fn net_devices(root: &Root) -> Vec<NetDevice> {
    let class = root.path("sys/class/net");
    let each = |name: String| {
        let folder = class.join(&name);
        NetDevice {
            pci: link_name(&folder.join("device")).filter(|name| super::pci_address(name).is_some()),
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
