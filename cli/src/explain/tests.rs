//! What is explained, and what is suggested where nothing is known.

use diag::c4d::finding::Class;
use diag::reason::Ours;
use diag::request::FailAction;
use diag::verdict::Outcome;
use diag::xid::XidTable;

use super::*;

fn shown(asked: &str) -> String {
    explain(asked, &XidTable::default()).map_or_else(|| panic!("{asked} is not known"), |found| text(&found))
}

#[test]
fn every_check_has_its_words_from_the_registry_and_the_pages() {
    for spec in ALL {
        let text = shown(spec.text);
        assert!(text.starts_with(&format!("{}: {}", spec.text, spec.doc)), "{text}");
        assert!(text.contains("docs/checks.md") && text.contains("failure means"), "{text}");
        assert!(text.contains("What to do:") && !text.contains("**"), "{text}");
    }
}

#[test]
fn every_finding_outcome_and_action_is_known() {
    use Class::{
        CommunicationHang, CommunicationSlow, Deadlock, NonCommunicationHang, Paused, Straggler, Undecided,
    };
    let classes =
        [NonCommunicationHang, CommunicationHang, Straggler, CommunicationSlow, Paused, Deadlock, Undecided];
    for class in classes {
        let text = shown(class.text());
        assert!(
            text.contains("docs/runtime.md, What is judged") && text.contains("what to do next:"),
            "{text}"
        );
    }
    for outcome in [Outcome::Suspect, Outcome::Error, Outcome::Environment] {
        assert!(shown(&outcome.to_string()).contains("README.md"), "{outcome}");
        assert_eq!(shown(&outcome.to_string().to_lowercase()), shown(&outcome.to_string()));
    }
    for action in [FailAction::Retain, FailAction::Drain, FailAction::Fail, FailAction::Requeue] {
        assert!(shown(&action.to_string()).contains("the job: "), "{action}");
    }
    for word in WORDS {
        assert!(explain(word, &XidTable::default()).is_some(), "{word}");
    }
}

#[test]
fn a_reason_is_explained_however_it_was_pasted() {
    let reason =
        Ours { what: "all_reduce_2 n3 0.002<0.05GB/s".into(), job_id: 1234, check_number: 2 }.to_string();
    let plain = shown(&reason);
    for part in [
        "all_reduce_2 n3 0.002<0.05GB/s: found by check 2 of job 1234",
        "ports and cables",
        "aimaster report 1234 --check 2",
        "--after-pass JOBID",
        "docs/checks.md",
    ] {
        assert!(plain.contains(part), "no {part:?} in {plain}");
    }
    for pasted in [
        format!("Reason={reason} [root@2026-11-30T11:24:12]"),
        format!("   Reason={reason} [slurm(64030)@2026-11-30T11:24:12]"),
        format!("\"{reason}\""),
    ] {
        assert_eq!(shown(&pasted), plain, "{pasted}");
    }
    let added = shown(&format!("{reason}; a new one is ordered"));
    assert!(added.contains("somebody added \"a new one is ordered\""), "{added}");
    let gpu = shown("aimaster: gemm_flops n3/gpu2 wrong result job=7 n=1");
    assert!(gpu.contains("computes wrongly is replaced") && gpu.contains("undrain NODE --check"), "{gpu}");
}

#[test]
fn reasons_of_the_hardware_lead_to_its_words() {
    let lost = shown("aimaster: c4d hardware: n2: GPU 1 (0000:b1:00.0): fell off the bus, Xid 79 job=7 n=1");
    for part in ["while the job ran", "Xid 79", "the node is drained", "hardware", "undrain NODE --check"] {
        assert!(lost.contains(part), "no {part:?} in {lost}");
    }
    let straggler = shown("aimaster: c4d straggler: rank 3 (n2, GPU 1, process 4711) is late job=7 n=1");
    assert!(
        straggler.contains("the same rank comes last") && straggler.contains("--after-pass"),
        "{straggler}"
    );
    assert!(shown("Prolog error").contains("no reason of this software"));
    assert!(
        shown("aimaster: hardware n2/gpu1: it can't be opened job=7 n=1")
            .contains("before anything was measured")
    );
}

#[test]
fn numbers_of_the_driver_follow_the_site_s_table() {
    assert!(shown("Xid 79").contains("the GPU; once is enough: the node is drained"));
    assert_eq!(shown("xid79"), shown("XID: 79"));
    assert!(shown("xid 74").contains("3 of them in 3600 s"));
    assert!(shown("Xid 136").contains("on Hopper: "));
    assert!(shown("SXid 22013").contains("nothing is said of it"));
    let line = shown("[Mon Nov 30] NVRM: Xid (PCI:0000:b1:00): 48, pid=17, name=python, DBE");
    assert!(line.starts_with("Xid 48") && line.contains("memory"), "{line}");
    let policy = "runtime.xid = [{ xid = [79], class = 'power', action = 'report' }]";
    let table = diag::policy::Policy::parse(policy).unwrap().runtime.xid;
    let own = text(&explain("Xid 79", &table).unwrap());
    assert!(own.contains("power supply; it is told, and nobody is drained"), "{own}");
}

#[test]
fn keys_of_the_policy_are_known_and_near_words_are_suggested() {
    let key = shown("time.join_s");
    assert!(key.contains("join_s = 60") && key.contains("How long the nodes of a job wait"), "{key}");
    let table = XidTable::default();
    for (asked, near) in
        [("gemm_flop", "gemm_flops"), ("stragler", "straggler"), ("time.join", "time.join_s")]
    {
        assert!(explain(asked, &table).is_none(), "{asked}");
        assert!(unknown(asked).contains(&format!("did you mean {near}?")), "{}", unknown(asked));
    }
    assert!(unknown("zzz").contains("all_reduce_2") && !unknown("zzz").contains("did you mean"));
    assert!(explain("", &table).is_none());
}
