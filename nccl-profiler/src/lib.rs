//! nccl-profiler.
