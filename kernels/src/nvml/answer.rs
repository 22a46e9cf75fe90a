//! What an answer of NVML means: a value, nothing to tell, a GPU that is lost, or a failure worth telling.

use nvml_wrapper::error::NvmlError;

/// The driver has started, and its GPUs can't be used yet.
const NOT_READY: u32 = nvml_wrapper_sys::bindings::nvmlReturn_enum_NVML_ERROR_NOT_READY;

/// Most failures that are kept of one GPU: a driver in trouble fails every call, and a handful shows it.
const MOST_FAILURES: usize = 8;

/// What went wrong while one GPU was read.
#[derive(Debug, Default)]
pub(super) struct Failures {
    pub lost: Option<String>,
    pub unreadable: Vec<String>,
}

impl Failures {
    /// The value, if there is one; else what the error means is kept.
    pub fn value<T>(&mut self, call: &str, answer: Result<T, NvmlError>) -> Option<T> {
        match answer {
            Ok(value) => return Some(value),
            Err(error) if is_lost(&error) => {
                self.lost.get_or_insert_with(|| format!("{call}: {}", words(&error)));
            }
            Err(error) if is_nothing(&error) => (),
            Err(error) if self.unreadable.len() < MOST_FAILURES => {
                self.unreadable.push(format!("{call}: {}", words(&error)));
            }
            Err(_) => (),
        }
        None
    }
}

/// The GPU can't be used until it is reset or seated again.
pub(super) fn is_lost(error: &NvmlError) -> bool {
    matches!(error, NvmlError::GpuLost | NvmlError::ResetRequired)
}

/// A GPU that is not opened for a reason that is not its own: a right that is missing, memory, somebody who holds it, a
/// driver that does not fit or is not ready yet (field case F05). Any other reason counts as the GPU's.
pub(super) fn is_refused(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::NoPermission
            | NvmlError::OperatingSystem
            | NvmlError::InUse
            | NvmlError::InsufficientMemory
            | NvmlError::DriverNotLoaded
            | NvmlError::LibRmVersionMismatch
            | NvmlError::UnexpectedVariant(NOT_READY)
    )
}

/// An error in words; the wrapper has none for one of them.
pub(super) fn words(error: &NvmlError) -> String {
    match error {
        NvmlError::UnexpectedVariant(NOT_READY) => "the system is not in ready state".to_owned(),
        other => other.to_string(),
    }
}

/// The driver, its version, the GPU or the right of an ordinary user has no such value: no failure.
fn is_nothing(error: &NvmlError) -> bool {
    use nvml_wrapper_sys::bindings as sys;
    matches!(
        error,
        NvmlError::NotSupported
            | NvmlError::FailedToLoadSymbol(_)
            | NvmlError::FunctionNotFound
            | NvmlError::NoPermission
            | NvmlError::NotFound
            | NvmlError::NoData
            | NvmlError::InvalidArg
            | NvmlError::UnexpectedVariant(
                sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH
                    | sys::nvmlReturn_enum_NVML_ERROR_DEPRECATED
            )
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_gpu_does_not_have_is_no_failure() {
        let mut failures = Failures::default();
        assert_eq!(failures.value("a", Ok(7)), Some(7));
        assert_eq!(failures.value::<u32>("b", Err(NvmlError::NotSupported)), None);
        assert_eq!(failures.value::<u32>("c", Err(NvmlError::UnexpectedVariant(25))), None);
        assert!(failures.lost.is_none() && failures.unreadable.is_empty(), "{failures:?}");
    }

    #[test]
    fn the_first_word_of_a_lost_gpu_is_kept_and_failures_are_bounded() {
        let mut failures = Failures::default();
        failures.value::<u32>("clocks", Err(NvmlError::GpuLost));
        failures.value::<u32>("power", Err(NvmlError::ResetRequired));
        assert!(failures.lost.is_some_and(|lost| lost.starts_with("clocks: ")));
        let mut failures = Failures::default();
        for _ in 0..100 {
            failures.value::<u32>("ecc", Err(NvmlError::Unknown));
        }
        assert_eq!(failures.unreadable.len(), MOST_FAILURES);
    }
}
