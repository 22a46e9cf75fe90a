//! libFuzzer for [`fuzz_targets::ring`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::ring::run(data));
