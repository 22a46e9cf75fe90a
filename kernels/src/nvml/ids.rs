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
    /// Positions of the GPUs that it names: none, one, or several where names are not unique.
    ///
    /// A number is a device file's. Only where no GPU has that file is it NVML's index of a GPU that doesn't say its
    /// own: a driver without minor numbers counts like NVML, and so does a GPU that can't be asked any more.
    #[must_use]
    pub fn find(&self, present: &[Device]) -> Vec<usize> {
        let all = |names: &dyn Fn(&Device) -> bool| -> Vec<usize> {
            (0..).zip(present).filter(|(_, device)| names(device)).map(|(at, _)| at).collect()
        };
        match self {
            Self::Minor(minor) => {
                let exact = all(&|device| device.minor == Some(*minor));
                if exact.is_empty() {
                    all(&|device| device.minor.is_none() && device.index == *minor)
                } else {
                    exact
                }
            }
            Self::Uuid(uuid) => {
                all(&|device| device.uuid.as_ref().is_some_and(|own| own.eq_ignore_ascii_case(uuid)))
            }
            Self::Pci(address) => pci_address(address)
                .map_or(Vec::new(), |address| all(&|device| device.pci.as_ref() == Some(&address))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(index: u32, minor: Option<u32>) -> Device {
        Device {
            index,
            minor,
            uuid: Some(format!("GPU-0a{index}b")),
            pci: Some(format!("0000:8{index}:00.0")),
            ..Device::default()
        }
    }

    // L01, L02: minor, not NVML's index; UUID and PCI address in any case.
    #[test]
    fn a_gpu_has_three_names() {
        let present = [device(0, Some(4)), device(1, Some(0))];
        for id in
            [GpuId::Minor(4), GpuId::Uuid("gpu-0A0B".to_owned()), GpuId::Pci("00000000:80:00.0".to_owned())]
        {
            assert_eq!(id.find(&present), [0], "{id}");
        }
        assert_eq!(GpuId::Minor(0).find(&present), [1]);
        for id in [GpuId::Minor(1), GpuId::Uuid("GPU-0a".to_owned()), GpuId::Pci("nonsense".to_owned())] {
            assert_eq!(id.find(&present), [0; 0], "{id}");
        }
        assert_eq!(GpuId::Pci("nonsense".to_owned()).find(&[Device::default()]), [0; 0]);
    }

    #[test]
    fn without_minor_numbers_the_index_counts() {
        assert_eq!(GpuId::Minor(1).find(&[device(0, None), device(1, None)]), [1]);
        // A GPU that can't say its number does not stand in for one that can.
        assert_eq!(GpuId::Minor(1).find(&[device(0, Some(1)), device(1, None)]), [0]);
    }
}
