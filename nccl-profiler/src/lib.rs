//! Layout of the events that NCCL hands to a profiler plugin: `ncclProfiler_v4` to `v6`, x86-64.
//!
//! Only the layout: nothing here reads through a pointer that NCCL passed.
#![forbid(unsafe_code)]

pub mod descriptor;
