//! The CUDA engine on real GPUs under a real Slurm, behind one switch: `AIMASTER_GPU_TESTS=1`, on a machine that has a
//! GPU, Slurm and what else the local cluster needs. Two nodes share one GPU, so their speed means nothing; the way
//! of the data, the verdicts and the actions are real. `AIMASTER_PYTHON`, `AIMASTER_NCCL` and `AIMASTER_CUBLAS_LT` name
//! a python with torch and libraries that the loader does not find by itself, `AIMASTER_GPU` another than `/dev/nvidia0`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]

mod checks;
mod foreign_processes;
mod lost_workers;
mod runtime;
mod site;
mod wrong_bits;
