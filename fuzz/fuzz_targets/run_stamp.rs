//! libFuzzer for [`fuzz_targets::run_stamp`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::run_stamp::run(data));
