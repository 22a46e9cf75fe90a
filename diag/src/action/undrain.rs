//! Which drained nodes are ours to return to service, and what shows that a node is fine again. Pure; what Slurm shows and
//! what a report says are arguments.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::check::{ALL, CheckName, Scope};
use crate::drain_memory::Memory;
use crate::facts::Engine;
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
    let between = if drained.reason.is_of_communication() {
        Some("the communication of a job (c4d)")
    } else {
        ALL.iter().find(|spec| spec.text == check && spec.scope != Scope::Node).map(|spec| spec.text)
    };
    between.map_or(Ok(()), |fault| {
        Err(format!(
            "its fault was in {fault}, which takes more than one node: it needs the report of a job that had it, or a \
             person"
        ))
    })
}

/// What a report shows of a node that was drained: that all that was measured of it is fine, the part and the check that
/// it failed among it. `gpus` is how many Slurm says it has.
///
/// # Errors
/// Why it is no evidence, in words.
pub fn passed(report: &Report, node: &str, drained: &Drained, gpus: u32) -> Result<String, String> {
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
    let asked = Asked::of(drained, node);
    let passes: Vec<&Item> = about().filter(|item| item.status == Status::Pass).collect();
    let fine: Vec<&Item> = passes.iter().copied().filter(|item| asked.is_answered_by(item, node)).collect();
    if fine.is_empty() {
        return Err(format!("{of} shows no PASS of {} on {}", asked.what(), asked.place(node)));
    }
    if let Some((covered, all)) = uncovered(report, node, &asked, (&fine, &passes), gpus) {
        return Err(format!(
            "{of} covered {covered} of its {all} GPUs, and the fault may be in another: it needs a report that covers \
             all of them"
        ));
    }
    let mut checks: Vec<&str> = fine.iter().map(|item| item.check.as_str()).collect();
    checks.dedup();
    let by = if report.job_id == 0 { "run on it".to_owned() } else { format!("job {}", report.job_id) };
    Ok(format!("PASS of {} at {} ({by})", checks.join(", "), report.finished_at))
}

/// What has to be seen passing.
struct Asked<'d> {
    /// The check that failed. `None`: what was seen outside of the checks (hardware, c4d), and checks of another release,
    /// have none.
    check: Option<CheckName>,
    /// Any check between nodes will do, and no other.
    between: bool,
    part: Option<&'d str>,
}

impl<'d> Asked<'d> {
    fn of(drained: &'d Drained, node: &str) -> Self {
        let check = ALL.iter().find(|spec| spec.text == drained.reason.check()).map(|spec| spec.name);
        Self { check, between: drained.reason.is_of_communication(), part: drained.reason.part(node) }
    }

    fn is_answered_by(&self, item: &Item, node: &str) -> bool {
        let spec = ALL.iter().find(|spec| spec.text == item.check);
        let check = match self.check {
            Some(check) => spec.is_some_and(|spec| spec.name == check),
            None => !self.between || spec.is_some_and(|spec| spec.scope != Scope::Node),
        };
        // Of two nodes (`n1-n2/rail3`) the part is behind both.
        let part = || item.subject.name.split_once('/').map(|(_, part)| part);
        check && involves(item, node) && self.part.is_none_or(|wanted| part() == Some(wanted))
    }

    fn what(&self) -> String {
        match self.check {
            Some(check) => check.to_string(),
            None if self.between => "a check between nodes".to_owned(),
            None => "anything".to_owned(),
        }
    }

    fn place(&self, node: &str) -> String {
        self.part.map_or_else(|| "it".to_owned(), |part| format!("{node}/{part}"))
    }

    /// Whether its fault may be in any of the node's GPUs. A rail may be: its number is that of a job's own GPU.
    fn is_of_any_gpu(&self, engine: Engine) -> bool {
        let tcp = [CheckName::NetworkConnectivity, CheckName::PytorchGloo2];
        let on_gpus = self.check.is_none_or(|check| engine == Engine::Cuda && !tcp.contains(&check));
        on_gpus && self.part.is_none_or(|part| part.strip_prefix("gpu").is_none())
    }
}

/// How many of how many GPUs a report covers of a node whose fault may be in each; `None`: all of them, or it makes no
/// difference. `fine` is what answers, `passes` all that passed on the node.
fn uncovered(
    report: &Report,
    node: &str,
    asked: &Asked<'_>,
    (fine, passes): (&[&Item], &[&Item]),
    gpus: u32,
) -> Option<(u32, String)> {
    let gpu = |item: &Item| {
        let part = item.subject.name.strip_prefix(node)?.strip_prefix("/gpu")?;
        part.parse::<u32>().ok()
    };
    let named = |items: &[&Item]| {
        u32::try_from(items.iter().filter_map(|item| gpu(item)).collect::<BTreeSet<u32>>().len())
            .unwrap_or(u32::MAX)
    };
    if !asked.is_of_any_gpu(report.engine) {
        return None;
    }
    let whole = fine.iter().any(|item| gpu(item).is_none());
    // What was measured on the node as a whole was measured with the GPUs that the job held.
    let held =
        report.hardware.as_ref().and_then(|hardware| hardware.gpus).filter(|_| report.engine == Engine::Cuda);
    let covered = if whole { held.unwrap_or(0).max(named(passes)) } else { named(fine) };
    match gpus {
        // How many there are is not known: then only what is about the node itself will do.
        0 => (!whole).then(|| (covered, "unknown number of".to_owned())),
        all => (covered < all).then(|| (covered, all.to_string())),
    }
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
    use crate::report::{ItemSubject, MeasuredOn};
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
        let judged = |items: Vec<Item>| passed(&report(items), "n2", &drained, 0);
        let fine = || item("gemm_flops", Pass, "n2", "n2");
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
        assert!(passed(&report(vec![fine()]), "n2", &late, 0).unwrap_err().contains("not after the drain"));
        assert!(passed(&report(vec![fine()]), "n3", &drained, 0).unwrap_err().contains("not about it"));
    }

    #[test]
    fn what_takes_two_nodes_is_not_shown_by_one() {
        let pair = ours(&view(&["DRAIN"], "aimaster: all_reduce_2 n2 0.002<0.05GB/s job=1 n=1")).unwrap();
        assert!(
            one_node_can_tell(&pair).unwrap_err().contains("all_reduce_2, which takes more than one node")
        );
        assert!(one_node_can_tell(&ours(&view(&["DRAIN"], REASON)).unwrap()).is_ok());
        for (what, alone) in [
            ("hardware n2/gpu1: fell off the bus", true),
            ("c4d hardware: n2: GPU 1 is lost", true),
            ("c4d communication_slow: n2 is slow with everybody", false),
            ("c4d straggler: rank 3 is late", false),
        ] {
            assert_eq!(one_node_can_tell(&drained(what)).is_ok(), alone, "{what}");
        }
    }

    fn drained(what: &str) -> Drained {
        ours(&view(&["DRAIN"], &format!("aimaster: {what} job=1 n=1"))).unwrap()
    }

    /// A report of a job that held so many GPUs of each node.
    fn on_gpus(gpus: Option<u32>, passes: &[(&str, &str)]) -> Report {
        let items = passes.iter().map(|(check, name)| {
            let node = name.split(['-', '/']).next().unwrap();
            item(check, Status::Pass, node, name)
        });
        let hardware = Some(MeasuredOn { gpus, ..MeasuredOn::default() });
        Report { engine: Engine::Cuda, hardware, ..report(items.collect()) }
    }

    // C06, C09: another GPU of the node is not the one that was at fault.
    #[test]
    fn the_part_that_failed_is_the_one_that_has_to_pass() {
        let all: Vec<String> = (0..8).map(|gpu| format!("n2/gpu{gpu}")).collect();
        let every: Vec<(&str, &str)> = all.iter().map(|name| ("gemm_flops", name.as_str())).collect();
        let judged = |what: &str, gpus, passes: &[(&str, &str)]| {
            passed(&on_gpus(gpus, passes), "n2", &drained(what), 8).map(drop)
        };
        for what in ["gemm_flops n2/gpu2 5<10TFLOP/s", "hardware n2/gpu2: fell off the bus"] {
            let other = judged(what, Some(1), &[("gemm_flops", "n2/gpu3"), ("gemm_flops", "n2/gpu22")]);
            assert!(other.unwrap_err().ends_with("on n2/gpu2"), "{what}");
            assert!(judged(what, Some(8), &[("gemm_flops", "n2"), ("all_reduce_2", "n1-n2")]).is_err());
            assert_eq!(judged(what, Some(1), &[("gemm_flops", "n2/gpu2")]), Ok(()), "{what}");
        }
        let rail = "multi_all_reduce_2 n2/rail3 1<2GB/s";
        assert!(judged(rail, Some(8), &[("multi_all_reduce_2", "n1-n2/rail2")]).is_err());
        assert_eq!(judged(rail, Some(8), &[("multi_all_reduce_2", "n1-n2/rail3")]), Ok(()));
        // Rail 3 of a job with four GPUs may be any.
        assert!(judged(rail, Some(4), &[("multi_all_reduce_2", "n1-n2/rail3")]).is_err());

        // The node as a whole: all of its GPUs.
        let whole = "gemm_flops n2 5<10TFLOP/s";
        let some = judged(whole, Some(8), &every[..7]).unwrap_err();
        assert!(some.contains("covered 7 of its 8 GPUs"), "{some}");
        assert_eq!(judged(whole, None, &every), Ok(()));
        for (what, check, name) in [
            ("all_reduce_1 n2 1<2GB/s", "all_reduce_1", "n2"),
            ("all_reduce_2 n2 1<2GB/s", "all_reduce_2", "n1-n2"),
            ("hardware n2 GPU 1: it can't be opened", "all_reduce_1", "n2"),
            ("c4d straggler: rank 3 is late", "all_reduce_2", "n1-n2"),
        ] {
            assert!(
                judged(what, Some(2), &[(check, name)]).unwrap_err().contains("covered 2 of its 8"),
                "{what}"
            );
            assert!(judged(what, None, &[(check, name)]).is_err(), "{what}");
            assert_eq!(judged(what, Some(8), &[(check, name)]), Ok(()), "{what}");
        }
        // Of no GPU, but of the node.
        assert_eq!(
            judged("network_connectivity n2 99%", Some(1), &[("network_connectivity", "n1->n2")]),
            Ok(())
        );
        // How many there are is not known.
        let unknown = |passes: &[(&str, &str)]| {
            let said = passed(&on_gpus(None, passes), "n2", &drained("hardware n2 is odd"), 0);
            said.is_ok()
        };
        assert!(!unknown(&[("gemm_flops", "n2/gpu0")]) && unknown(&[("all_reduce_1", "n2")]));
    }

    #[test]
    fn what_communication_showed_needs_a_check_between_nodes() {
        let slow = drained("c4d communication_slow: n2 is slow with everybody");
        let alone = passed(&on_gpus(Some(8), &[("all_reduce_1", "n2")]), "n2", &slow, 8).unwrap_err();
        assert!(alone.contains("no PASS of a check between nodes"), "{alone}");
        assert!(passed(&on_gpus(Some(8), &[("all_reduce_2", "n1-n2")]), "n2", &slow, 8).is_ok());
        // What the hardware showed is shown by any check, on a node without GPUs as well.
        let broken = drained("c4d hardware: n2: a port is down");
        let host = report(vec![item("gemm_flops", Status::Pass, "n2", "n2")]);
        assert!(passed(&host, "n2", &broken, 0).is_ok());
        // The host engine measures no GPU.
        assert!(passed(&host, "n2", &broken, 8).is_err());
    }
}
