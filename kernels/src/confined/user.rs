//! Which user a process without rights runs as.

use std::path::Path;

/// Where local users are. Directory services are not asked: a lookup there can hang, and the two users that
/// serve by default are local ones.
const PASSWD: &str = "/etc/passwd";

/// Users that serve where the policy names none, in this order.
const DEFAULT_USERS: [&str; 2] = ["aimaster", "nobody"];

/// Why there is no user for the worker.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// The list of users can't be read.
    #[error("{PASSWD} can't be read")]
    Unreadable(#[source] std::io::Error),
    /// Not a local user.
    #[error("there is no user {name} in {PASSWD}; name a local user, or write uid:gid")]
    Unknown {
        /// Who was looked for.
        name: String,
    },
    /// Root has the rights that the worker is not to have.
    #[error("user {name} is root; the worker must run without rights")]
    Root {
        /// Who was named.
        name: String,
    },
}

/// Uid and gid for the worker; `None` where this process is not root and so can't choose.
///
/// # Errors
/// If there is no such local user, or it is root.
pub fn resolve(user: &str) -> Result<Option<(u32, u32)>, UserError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    look_up(user).map(Some)
}

/// Uid and gid for the worker, whoever asks.
///
/// # Errors
/// If there is no such local user, or it is root.
pub fn look_up(user: &str) -> Result<(u32, u32), UserError> {
    let passwd = std::fs::read_to_string(Path::new(PASSWD)).map_err(UserError::Unreadable)?;
    find(user, &passwd)
}

fn find(user: &str, passwd: &str) -> Result<(u32, u32), UserError> {
    let found = if user.is_empty() {
        DEFAULT_USERS.iter().find_map(|name| entry(name, passwd))
    } else {
        numbers(user).or_else(|| entry(user, passwd))
    };
    let named = || if user.is_empty() { DEFAULT_USERS.join(" or ") } else { user.to_owned() };
    match found {
        Some((0, _) | (_, 0)) => Err(UserError::Root { name: named() }),
        Some(identity) => Ok(identity),
        None => Err(UserError::Unknown { name: named() }),
    }
}

fn numbers(user: &str) -> Option<(u32, u32)> {
    let (uid, gid) = user.split_once(':')?;
    Some((uid.parse().ok()?, gid.parse().ok()?))
}

fn entry(name: &str, passwd: &str) -> Option<(u32, u32)> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then_some(())?;
        let mut ids = fields.skip(1);
        Some((ids.next()?.parse().ok()?, ids.next()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: &str = "root:x:0:0::/:/bin/sh\nnobody:x:65534:65533::/:/bin/false\ntoor:x:0:5::/:/bin/sh\n";

    #[test]
    fn the_policy_wins_then_aimaster_then_nobody() {
        let own = format!("{LOCAL}aimaster:x:990:991::/:/bin/false\n");
        assert_eq!(find("", LOCAL).unwrap(), (65_534, 65_533));
        assert_eq!(find("", &own).unwrap(), (990, 991));
        assert_eq!(find("nobody", &own).unwrap(), (65_534, 65_533));
        assert_eq!(find("7:8", &own).unwrap(), (7, 8));
    }

    #[test]
    fn root_in_any_form_and_strangers_are_refused() {
        for root in ["root", "toor", "0:5", "5:0"] {
            assert!(matches!(find(root, LOCAL), Err(UserError::Root { .. })), "{root}");
        }
        assert!(matches!(find("alice", LOCAL), Err(UserError::Unknown { .. })));
        assert!(matches!(find("", "root:x:0:0::/:/bin/sh"), Err(UserError::Unknown { .. })));
    }
}
