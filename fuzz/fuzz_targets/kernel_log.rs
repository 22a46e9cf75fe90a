//! libFuzzer for [`fuzz_targets::kernel_log`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::kernel_log::run(data));
