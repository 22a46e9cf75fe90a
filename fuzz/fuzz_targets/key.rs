//! libFuzzer for [`fuzz_targets::key`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::key::run(data));
