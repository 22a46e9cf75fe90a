//! libFuzzer for [`fuzz_targets::comments`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::comments::run(data));
