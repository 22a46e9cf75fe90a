//! libFuzzer for [`fuzz_targets::document`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::document::run(data));
