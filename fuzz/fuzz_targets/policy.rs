//! libFuzzer for [`fuzz_targets::policy`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::policy::run(data));
