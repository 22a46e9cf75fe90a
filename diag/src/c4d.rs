//! Diagnosis while the job runs: from what the nodes tell of their ranks once a second to findings. Pure, like the
//! rest of the crate: the digests and the time are arguments.

pub mod digest;
mod digest_check;
mod digest_wire;
