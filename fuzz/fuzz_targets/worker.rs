//! libFuzzer for [`fuzz_targets::worker`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::worker::run(data));
