//! What the built-in rows say, and which row holds.

use super::*;

fn rule(code: u32, generation: Option<Generation>, severity: Option<Severity>) -> Rule {
    XidTable::default().rule(Family::Xid, code, generation, severity)
}

// I01.
#[test]
fn no_built_in_row_of_a_program_s_fault_drains() {
    let table = XidTable::default();
    for code in [13, 31, 43, 45] {
        let rule = rule(code, None, None);
        assert_eq!((rule.class, rule.action), (Class::Application, Action::Report), "{code}");
    }
    assert!(table.0.values().all(|rule| rule.class != Class::Application || rule.action < Action::Drain));
}

#[test]
fn what_leaves_a_gpu_unusable_drains() {
    for code in [46, 48, 62, 64, 79, 95, 119, 120, 140, 143] {
        assert_eq!(rule(code, Some(Generation::Hopper), None).action, Action::Drain, "{code}");
    }
    for code in [63, 68, 92, 94, 171] {
        assert_eq!(rule(code, Some(Generation::Hopper), None).action, Action::Report, "{code}");
    }
}

// I02.
#[test]
fn severity_and_generation_decide_where_they_matter() {
    for code in 144..=150 {
        let of = |severity| rule(code, Some(Generation::Blackwell), severity).action;
        assert_eq!(of(Some(Severity::Fatal)), Action::Drain);
        assert_eq!(of(Some(Severity::Nonfatal)), Action::Report);
        assert_eq!(of(None), Action::Report);
    }
    assert_eq!(rule(136, Some(Generation::Hopper), None).action, Action::Drain);
    assert_eq!(rule(136, Some(Generation::Ampere), None).action, Action::Report);
    assert_eq!(rule(154, None, Some(Severity::Nonfatal)).action, Action::Ignore);
}

// I09.
#[test]
fn an_unknown_number_is_told_and_the_source_has_its_version() {
    for code in [1, 87, 200, 999, MOST_CODE] {
        assert_eq!(rule(code, None, None), Rule::UNKNOWN, "{code}");
    }
    assert!(SOURCE.contains("1 to 172") && SOURCE.contains("2025-11"));
    let sxid = |severity| XidTable::default().rule(Family::Sxid, 31_337, None, severity);
    assert_eq!(sxid(Some(Severity::Fatal)).action, Action::Drain);
    assert_eq!(sxid(Some(Severity::Nonfatal)).action, Action::Report);
    assert_eq!(sxid(None), Rule::UNKNOWN);
}

#[test]
fn a_row_for_all_takes_the_place_of_the_finer_ones() {
    let mut table = XidTable::default();
    let key = Key { family: Family::Xid, code: 149, generation: None, severity: None };
    table.replace(key, Rule { action: Action::Ignore, ..Rule::UNKNOWN });
    assert_eq!(table.rule(Family::Xid, 149, None, Some(Severity::Fatal)).action, Action::Ignore);
    let finer = Key { severity: Some(Severity::Fatal), ..key };
    table.replace(finer, Rule { action: Action::Drain, ..Rule::UNKNOWN });
    assert_eq!(table.rule(Family::Xid, 149, None, Some(Severity::Fatal)).action, Action::Drain);
    assert_eq!(table.rule(Family::Xid, 149, None, None).action, Action::Ignore);
}

#[test]
fn a_generation_is_known_by_the_product_s_name() {
    for (name, generation) in [
        ("NVIDIA A100-SXM4-80GB", Some(Generation::Ampere)),
        ("NVIDIA H100 80GB HBM3", Some(Generation::Hopper)),
        ("NVIDIA H200", Some(Generation::Hopper)),
        ("NVIDIA GH200 480GB", Some(Generation::Hopper)),
        ("NVIDIA B300 SXM6 AC", Some(Generation::Blackwell)),
        ("NVIDIA GB200", Some(Generation::Blackwell)),
        ("NVIDIA L40S", Some(Generation::Ada)),
        ("NVIDIA X9000", None),
    ] {
        assert_eq!(Generation::of(name), generation, "{name}");
    }
}
