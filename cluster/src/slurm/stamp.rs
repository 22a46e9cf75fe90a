//! For which release of Slurm a SPANK plugin is: Slurm loads one only when the 4-byte constant `plugin_version` that it
//! exports names its own release. Read and written here, in the bytes of a file; no other byte changes.

use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

const SYMBOL: &[u8] = b"plugin_version";
const SIZE: u64 = 4;

/// Why a plugin has no stamp.
#[derive(Debug, thiserror::Error)]
pub enum StampError {
    /// It is something else.
    #[error("it is no ELF file")]
    NoElf(#[source] object::Error),
    /// Slurm would not take it for a plugin either.
    #[error("it exports no plugin_version: is it a SPANK plugin?")]
    NoPlugin,
    /// The constant is there and is not one that can be read or written in the file.
    #[error("its plugin_version is not {SIZE} bytes that are stored in the file")]
    NotStored,
}

/// The number that a plugin carries.
///
/// # Errors
/// It is no plugin.
pub fn stamped(bytes: &[u8]) -> Result<u32, StampError> {
    let at = offset(bytes)?;
    let number = bytes.get(at..at + SIZE as usize).and_then(|four| four.try_into().ok());
    Ok(u32::from_ne_bytes(number.ok_or(StampError::NotStored)?))
}

/// Writes another number into it.
///
/// # Errors
/// It is no plugin.
pub fn stamp(bytes: &mut [u8], number: u32) -> Result<(), StampError> {
    let at = offset(bytes)?;
    let place = bytes.get_mut(at..at + SIZE as usize).ok_or(StampError::NotStored)?;
    // Slurm reads the number in the byte order of the machine, and both are the same machine here.
    place.copy_from_slice(&number.to_ne_bytes());
    Ok(())
}

/// Where in the file the constant lies.
fn offset(bytes: &[u8]) -> Result<usize, StampError> {
    let file = object::File::parse(bytes).map_err(StampError::NoElf)?;
    let symbol = file
        .dynamic_symbols()
        .find(|symbol| symbol.is_definition() && symbol.name_bytes().is_ok_and(|name| name == SYMBOL))
        .ok_or(StampError::NoPlugin)?;
    if symbol.size() != SIZE {
        return Err(StampError::NotStored);
    }
    let section = symbol.section_index().and_then(|index| file.section_by_index(index).ok());
    let section = section.ok_or(StampError::NotStored)?;
    let (start, size) = section.file_range().ok_or(StampError::NotStored)?;
    let within = symbol.address().checked_sub(section.address()).ok_or(StampError::NotStored)?;
    if within.checked_add(SIZE).is_none_or(|end| end > size) {
        return Err(StampError::NotStored);
    }
    start.checked_add(within).and_then(|at| usize::try_from(at).ok()).ok_or(StampError::NotStored)
}
