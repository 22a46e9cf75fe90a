//! The device layer: the CUDA engine's libraries, loaded at run time, the product of the host engine, and nothing
//! that decides.
//!
//! A library of the CUDA engine that is missing is an error value with its name and the loader's own words, never
//! a panic and never a silent fall-back to the host engine.

pub mod cuda;
pub mod gemm;
mod libraries;
pub mod nccl;

pub use libraries::{Libraries, LibraryError, Purpose, require_cuda};
