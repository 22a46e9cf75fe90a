//! Hostlists: names of Slurm's, of the policy and of topology files.

use diag::hostlist::{MAX_NAME_BYTES, MAX_NAMES, MAX_TEXT_BYTES, expand};

use crate::holds;

/// Names are bounded and plain, and stand for themselves when they are written out.
pub fn run(data: &[u8]) {
    let text = holds::text(data);
    let names = match expand(&text) {
        Ok(names) => names,
        Err(error) => {
            assert_eq!(expand(&text), Err(error.clone()));
            return holds::line(&error.to_string(), 200);
        }
    };
    assert!(!names.is_empty() && names.len() <= MAX_NAMES);
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    assert!(names.iter().all(|name| (1..=MAX_NAME_BYTES).contains(&name.len()) && name.chars().all(plain)));
    let written = names.join(",");
    if written.len() <= MAX_TEXT_BYTES {
        assert_eq!(expand(&written).unwrap(), names);
    }
}
