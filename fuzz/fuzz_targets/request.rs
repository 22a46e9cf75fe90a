//! libFuzzer for [`fuzz_targets::request`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::request::run(data));
