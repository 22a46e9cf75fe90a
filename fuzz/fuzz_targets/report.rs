//! libFuzzer for [`fuzz_targets::report`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::report::run(data));
