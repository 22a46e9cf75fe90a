//! `libnccl-profiler-aimaster.so`: the names that NCCL looks for. NCCL takes the newest that it knows.
//!
//! It is built with `cargo build --profile plugin -p nccl-profiler-plugin`, without the standard library: that needs symbols
//! of the C library of the machine that builds it, and containers are older than hosts. With another profile, where panics unwind, it is linked
//! with the standard library, for tests of the workspace; that file is not the one to install.
#![cfg_attr(panic = "abort", no_std)]

use nccl_profiler::descriptor::{InitV3, InitV4, InitV5, Table};
use nccl_profiler::plugin;

/// NCCL 2.26.2 and later.
// SAFETY: the name is NCCL's for this table.
#[unsafe(no_mangle)]
pub static ncclProfiler_v3: Table<InitV3> = plugin::V3;

/// NCCL 2.27.3 and later.
// SAFETY: the name is NCCL's for this table.
#[unsafe(no_mangle)]
pub static ncclProfiler_v4: Table<InitV4> = plugin::V4;

/// NCCL 2.28.3 and later.
// SAFETY: the name is NCCL's for this table.
#[unsafe(no_mangle)]
pub static ncclProfiler_v5: Table<InitV5> = plugin::V5;

/// NCCL 2.29.2 and later.
// SAFETY: the name is NCCL's for this table.
#[unsafe(no_mangle)]
pub static ncclProfiler_v6: Table<InitV5> = plugin::V6;

#[cfg(panic = "abort")]
mod never {
    //! There is no panic: the handler needs a name that does not exist, so that a file in which it could be reached is not linked.

    // SAFETY: the name is not defined anywhere, on purpose.
    unsafe extern "C" {
        safe fn aimaster_the_plugin_could_panic() -> !;
    }

    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        aimaster_the_plugin_could_panic()
    }
}
