//! NCCL's profiler interface and the telemetry that comes through it: the layout of NCCL's events, the ring that a rank's
//! process writes, the hand-over to the agent of the node, and the agent's reader.
//!
//! The plugin that NCCL loads is the package `nccl-profiler-plugin`; it puts names on what is here. It is built without
//! the standard library, so that the feature `std`, the reader's, is off there.
#![cfg_attr(not(feature = "std"), no_std)]

pub mod descriptor;
pub mod handover;
pub mod plugin;
pub mod ring;
