//! A watch over the GPUs of the machine that it runs on. Only with `AIMASTER_GPU_TESTS=1`, on a machine with an NVIDIA
//! driver; it does the GPUs no harm.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::{Duration, Instant};

use diag::gpu_facts::ids::GpuId;
use epilog::health::{Hired, Settings, Watch, Watcher};
use kernels::nvml::Nvml;

/// Long enough for two whole readings of each GPU.
const WATCHED: Duration = Duration::from_secs(15);

/// A driver that is loaded for its first client takes seconds.
const START: Duration = Duration::from_secs(60);

#[test]
fn healthy_gpus_are_seen_and_nothing_is_told_of_them() {
    if std::env::var_os("AIMASTER_GPU_TESTS").is_none_or(|value| value != "1") {
        println!("skipped: AIMASTER_GPU_TESTS=1 is not set");
        return;
    }
    let devices = Nvml::open(None).unwrap().devices().unwrap();
    let gpus: Vec<GpuId> = devices.iter().filter_map(|one| one.uuid.clone()).map(GpuId::Gpu).collect();
    let watcher = Watcher { program: env!("CARGO_BIN_EXE_aimaster-watcher").into(), user: String::new() };
    let mut watch = Watch::start(Settings::new(gpus.clone()), Hired::new(&watcher));
    let begun = Instant::now();
    let seen = |watch: &Watch| {
        let loads = watch.loads();
        loads.len() == gpus.len() && loads.iter().all(|load| load.busy_percent.is_some())
    };
    let (mut events, mut slowest) = (Vec::new(), Duration::ZERO);
    let mut since = None;
    while since.is_none_or(|since: Instant| since.elapsed() < WATCHED) {
        let polled = Instant::now();
        events.extend(watch.poll(polled));
        slowest = slowest.max(polled.elapsed());
        if seen(&watch) {
            since.get_or_insert_with(Instant::now);
        }
        assert!(since.is_some() || begun.elapsed() < START, "{:?}", watch.blind(Instant::now()));
        std::thread::sleep(Duration::from_millis(250));
    }
    println!(
        "loads {:?}; not watched {:?}; slowest poll {slowest:?}",
        watch.loads(),
        watch.blind(Instant::now())
    );
    assert!(events.is_empty(), "{events:#?}");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
}
