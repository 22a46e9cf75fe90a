//! Reads records of the kernel's log: the head of a record as `/dev/kmsg` writes it, and of its text what NVIDIA's
//! driver says of GPUs and NVSwitches and what mlx5 says of a device that has failed. All other text is nothing.
//!
//! A line counts only from its beginning, and only where the kernel itself wrote it: the driver puts names of
//! processes into its lines, which are users' words, and what is written into `/dev/kmsg` carries another facility.
//! Links of network devices that go down are counted by their own counters, not here.

use crate::gpu_facts::ids::pci_address;
use crate::xid::{Family, MOST_CODE, Severity};

/// Longest record that is looked at; the kernel's own bound on a line is 1 KiB, on a record 8 KiB.
pub const MOST_RECORD_BYTES: usize = 8192;

/// Xids of Blackwell's NVLink, which say how bad they are.
const NVLINK5: std::ops::RangeInclusive<u32> = 144..=150;

/// The Xid that tells what the driver asks for.
const RECOVERY: u32 = 154;

/// The Xid of a GPU that is lost from the bus.
const LOST: u32 = 79;

/// Words of a line among which the driver says how bad it is.
const SEVERITY_WITHIN: usize = 3;

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its number since the start of the machine.
    pub seq: u64,
    /// Microseconds since the start of the machine.
    pub at_us: u64,
    /// Whether the kernel wrote it, and no process.
    pub of_kernel: bool,
    /// Its text, without escapes and line ends.
    pub text: String,
}

/// What a line tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// An event of a GPU or an NVSwitch.
    Xid {
        /// Which list.
        family: Family,
        /// PCI address as sysfs writes it.
        pci: String,
        /// The number.
        code: u32,
        /// How bad the driver says it is.
        severity: Option<Severity>,
        /// The rest of the line.
        words: String,
    },
    /// A network device has failed as a whole.
    NicFailed {
        /// PCI address as sysfs writes it.
        pci: String,
        /// The driver's words.
        words: String,
    },
}

/// Reads a record's first line, `<priority>,<number>,<microseconds>,<flags>[,…];<text>`. Lines after it begin with a
/// space and name the device; they are no records.
#[must_use]
pub fn record(line: &str) -> Option<Record> {
    /// The kernel keeps the level in the lowest three bits; facility 0 is its own, and a process can't have it.
    const LEVEL_BITS: u32 = 3;
    if line.len() > MOST_RECORD_BYTES || line.starts_with(' ') {
        return None;
    }
    let (head, text) = line.split_once(';')?;
    let mut fields = head.split(',');
    let priority: u32 = fields.next()?.parse().ok()?;
    let seq = fields.next()?.parse().ok()?;
    let at_us = fields.next()?.parse().ok()?;
    fields.next()?;
    Some(Record { seq, at_us, of_kernel: priority >> LEVEL_BITS == 0, text: unescaped(text) })
}

/// The kernel writes bytes that can't be printed as `\x0a`; a space says enough of each.
fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("\\x") {
        out.push_str(&rest[..at]);
        let hex = rest.get(at + 2..at + 4).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match hex {
            Some(b'\\') => out.push('\\'),
            Some(_) => out.push(' '),
            None => {
                out.push_str("\\x");
                rest = &rest[at + 2..];
                continue;
            }
        }
        rest = &rest[at + 4..];
    }
    out.push_str(rest);
    out
}

/// What a record's text tells; nothing where the kernel did not write it.
#[must_use]
pub fn said(record: &Record) -> Option<Said> {
    if !record.of_kernel {
        return None;
    }
    let text = record.text.trim();
    if let Some(rest) = text.strip_prefix("NVRM: ") {
        return rest.strip_prefix("Xid").map_or_else(|| lost(rest), xid);
    }
    if let Some(rest) = text.strip_prefix("nvidia-nvswitch") {
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        return sxid(rest.strip_prefix(": SXid")?);
    }
    text.strip_prefix("mlx5_core ").and_then(nic)
}

/// ` (PCI:0000:3b:00): 79, pid=…, GPU has …`: the address with or without its bus's name, its function and the part of
/// the GPU that a MIG instance is.
fn numbered(rest: &str) -> Option<(String, u32, &str)> {
    let (place, rest) = rest.trim_start().strip_prefix('(')?.split_once(')')?;
    let place = place.split_whitespace().next()?;
    let place = place.strip_prefix("PCI:").unwrap_or(place);
    let pci = if place.contains('.') { pci_address(place) } else { pci_address(&format!("{place}.0")) }?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start();
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let code = rest[..digits].parse().ok().filter(|code| (1..=MOST_CODE).contains(code))?;
    let rest = &rest[digits..];
    if !rest.is_empty() && !rest.starts_with([',', ' ', ':', '.']) {
        return None;
    }
    Some((pci, code, rest.trim_start_matches([',', ':', '.']).trim()))
}

fn xid(rest: &str) -> Option<Said> {
    let (pci, code, words) = numbered(rest)?;
    let severity = match code {
        RECOVERY => recovery(words),
        _ if NVLINK5.contains(&code) => words.split_whitespace().take(SEVERITY_WITHIN).find_map(severity_of),
        _ => None,
    };
    Some(Said::Xid { family: Family::Xid, pci, code, severity, words: words.to_owned() })
}

fn severity_of(word: &str) -> Option<Severity> {
    let word = word.trim_end_matches(',');
    if word.eq_ignore_ascii_case("fatal") {
        Some(Severity::Fatal)
    } else if word.eq_ignore_ascii_case("nonfatal") || word.eq_ignore_ascii_case("non-fatal") {
        Some(Severity::Nonfatal)
    } else {
        None
    }
}

/// `GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)`.
fn recovery(words: &str) -> Option<Severity> {
    let (_, to) = words.rsplit_once(" to 0x")?;
    let digits = to.split(|c: char| !c.is_ascii_hexdigit()).next()?;
    let action = u32::from_str_radix(digits, 16).ok()?;
    Some(if action == 0 { Severity::Nonfatal } else { Severity::Fatal })
}

/// An SXid is several lines; the first says how bad it is, and those without that word belong to it.
fn sxid(rest: &str) -> Option<Said> {
    let (pci, code, words) = numbered(rest)?;
    let severity = severity_of(words.split_whitespace().next()?)?;
    Some(Said::Xid { family: Family::Sxid, pci, code, severity: Some(severity), words: words.to_owned() })
}

/// Some drivers say without an Xid that a GPU is lost: `The NVIDIA GPU 0000:b3:00.0 … fallen off the bus …`.
fn lost(rest: &str) -> Option<Said> {
    let place = rest.strip_prefix("The NVIDIA GPU ").or_else(|| rest.strip_prefix("GPU "))?;
    let (place, words) = place.split_once(' ')?;
    let pci = pci_address(place.trim_end_matches(':'))?;
    // A process's name stands in lines with an Xid only.
    words.contains("fallen off the bus").then(|| Said::Xid {
        family: Family::Xid,
        pci,
        code: LOST,
        severity: None,
        words: words.trim().to_owned(),
    })
}

/// `0000:81:00.0: poll_health:829:(pid 0): Fatal error 1 detected`; the interface's name may follow the address.
fn nic(rest: &str) -> Option<Said> {
    let (place, words) = rest.split_once(' ')?;
    let pci = pci_address(place.trim_end_matches(':'))?;
    let failed = (words.contains("Fatal error ") && words.ends_with("detected"))
        || words.contains("device's health compromised");
    failed.then(|| Said::NicFailed { pci, words: words.trim().to_owned() })
}

#[cfg(test)]
mod tests;
