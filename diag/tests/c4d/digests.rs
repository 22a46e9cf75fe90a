//! Digests: what is written is what is read, bounds hold against hostile input, and the stated sizes are true.

use diag::c4d::digest::{
    Collective, Comm, Digest, DigestError, Func, Gpu, MAX_COMMS, MAX_DIGEST_BYTES, MAX_P2P, MAX_RANKS,
    MAX_SAMPLES, P2p, Process, ProcessState, Progress, Rank, Sample, StepState, StepWait, Telemetry, clean,
    sampled, stride,
};
use proptest::prelude::*;

fn progress(done: u64) -> Progress {
    Progress {
        enqueued: done + 2,
        started: done + 1,
        finished: done,
        enqueued_age_ms: 120,
        started_age_ms: 130,
        finished_age_ms: 140,
        bytes: 26_214_400,
    }
}

fn comm(id: u64) -> Comm {
    let sample = |seq| Sample { func: Func::AllReduce, seq, bytes: 26_214_400, kernel_us: 4_321 };
    Comm {
        id,
        name: String::new(),
        rank: 11,
        nranks: 2048,
        nnodes: 256,
        age_ms: 3_600_000,
        ended: false,
        collectives: vec![
            Collective { func: Func::AllReduce, progress: progress(123_456) },
            Collective { func: Func::AllGather, progress: progress(3_456) },
        ],
        p2p: Vec::new(),
        samples: (0..MAX_SAMPLES as u64).map(|index| sample(123_400 + 8 * index)).collect(),
        steps: Vec::new(),
    }
}

fn rank(pid: u32, comms: usize) -> Rank {
    Rank {
        pid,
        task: Some(pid),
        gpu: Some(Gpu {
            index: 3,
            uuid: "GPU-8a3b1f9e-5a0c-4f3e-9e7d-0123456789ab".into(),
            busy_percent: Some(99),
        }),
        process: Process { state: ProcessState::Running, wchan: String::new(), io_bytes: Some(40_960) },
        telemetry: Telemetry::Ok,
        kernels: true,
        comms: (0..comms as u64).map(|index| comm(0xdead_beef_0000_0000 + index)).collect(),
    }
}

fn digest(ranks: usize, comms: usize) -> Digest {
    let ranks = (0..ranks as u32).map(|index| rank(200_000 + index, comms)).collect();
    Digest { node: 7, number: 42, ending: false, ranks }
}

#[test]
fn what_is_written_is_what_is_read() {
    let mut one = digest(2, 2);
    one.ranks[0].telemetry = Telemetry::Lost { records: 9 };
    one.ranks[1].telemetry = Telemetry::Unavailable { why: "the user has a profiler of his own".into() };
    one.ranks[1].process = Process { state: ProcessState::Blocked, wchan: "nfs_wait".into(), io_bytes: None };
    let comm = &mut one.ranks[0].comms[1];
    comm.ended = true;
    comm.p2p.push(P2p { peer: 3, send: true, kernel_us: 12, progress: progress(9) });
    comm.steps.push(StepWait {
        peer: 3,
        channel: 1,
        send: true,
        steps: 128,
        gpu_us: 1,
        credit_us: 2,
        wire_us: 3,
        open: Some(StepState::Credit),
    });
    one.check().unwrap();
    let text = serde_json::to_vec(&one).unwrap();
    assert_eq!(Digest::parse(&text).unwrap(), one);
}

// The numbers that the module's words state.
#[test]
fn the_stated_sizes_hold() {
    let bytes = |ranks, comms| serde_json::to_vec(&digest(ranks, comms)).unwrap().len();
    assert!(bytes(8, 0) / 8 <= 220, "{}", bytes(8, 0) / 8);
    let six = bytes(8, 6) / 8;
    assert!((1_500..3_500).contains(&six), "{six} bytes a rank");
    let full = bytes(16, 32);
    assert!(full * 4 < MAX_DIGEST_BYTES, "{full}");
}

#[test]
fn every_bound_is_held() {
    let refused = |change: &dyn Fn(&mut Digest), word: &str| {
        let mut one = digest(2, 2);
        change(&mut one);
        let mistakes = one.check().unwrap_err().join("; ");
        assert!(mistakes.contains(word), "{word}: {mistakes}");
    };
    refused(&|one| *one = digest(MAX_RANKS + 1, 0), "ranks on one node");
    refused(&|one| one.ranks[0] = rank(1, MAX_COMMS + 1), "communicators of one rank");
    refused(&|one| one.ranks[1].pid = one.ranks[0].pid, "twice");
    refused(&|one| one.ranks[1].comms[1].id = one.ranks[1].comms[0].id, "twice");
    refused(&|one| one.ranks[0].process.wchan = "a\nb".into(), "kernel function");
    refused(&|one| one.ranks[0].comms[0].name = "x".repeat(1000), "name");
    refused(&|one| one.ranks[0].comms[0].name = "\u{202e}gnp".into(), "name");
    refused(&|one| one.ranks[0].comms[0].rank = 2048, "can't be");
    refused(&|one| one.ranks[0].comms[0].nranks = 0, "can't be");
    refused(&|one| one.ranks[0].comms[0].nranks = u32::MAX, "can't be");
    refused(&|one| one.ranks[0].comms[0].collectives[0].progress.finished = 999_999, "finished");
    refused(&|one| one.ranks[0].comms[0].collectives[0].progress.started_age_ms = u64::MAX, "too old");
    refused(&|one| one.ranks[0].comms[0].age_ms = u64::MAX, "too old");
    refused(&|one| one.ranks[0].comms[0].collectives[1].func = Func::AllReduce, "twice");
    let sample = Sample { func: Func::AllReduce, seq: 0, bytes: 0, kernel_us: 0 };
    refused(&|one| one.ranks[0].comms[0].samples = vec![sample; MAX_SAMPLES + 1], "samples");
    let peer = |peer| P2p { peer, send: true, kernel_us: 0, progress: progress(1) };
    refused(&|one| one.ranks[0].comms[0].p2p = (0..=MAX_P2P as u32).map(peer).collect(), "peers");
    refused(&|one| one.ranks[0].comms[0].p2p = vec![peer(2048)], "no rank 2048");
    refused(&|one| one.ranks[0].comms[0].p2p = vec![peer(1), peer(1)], "twice");
    refused(&|one| one.ranks[0].gpu.as_mut().unwrap().busy_percent = Some(101), "busy");
    let mut many = digest(MAX_RANKS, 1);
    many.ranks.iter_mut().for_each(|rank| rank.comms[0].nranks = 0);
    assert_eq!(many.check().unwrap_err().len(), 8, "mistakes are bounded too");
}

// O13: a parser of what others write is bounded and tolerates anything.
#[test]
fn what_is_no_digest_is_refused_in_one_clean_line() {
    for text in
        ["", "null", "[]", "{\"node\":1}", "{\"node\":\"\\u001b[2J\"}", "{\"node\":1,\"\u{202e}x\":2}"]
    {
        let error = Digest::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("no digest: "), "{error}");
        assert!(!error.contains(['\n', '\x1b', '\u{202e}']), "{error:?}");
    }
    let long = vec![b' '; MAX_DIGEST_BYTES + 1];
    assert_eq!(Digest::parse(&long), Err(DigestError::TooLong(MAX_DIGEST_BYTES + 1)));
    let deep = "[".repeat(100_000);
    assert!(Digest::parse(deep.as_bytes()).is_err());
    let text = serde_json::to_string(&digest(1, 1)).unwrap();
    assert!(
        Digest::parse(text.replace("[0,", "[77,").as_bytes()).unwrap_err().to_string().contains("number 77")
    );
}

#[test]
fn what_was_cleaned_stays_as_it_is() {
    for text in ["dp", &"ä".repeat(200), "a\nb\u{202e}"] {
        let once = clean(text);
        assert_eq!(clean(&once), once);
        let mut one = digest(1, 1);
        one.ranks[0].comms[0].name = once;
        one.check().unwrap();
    }
}

#[test]
fn functions_are_known_by_their_numbers() {
    for func in Func::ALL {
        assert_eq!(Func::try_from(u8::from(func)), Ok(func));
    }
}

proptest! {
    /// Whatever two ranks counted, what the coarser one samples the finer one samples too.
    #[test]
    fn ranks_sample_the_same_operations(a in 0u64..100_000, b in 0u64..100_000, seq: u64) {
        let (fine, coarse) = (stride(a.min(b)), stride(a.max(b)));
        prop_assert!(!sampled(seq, coarse) || sampled(seq, fine));
        prop_assert!((0..a).filter(|seq| sampled(*seq, stride(a))).count() <= MAX_SAMPLES);
    }

    /// No text makes the reader panic, and what it reads can be checked.
    #[test]
    fn no_text_upsets_the_reader(text in "[\\[\\]{}:,\"a-z0-9 -]{0,200}") {
        if let Ok(digest) = Digest::parse(text.as_bytes()) {
            let _ = digest.check();
        }
    }
}
