//! Which drained nodes are ours to return to service, and what shows that a node is fine again. Pure; what Slurm shows and
//! what a report says are arguments.

use jiff::Timestamp;

use crate::check::{ALL, Scope};
use crate::drain_memory::Memory;
use crate::job::NodeView;
use crate::reason::{Ours, is_marked};
use crate::report::{Item, Report};
use crate::verdict::Status;

/// A drain of ours, exactly as it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drained {
    /// Its reason.
    pub reason: Ours,
    /// When, by the controller's clock.
    pub at: Timestamp,
}

/// Flags beside which a node is not fine, whatever a check says.
const TROUBLED: [&str; 8] = [
    "DOWN",
    "FAIL",
    "NOT_RESPONDING",
    "POWERED_DOWN",
    "POWERING_DOWN",
    "POWERING_UP",
    "REBOOT_REQUESTED",
    "REBOOT_ISSUED",
];

/// Whether a node was drained by us and nobody has changed anything since.
///
/// # Errors
/// Why it is left alone, in words.
pub fn ours(view: &NodeView) -> Result<Drained, String> {
    let state = || view.state.iter().map(String::as_str).collect::<Vec<_>>().join("+");
    if !view.state.contains("DRAIN") {
        return Err(format!("it is not drained: it is {}", state()));
    }
    let reason = &view.reason;
    if !is_marked(reason) {
        return Err(format!("somebody else drained it: reason {reason:?}"));
    }
    let Some(ours) = Ours::parse(reason) else {
        return Err(format!("somebody added to the reason of this software, so it is his now: {reason:?}"));
    };
    if Memory::of(&view.comment).contradicts(reason) {
        return Err(format!("the reason is not as this software wrote it: {reason:?}"));
    }
    if let Some(flag) = TROUBLED.iter().find(|flag| view.state.contains(**flag)) {
        return Err(format!("it is {}: see to {flag} first", state()));
    }
    match view.reason_at {
        Some(at) => Ok(Drained { reason: ours, at }),
        None => Err("Slurm does not show when it was drained".to_owned()),
    }
}

/// Whether a check of one node by itself can show that the fault of a drain is gone.
///
/// # Errors
/// Why not, and what can.
pub fn one_node_can_tell(drained: &Drained) -> Result<(), String> {
    let check = drained.reason.check();
    let spec = ALL.iter().find(|spec| spec.text == check && spec.scope != Scope::Node);
    spec.map_or(Ok(()), |spec| {
        Err(format!(
            "its fault was in {}, which takes more than one node: it needs the report of a job that had it, or a person",
            spec.text
        ))
    })
}

/// What a report shows of a node that was drained: that all that was measured of it is fine, the check that it failed
/// among it.
///
/// # Errors
/// Why it is no evidence, in words.
pub fn passed(report: &Report, node: &str, drained: &Drained) -> Result<String, String> {
    // Checks that no job asked for have no job.
    let of = match report.job_id {
        0 => "what was run on it".to_owned(),
        job => format!("the report of job {job}"),
    };
    if !report.nodes.iter().any(|name| name == node) {
        return Err(format!("{of} is not about it"));
    }
    // Whole seconds: the time of a reason has no finer ones.
    if report.started_at.as_second() <= drained.at.as_second() {
        return Err(format!("{of} began at {}, not after the drain at {}", report.started_at, drained.at));
    }
    let about = || report.items.iter().filter(|item| involves(item, node));
    if let Some(bad) = about().find(|item| item.status > Status::Skip) {
        return Err(format!("{of} says {}: {}", bad.status, bad.message));
    }
    let check = drained.reason.check();
    let known = ALL.iter().any(|spec| spec.text == check);
    let fine: Vec<&Item> = about().filter(|item| item.status == Status::Pass).collect();
    // What was seen outside of the checks (hardware, c4d), and checks of another release, have no check of their own.
    if !fine.iter().any(|item| !known || item.check == check) {
        let what = if known { check } else { "anything" };
        return Err(format!("{of} shows no PASS of {what} on it"));
    }
    let mut checks: Vec<&str> = fine.iter().map(|item| item.check.as_str()).collect();
    checks.dedup();
    let by = if report.job_id == 0 { "run on it".to_owned() } else { format!("job {}", report.job_id) };
    Ok(format!("PASS of {} at {} ({by})", checks.join(", "), report.finished_at))
}

/// Whether an item is about this node, as the one or as the other of two.
fn involves(item: &Item, node: &str) -> bool {
    let first = item.subject.node.as_str();
    let other = item.subject.name.strip_prefix(first).and_then(|rest| {
        let rest = rest.strip_prefix("->").or_else(|| rest.strip_prefix('-'))?;
        rest.split('/').next()
    });
    first == node || other == Some(node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Phase;
    use crate::facts::Engine;
    use crate::report::ItemSubject;
    use crate::verdict::Outcome;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    const REASON: &str = "aimaster: gemm_flops n2 5<10TFLOP/s job=12 n=1";

    fn view(state: &[&str], reason: &str) -> NodeView {
        NodeView {
            name: "n2".into(),
            state: state.iter().map(|flag| (*flag).to_owned()).collect(),
            reason: reason.into(),
            reason_at: Some(at(100)),
            comment: String::new(),
        }
    }

    // C05, C06, C25, P01.
    #[test]
    fn only_an_unchanged_drain_of_ours_is_ours() {
        let drained = ours(&view(&["DRAIN", "IDLE"], REASON)).unwrap();
        assert_eq!((drained.reason.job_id, drained.at), (12, at(100)));
        let comment = Memory::default().and(at(100), REASON).into_comment("").unwrap();
        assert!(ours(&NodeView { comment: comment.clone(), ..view(&["DRAIN", "IDLE"], REASON) }).is_ok());
        let asked = REASON.replace("n2 ", "n2 ask Bob ");
        for (state, reason, words) in [
            (&["IDLE"][..], REASON, "not drained"),
            (&["DRAIN", "IDLE"], "fan 3 is loud", "somebody else"),
            (&["DRAIN", "IDLE"], "", "somebody else"),
            (&["DRAIN", "IDLE"], "Kill task failed", "somebody else"),
            (&["DRAIN", "IDLE"], &format!("{REASON}; ordered a new one"), "added"),
            (&["DRAIN", "IDLE"], &asked, "not as this software wrote it"),
            (&["DRAIN", "DOWN"], REASON, "see to DOWN"),
            (&["DRAIN", "IDLE", "NOT_RESPONDING"], REASON, "see to NOT_RESPONDING"),
            (&["DRAIN", "IDLE", "REBOOT_ISSUED"], REASON, "see to REBOOT_ISSUED"),
        ] {
            let error = ours(&NodeView { comment: comment.clone(), ..view(state, reason) }).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let timeless = NodeView { reason_at: None, ..view(&["DRAIN"], REASON) };
        assert!(ours(&timeless).unwrap_err().contains("when"));
    }

    fn item(check: &str, status: Status, node: &str, name: &str) -> Item {
        Item {
            phase: Phase::DeviceCheck,
            check: check.into(),
            subject: ItemSubject { kind: "x".into(), node: node.into(), name: name.into() },
            peers: Vec::new(),
            status,
            metric: None,
            value: None,
            bytes: None,
            unit: None,
            limit: None,
            limit_source: None,
            median: None,
            samples: Vec::new(),
            rates: Vec::new(),
            message: format!("{name}: {check}"),
            started_at: None,
            finished_at: None,
        }
    }

    fn report(items: Vec<Item>) -> Report {
        Report {
            schema: 1,
            job_id: 20,
            cluster: "aim".into(),
            check_number: 1,
            engine: Engine::Host,
            hardware: None,
            started_at: at(200),
            finished_at: at(210),
            outcome: Outcome::Pass,
            summary: String::new(),
            action: "start".into(),
            nodes: vec!["n1".into(), "n2".into(), "n22".into()],
            items,
            drained: Vec::new(),
            held_back: Vec::new(),
            errors: Vec::new(),
            notes: Vec::new(),
        }
    }

    // C06, C09.
    #[test]
    fn a_report_is_evidence_if_it_is_later_and_the_failed_check_passed_on_the_node() {
        use Status::{Error, Fail, Pass, Skip, Suspect};
        let drained = ours(&view(&["DRAIN"], REASON)).unwrap();
        let judged = |items: Vec<Item>| passed(&report(items), "n2", &drained);
        let fine = || item("gemm_flops", Pass, "n2", "n2/gpu0");
        assert_eq!(judged(vec![fine()]).unwrap(), "PASS of gemm_flops at 1970-01-01T00:03:30Z (job 20)");
        // What another node shows is not this one's.
        assert!(
            judged(vec![fine(), item("gemm_flops", Fail, "n1", "n1"), item("x", Fail, "n22", "n22")]).is_ok()
        );
        for (items, words) in [
            (vec![], "no PASS of gemm_flops"),
            (vec![item("gemm_flops", Skip, "n2", "n2")], "no PASS"),
            (vec![item("kernel_launch", Pass, "n2", "n2")], "no PASS of gemm_flops"),
            (vec![item("gemm_flops", Pass, "n22", "n22")], "no PASS"),
            (vec![fine(), item("all_reduce_2", Fail, "n1", "n1-n2")], "says FAIL"),
            (vec![fine(), item("network_connectivity", Suspect, "n1", "n1->n2")], "says SUSPECT"),
            (vec![fine(), item("", Error, "n2", "n2")], "says ERROR"),
        ] {
            let error = judged(items).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let late = Drained { at: at(200), ..drained.clone() };
        assert!(passed(&report(vec![fine()]), "n2", &late).unwrap_err().contains("not after the drain"));
        assert!(passed(&report(vec![fine()]), "n3", &drained).unwrap_err().contains("not about it"));
    }

    #[test]
    fn what_takes_two_nodes_is_not_shown_by_one() {
        let pair = ours(&view(&["DRAIN"], "aimaster: all_reduce_2 n2 0.002<0.05GB/s job=1 n=1")).unwrap();
        assert!(
            one_node_can_tell(&pair).unwrap_err().contains("all_reduce_2, which takes more than one node")
        );
        assert!(one_node_can_tell(&ours(&view(&["DRAIN"], REASON)).unwrap()).is_ok());
        let broken =
            ours(&view(&["DRAIN"], "aimaster: hardware n2/gpu1: fell off the bus job=1 n=1")).unwrap();
        assert!(one_node_can_tell(&broken).is_ok());
        let passes = report(vec![item("gemm_flops", Status::Pass, "n2", "n2")]);
        assert!(passed(&passes, "n2", &broken).is_ok() && passed(&passes, "n2", &pair).is_err());
    }
}
