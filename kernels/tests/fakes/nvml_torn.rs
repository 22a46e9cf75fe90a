//! A library of NVML's name that can be started and has nothing else in it.
#![allow(non_snake_case, missing_docs, reason = "the name is NVML's")]

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> u32 {
    0
}
