//! The fakes that are written in C, compiled: also for the tests of other crates, which include this file.
#![allow(dead_code, reason = "each test uses its part")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A driver with two GPUs whose memory is the process's own and that run our kernels on the processor.
pub const DRIVER: &str = concat!(
    include_str!("conf.h"),
    include_str!("shim.h"),
    include_str!("../../checks.cu"),
    include_str!("libcuda.c")
);

/// A library that multiplies in the simplest way.
pub const CUBLAS_LT: &str = concat!(include_str!("conf.h"), include_str!("cublas_lt.c"));

/// Compiles C to a library.
pub fn build(folder: &Path, name: &str, source: &str) -> PathBuf {
    let c = folder.join(format!("{name}.c"));
    let library = folder.join(name);
    std::fs::write(&c, source).unwrap();
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &c])
        .args(["-lm", "-ldl"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}
