//! The policy file as this plugin sees it: there and good, there and broken, or not there.

use std::path::Path;

use diag::policy::Policy;

use crate::files::{ReadError, read};

/// Largest policy: room for a map of addresses of the largest cluster.
const MAX_POLICY_BYTES: usize = 4 << 20;

/// The policy, or `None` where there is no file.
///
/// # Errors
/// One line: why it can't be used.
pub fn load(path: &Path) -> Result<Option<Policy>, String> {
    let wrong = |cause: &dyn std::fmt::Display| format!("policy {}: {cause}", path.display());
    let bytes = match read(path, MAX_POLICY_BYTES + 1) {
        Ok(bytes) => bytes,
        Err(ReadError::Missing) => return Ok(None),
        Err(cause) => return Err(wrong(&cause)),
    };
    if bytes.len() > MAX_POLICY_BYTES {
        return Err(wrong(&format!("it is larger than {MAX_POLICY_BYTES} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| wrong(&"it is not UTF-8"))?;
    Policy::parse(&text).map(Some).map_err(|mistakes| match mistakes.as_slice() {
        [] => wrong(&"it is wrong"),
        [only] => wrong(only),
        [first, rest @ ..] => wrong(&format!("{first} (and {} more mistakes)", rest.len())),
    })
}
