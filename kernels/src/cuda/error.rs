//! Why something on a GPU did not happen: one enum for the whole module, each with what it concerned.

use crate::LibraryError;

/// An error of the CUDA engine.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CudaError {
    /// A library or a function of it is missing.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The driver refused a call, or reports what an earlier one led to.
    #[error("{gpu}: {call}: {name} ({code}), {text}")]
    Driver {
        /// The GPU, or the driver itself.
        gpu: String,
        /// The function.
        call: &'static str,
        /// The driver's number.
        code: i32,
        /// Its name.
        name: String,
        /// The driver's words.
        text: String,
    },
    /// cuBLASLt refused a call.
    #[error("{gpu}: cuBLASLt {version}: {call}: {name} ({code})")]
    Blas {
        /// The GPU.
        gpu: String,
        /// The library's version.
        version: String,
        /// The function.
        call: &'static str,
        /// Its number.
        code: i32,
        /// Its name.
        name: String,
    },
    /// The driver is older than what the kernels are written for.
    #[error("the NVIDIA driver supports CUDA {found}; {needed} or newer is needed (driver 525)")]
    OldDriver {
        /// What it supports.
        found: String,
        /// What is needed.
        needed: String,
    },
    /// No GPU with that UUID.
    #[error("no GPU {wanted}; the driver shows {present}")]
    NoSuchDevice {
        /// Which one was looked for.
        wanted: String,
        /// Those that are there.
        present: String,
    },
    /// Not enough memory on the GPU.
    #[error("{gpu}: no room for {wanted} bytes: {free} of {total} bytes are free")]
    OutOfMemory {
        /// The GPU.
        gpu: String,
        /// How much was asked for.
        wanted: usize,
        /// How much was free.
        free: usize,
        /// How much there is.
        total: usize,
    },
    /// The GPU did not finish what it was given.
    #[error("{gpu}: not finished after {waited_ms} ms")]
    Hung {
        /// The GPU.
        gpu: String,
        /// How long it was waited for.
        waited_ms: u128,
    },
    /// The wait was given up because somebody asked for it.
    #[error("{gpu}: stopped while waiting")]
    Cancelled {
        /// The GPU.
        gpu: String,
    },
    /// The driver could not compile the kernels.
    #[error("{gpu}: the driver can't compile the kernels ({name}): {log}")]
    Kernels {
        /// The GPU.
        gpu: String,
        /// The driver's error.
        name: String,
        /// The compiler's words.
        log: String,
    },
    /// A buffer, stream or kernel was made in another context.
    #[error("{gpu}: {what} belongs to another context")]
    Foreign {
        /// The GPU.
        gpu: String,
        /// What it is.
        what: &'static str,
    },
    /// Sizes that don't fit each other, or the GPU.
    #[error("{gpu}: {what}")]
    Size {
        /// The GPU.
        gpu: String,
        /// What does not fit.
        what: String,
    },
    /// The GPU can't do it.
    #[error("{gpu}: {what} needs compute capability {needed}, this is {found}")]
    Unsupported {
        /// The GPU.
        gpu: String,
        /// What.
        what: &'static str,
        /// From which compute capability on.
        needed: String,
        /// What the GPU has.
        found: String,
    },
    /// cuBLASLt has no way to compute a product.
    #[error("{gpu}: cuBLASLt {version} has no working algorithm for this product: {reason}")]
    NoAlgorithm {
        /// The GPU.
        gpu: String,
        /// The library's version.
        version: String,
        /// What it said of the last one.
        reason: String,
    },
}

/// `CUBLAS_STATUS_NOT_SUPPORTED`: what the library says of a product that it knows no way for.
const NOT_SUPPORTED: i32 = 15;

/// Results of the driver that say that the GPU or its link is broken, whatever the program did:
/// `CUDA_ERROR_ECC_UNCORRECTABLE` and `CUDA_ERROR_NVLINK_UNCORRECTABLE`.
const BROKEN: [i32; 2] = [214, 220];

impl CudaError {
    /// Whether the driver says that the hardware is broken.
    #[must_use]
    pub fn says_broken(&self) -> bool {
        matches!(self, Self::Driver { code, .. } if BROKEN.contains(code))
    }

    /// Whether the GPU or the library has no such thing: nothing is broken.
    #[must_use]
    pub fn is_not_offered(&self) -> bool {
        match self {
            Self::Unsupported { .. } | Self::NoAlgorithm { .. } => true,
            Self::Blas { code, .. } => *code == NOT_SUPPORTED,
            _ => false,
        }
    }
}
