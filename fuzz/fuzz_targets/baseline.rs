//! libFuzzer for [`fuzz_targets::baseline`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::baseline::run(data));
