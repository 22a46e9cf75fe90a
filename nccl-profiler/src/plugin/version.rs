//! Which NCCL this is allowed to be. Pure.

use crate::handover::Status;

/// Versions whose own profiler support crashes jobs, as NVIDIA's documentation of its resiliency extension says.
const BROKEN: (u32, u32) = (number(2, 28, 3), number(2, 28, 8));

/// NCCL's number of a version.
pub(super) const fn number(major: u32, minor: u32, patch: u32) -> u32 {
    major * 10_000 + minor * 100 + patch
}

/// The versions that can take this interface of ours: NCCL takes the newest that it knows.
const fn of_interface(api: u32) -> (u32, u32) {
    match api {
        3 => (number(2, 26, 2), number(2, 27, 2)),
        4 => (number(2, 27, 3), number(2, 28, 2)),
        5 => (number(2, 28, 3), number(2, 29, 1)),
        _ => (number(2, 29, 2), u32::MAX),
    }
}

/// Whether telemetry may be on with NCCL's `version`, 0 if it is not known. `denied` is the site's list, in the form
/// `2.28.3-2.28.8,2.30.1`. A part of it that can't be read denies everything: nobody knows what it was to protect.
pub(super) fn judge(api: u32, version: u32, denied: &[u8]) -> Status {
    let (lowest, highest) = if version == 0 { of_interface(api) } else { (version, version) };
    let within = |(from, to): (u32, u32)| from <= highest && lowest <= to;
    let mut hit = within(BROKEN);
    for part in denied.split(|byte| *byte == b',') {
        let part = part.trim_ascii();
        if part.is_empty() {
            continue;
        }
        match range(part) {
            Some(range) => hit |= within(range),
            None => return Status::VersionDenied,
        }
    }
    match (hit, version) {
        (false, _) => Status::Ring,
        (true, 0) => Status::VersionUnknown,
        (true, _) => Status::VersionDenied,
    }
}

fn range(part: &[u8]) -> Option<(u32, u32)> {
    let mut ends = part.splitn(2, |byte| *byte == b'-');
    let from = one(ends.next()?.trim_ascii())?;
    let to = match ends.next() {
        Some(to) => one(to.trim_ascii())?,
        None => from,
    };
    Some((from, to))
}

/// `2.28.3` as NCCL's number.
fn one(text: &[u8]) -> Option<u32> {
    let mut parts = text.split(|byte| *byte == b'.').map(digits);
    let version = number(parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some(version)
}

fn digits(text: &[u8]) -> Option<u32> {
    if text.is_empty() || text.len() > 2 {
        return None;
    }
    let mut number = 0;
    for byte in text {
        if !byte.is_ascii_digit() {
            return None;
        }
        number = number * 10 + u32::from(byte - b'0');
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    // O01, O03.
    #[test]
    fn broken_versions_are_denied_and_their_neighbours_are_not() {
        for (api, version, expected) in [
            (4, 22802, Status::Ring),
            (5, 22803, Status::VersionDenied),
            (5, 22807, Status::VersionDenied),
            (5, 22808, Status::VersionDenied),
            (5, 22809, Status::Ring),
            (6, 23007, Status::Ring),
            // Not known: what the interface says of the version decides.
            (3, 0, Status::Ring),
            (4, 0, Status::Ring),
            (5, 0, Status::VersionUnknown),
            (6, 0, Status::Ring),
        ] {
            assert_eq!(judge(api, version, b""), expected, "v{api} {version}");
        }
    }

    #[test]
    fn a_site_s_list_adds_to_it() {
        for (list, api, version, expected) in [
            ("2.30.1", 6, 23001, Status::VersionDenied),
            ("2.30.1", 6, 23002, Status::Ring),
            ("2.30.1", 6, 0, Status::VersionUnknown),
            ("2.30.1", 4, 0, Status::Ring),
            (" 2.27.3 - 2.27.5 , 2.30.1 ", 4, 22704, Status::VersionDenied),
            ("2.27.3-2.27.5,", 4, 22706, Status::Ring),
            ("2.30.1", 5, 22804, Status::VersionDenied),
            // Nobody knows what these were to protect.
            ("2.30", 6, 23007, Status::VersionDenied),
            ("2.30.x", 3, 0, Status::VersionDenied),
            ("2.30.1-", 4, 22704, Status::VersionDenied),
            ("2.30.1.4", 4, 22704, Status::VersionDenied),
            ("2.300.1", 4, 22704, Status::VersionDenied),
        ] {
            assert_eq!(judge(api, version, list.as_bytes()), expected, "{list} v{api} {version}");
        }
    }
}
