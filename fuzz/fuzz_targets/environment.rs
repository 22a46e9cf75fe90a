//! libFuzzer for [`fuzz_targets::environment`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::environment::run(data));
