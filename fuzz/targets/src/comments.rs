//! What is written into Slurm and read again among other people's words: the reason of a drain, the memory of a node's
//! drains in its comment, a job's AdminComment.
//!
//! A file is a list of three texts: what was found or a reason, a comment, the words of the runtime check.

use diag::admin_comment::{drained, is_part, part, requeues, runtime_part, with_drained, with_part};
use diag::drain_memory::{MOST_REMEMBERED, Memory};
use diag::reason::{MARK, Ours, REASON_MAX};
use jiff::Timestamp;

use crate::holds;

/// What is written reads back, and what others wrote stays.
pub fn run(data: &[u8]) {
    let mut parts = holds::parts(data).map(holds::text);
    let mut next = || parts.next().unwrap_or_default();
    let (reason, comment, words) = (next(), next(), next());
    reasons(&reason, &words);
    memory(&reason, &comment);
    admin_comment(&comment, &words);
}

fn reasons(text: &str, words: &str) {
    if let Some(ours) = Ours::parse(text) {
        assert_eq!(ours.to_string(), text);
        assert!(text.len() <= REASON_MAX && text.starts_with(MARK));
        _ = (ours.check(), ours.part("n1"), ours.is_of_communication());
    }
    let made = Ours { what: text.to_owned(), job_id: u32::MAX, check_number: u32::MAX };
    for made in [made.clone(), made.with(words)] {
        let written = made.to_string();
        holds::line(&written, REASON_MAX);
        // Of nothing that can be shown there is nothing to be known again.
        if let Some(read) = Ours::parse(&written) {
            assert_eq!((read.job_id, read.check_number), (made.job_id, made.check_number));
            assert_eq!(read.to_string(), written);
        } else {
            assert!(written.starts_with(&format!("{MARK} job=")), "{written:?} is ours");
        }
    }
}

fn memory(reason: &str, comment: &str) {
    let read = Memory::of(comment);
    let at = Timestamp::from_second(1_700_000_000).unwrap();
    let more = read.and(at, reason);
    assert!(more.drained.len() <= MOST_REMEMBERED as usize && more.count(at) >= 1);
    assert!(!more.contradicts(reason));
    let mut wanted = more.clone();
    wanted.drained.sort_unstable();
    let Some(written) = more.into_comment(comment) else { return };
    assert!(!written.chars().any(char::is_control));
    assert_eq!(Memory::of(&written), wanted);
    others_stay(comment, &written);
}

fn admin_comment(comment: &str, words: &str) {
    let ours = "aimaster{n=2 outcome=FAIL requeues=1 drained=n1,n2}";
    let written = with_part(comment, ours);
    assert_eq!(part(&written), Some(ours));
    assert_eq!(
        (requeues(&written), drained(&written, 2), drained(&written, 3)),
        (1, vec!["n1", "n2"], vec![])
    );
    others_stay(comment, &written);
    assert!(is_part(&with_drained(ours, &["n3"])));
    for requeued in [false, true] {
        let made = runtime_part(comment, 2, requeued, &["n1"], "c4d=straggler:n1");
        assert!(is_part(&made), "{made:?}");
        assert_eq!(requeues(&made), requeues(comment).saturating_add(u32::from(requeued)));
        _ = runtime_part(comment, u32::MAX, requeued, &[], words);
    }
}

/// What is not our part is where it was.
fn others_stay(before: &str, after: &str) {
    let ours = part(after).unwrap();
    match part(before) {
        Some(old) => assert_eq!(before.len() - old.len(), after.len() - ours.len()),
        None => assert!(after.starts_with(before)),
    }
}
