//! Writes Slurm's version number into a SPANK plugin: Slurm loads a plugin only when its exported
//! 4-byte constant `plugin_version` names the same release. No other byte changes.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use object::{Object, ObjectSection, ObjectSymbol, SectionIndex};

use crate::slurm_version::SlurmVersion;

const SYMBOL: &[u8] = b"plugin_version";
const SIZE: u64 = 4;

/// Stamps the plugin at `path`.
pub fn stamp(path: &Path, version: SlurmVersion) -> Result<()> {
    let mut bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let offset = offset(&bytes)?;
    // Slurm reads the number in the byte order of the machine, and both are the same machine here.
    bytes[offset..offset + SIZE as usize].copy_from_slice(&version.number().to_ne_bytes());
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// The number that a plugin carries.
pub fn stamped(path: &Path) -> Result<u32> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let offset = offset(&bytes)?;
    Ok(u32::from_ne_bytes(bytes[offset..offset + SIZE as usize].try_into()?))
}

/// Where in the file the constant lies.
fn offset(bytes: &[u8]) -> Result<usize> {
    let file = object::File::parse(bytes).context("it is no ELF file")?;
    let symbol = file
        .dynamic_symbols()
        .find(|s| s.is_definition() && s.name_bytes().is_ok_and(|name| name == SYMBOL))
        .context("it exports no plugin_version: is it a SPANK plugin?")?;
    if symbol.size() != SIZE {
        bail!("its plugin_version has {} bytes, not {SIZE}", symbol.size());
    }
    let index: SectionIndex = symbol.section_index().context("plugin_version lies in no section")?;
    let section = file.section_by_index(index).context("section of plugin_version")?;
    let (start, size) = section.file_range().context("plugin_version is not stored in the file")?;
    let within = symbol.address().checked_sub(section.address()).context("address of plugin_version")?;
    if within + SIZE > size {
        bail!("plugin_version lies outside its section");
    }
    Ok(usize::try_from(start + within)?)
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
