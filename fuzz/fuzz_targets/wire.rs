//! libFuzzer for [`fuzz_targets::wire`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::wire::run(data));
