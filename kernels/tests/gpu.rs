//! The CUDA layer on real GPUs, with `AIMASTER_GPU_TESTS=1`; else each test says that it is skipped. Nothing is needed
//! beside this binary but the driver and cuBLASLt; `AIMASTER_CUBLAS_LT` names its file or a folder (a Python
//! environment will do) where the dynamic loader does not find it.
//!
//! The tables are for reading beside known values; what is asserted holds on every GPU that works.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kernels::cuda::launch::{self, quantile};
use kernels::cuda::pattern;
use kernels::cuda::{
    Collective, Context, CublasLt, CudaError, DeviceBuffer, Driver, Event, Gemm, Kernels, Limit, Operand,
    Output, Shape, Stream, Version, tflops,
};
use kernels::{Libraries, LibraryError};

/// Rows of the product that published speeds are given for.
const N: u32 = 8192;

/// Long enough for clocks to settle.
const WINDOW: Duration = Duration::from_millis(200);

/// Windows of which the median counts.
const WINDOWS: usize = 5;

static NEVER: AtomicBool = AtomicBool::new(false);

/// Many times what a step takes on a GPU that works.
fn limit() -> Limit<'static> {
    Limit { deadline: Instant::now() + Duration::from_secs(30), cancel: &NEVER }
}

fn libraries() -> Libraries {
    Libraries { cublas_lt: std::env::var_os("AIMASTER_CUBLAS_LT").map(PathBuf::from), ..Libraries::default() }
}

/// The GPUs for one test alone, as the tests measure; nothing where the tests are not asked for.
fn gpus(test: &str) -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    if std::env::var_os("AIMASTER_GPU_TESTS").is_some_and(|value| value == "1") {
        return Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner));
    }
    println!("skipped: {test} needs a GPU and AIMASTER_GPU_TESTS=1");
    None
}

/// Every GPU with its context.
fn contexts() -> Vec<Context> {
    let driver = Driver::open(&libraries()).unwrap();
    let devices = driver.devices().unwrap();
    assert!(!devices.is_empty());
    devices.iter().map(|device| device.context().unwrap()).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    quantile(&values, 0.5).unwrap()
}

#[test]
fn gpus_are_described_and_found() {
    let Some(_alone) = gpus("gpus_are_described_and_found") else { return };
    let driver = Driver::open(&libraries()).unwrap();
    println!("driver supports CUDA {} ({})", driver.version(), driver.library().display());
    for device in driver.devices().unwrap() {
        let info = device.info();
        let sysfs = std::path::Path::new("/sys/bus/pci/devices").join(&info.bus_id);
        println!(
            "{info:?}, {} {}",
            sysfs.display(),
            if sysfs.is_dir() { "is there" } else { "is not there" }
        );
        assert_eq!(driver.device(&info.uuid).unwrap().info(), info);
        assert!(info.uuid.len() == 40 && info.bus_id.ends_with(".0"), "{info:?}");
        let (free, total) = device.context().unwrap().memory().unwrap();
        assert!(free <= total && total == info.memory_bytes, "{free} {total}");
    }
    assert!(matches!(driver.device("GPU-none"), Err(CudaError::NoSuchDevice { .. })));
}

#[test]
fn missing_libraries_and_too_little_memory_are_errors() {
    let Some(_alone) = gpus("missing_libraries_and_too_little_memory_are_errors") else { return };
    let nowhere = Libraries {
        cuda: Some("/nowhere/libcuda.so.1".into()),
        cublas_lt: Some("/nowhere".into()),
        ..Libraries::default()
    };
    let error = Driver::open(&nowhere).err().unwrap();
    println!("{error}");
    assert!(matches!(error, CudaError::Library(LibraryError::Missing { .. })));
    for context in contexts() {
        let error = CublasLt::open(&nowhere, &context).err().unwrap();
        println!("{error}");
        assert!(matches!(error, CudaError::Library(LibraryError::Missing { .. })));
        let error = DeviceBuffer::<u8>::new(&context, 1 << 42).err().unwrap();
        println!("{error}");
        assert!(matches!(error, CudaError::OutOfMemory { wanted: 4_398_046_511_104, .. }));
    }
}

#[test]
fn the_kernels_do_what_the_reference_says() {
    let Some(_alone) = gpus("the_kernels_do_what_the_reference_says") else { return };
    // No multiple of a block, nor of a grid.
    const COUNT: usize = 3_000_004;
    for context in contexts() {
        let (stream, kernels) = (Stream::new(&context).unwrap(), Kernels::load(&context).unwrap());
        let mut bytes = DeviceBuffer::<u8>::new(&context, 2 * COUNT).unwrap();
        kernels.fill_operand(&stream, &mut bytes, Operand::Bf16, 7).unwrap();
        let found = bytes.read(&stream, limit()).unwrap();
        for (index, pair) in (0..).zip(found.chunks_exact(2)) {
            let value = f32::from_bits(u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16);
            assert_eq!(f64::from(value), Operand::Bf16.integer(7, index) as f64 / 256.0, "{index}");
        }
        let words = found.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        assert_eq!(kernels.checksum(&stream, &bytes, limit()).unwrap(), pattern::checksum(words));
        let mut floats = DeviceBuffer::<f32>::new(&context, COUNT).unwrap();
        kernels.fill_rank(&stream, &mut floats, 3).unwrap();
        let from = |from| Collective::Received { from };
        assert_eq!(kernels.count_wrong(&stream, &floats, from(3), limit()).unwrap(), 0);
        assert_eq!(kernels.count_wrong(&stream, &floats, from(4), limit()).unwrap(), COUNT as u64);
        let ranks = 4;
        let mut gathered = Vec::new();
        for rank in 0..ranks {
            let chunk = COUNT as u64 / u64::from(ranks);
            gathered.extend((0..chunk).map(|index| pattern::rank_value(rank, index) as f32));
        }
        gathered[17] += 1.0;
        gathered[COUNT - 1] = f32::NAN;
        floats.write(&stream, &gathered, limit()).unwrap();
        let wrong = kernels.count_wrong(&stream, &floats, Collective::AllGather { ranks }, limit());
        assert_eq!(wrong.unwrap(), 2);
    }
}

#[test]
fn launches_take_microseconds() {
    let Some(_alone) = gpus("launches_take_microseconds") else { return };
    for context in contexts() {
        let (stream, kernels) = (Stream::new(&context).unwrap(), Kernels::load(&context).unwrap());
        let times = launch::measure(&kernels, &stream, 10_000, limit()).unwrap();
        for (what, sorted) in [("launch call", &times.call_us), ("launch + synchronise", &times.done_us)] {
            let [low, half, high] = [0.0, 0.5, 0.99].map(|share| quantile(sorted, share).unwrap());
            println!("{}: {what}: min {low:.2}, median {half:.2}, p99 {high:.2} µs", context.info().uuid);
            assert!(low > 0.1 && half < 1e4, "{half}");
        }
    }
}

#[test]
fn events_and_processor_agree_on_the_time() {
    let Some(_alone) = gpus("events_and_processor_agree_on_the_time") else { return };
    for context in contexts() {
        let stream = Stream::new(&context).unwrap();
        let mut buffer = DeviceBuffer::<u8>::new(&context, 1 << 30).unwrap();
        let [start, end] = [0, 1].map(|_| Event::new(&context).unwrap());
        buffer.zero(&stream).unwrap();
        stream.wait(limit()).unwrap();
        let clock = Instant::now();
        start.record(&stream).unwrap();
        for _ in 0..100 {
            buffer.zero(&stream).unwrap();
        }
        end.record(&stream).unwrap();
        stream.wait(limit()).unwrap();
        let (events, clock) = (start.ms_until(&end).unwrap(), clock.elapsed().as_secs_f64() * 1e3);
        println!("{}: 100 GiB of zeros: {events:.2} ms by events, {clock:.2} ms by the clock", context.gpu());
        assert!(events > 0.5 * clock && events < clock + 1.0);
        // The queue is not empty and the limit has passed: an error, and no harm to what follows.
        for _ in 0..100 {
            buffer.zero(&stream).unwrap();
        }
        let short = Limit { deadline: Instant::now() + Duration::from_millis(1), cancel: &NEVER };
        let hung = stream.wait(short).err().unwrap();
        println!("{hung}");
        assert!(matches!(hung, CudaError::Hung { .. }));
        stream.wait(limit()).unwrap();
    }
}

/// One row of the table of products; the checksum of two runs.
fn product(context: &Context, shape: Shape) -> u64 {
    let (stream, kernels) = (Stream::new(context).unwrap(), Kernels::load(context).unwrap());
    let lt = CublasLt::open(&libraries(), context).unwrap();
    let started = Instant::now();
    let mut gemm = Gemm::new(&lt, &kernels, &stream, shape, limit()).unwrap();
    let ready = started.elapsed().as_secs_f64();
    let windows = (0..WINDOWS).map(|_| gemm.window(&stream, WINDOW, limit()).unwrap()).collect();
    let speed = tflops(shape.n, median(windows));
    let checksums = [0, 1].map(|_| gemm.checksum(&kernels, &stream, limit()).unwrap());
    assert_eq!(checksums[0], checksums[1], "two runs on one GPU");
    let sampled = gemm.sample(&stream, 256, limit()).unwrap();
    // What the fastest algorithm leaves is looked at too.
    gemm.run(&stream).unwrap();
    let fastest = gemm.sample(&stream, 256, limit()).unwrap();
    println!(
        "{}: {shape:?}: {speed:.1} TFLOP/s (algorithm {} of {}, ready after {ready:.2} s), checksum {:016x}, \
         worst of {} elements {:.3e}, of the fastest {:.3e}, cuBLASLt {} ({})",
        context.info().uuid,
        gemm.choice().index,
        gemm.choice().of,
        checksums[0],
        sampled.looked_at,
        sampled.worst,
        fastest.worst,
        lt.version(),
        lt.library().display(),
    );
    assert!(sampled.wrong.is_empty(), "{:?}", sampled.wrong);
    assert!(fastest.wrong.is_empty(), "{:?}", fastest.wrong);
    checksums[0]
}

#[test]
fn products_are_right_and_the_same_on_every_gpu() {
    let Some(_alone) = gpus("products_are_right_and_the_same_on_every_gpu") else { return };
    let contexts = contexts();
    for (operand, output) in
        [(Operand::Bf16, Output::Bf16), (Operand::Bf16, Output::F32), (Operand::E4m3, Output::Bf16)]
    {
        let mut seen: Vec<(String, u64)> = Vec::new();
        for context in &contexts {
            let info = context.info();
            if operand == Operand::E4m3 && info.capability < (Version { major: 8, minor: 9 }) {
                println!("skipped: {} has no fp8", info.name);
                continue;
            }
            let checksum = product(context, Shape { n: N, operand, output });
            for (model, other) in &seen {
                assert!(*model != info.name || *other == checksum, "{} computes other bits", info.uuid);
            }
            seen.push((info.name.clone(), checksum));
        }
    }
}

#[test]
fn a_wrong_element_is_found() {
    let Some(_alone) = gpus("a_wrong_element_is_found") else { return };
    let context = &contexts()[0];
    let (stream, kernels) = (Stream::new(context).unwrap(), Kernels::load(context).unwrap());
    let mut buffer = DeviceBuffer::<u32>::new(context, 1 << 20).unwrap();
    buffer.zero(&stream).unwrap();
    let clean = kernels.checksum(&stream, &buffer, limit()).unwrap();
    let mut data = buffer.read(&stream, limit()).unwrap();
    data[1_000_000] = 1;
    buffer.write(&stream, &data, limit()).unwrap();
    assert_ne!(kernels.checksum(&stream, &buffer, limit()).unwrap(), clean, "one bit");
}
