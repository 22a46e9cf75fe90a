//! The CUDA layer on fake libraries: the driver's part and cuBLASLt's. The fakes are a few lines of C; they stand for
//! states that can't be produced, and no number of theirs is a measurement.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]

mod blas;
mod driver;
mod fake;
