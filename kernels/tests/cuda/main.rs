//! The CUDA layer on fake libraries: the driver's part, the kernels and cuBLASLt's part. The fakes are a few lines of C;
//! they stand for states that can't be produced and for arithmetic, and no time of theirs is a measurement.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]

mod blas;
mod built;
mod driver;
mod fake;
mod kernels_on_the_processor;
