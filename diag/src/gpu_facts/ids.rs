//! Which GPUs are a job's: what Slurm writes into SLURM_JOB_GPUS, SLURM_STEP_GPUS or a node's GRES, and what a GPU
//! library takes. It reads names and compares them with the GPUs that are there; it opens none.
//!
//! A number is Slurm's: the N of the device file `/dev/nvidiaN` that gres.conf names (File=, or what AutoDetect
//! found), which is the driver's minor number. It is neither NVML's nor CUDA's index: those count what is visible and
//! shift when a GPU is lost.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::reading::Device;
use crate::request::mistake::shown;

/// Longest text: a thousand UUIDs.
pub const MAX_TEXT_BYTES: usize = 64 * 1024;

/// Most GPUs of one node; beyond any machine, also with every GPU cut into instances.
pub const MAX_GPUS: usize = 1024;

/// A GPU, or a part of one, as a job names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuId {
    /// N of `/dev/nvidiaN`.
    Minor(u32),
    /// UUID of a GPU, `GPU-` and small letters.
    Gpu(String),
    /// UUID of a MIG instance, `MIG-` and small letters.
    Mig(String),
    /// PCI address as sysfs writes it, `0000:81:00.0`.
    Pci(String),
}

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Minor(minor) => write!(f, "{minor}"),
            Self::Gpu(text) | Self::Mig(text) | Self::Pci(text) => f.write_str(text),
        }
    }
}

/// Why a text does not name GPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuIdError {
    /// Longer than [`MAX_TEXT_BYTES`].
    #[error("the list of GPUs has {bytes} bytes, at most {MAX_TEXT_BYTES} are read")]
    TextTooLong {
        /// Its length.
        bytes: usize,
    },
    /// Something that is neither a number, a range, a UUID nor a PCI address.
    #[error(
        "'{}' names no GPU; right are a number, a range such as 0-3, GPU-<uuid>, MIG-<uuid> and a PCI address",
        shown(item)
    )]
    Item {
        /// What stands there.
        item: String,
    },
    /// A range that counts down.
    #[error("the range '{}' of GPUs counts down", shown(item))]
    Backwards {
        /// What stands there.
        item: String,
    },
    /// More than [`MAX_GPUS`].
    #[error("the list stands for more than {MAX_GPUS} GPUs")]
    TooMany,
}

/// GPUs that a job names and that are not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no GPU {unknown} here; there are: {present}")]
pub struct UnknownGpus {
    /// Those that are missing, with commas between them.
    pub unknown: String,
    /// Those that are there, by all their names.
    pub present: String,
}

/// Reads a list, in its order; what is named twice counts once. An empty list names none, and so does a GRES of
/// another kind, or one without its indexes: `gpu:4` says how many, not which.
///
/// # Errors
/// If something in the list is no GPU, or there are too many.
pub fn parse(text: &str) -> Result<Vec<GpuId>, GpuIdError> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(GpuIdError::TextTooLong { bytes: text.len() });
    }
    let mut ids = Vec::new();
    for item in items(text) {
        match gres(item) {
            Some(indexes) => {
                for index in items(indexes) {
                    add(index, &mut ids)?;
                }
            }
            None => add(item, &mut ids)?,
        }
    }
    Ok(ids)
}

/// Parts between commas that are outside of brackets; empty ones are left out.
fn items(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => (),
        }
        c == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|item| !item.is_empty())
}

/// The indexes of a GRES such as `gres:gpu:h200:4(IDX:0-3)`: empty where it is no GPU's or gives none. `None`: the
/// item is no GRES.
fn gres(item: &str) -> Option<&str> {
    let (front, bracket) = item.split_once('(').map_or((item, None), |(front, rest)| (front, Some(rest)));
    let front = front.strip_prefix("gres:").or_else(|| front.strip_prefix("gres/")).unwrap_or(front);
    let kind = front.split([':', '=']).next()?;
    // A name begins with a letter; a UUID has its dash, and a PCI address its digits, within the first word.
    let is_name = kind.starts_with(|c: char| c.is_ascii_alphabetic())
        && kind.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_')
        && !is_pci_part(kind)
        && pci_address(item).is_none();
    // A word alone is a mistake, but for the one that stands for one GPU, whichever.
    if !is_name || (kind == item && kind != "gpu") {
        return None;
    }
    let indexes = bracket.and_then(|rest| rest.strip_suffix(')')).and_then(|rest| rest.split_once("IDX:"));
    // Slurm writes N/A where none is used.
    Some(indexes.filter(|(_, list)| kind == "gpu" && *list != "N/A").map_or("", |(_, list)| list))
}

/// The beginning of a PCI address may look like a name: `c1` of `c1:00.0`.
fn is_pci_part(word: &str) -> bool {
    matches!(word.len(), 2 | 4 | 8) && word.bytes().all(|c| c.is_ascii_hexdigit())
}

fn add(item: &str, ids: &mut Vec<GpuId>) -> Result<(), GpuIdError> {
    let mut push = |id: GpuId| {
        if !ids.contains(&id) {
            if ids.len() == MAX_GPUS {
                return Err(GpuIdError::TooMany);
            }
            ids.push(id);
        }
        Ok(())
    };
    let wrong = || GpuIdError::Item { item: item.to_owned() };
    if let Some((first, last)) = item.split_once('-').and_then(|(a, b)| Some((decimal(a)?, decimal(b)?))) {
        if first > last {
            return Err(GpuIdError::Backwards { item: item.to_owned() });
        }
        return (first..=last).try_for_each(|minor| push(GpuId::Minor(minor)));
    }
    if let Some(minor) = decimal(item) {
        return push(GpuId::Minor(minor));
    }
    if let Some(address) = pci_address(item) {
        return push(GpuId::Pci(address));
    }
    let rest = |prefix: &str| {
        let start = item.get(..prefix.len())?;
        start.eq_ignore_ascii_case(prefix).then(|| &item[prefix.len()..])
    };
    if let Some(uuid) = rest("GPU-").filter(|uuid| is_uuid(uuid)) {
        return push(GpuId::Gpu(format!("GPU-{}", uuid.to_ascii_lowercase())));
    }
    let mig = rest("MIG-").ok_or_else(wrong)?;
    if is_uuid(mig) {
        return push(GpuId::Mig(format!("MIG-{}", mig.to_ascii_lowercase())));
    }
    // Before R470: MIG-GPU-<uuid>/<GPU instance>/<compute instance>.
    let old = mig.get(..4).filter(|start| start.eq_ignore_ascii_case("GPU-")).map(|_| &mig[4..]);
    let mut parts = old.unwrap_or_default().split('/');
    let uuid = parts.next().filter(|uuid| is_uuid(uuid)).ok_or_else(wrong)?;
    match (parts.next().and_then(decimal), parts.next().and_then(decimal), parts.next()) {
        (Some(gpu), Some(compute), None) => {
            push(GpuId::Mig(format!("MIG-GPU-{}/{gpu}/{compute}", uuid.to_ascii_lowercase())))
        }
        _ => Err(wrong()),
    }
}

/// Digits only: no sign, no space, and no more than a device number can have.
fn decimal(text: &str) -> Option<u32> {
    let fits = (1..=9).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_digit());
    fits.then(|| text.parse().ok()).flatten()
}

/// Groups of 8, 4, 4, 4 and 12 hexadecimal digits.
fn is_uuid(text: &str) -> bool {
    let lengths = text.split('-').map(str::len);
    text.bytes().all(|c| c.is_ascii_hexdigit() || c == b'-') && lengths.eq([8, 4, 4, 4, 12])
}

/// An address as sysfs writes it, from any of its forms; `None` for anything else.
#[must_use]
pub fn pci_address(text: &str) -> Option<String> {
    let hex = |part: &str, digits: std::ops::RangeInclusive<usize>| {
        let fits = digits.contains(&part.len()) && part.bytes().all(|c| c.is_ascii_hexdigit());
        fits.then(|| u32::from_str_radix(part, 16).ok()).flatten()
    };
    let (rest, function) = text.rsplit_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
    let domain = hex(domain, 1..=8)?;
    let (bus, device, function) = (hex(bus, 2..=2)?, hex(device, 2..=2)?, hex(function, 1..=1)?);
    (device < 32 && function < 8).then(|| format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"))
}

/// Positions in `present` of the GPUs that are meant, each once, in the order of `ids`. A MIG instance is found by
/// the GPU that it is a part of, where its name holds that; else it is the driver's to say and counts as unknown.
///
/// # Errors
/// If one is not there: all of those, and what is there.
pub fn resolve(ids: &[GpuId], present: &[Device]) -> Result<Vec<usize>, UnknownGpus> {
    let mut found = Vec::new();
    let mut unknown = Vec::new();
    for id in ids {
        match find(id, present) {
            Some(at) if found.contains(&at) => (),
            Some(at) => found.push(at),
            None => unknown.push(id.to_string()),
        }
    }
    if unknown.is_empty() {
        return Ok(found);
    }
    let mut present: Vec<String> = present.iter().map(all_names).collect();
    if present.is_empty() {
        present.push("none".to_owned());
    }
    Err(UnknownGpus { unknown: unknown.join(", "), present: present.join("; ") })
}

/// Position in `present` of the GPU that is meant, if it is there. A number is a device file's; only where no GPU has that
/// file is it NVML's index of a GPU that doesn't say its own.
#[must_use]
pub fn find(id: &GpuId, present: &[Device]) -> Option<usize> {
    let has_uuid =
        |device: &Device, uuid: &str| device.uuid.as_ref().is_some_and(|own| own.eq_ignore_ascii_case(uuid));
    match id {
        // A driver that knows no minor numbers counts like NVML, and so does a GPU that can't be asked any more.
        GpuId::Minor(minor) => {
            let by_index = |device: &Device| device.minor.is_none() && device.index == *minor;
            let exact = present.iter().position(|device| device.minor == Some(*minor));
            exact.or_else(|| present.iter().position(by_index))
        }
        GpuId::Gpu(uuid) => present.iter().position(|device| has_uuid(device, uuid)),
        GpuId::Mig(uuid) => {
            let gpu = uuid.strip_prefix("MIG-")?.split('/').next()?;
            present.iter().position(|device| has_uuid(device, gpu))
        }
        GpuId::Pci(address) => present
            .iter()
            .position(|device| device.pci.as_deref().and_then(pci_address).as_ref() == Some(address)),
    }
}

fn all_names(device: &Device) -> String {
    let mut text = device.minor.unwrap_or(device.index).to_string();
    for name in [&device.uuid, &device.pci].into_iter().flatten() {
        text.push(' ');
        text.push_str(name);
    }
    if let Some(lost) = &device.lost {
        text.push_str(" (lost: ");
        text.push_str(lost);
        text.push(')');
    }
    text
}
