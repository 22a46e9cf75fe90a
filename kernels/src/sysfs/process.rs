//! Who a process is. Only files that don't wait for the process's own memory are read: its command line may block
//! when it hangs in the driver.

use std::os::unix::fs::MetadataExt as _;

use super::{Root, text};

/// A process by its name and its user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessOwner {
    /// The first 15 bytes of its name.
    pub command: String,
    /// The user that it runs as.
    pub uid: u32,
    /// The kernel's letter for its state: `R`, `S`, `D` (waits in the kernel and can't be ended), `Z`, …
    pub state: Option<char>,
}

/// `None` where there is no such process, or no longer.
#[must_use]
pub fn process_owner(root: &Root, pid: u32) -> Option<ProcessOwner> {
    let folder = root.path("proc").join(pid.to_string());
    let uid = std::fs::metadata(&folder).ok()?.uid();
    let command = text(&folder.join("comm"))?;
    // The name in the brackets may itself hold brackets and spaces.
    let stat = text(&folder.join("stat"));
    let state = stat.as_deref().and_then(|stat| stat.rsplit_once(") ")?.1.chars().next());
    Some(ProcessOwner { command, uid, state })
}
