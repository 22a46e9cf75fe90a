//! A profiler plugin that asks for what ours asks for and does nothing: what it costs is NCCL's own.
//!
//! Build it with `--release --example null_profiler` and set `NCCL_PROFILER_PLUGIN` to the file. `NULL_PROFILER_MASK` gives
//! another mask, as a number.

use std::ffi::{c_char, c_void};

use nccl_profiler::descriptor::{InitV4, InitV5, Log, Table, event};

fn mask() -> i32 {
    let light = (event::COLL | event::P2P | event::KERNEL_CH) as i32;
    std::env::var("NULL_PROFILER_MASK").ok().and_then(|text| text.parse().ok()).unwrap_or(light)
}

/// Anything but null, so that NCCL makes all the calls that it makes with a plugin that keeps its events.
const HANDLE: *mut c_void = std::ptr::without_provenance_mut(8);

unsafe fn begin(context: *mut *mut c_void, mask_at: *mut i32) -> i32 {
    // SAFETY: both are NCCL's to be written.
    unsafe {
        context.write(HANDLE);
        mask_at.write(mask());
    }
    0
}

unsafe extern "C" fn init_v4(
    context: *mut *mut c_void,
    mask: *mut i32,
    _: *const c_char,
    _: u64,
    _: i32,
    _: i32,
    _: i32,
    _: Option<Log>,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { begin(context, mask) }
}

unsafe extern "C" fn init_v5(
    context: *mut *mut c_void,
    _: u64,
    mask: *mut i32,
    _: *const c_char,
    _: i32,
    _: i32,
    _: i32,
    _: Option<Log>,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { begin(context, mask) }
}

unsafe extern "C" fn start(_: *mut c_void, handle: *mut *mut c_void, _: *const c_void) -> i32 {
    // SAFETY: the caller's to be written.
    unsafe { handle.write(HANDLE) };
    0
}

unsafe extern "C" fn stop(_: *mut c_void) -> i32 {
    0
}

unsafe extern "C" fn state(_: *mut c_void, _: i32, _: *const c_void) -> i32 {
    0
}

const fn table<I>(init: I) -> Table<I> {
    Table { name: c"null".as_ptr(), init, start, stop, state, finalize: stop }
}

/// NCCL 2.27.3 and later.
// SAFETY: the name is NCCL's for this table.
#[unsafe(no_mangle)]
pub static ncclProfiler_v4: Table<InitV4> = table::<InitV4>(init_v4);

/// NCCL 2.28.3 and later.
// SAFETY: the name is NCCL's for this table.
#[unsafe(no_mangle)]
pub static ncclProfiler_v5: Table<InitV5> = table::<InitV5>(init_v5);

/// NCCL 2.29.2 and later.
// SAFETY: the name is NCCL's for this table.
#[unsafe(no_mangle)]
pub static ncclProfiler_v6: Table<InitV5> = table::<InitV5>(init_v5);
