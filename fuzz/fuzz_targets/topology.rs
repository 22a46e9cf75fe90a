//! libFuzzer for [`fuzz_targets::topology`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::topology::run(data));
