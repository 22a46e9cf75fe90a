//! libFuzzer for [`fuzz_targets::scontrol`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::scontrol::run(data));
