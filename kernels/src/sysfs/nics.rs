//! Ports of RDMA devices and what they count, for a watch while a job runs. It reads numbers and compares nothing.

use diag::gpu_facts::reading::Moved;
use diag::health::nic::{COUNTERS, MOST_PORTS};
use diag::health::reading::NicReading;

use super::rdma::word;
use super::{Root, names, number, pci_function};

/// The port's counters of data are in words of four bytes.
const WORD_BYTES: u64 = 4;

/// What the ports have moved, and nothing else of them: other counters of a device take much longer to read.
#[must_use]
pub fn moved(root: &Root) -> Vec<Moved> {
    let class = root.path("sys/class/infiniband");
    let mut ports = Vec::new();
    for device in names(&class) {
        let folder = class.join(&device).join("ports");
        for port in names(&folder).iter().filter_map(|name| name.parse().ok()).take(MOST_PORTS) {
            let at = folder.join(u32::to_string(&port)).join("counters");
            let words = |file: &str| number::<u64>(&at.join(file));
            let Some(bytes) = words("port_xmit_data").zip(words("port_rcv_data")) else { continue };
            let bytes = bytes.0.saturating_add(bytes.1).saturating_mul(WORD_BYTES);
            ports.push(Moved { device: device.clone(), port, bytes });
        }
    }
    ports
}

/// All ports, by device and number.
#[must_use]
pub fn nics(root: &Root) -> Vec<NicReading> {
    let class = root.path("sys/class/infiniband");
    let mut ports = Vec::new();
    for device in names(&class) {
        let folder = class.join(&device);
        let mut numbers: Vec<u32> =
            names(&folder.join("ports")).iter().filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        // With several ports it is not said which interface is whose.
        let interface = match (names(&folder.join("device/net")).as_slice(), numbers.as_slice()) {
            ([one], [_]) => Some(root.path("sys/class/net").join(one)),
            _ => None,
        };
        for port in numbers {
            let at = folder.join("ports").join(port.to_string());
            let words = |file: &str| number::<u64>(&at.join("counters").join(file));
            let moved = [words("port_xmit_data"), words("port_rcv_data")];
            ports.push(NicReading {
                pci: pci_function(&folder.join("device")),
                port,
                state: word(&at.join("state")),
                physical_state: word(&at.join("phys_state")),
                downs: words("link_downed"),
                carrier_downs: interface.as_ref().and_then(|net| number(&net.join("carrier_down_count"))),
                moved_bytes: moved
                    .iter()
                    .flatten()
                    .copied()
                    .reduce(u64::saturating_add)
                    .map(|words| words.saturating_mul(WORD_BYTES)),
                counts: std::array::from_fn(|counter| number(&at.join(COUNTERS[counter].file))),
                device: device.clone(),
            });
            if ports.len() == MOST_PORTS {
                return ports;
            }
        }
    }
    ports
}
