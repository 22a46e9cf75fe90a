//! Which Slurm is installed, and the number that a SPANK plugin must carry for it. Stamping that
//! number is `stamp`'s work.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Names a folder with another Slurm, from which clusters are booted; see [`crate::ClusterBuilder::root`].
pub const ROOT_VARIABLE: &str = "AIMASTER_TESTS_ROOT";

/// The folder that the variable names.
pub(crate) fn other_root() -> Option<PathBuf> {
    std::env::var_os(ROOT_VARIABLE).filter(|value| !value.is_empty()).map(Into::into)
}

/// A release of Slurm, such as 22.05.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlurmVersion {
    /// The year.
    pub major: u8,
    /// The month.
    pub minor: u8,
    /// The maintenance release.
    pub micro: u8,
}

impl SlurmVersion {
    /// The one that clusters are booted with: this machine's, or the one that [`ROOT_VARIABLE`] names.
    pub fn installed() -> Result<Self> {
        Self::of(other_root().as_deref())
    }

    /// Asks `slurmd -V`, of this machine or in a folder that holds another system.
    pub fn of(root: Option<&Path>) -> Result<Self> {
        let mut command = Command::new("slurmd");
        if let Some(root) = root {
            command = Command::new("chroot");
            command.args([root, Path::new("/usr/sbin/slurmd")]);
        }
        let output = command.arg("-V").output().context("cannot run slurmd: is it installed?")?;
        if !output.status.success() {
            bail!("slurmd -V: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
        }
        Self::parse(&String::from_utf8_lossy(&output.stdout))
    }

    /// Reads `slurm-wlm 22.05.8` or `slurm 24.11.5`.
    pub fn parse(text: &str) -> Result<Self> {
        let word = text.split_whitespace().next_back().unwrap_or_default();
        let mut parts = word.split(['.', '-']).map(str::parse);
        match (parts.next(), parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor)), Some(Ok(micro))) => Ok(Self { major, minor, micro }),
            _ => bail!("{:?} names no version of Slurm", text.trim()),
        }
    }

    /// Slurm's own number: each part is one byte, 22.05.8 is 0x160508.
    pub fn number(self) -> u32 {
        u32::from_be_bytes([0, self.major, self.minor, self.micro])
    }

    /// Whether it is older than a release.
    pub fn is_before(self, major: u8, minor: u8) -> bool {
        (self.major, self.minor) < (major, minor)
    }
}

impl fmt::Display for SlurmVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}.{}", self.major, self.minor, self.micro)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_slurmd_prints() {
        let version = SlurmVersion::parse("slurm-wlm 22.05.8\n").unwrap();
        assert_eq!((version.number(), version.to_string().as_str()), (0x16_05_08, "22.05.8"));
        assert_eq!(SlurmVersion::parse("slurm 24.11.5").unwrap().number(), 0x18_0b_05);
        assert!(SlurmVersion::parse("slurm").is_err());
        assert!(version.is_before(23, 2) && !version.is_before(22, 5));
    }
}
