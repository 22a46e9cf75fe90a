//! Finding the CUDA engine's libraries by `dlopen`. It loads and unloads them; it calls nothing in them.

use std::error::Error as _;

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

/// A library by what it is for, with the names that it is shipped under, newest first: runtime-only packages and
/// Python wheels ship versioned names only.
const REQUIRED: &[(&str, &[&str])] = &[
    ("NVIDIA driver", &["libcuda.so.1"]),
    ("NVML", &["libnvidia-ml.so.1"]),
    ("cuBLASLt", &["libcublasLt.so.13", "libcublasLt.so.12"]),
    ("NCCL", &["libnccl.so.2"]),
];

/// A library that the CUDA engine needs and that can't be loaded.
#[derive(Debug, thiserror::Error)]
#[error(
    "{purpose}: can't load {names} ({loader}); searched by the dynamic loader: LD_LIBRARY_PATH, /etc/ld.so.cache, /lib, /usr/lib"
)]
pub struct LibraryError {
    /// What it is for.
    pub purpose: &'static str,
    /// The names that were tried.
    pub names: String,
    /// What the loader said of the last one.
    pub loader: String,
}

/// Whether every library of the CUDA engine can be loaded.
///
/// # Errors
/// The first library that can't.
pub fn require_cuda() -> Result<(), LibraryError> {
    REQUIRED.iter().try_for_each(|(purpose, names)| require(purpose, names))
}

fn require(purpose: &'static str, names: &[&str]) -> Result<(), LibraryError> {
    let mut loader = String::new();
    for name in names {
        // SAFETY: the libraries are the vendor's own, named by bare name; their initialisers start nothing until
        // a function is called, and RTLD_LOCAL keeps their symbols out of everybody else's way.
        match unsafe { Library::open(Some(*name), RTLD_LAZY | RTLD_LOCAL) } {
            Ok(_) => return Ok(()),
            // libloading keeps the loader's message in the source.
            Err(error) => loader = error.source().map_or_else(|| error.to_string(), ToString::to_string),
        }
    }
    Err(LibraryError { purpose, names: names.join(" or "), loader })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_the_loaders_words() {
        let error = require("test", &["libno-such-library.so.7", "libno-such-library.so.6"]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("libno-such-library.so.7 or libno-such-library.so.6"), "{text}");
        assert!(error.loader.contains("No such file"), "{text}");
    }

    #[test]
    fn a_library_that_is_there_loads() {
        require("C library", &["libc.so.6"]).unwrap();
    }
}
