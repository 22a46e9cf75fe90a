//! libFuzzer for [`fuzz_targets::history`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::history::run(data));
