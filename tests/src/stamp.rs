//! Writes Slurm's version number into a SPANK plugin's file, with the product's own code for it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use cluster::slurm::stamp;

use crate::slurm_version::SlurmVersion;

/// Stamps the plugin at `path`.
pub fn stamp(path: &Path, version: SlurmVersion) -> Result<()> {
    let mut bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    stamp::stamp(&mut bytes, version.number())?;
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// The number that a plugin carries.
pub fn stamped(path: &Path) -> Result<u32> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(stamp::stamped(&bytes)?)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn changes_the_constant_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("plugin.rs");
        let plugin = dir.path().join("plugin.so");
        let code = "#![no_std]\n#[unsafe(no_mangle)] pub static plugin_version: u32 = 0x77665544;\n\
                    #[panic_handler] fn p(_: &core::panic::PanicInfo) -> ! { loop {} }";
        fs::write(&source, code).unwrap();
        let status = Command::new("rustc")
            .args([
                "--edition",
                "2024",
                "--crate-type",
                "cdylib",
                "-C",
                "panic=abort",
                "-A",
                "warnings",
                "-o",
            ])
            .args([&plugin, &source])
            .status()
            .unwrap();
        assert!(status.success());
        assert_eq!(stamped(&plugin).unwrap(), 0x7766_5544);
        let before = fs::read(&plugin).unwrap();
        stamp(&plugin, SlurmVersion::parse("slurm 22.05.8").unwrap()).unwrap();
        assert_eq!(stamped(&plugin).unwrap(), 0x16_05_08);
        let after = fs::read(&plugin).unwrap();
        let changed = before.iter().zip(&after).filter(|(a, b)| a != b).count();
        assert!(before.len() == after.len() && changed <= 4, "{changed} bytes changed");
        assert!(stamp(&source, SlurmVersion::parse("slurm 22.05.8").unwrap()).is_err());
    }
}
