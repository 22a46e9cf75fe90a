//! The driver's layer: what is missing, old, broken or hung becomes an error value, and memory that work may touch is
//! not freed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kernels::cuda::{CudaError, DeviceBuffer, Driver, Event, Kernels, Limit, Operand, Stream};
use kernels::{Libraries, LibraryError};

use crate::fake::{DRIVER, Fake, ILLEGAL_ADDRESS, LONG, NOT_READY, build, error, one_less, within};

#[test]
fn a_folder_without_a_driver_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let libraries = Libraries { cuda: Some(folder.path().to_owned()), ..Libraries::default() };
    let error = error(Driver::open(&libraries));
    assert!(matches!(error, CudaError::Library(LibraryError::Missing { .. })), "{error}");
    let text = error.to_string();
    assert!(text.contains("libcuda.so.1") && text.contains(folder.path().to_str().unwrap()), "{text}");
}

#[test]
fn every_function_that_a_driver_lacks_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut count = 0;
    for (name, source) in one_less(DRIVER, &["int cu"]) {
        let library = build(folder.path(), &format!("libcuda.so.1.{name}"), &source);
        let libraries = Libraries { cuda: Some(library.clone()), ..Libraries::default() };
        let error = error(Driver::open(&libraries));
        let text = error.to_string();
        assert!(matches!(error, CudaError::Library(LibraryError::Symbol { .. })), "{name}: {text}");
        assert!(text.contains(&name) && text.contains(library.to_str().unwrap()), "{text}");
        count += 1;
    }
    assert!(count > 30, "the fake has {count} functions");
}

#[test]
fn an_old_driver_is_refused_with_both_versions() {
    let fake = Fake::new();
    fake.set("fake_version", 11_080);
    let error = error(Driver::open(&fake.libraries));
    assert_eq!(error, CudaError::OldDriver { found: "11.8".into(), needed: "12.0".into() });
}

#[test]
fn a_driver_that_cannot_start_says_so() {
    let fake = Fake::new();
    fake.set("fake_init", 100);
    let text = error(Driver::open(&fake.libraries)).to_string();
    assert!(text.contains("cuInit: CUDA_ERROR_NO_DEVICE (100)"), "{text}");
}

#[test]
fn a_result_that_nobody_knows_is_a_number() {
    let fake = Fake::new();
    fake.set("fake_init", 98_765);
    let text = error(Driver::open(&fake.libraries)).to_string();
    assert!(text.contains("98765"), "{text}");
}

#[test]
fn gpus_are_found_by_uuid() {
    let fake = Fake::new();
    let driver = Driver::open(&fake.libraries).unwrap();
    assert_eq!(driver.version().to_string(), "12.4");
    let devices = driver.devices().unwrap();
    assert_eq!(devices.len(), 2);
    let second = driver.device("GPU-01010101-0101-0101-0101-010101010101").unwrap();
    let info = second.info();
    assert_eq!(info, devices[1].info());
    assert_eq!((info.ordinal, info.name.as_str(), info.bus_id.as_str()), (1, "Fake GPU", "0000:b1:00.0"));
    assert_eq!((info.capability.to_string(), info.memory_bytes), ("8.0".into(), 1 << 30));
    let text = error(driver.device("GPU-ffffffff-0000-0000-0000-000000000000")).to_string();
    assert!(text.contains("no GPU GPU-ffffffff") && text.contains("GPU-00000000-0000"), "{text}");
}

#[test]
fn what_does_not_fit_says_how_much_was_free() {
    let fake = Fake::new();
    let context = fake.context();
    let error = error(DeviceBuffer::<f32>::new(&context, 1 << 29));
    let CudaError::OutOfMemory { wanted, free, total, .. } = error else { panic!("{error}") };
    assert_eq!((wanted, free, total), (1 << 31, 123_456, 1 << 30));
}

#[test]
fn copies_carry_every_byte() {
    let fake = Fake::new();
    let context = fake.context();
    let stream = Stream::new(&context).unwrap();
    // More than two pieces of a copy, and no multiple of one.
    let data: Vec<u32> = (0..2_500_001).collect();
    let mut buffer = DeviceBuffer::new(&context, data.len()).unwrap();
    buffer.write(&stream, &data, within(LONG)).unwrap();
    assert_eq!(buffer.read(&stream, within(LONG)).unwrap(), data);
    assert_eq!(buffer.read_from(&stream, 1_048_570, 12, within(LONG)).unwrap(), data[1_048_570..1_048_582]);
    buffer.zero(&stream).unwrap();
    assert!(buffer.read(&stream, within(LONG)).unwrap().iter().all(|word| *word == 0));
    assert!(matches!(error(buffer.write(&stream, &data[1..], within(LONG))), CudaError::Size { .. }));
    assert!(matches!(error(buffer.read_from(&stream, 2_500_000, 2, within(LONG))), CudaError::Size { .. }));
    drop(buffer);
    assert_eq!(fake.get("fake_live"), 0, "all memory went back");
}

#[test]
fn a_hung_gpu_is_an_error_at_the_deadline_and_its_memory_stays() {
    let fake = Fake::new();
    let context = fake.context();
    let stream = Stream::new(&context).unwrap();
    let buffer = DeviceBuffer::<u8>::new(&context, 64).unwrap();
    fake.set("fake_answer", NOT_READY);
    let started = Instant::now();
    let hung = error(stream.wait(within(Duration::from_millis(50))));
    assert!(matches!(hung, CudaError::Hung { waited_ms: 50.., .. }), "{hung}");
    assert!(started.elapsed() < Duration::from_secs(1));
    let read = error(buffer.read(&stream, within(Duration::from_millis(5))));
    assert!(matches!(read, CudaError::Hung { .. }), "{read}");
    let live = fake.get("fake_live");
    drop(buffer);
    assert_eq!(fake.get("fake_live"), live, "work may still touch it");
    // All waits of giving back together, not one for each.
    let started = Instant::now();
    for _ in 0..20 {
        drop(DeviceBuffer::<u8>::new(&context, 64).unwrap());
    }
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    // It recovers: what was parked is freed at the next look.
    fake.set("fake_answer", 0);
    let next = DeviceBuffer::<u8>::new(&context, 64).unwrap();
    assert_eq!(fake.get("fake_live"), 1);
    drop(next);
    drop((stream, context));
    assert_eq!((fake.get("fake_live"), fake.get("fake_contexts")), (0, 0));
}

#[test]
fn a_lost_gpu_keeps_its_context() {
    let fake = Fake::new();
    let context = fake.context();
    let stream = Stream::new(&context).unwrap();
    fake.set("fake_answer", ILLEGAL_ADDRESS);
    let text = error(stream.wait(within(LONG))).to_string();
    assert!(text.contains("cuStreamQuery: CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{text}");
    let started = Instant::now();
    drop((stream, context));
    assert!(started.elapsed() < Duration::from_secs(1), "nothing to wait for");
    assert_eq!(fake.get("fake_contexts"), 1);
}

#[test]
fn a_wait_can_be_ended() {
    let fake = Fake::new();
    let stream = Stream::new(&fake.context()).unwrap();
    fake.set("fake_answer", NOT_READY);
    let cancel = AtomicBool::new(false);
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            cancel.store(true, Ordering::Relaxed);
        });
        stream.wait(Limit { deadline: Instant::now() + LONG, cancel: &cancel })
    });
    assert!(matches!(ended, Err(CudaError::Cancelled { .. })), "{ended:?}");
    fake.set("fake_answer", 0);
}

#[test]
fn kernels_that_the_driver_refuses_come_with_its_words() {
    let fake = Fake::new();
    let context = fake.context();
    fake.set("fake_module", 218);
    let text = error(Kernels::load(&context)).to_string();
    assert!(text.contains("CUDA_ERROR_INVALID_PTX") && text.contains("ptxas fatal: a fake"), "{text}");
}

#[test]
fn contexts_are_not_mixed() {
    let fake = Fake::new();
    let driver = Driver::open(&fake.libraries).unwrap();
    let [one, other] = [0, 1].map(|index| driver.devices().unwrap()[index].context().unwrap());
    let kernels = Kernels::load(&one).unwrap();
    let stream = Stream::new(&other).unwrap();
    let mut mine = DeviceBuffer::new(&one, 64).unwrap();
    let mut theirs = DeviceBuffer::new(&other, 64).unwrap();
    let foreign = |result: Result<(), CudaError>| {
        let error = error(result);
        assert!(matches!(error, CudaError::Foreign { .. }), "{error}");
    };
    foreign(kernels.fill_operand(&stream, &mut theirs, Operand::Bf16, 1));
    foreign(mine.zero(&stream));
    foreign(Event::new(&one).unwrap().record(&stream));
    let own = Stream::new(&one).unwrap();
    foreign(kernels.fill_operand(&own, &mut theirs, Operand::Bf16, 1));
    kernels.fill_operand(&own, &mut mine, Operand::Bf16, 1).unwrap();
}
