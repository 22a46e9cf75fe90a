//! The CUDA driver and cuBLASLt: devices, streams, memory, the kernels of the checks, the matrix product and the
//! launch times. It measures; it judges nothing, starts no thread, and knows no node and no job.
//!
//! The types, structures and numbers of both interfaces are cudarc's (`driver::sys`, `cublaslt::sys`, generated from
//! the headers of CUDA 13.0); the libraries are opened and called by a table of our own, for four reasons:
//!
//! - cudarc asks the loader for bare names, the unversioned one first: a library that the policy names by path, even
//!   one that is open already, would lose against another version that happens to be on the loader's path.
//! - With cudarc a missing library or function is a panic at first use. Here it is a [`CudaError`] when the library is
//!   opened, with its path and the function's name, and several libraries can be tried in one process.
//! - cudarc returns results as Rust enums: a number that a newer driver invents would be undefined behaviour. Here
//!   results are integers, and their names come from the library.
//! - Functions that CUDA 13 renamed (`cuEventElapsedTime`) are asked for by the names that drivers from 12.0 on have.
//!
//! So nothing in here can panic on what a machine lacks. Nothing waits without a limit either: queued work is waited
//! for by asking ([`Stream::wait`]), and memory that work may still touch is parked, not freed, since freeing would
//! wait for that work (`context.rs`). What can't be bounded from inside is a call that the driver itself does not
//! return from; that is for whoever watches the process.

mod blas;
mod context;
mod driver;
mod error;
mod gemm;
mod kernels;
pub mod launch;
mod memory;
pub mod pattern;
mod stream;
mod table;

pub use blas::CublasLt;
pub use context::Context;
pub use driver::{Device, DeviceInfo, Driver, Loaded, Version};
pub use error::CudaError;
pub use gemm::{Choice, Gemm, Output, Sampled, Shape, Wrong, tflops};
pub use kernels::Kernels;
pub use memory::{DeviceBuffer, Element};
pub use pattern::{Collective, Operand};
pub use stream::{Event, Limit, Stream};
