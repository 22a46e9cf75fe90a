//! The device layer: what is loaded at run time on a GPU node, what driver and kernel say of it, the product of the
//! host engine, and nothing that decides.
//!
//! A library of the CUDA engine that is missing is an error value with its name and the loader's own words, never
//! a panic and never a silent fall-back to the host engine.

pub mod collective;
pub mod confined;
pub mod cuda;
pub mod gemm;
mod libraries;
pub mod nccl;
pub mod nvml;
pub mod sysfs;

pub use libraries::{Libraries, LibraryError, Purpose};
