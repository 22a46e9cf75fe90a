//! libFuzzer for [`fuzz_targets::digest`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::digest::run(data));
