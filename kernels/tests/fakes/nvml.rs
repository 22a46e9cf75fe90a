//! A stand-in for `libnvidia-ml.so.1` of a current driver: it answers from a file, so that every state of a GPU can be
//! shown to the code that reads it. It measures nothing and stands for no measurement.
#![allow(non_snake_case, reason = "the names are NVML's")]
#![allow(missing_docs, clippy::missing_safety_doc, reason = "each function is NVML's own of that name")]

mod calls;
mod events;
mod newer;
mod state;
