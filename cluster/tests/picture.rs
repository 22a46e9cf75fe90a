//! What sinfo and scontrol print of nodes is read back exactly, whatever an admin wrote into reasons and comments.
#![allow(clippy::unwrap_used)] // the helpers of tests fail like tests

use cluster::slurm::{picture, show};
use proptest::prelude::*;

/// A line as sinfo prints it.
fn line(partition: &str, nodes: &str, state: &str, at: &str, comment: &str, reason: &str) -> String {
    format!("{partition}\u{1f}{nodes}\u{1f}{state}\u{1f}{at}\u{1f}{comment}\u{1f}{reason}\u{1e}\n")
}

#[test]
fn nodes_that_are_alike_share_a_line() {
    let text = line("main", "n[1-3,5]", "idle", "Unknown", "(null)", "none")
        + &line("main", "n4", "idle+drain", "1970-01-01T00:01:40", "rack 7", "aimaster: x job=1 n=1")
        + &line("small", "n4", "idle+drain", "1970-01-01T00:01:40", "rack 7", "aimaster: x job=1 n=1")
        + &line("empty", "", "n/a", "Unknown", "(null)", "none");
    let seen = picture::picture(&text).unwrap();
    assert_eq!(seen.rows.len(), 4);
    let n4 = seen.node("n4").unwrap();
    assert_eq!((n4.reason.as_str(), n4.comment.as_str()), ("aimaster: x job=1 n=1", "rack 7"));
    assert_eq!(n4.reason_at.unwrap().as_second(), 100);
    assert!(n4.is_taken() && n4.state.contains("DRAIN"));
    let n5 = seen.node("n5").unwrap();
    assert!(!n5.is_taken() && n5.reason_at.is_none() && n5.comment.is_empty(), "{n5:?}");
    assert_eq!(seen.held().into_iter().collect::<Vec<_>>(), ["n4"]);
    assert_eq!(seen.node("n6"), None);
}

// A35, C22, F03: an answer that is cut, empty or none of sinfo's is no picture without drained nodes.
#[test]
fn half_an_answer_is_none() {
    let text = line("main", "n[1-3]", "idle", "Unknown", "(null)", "none")
        + &line("main", "n4", "idle+drain", "1970-01-01T00:01:40", "rack 7", "aimaster: x job=1 n=1");
    for end in (0..text.len() - 1).filter(|end| text.is_char_boundary(*end)) {
        let cut = &text[..end];
        let whole = cut.is_empty() || cut.trim_end().ends_with('\u{1e}');
        let read = picture::picture(cut);
        assert_eq!(read.is_ok(), whole && !cut.trim().is_empty(), "{cut:?}");
    }
    for odd in ["", "\n", "PARTITION AVAIL\nmain up\n", "a\u{1f}n[1\u{1f}idle\u{1f}x\u{1f}y\u{1f}z\u{1e}\n"] {
        assert!(picture::picture(odd).is_err(), "{odd:?}");
    }
}

#[test]
fn every_field_has_an_ending_and_no_width() {
    let format = picture::arguments()[4];
    assert!(format.split(',').all(|field| field.ends_with(['\u{1f}', '\u{1e}'])), "{format:?}");
    assert!(!format.contains(|c: char| c.is_ascii_digit()), "{format:?}");
}

#[test]
fn what_a_node_is_made_of_is_read() {
    let text = |gres: &str, state: &str| {
        format!(
            "NodeName=n1 Arch=x86_64 CoresPerSocket=4 \n   Gres={gres}\n   NodeAddr=10.0.0.1 NodeHostName=host-1 Version=22.05.8\n   State={state} ThreadsPerCore=1\n"
        )
    };
    for (gres, state, gpus, busy) in [
        ("(null)", "IDLE+DRAIN", 0, false),
        ("gpu:8", "MIXED+DRAIN", 8, true),
        ("gpu:h200:8(S:0-1)", "IDLE+COMPLETING+DRAIN", 8, true),
        ("gpu:a100:2(S:0,1),gpu:h100:4(S:1),shard:16(S:0-1),gpux:3", "IDLE+DRAIN", 6, false),
    ] {
        let place = show::place(&text(gres, state), "n1").unwrap();
        assert_eq!((place.host.as_str(), place.gpus, place.busy), ("host-1", gpus, busy), "{gres}");
    }
    assert!(show::place(&text("gpu:8", "IDLE"), "n2").is_err());
}

proptest! {
    #[test]
    fn reasons_and_comments_are_read_back_exactly(
        reason in "[^\\x00-\\x1f]{1,120}",
        comment in "[^\\x00-\\x1f]{1,120}",
        user in "[a-z][a-z0-9_]{0,8}",
    ) {
        prop_assume!(!["none", "(null)"].contains(&reason.as_str()) && comment != "(null)" && comment != "none");
        let seen = picture::picture(&line("main", "n1", "idle", "1970-01-01T00:01:40", &comment, &reason)).unwrap();
        let view = seen.node("n1").unwrap();
        prop_assert_eq!((&view.reason, &view.comment), (&reason, &comment));
        let text = format!(
            "NodeName=n1 Arch=x86_64\n   State=IDLE+DRAIN ThreadsPerCore=1\n   Reason={reason} [{user}@1970-01-01T00:01:40]\n   Comment={}\n",
            comment.trim_end()
        );
        let view = show::node(&text, "n1").unwrap();
        prop_assert_eq!((view.reason, view.comment), (reason, comment.trim_end().to_owned()));
        prop_assert_eq!(view.reason_at.unwrap().as_second(), 100);
    }

    #[test]
    fn any_output_is_read_or_refused(text in "[a-z\u{1e}\u{1f}\n\\[\\]=-]{0,200}") {
        let _ = picture::picture(&text);
        let _ = show::place(&text, "n1");
    }
}
