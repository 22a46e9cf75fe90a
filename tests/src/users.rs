//! The users that tests act as, made on this machine when missing. They stay: they cost nothing
//! and the next run needs them. Nothing here runs commands as a user (`exec` does).

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The user that submits jobs unless a test says otherwise.
pub const ALICE: &str = "alice";
/// A second ordinary user.
pub const BOB: &str = "bob";
/// The system user that workers run as.
pub const AIMASTER: &str = "aimaster";

/// An entry of the user database.
#[derive(Clone, Debug)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: String,
}

/// Looks a user up in `/etc/passwd`.
pub(crate) fn find(name: &str) -> Result<Option<User>> {
    let text = fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
    for line in text.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        let [found, _, uid, gid, _, home, ..] = fields[..] else { continue };
        if found == name {
            let (uid, gid) = (uid.parse().context("uid")?, gid.parse().context("gid")?);
            return Ok(Some(User { name: name.to_owned(), uid, gid, home: home.to_owned() }));
        }
    }
    Ok(None)
}

/// Like [`find`], but a missing user is an error.
pub(crate) fn get(name: &str) -> Result<User> {
    find(name)?.with_context(|| format!("there is no user {name:?}"))
}

/// Makes the users of the tests where they are missing.
pub(crate) fn ensure() -> Result<()> {
    for name in [ALICE, BOB] {
        create(name, &["-M", "-s", "/bin/bash"])?;
    }
    create(AIMASTER, &["-r", "-M", "-s", "/usr/sbin/nologin"])
}

fn create(name: &str, flags: &[&str]) -> Result<()> {
    if find(name)?.is_some() {
        return Ok(());
    }
    let output = Command::new("useradd").args(flags).arg(name).output().context("cannot run useradd")?;
    // Another test process may have been quicker.
    if output.status.success() || find(name)?.is_some() {
        return Ok(());
    }
    bail!("useradd {name}: {}", String::from_utf8_lossy(&output.stderr).trim())
}

/// Makes home folders below `homes` (shown as `/home` in every node).
pub(crate) fn make_homes(homes: &Path) -> Result<()> {
    for name in [ALICE, BOB] {
        let user = get(name)?;
        let home = homes.join(name);
        fs::create_dir_all(&home).with_context(|| format!("cannot create {}", home.display()))?;
        own(&home, &user)?;
    }
    Ok(())
}

/// Gives a file or folder to a user.
pub(crate) fn own(path: &Path, user: &User) -> Result<()> {
    std::os::unix::fs::chown(path, Some(user.uid), Some(user.gid))
        .with_context(|| format!("cannot give {} to {}", path.display(), user.name))
}
