//! Who a process is. Only files that don't wait for the process's own memory are read: its command line may block
//! when it hangs in the driver.

use std::os::unix::fs::MetadataExt as _;

use diag::gpu_facts::reading::ProcessOwner;

use super::{Root, text};

/// `None` where there is no such process, or no longer.
#[must_use]
pub fn process_owner(root: &Root, pid: u32) -> Option<ProcessOwner> {
    let folder = root.path("proc").join(pid.to_string());
    // The files of a process that can't be dumped are root's; its status tells the truth.
    let own = std::fs::metadata(&folder).ok()?.uid();
    let status = text(&folder.join("status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let uid = line.and_then(|ids| ids.split_whitespace().next()?.parse().ok()).unwrap_or(own);
    let command = text(&folder.join("comm"))?;
    // The name in the brackets may itself hold brackets and spaces.
    let stat = text(&folder.join("stat"));
    let state = stat.as_deref().and_then(|stat| stat.rsplit_once(") ")?.1.chars().next());
    // A directory service is not asked: it may hang, and the number will do.
    let users = text(&root.path("etc/passwd")).unwrap_or_default();
    let user = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    Some(ProcessOwner { command, uid, user, state })
}
