//! The GPUs as NVIDIA's driver shows them below `/proc`: enough to know whose an Xid is without NVML, which root does
//! not load and which may be what is broken.

use diag::gpu_facts::ids::pci_address;
use diag::gpu_facts::reading::Device;

use super::{Root, names, text};

/// All GPUs that the driver has bound, by address; none where there is no driver.
#[must_use]
pub fn gpus(root: &Root) -> Vec<Device> {
    let folder = root.path("proc/driver/nvidia/gpus");
    let each = |(index, address): (u32, String)| {
        let pci = pci_address(&address)?;
        let lines = text(&folder.join(&address).join("information")).unwrap_or_default();
        let value = |key: &str| {
            lines.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                (name.trim() == key).then(|| value.trim().to_owned())
            })
        };
        Some(Device {
            index,
            minor: value("Device Minor").and_then(|minor| minor.parse().ok()),
            uuid: value("GPU UUID").filter(|uuid| uuid.starts_with("GPU-") && !uuid.contains('?')),
            pci: Some(pci),
            name: value("Model"),
            lost: None,
        })
    };
    (0..).zip(names(&folder)).filter_map(each).collect()
}
