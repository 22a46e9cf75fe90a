//! Which GPU is meant: by the number of its device file, its UUID or its PCI address. Reading what Slurm writes into
//! these is not done here.

use super::reading::Device;
use crate::sysfs::pci_address;

/// A GPU as a job names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GpuId {
    /// N of `/dev/nvidiaN`: what Slurm counts by (gres.conf names these files).
    Minor(u32),
    /// `GPU-…`, or `MIG-…` for a part of a GPU.
    Uuid(String),
    /// PCI address in any of its forms.
    Pci(String),
}

impl std::fmt::Display for GpuId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Minor(minor) => write!(f, "{minor}"),
            Self::Uuid(uuid) => f.write_str(uuid),
            Self::Pci(address) => f.write_str(address),
        }
    }
}

impl GpuId {
    /// Whether it names this GPU. A driver that knows no minor numbers counts like NVML.
    #[must_use]
    pub fn names(&self, device: &Device) -> bool {
        match self {
            Self::Minor(minor) => *minor == device.minor.unwrap_or(device.index),
            Self::Uuid(uuid) => device.uuid.as_ref().is_some_and(|own| own.eq_ignore_ascii_case(uuid)),
            Self::Pci(address) => device.pci.is_some() && pci_address(address) == device.pci,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Device {
        Device {
            index: 0,
            minor: Some(4),
            uuid: Some("GPU-0a1b".to_owned()),
            pci: Some("0000:81:00.0".to_owned()),
            ..Device::default()
        }
    }

    // L01, L02: minor, not NVML's index; UUID and PCI address in any case.
    #[test]
    fn a_gpu_has_three_names() {
        for id in
            [GpuId::Minor(4), GpuId::Uuid("gpu-0A1B".to_owned()), GpuId::Pci("00000000:81:00.0".to_owned())]
        {
            assert!(id.names(&device()), "{id}");
        }
        for id in [GpuId::Minor(0), GpuId::Uuid("GPU-0a1".to_owned()), GpuId::Pci("82:00.0".to_owned())] {
            assert!(!id.names(&device()), "{id}");
        }
        assert!(!GpuId::Pci("nonsense".to_owned()).names(&Device::default()));
    }

    #[test]
    fn without_minor_numbers_the_index_counts() {
        assert!(GpuId::Minor(0).names(&Device { minor: None, ..device() }));
    }
}
