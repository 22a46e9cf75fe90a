//! The stand-in for `libnvidia-ml.so.1` as a driver of the R470 line: functions that came later are not in it.
#![allow(non_snake_case, reason = "the names are NVML's")]
#![allow(missing_docs, clippy::missing_safety_doc, reason = "each function is NVML's own of that name")]

mod calls;
mod state;
