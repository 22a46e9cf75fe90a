//! libFuzzer for [`fuzz_targets::munge`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::munge::run(data));
