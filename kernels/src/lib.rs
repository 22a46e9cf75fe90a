//! kernels.
pub mod gemm;
