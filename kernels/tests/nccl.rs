//! NCCL's table against a library in its shape (`fakes/nccl.rs`), which this compiles: every result, state and missing
//! function that a real one can show, and that no wait outlasts its limit.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may stop at the first surprise"
)]

#[path = "cuda/built.rs"]
mod built;
mod nccl_fake;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kernels::nccl::{Abort, Comm, Nccl, NcclError, Operation, Place, Span, Stream, Until};
use nccl_fake::{Fake, Knob, Variant};

/// Far more than a healthy step of these tests takes.
const LONG: Duration = Duration::from_secs(20);
/// A limit that is meant to be reached.
const SHORT: Duration = Duration::from_millis(150);

static NEVER: AtomicBool = AtomicBool::new(false);

fn until(limit: Duration) -> Until<'static> {
    Until::after(limit, &NEVER)
}

fn memory() -> (Span, Span, Stream) {
    // SAFETY: the fake touches no memory and no stream; it compares this address only.
    unsafe {
        (Span::from_raw(0x1000, 4096), Span::from_raw(0x1000, 4096), Stream::from_raw(std::ptr::null_mut()))
    }
}

fn init(nccl: &Nccl, ranks: u32, limit: Duration) -> Result<Comm, NcclError> {
    let id = nccl.unique_id(LONG)?;
    Comm::init(nccl, &id, Place { ranks, rank: 1 }, until(limit))
}

#[test]
fn a_missing_library_is_named_with_the_search_path_and_the_loaders_words() {
    let text = Nccl::load(Some("/nowhere/libnccl.so.2".as_ref())).unwrap_err().to_string();
    assert!(text.contains("can't load /nowhere/libnccl.so.2"), "{text}");
    assert!(text.contains("No such file") && text.contains("which the policy names"), "{text}");
    let empty = nccl_fake::folder("empty");
    let text = Nccl::load(Some(&empty)).unwrap_err().to_string();
    assert!(
        text.contains(empty.to_str().unwrap())
            && text.contains("libnccl.so.2")
            && text.contains("in the folder"),
        "{text}"
    );
}

#[test]
fn a_file_and_its_folder_both_load() {
    let fake = Fake::new("load", Variant::Whole);
    for path in [fake.path.clone(), fake.path.parent().unwrap().to_owned()] {
        let nccl = Nccl::load(Some(&path)).unwrap();
        assert_eq!(nccl.version().to_string(), "2.28.9");
        assert_eq!(nccl.library(), fake.path);
    }
}

#[test]
fn a_missing_required_function_is_an_error_that_names_it() {
    let fake = Fake::new("no-init", Variant::WithoutInit);
    let text = Nccl::load(Some(&fake.path)).unwrap_err().to_string();
    assert!(text.contains("has no ncclCommInitRankConfig"), "{text}");
    assert!(text.contains("undefined symbol"), "the loader's words: {text}");
}

/// What a library needs to be NCCL.
const REQUIRED: [&str; 14] = [
    "ncclGetVersion",
    "ncclGetUniqueId",
    "ncclCommInitRankConfig",
    "ncclCommGetAsyncError",
    "ncclCommAbort",
    "ncclCommDestroy",
    "ncclCommCount",
    "ncclCommUserRank",
    "ncclGroupStart",
    "ncclGroupEnd",
    "ncclAllReduce",
    "ncclAllGather",
    "ncclSend",
    "ncclRecv",
];

#[test]
fn every_required_function_that_is_missing_is_named_with_the_library() {
    let folder = tempfile::tempdir().unwrap();
    for missing in REQUIRED {
        let others = REQUIRED.iter().filter(|name| **name != missing);
        let source: String = others.map(|name| format!("void {name}(void) {{}}\n")).collect();
        let library = built::build(folder.path(), &format!("lacks-{missing}"), &source);
        let text = Nccl::load(Some(&library)).unwrap_err().to_string();
        assert!(text.contains(&format!("has no {missing} (")), "{text}");
        assert!(text.contains(library.to_str().unwrap()), "{text}");
    }
}

#[test]
fn nccl_of_a_python_environment_is_found_in_the_environment_s_own_folder() {
    let fake = Fake::new("python", Variant::Whole);
    let environment = tempfile::tempdir().unwrap();
    let folder = environment.path().join("lib/python3.12/site-packages/nvidia/nccl/lib");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(&fake.path, folder.join("libnccl.so.2")).unwrap();
    let nccl = Nccl::load(Some(environment.path())).unwrap();
    assert_eq!(nccl.library(), folder.join("libnccl.so.2"));
}

#[test]
fn what_is_too_old_to_be_ended_is_refused() {
    let fake = Fake::new("old", Variant::Old);
    let text = Nccl::load(Some(&fake.path)).unwrap_err().to_string();
    assert!(text.contains("is version 2.17.1; 2.18.0 or newer"), "{text}");
}

#[test]
fn missing_optional_functions_are_done_without() {
    let fake = Fake::new("bare", Variant::WithoutOptional);
    let nccl = Nccl::load(Some(&fake.path)).unwrap();
    let mut comm = init(&nccl, 4, LONG).unwrap();
    let (send, receive, stream) = memory();
    comm.collective(Operation::AllToAll, (send, receive), 8, stream, until(LONG)).unwrap();
    assert_eq!((fake.get(Knob::Sends), fake.get(Knob::Recvs), fake.get(Knob::GroupEnds)), (4, 4, 1));
    let error = comm.split(Some(0), 0, until(LONG)).unwrap_err().to_string();
    assert_eq!(error, "NCCL 2.28.9 has no ncclCommSplit");
    fake.set(Knob::CollectiveResult, 2);
    let error = comm
        .collective(Operation::AllToAll, (send, receive), 8, stream, until(LONG))
        .unwrap_err()
        .to_string();
    assert_eq!(error, "NCCL: ncclSend and ncclRecv in a group: ncclSystemError (2)");
    assert_eq!(fake.get(Knob::GroupEnds), 2, "a group is ended after an error too");
    comm.close(until(LONG)).unwrap();
    assert_eq!((fake.get(Knob::Destroys), fake.get(Knob::Live)), (1, 0));
}

#[test]
fn calls_wait_until_the_one_before_is_done() {
    let fake = Fake::new("polls", Variant::Whole);
    fake.set(Knob::Polls, 40);
    let nccl = Nccl::load(Some(&fake.path)).unwrap();
    let mut comm = init(&nccl, 2, LONG).unwrap();
    assert_eq!(comm.place(), Place { ranks: 2, rank: 1 });
    let (send, receive, stream) = memory();
    // The fake refuses a call on a busy communicator, as NCCL does, and says "success" early as ncclCommSplit may.
    for early in [0, 1] {
        fake.set(Knob::SaysSuccessEarly, early);
        comm.collective(Operation::AllReduce, (send, receive), 1024, stream, until(LONG)).unwrap();
        comm.collective(Operation::AllGather, (send, receive), 512, stream, until(LONG)).unwrap();
        comm.collective(Operation::AllToAll, (send, receive), 512, stream, until(LONG)).unwrap();
    }
    assert_eq!(fake.get(Knob::Collectives), 6);
    fake.set(Knob::FinalizePolls, 40);
    comm.close(until(LONG)).unwrap();
    let ended = [Knob::Finalizes, Knob::Destroys, Knob::Aborts, Knob::Live].map(|knob| fake.get(knob));
    assert_eq!(ended, [1, 1, 0, 0]);
}

#[test]
fn an_init_that_never_completes_ends_within_its_limit_and_is_aborted() {
    let fake = Fake::new("hang", Variant::Whole);
    fake.set(Knob::Polls, -1);
    let nccl = Nccl::load(Some(&fake.path)).unwrap();
    let began = Instant::now();
    let error = init(&nccl, 2, SHORT).unwrap_err();
    let took = began.elapsed();
    assert!(took >= SHORT && took < LONG / 2, "{took:?}");
    assert!(matches!(error, NcclError::Deadline { abort: Abort::Done, .. }), "{error:?}");
    let text = error.to_string();
    assert_eq!(text, "NCCL: ncclCommInitRankConfig did not end within 0.2 s; the communicator was aborted");
    assert_eq!((fake.get(Knob::Aborts), fake.get(Knob::Live)), (1, 0));
}

#[test]
fn an_init_that_nobody_wants_any_more_ends_at_once() {
    let fake = Fake::new("cancel", Variant::Whole);
    fake.set(Knob::Polls, -1);
    let nccl = Nccl::load(Some(&fake.path)).unwrap();
    let id = nccl.unique_id(LONG).unwrap();
    let cancel = AtomicBool::new(false);
    let began = Instant::now();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(SHORT);
            cancel.store(true, Ordering::Relaxed);
        });
        Comm::init(&nccl, &id, Place { ranks: 2, rank: 0 }, Until::after(LONG, &cancel)).unwrap_err()
    });
    assert!(matches!(error, NcclError::Cancelled { abort: Abort::Done, .. }), "{error:?}");
    assert!(began.elapsed() < LONG / 2);
    assert_eq!(fake.get(Knob::Aborts), 1);
}

#[test]
fn an_abort_that_does_not_return_holds_nobody() {
    let fake = Fake::new("stuck", Variant::Whole);
    fake.set(Knob::Polls, -1);
    fake.set(Knob::AbortMs, 600_000);
    let nccl = Nccl::load(Some(&fake.path)).unwrap();
    let began = Instant::now();
    let error = init(&nccl, 2, SHORT).unwrap_err();
    assert!(matches!(error, NcclError::Deadline { abort: Abort::Stuck, .. }), "{error:?}");
    assert!(error.to_string().ends_with("can't use the GPU any more"), "{error}");
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    // The same by drop, which has nobody to tell.
    fake.set(Knob::Polls, 0);
    let comm = init(&nccl, 2, LONG).unwrap();
    let began = Instant::now();
    drop(comm);
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    assert_eq!(fake.get(Knob::Aborts), 2);
}

#[test]
fn an_id_or_a_destroy_that_does_not_come_is_an_error() {
    let fake = Fake::new("late", Variant::Whole);
    let nccl = Nccl::load(Some(&fake.path)).unwrap();
    let comm = init(&nccl, 2, LONG).unwrap();
    fake.set(Knob::DestroyMs, 600_000);
    let error = comm.close(until(SHORT)).unwrap_err().to_string();
    assert!(error.contains("ncclCommDestroy did not return within 1.0 s"), "{error}");
    fake.set(Knob::IdMs, 600_000);
    let error = nccl.unique_id(SHORT).unwrap_err();
    assert!(matches!(error, NcclError::Stuck { operation: "ncclGetUniqueId", .. }), "{error:?}");
}

#[test]
fn an_init_that_fails_says_how() {
    let fake = Fake::new("fails", Variant::Whole);
    let nccl = Nccl::load(Some(&fake.path)).unwrap();
    for (with, code) in [(0, 3), (1, 3), (0, 4242), (1, -7)] {
        fake.set(Knob::InitWithoutComm, with);
        fake.set(Knob::InitResult, code);
        let error = init(&nccl, 2, LONG).unwrap_err();
        let NcclError::Failed { operation, code: got, last } = &error else { panic!("{error:?}") };
        assert_eq!((*operation, *got), ("ncclCommInitRankConfig", code));
        assert_eq!(last, "fake: the cable is out; fake: rank 1 is gone");
    }
    assert_eq!(fake.get(Knob::Live), 0, "what was made is aborted");
    fake.set(Knob::InitResult, 0);
    let error = init(&nccl, 2, LONG).unwrap_err();
    assert!(matches!(error, NcclError::Nothing { .. }), "{error:?}");
}

#[test]
fn a_result_that_nobody_knows_is_an_error_with_its_number() {
    let fake = Fake::new("unknown", Variant::Whole);
    let nccl = Nccl::load(Some(&fake.path)).unwrap();
    let mut comm = init(&nccl, 2, LONG).unwrap();
    let (send, receive, stream) = memory();
    for knob in [Knob::CollectiveResult, Knob::AsyncResult] {
        fake.set(knob, 4242);
        let error = comm
            .collective(Operation::AllReduce, (send, receive), 4, stream, until(LONG))
            .unwrap_err()
            .to_string();
        let words =
            "NCCL: ncclAllReduce: a result that this software does not know (4242): fake: the cable is out";
        assert!(error.starts_with(words), "{error}");
        fake.set(knob, 0);
    }
}

#[test]
fn an_error_in_the_background_of_a_collective_is_reported_with_its_text() {
    let fake = Fake::new("async", Variant::Whole);
    let nccl = Nccl::load(Some(&fake.path)).unwrap();
    let mut comm = init(&nccl, 2, LONG).unwrap();
    let (send, receive, stream) = memory();
    fake.set(Knob::Polls, 3);
    fake.set(Knob::AsyncResult, 6);
    let error = comm
        .collective(Operation::AllReduce, (send, receive), 4, stream, until(LONG))
        .unwrap_err()
        .to_string();
    let words = "NCCL: ncclAllReduce: ncclRemoteError (6): fake: the cable is out; fake: rank 1 is gone";
    assert_eq!(error, words);
    // Enqueued, and lost while the GPU works on it.
    let error = comm.wait("all_reduce", until(LONG), || false).unwrap_err().to_string();
    assert!(error.starts_with("NCCL: all_reduce: ncclRemoteError (6)"), "{error}");
    assert_eq!(comm.abort(LONG), Abort::Done);
    assert_eq!((fake.get(Knob::Aborts), fake.get(Knob::Live)), (1, 0));
}

#[test]
fn work_that_never_ends_is_given_up_and_the_communicator_with_it() {
    let fake = Fake::new("wait", Variant::Whole);
    let nccl = Nccl::load(Some(&fake.path)).unwrap();
    let mut comm = init(&nccl, 2, LONG).unwrap();
    let mut looks = 0;
    comm.wait("all_reduce", until(LONG), || {
        looks += 1;
        looks > 5
    })
    .unwrap();
    let error = comm.wait("all_reduce", until(SHORT), || false).unwrap_err();
    assert!(
        matches!(error, NcclError::Deadline { operation: "all_reduce", abort: Abort::Done, .. }),
        "{error:?}"
    );
    let (send, receive, stream) = memory();
    let error = comm.collective(Operation::AllReduce, (send, receive), 4, stream, until(LONG)).unwrap_err();
    assert!(matches!(error, NcclError::Gone { .. }), "{error:?}");
    drop(comm);
    assert_eq!((fake.get(Knob::Aborts), fake.get(Knob::BadHandles)), (1, 0));
}

#[test]
fn a_finalize_that_never_ends_is_aborted() {
    let fake = Fake::new("finalize", Variant::Whole);
    fake.set(Knob::FinalizePolls, -1);
    let nccl = Nccl::load(Some(&fake.path)).unwrap();
    let comm = init(&nccl, 2, LONG).unwrap();
    let error = comm.close(until(SHORT)).unwrap_err();
    assert!(matches!(error, NcclError::Deadline { operation: "ncclCommFinalize", .. }), "{error:?}");
    assert_eq!([Knob::Aborts, Knob::Destroys, Knob::Live].map(|knob| fake.get(knob)), [1, 0, 0]);
}

#[test]
fn a_split_gives_a_communicator_or_none() {
    let fake = Fake::new("split", Variant::Whole);
    fake.set(Knob::Polls, 5);
    let nccl = Nccl::load(Some(&fake.path)).unwrap();
    let mut comm = init(&nccl, 8, LONG).unwrap();
    let child = comm.split(Some(3), 2, until(LONG)).unwrap().expect("it has a color");
    assert_eq!(child.place(), Place { ranks: 4, rank: 2 });
    assert!(comm.split(None, 0, until(LONG)).unwrap().is_none());
    child.close(until(LONG)).unwrap();
    comm.close(until(LONG)).unwrap();
    assert_eq!([Knob::Live, Knob::Aborts].map(|knob| fake.get(knob)), [0, 0]);
    // A split that hangs takes the communicator with it.
    let mut comm = init(&nccl, 8, LONG).unwrap();
    fake.set(Knob::Polls, -1);
    let error = comm.split(Some(0), 0, until(SHORT)).unwrap_err();
    assert!(matches!(error, NcclError::Deadline { operation: "ncclCommSplit", .. }), "{error:?}");
    let (send, receive, stream) = memory();
    let error = comm.collective(Operation::AllReduce, (send, receive), 4, stream, until(LONG)).unwrap_err();
    assert!(matches!(error, NcclError::Gone { .. }), "{error:?}");
}

#[test]
fn several_communicators_live_on_several_threads() {
    let fake = Fake::new("threads", Variant::Whole);
    fake.set(Knob::Polls, 7);
    let nccl = Nccl::load(Some(&fake.path)).unwrap();
    let id = nccl.unique_id(LONG).unwrap();
    std::thread::scope(|scope| {
        for rank in 0..8 {
            scope.spawn(move || {
                let mut comm = Comm::init(&nccl, &id, Place { ranks: 8, rank }, until(LONG)).unwrap();
                let (send, receive, stream) = memory();
                for _ in 0..50 {
                    comm.collective(Operation::AllReduce, (send, receive), 1024, stream, until(LONG))
                        .unwrap();
                }
                if rank % 2 == 0 { comm.close(until(LONG)).unwrap() } else { drop(comm) }
            });
        }
    });
    let counts = [Knob::Collectives, Knob::Destroys, Knob::Aborts, Knob::Live].map(|knob| fake.get(knob));
    assert_eq!(counts, [400, 4, 4, 0]);
}

#[test]
fn memory_that_is_too_short_and_places_that_are_none_are_refused_before_nccl_is_asked() {
    let fake = Fake::new("short", Variant::Whole);
    let nccl = Nccl::load(Some(&fake.path)).unwrap();
    let mut comm = init(&nccl, 4, LONG).unwrap();
    let (send, receive, stream) = memory();
    let error = comm
        .collective(Operation::AllReduce, (send, receive), 1025, stream, until(LONG))
        .unwrap_err()
        .to_string();
    assert_eq!(error, "NCCL: ncclAllReduce: send needs 4100 bytes and has 4096");
    let error = comm
        .collective(Operation::AllGather, (send, receive), 257, stream, until(LONG))
        .unwrap_err()
        .to_string();
    assert_eq!(error, "NCCL: ncclAllGather: receive needs 4112 bytes and has 4096");
    let error =
        comm.collective(Operation::AllToAll, (send, receive), usize::MAX, stream, until(LONG)).unwrap_err();
    assert!(matches!(error, NcclError::Short { .. }), "{error:?}");
    assert_eq!(fake.get(Knob::Collectives), 0);
    let id = nccl.unique_id(LONG).unwrap();
    for (ranks, rank) in [(0, 0), (2, 2), (u32::MAX, 0)] {
        let error = Comm::init(&nccl, &id, Place { ranks, rank }, until(LONG)).unwrap_err();
        assert!(matches!(error, NcclError::Place { .. }), "{error:?}");
    }
}

#[test]
fn a_real_nccl_has_every_function_and_says_why_it_cannot_start() {
    let Some(path) = std::env::var_os("AIMASTER_NCCL") else {
        println!("skipped: AIMASTER_NCCL names no libnccl.so.2 and no folder of one");
        return;
    };
    let nccl = Nccl::load(Some(path.as_ref())).unwrap_or_else(|error| panic!("{error}"));
    println!("{} is version {}", nccl.library().display(), nccl.version());
    let error = Comm::init(&nccl, &[0; 128], Place { ranks: 2, rank: 0 }, until(SHORT)).unwrap_err();
    println!("{error}");
    // Without a driver the first thing that fails is CUDA; with one, an id of zeroes leads nowhere.
    let expected = matches!(&error, NcclError::Failed { code, last, .. } if *code != 0 && !last.is_empty())
        || matches!(&error, NcclError::Deadline { .. });
    assert!(expected, "{error:?}");
}
