//! The budget that all jobs share: what is drained, what is held back, what is given back, and that no order of events
//! lets jobs that fail at once exceed it.
use diag::action::drains::{Admission, Kind, Picture, Row, admit, surplus};
use diag::drain_memory::Memory;
use diag::job::NodeView;
use diag::policy::Budget;
use jiff::Timestamp;
use proptest::prelude::*;

const NOW: i64 = 1_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn reason(node: &str) -> String {
    format!("aimaster: gemm_flops {node} 5<10TFLOP/s job=12 n=1")
}

/// A controller: the nodes of a partition `main`, in which all are healthy at first.
#[derive(Clone)]
struct Slurm {
    nodes: Vec<NodeView>,
    partitions: Vec<(&'static str, Vec<usize>)>,
}

impl Slurm {
    fn of(size: usize) -> Self {
        let node = |node| NodeView {
            name: format!("n{node}"),
            state: ["IDLE".to_owned()].into(),
            ..NodeView::default()
        };
        Self { nodes: (0..size).map(node).collect(), partitions: vec![("main", (0..size).collect())] }
    }

    fn picture(&self) -> Picture {
        let row = |partition: &str, node: &usize| Row {
            partition: partition.to_owned(),
            nodes: vec![self.nodes[*node].name.clone()],
            alike: self.nodes[*node].clone(),
        };
        let rows = self.partitions.iter().flat_map(|(name, nodes)| nodes.iter().map(|node| row(name, node)));
        Picture { rows: rows.collect() }
    }

    fn drain(&mut self, node: usize, second: i64, reason: &str, comment: Option<String>) {
        let one = &mut self.nodes[node];
        one.state.insert("DRAIN".into());
        (one.reason, one.reason_at) = (reason.to_owned(), Some(at(second)));
        one.comment = comment.unwrap_or_else(|| one.comment.clone());
    }

    fn back(&mut self, node: usize) {
        let one = &mut self.nodes[node];
        one.state.remove("DRAIN");
        (one.reason, one.reason_at) = (String::new(), None);
    }

    /// What becomes of wanted drains now, done as admitted.
    fn wants(&mut self, budget: &Budget, second: i64, nodes: &[usize]) -> Vec<Result<String, Kind>> {
        let names: Vec<(String, String)> =
            nodes.iter().map(|node| (format!("n{node}"), reason(&format!("n{node}")))).collect();
        let wanted: Vec<(&str, &str)> = names.iter().map(|(n, r)| (n.as_str(), r.as_str())).collect();
        let admitted = admit(budget, &self.picture(), at(second), &wanted);
        let mut results = Vec::new();
        for (node, one) in nodes.iter().zip(admitted) {
            results.push(match one {
                Admission::Drain { reason, comment, .. } => {
                    self.drain(*node, second, &reason, comment);
                    Ok(reason)
                }
                Admission::Done => Ok("done".into()),
                Admission::No(withheld) => Err(withheld.kind),
            });
        }
        results
    }

    fn held(&self) -> usize {
        self.nodes.iter().filter(|node| node.reason.starts_with("aimaster: ")).count()
    }
}

fn budget(held_nodes: u32, new_nodes: u32) -> Budget {
    Budget { held_nodes, held_fraction: 1.0, new_nodes, ..Budget::default() }
}

// D01.
#[test]
fn as_many_are_held_as_the_budget_allows_and_no_more() {
    let mut slurm = Slurm::of(10);
    let budget = budget(3, 100);
    assert_eq!(slurm.wants(&budget, NOW, &[0, 1]), [Ok(reason("n0")), Ok(reason("n1"))]);
    // Others' drains are not ours.
    slurm.drain(9, NOW, "fan 3 is loud", None);
    // Ours to which somebody added something are.
    assert_eq!(
        slurm.wants(&budget, NOW, &[2, 3, 4]),
        [Ok(reason("n2")), Err(Kind::Budget), Err(Kind::Budget)]
    );
    let noted = format!("{}; ordered", reason("n2"));
    slurm.drain(2, NOW, &noted, None);
    // A deputy that goes on for a lost leader finds what that one drained; another run of the job does not.
    let wanted = slurm.wants(&budget, NOW, &[3, 9, 0]);
    assert_eq!(wanted, [Err(Kind::Budget), Err(Kind::Taken), Ok("done".into())]);
    slurm.nodes[0].reason = reason("n0").replace("n=1", "n=2");
    assert_eq!(slurm.wants(&budget, NOW, &[2, 0]), [Err(Kind::Taken), Err(Kind::Taken)]);
    slurm.back(0);
    assert_eq!(slurm.wants(&budget, NOW, &[3]), [Ok(reason("n3"))]);
}

#[test]
fn a_share_is_of_each_partition_of_the_node() {
    let mut slurm = Slurm::of(8);
    slurm.partitions.push(("small", vec![0, 1, 2]));
    let half = Budget { held_nodes: 100, held_fraction: 0.34, ..Budget::default() };
    // 34 % of three nodes are two, rounded up; of eight nodes three.
    assert_eq!(slurm.wants(&half, NOW, &[0, 1]).iter().filter(|one| one.is_ok()).count(), 2);
    assert_eq!(slurm.wants(&half, NOW, &[2]), [Err(Kind::Budget)], "small is full");
    assert_eq!(slurm.wants(&half, NOW, &[5, 6]), [Ok(reason("n5")), Err(Kind::Budget)], "main is full");
    let none = Budget { held_nodes: 0, ..half };
    assert_eq!(Slurm::of(8).wants(&none, NOW, &[5]), [Err(Kind::Budget)]);
}

#[test]
fn new_drains_are_counted_in_the_window_and_returned_nodes_too() {
    let mut slurm = Slurm::of(20);
    let budget = budget(100, 3);
    slurm.drain(0, NOW - 3601, &reason("n0"), None);
    assert_eq!(slurm.wants(&budget, NOW, &[1, 2]).iter().filter(|one| one.is_ok()).count(), 2);
    // That it was returned does not make room for another one in this hour.
    slurm.back(1);
    assert_eq!(slurm.wants(&budget, NOW + 10, &[3, 4]), [Ok(reason("n3")), Err(Kind::Budget)]);
    assert_eq!(slurm.wants(&budget, NOW + 3601, &[4]), [Ok(reason("n4"))]);
    let words = match &admit(
        &budget,
        &slurm.picture(),
        at(NOW + 3605),
        &[("n6", "r"), ("n7", "r"), ("n8", "r")],
    )[2]
    {
        Admission::No(withheld) => withheld.words.clone(),
        other => panic!("{other:?}"),
    };
    assert!(words.contains("drained 3 nodes of partition main in the last 1 h"), "{words}");
}

// M06: a node that fails, passes, and fails again.
#[test]
fn a_node_that_comes_back_too_often_is_left_to_a_person() {
    let mut slurm = Slurm::of(10);
    slurm.nodes[2].comment = "rack 7".into();
    let budget = budget(100, 100);
    for (time, words) in [(0, ""), (1, " second time in 24 h"), (2, " third time in 24 h")] {
        let wanted = format!("aimaster: gemm_flops n2 5<10TFLOP/s{words} job=12 n=1");
        assert_eq!(slurm.wants(&budget, NOW + 3600 * time, &[2]), [Ok(wanted)]);
        slurm.back(2);
    }
    assert_eq!(slurm.wants(&budget, NOW + 3600 * 3, &[2]), [Err(Kind::Person)]);
    assert!(slurm.nodes[2].comment.starts_with("rack 7 aimaster{drained="), "{}", slurm.nodes[2].comment);
    // A day later the first is forgotten.
    assert!(slurm.wants(&budget, NOW + 86_401, &[2])[0].as_ref().unwrap().contains("third time in 24 h"));
    slurm.back(2);
    // An admin who mended it takes our part out of the comment.
    slurm.nodes[2].comment = "rack 7".into();
    assert_eq!(slurm.wants(&budget, NOW + 86_402, &[2]), [Ok(reason("n2"))]);
    assert_eq!(Memory::of(&slurm.nodes[2].comment).drained, [at(NOW + 86_402)]);
}

// Since Slurm 24.11 a reason outlives its drain.
#[test]
fn a_reason_of_ours_on_a_node_in_service_holds_and_hinders_nothing() {
    let mut slurm = Slurm::of(5);
    let budget = budget(1, 100);
    assert_eq!(slurm.wants(&budget, NOW, &[1]), [Ok(reason("n1"))]);
    slurm.nodes[1].state.remove("DRAIN");
    assert_eq!(slurm.wants(&budget, NOW + 5, &[2]), [Ok(reason("n2"))]);
    slurm.back(2);
    assert!(slurm.wants(&budget, NOW + 9, &[1])[0].as_ref().unwrap().contains("second time in 24 h"));
    slurm.back(1);
    for (left, taken) in
        [("fan 3 is loud", true), (&*format!("{}; ask Bob", reason("n3")), true), (" ", false)]
    {
        slurm.nodes[3].reason = left.to_owned();
        assert_eq!(slurm.wants(&budget, NOW + 10, &[3])[0].is_err(), taken, "{left}");
    }
}

#[test]
fn a_comment_that_cannot_be_written_back_stays() {
    let mut slurm = Slurm::of(3);
    slurm.nodes[1].comment = "two\nlines".into();
    let admitted = admit(&budget(5, 5), &slurm.picture(), at(NOW), &[("n1", "r")]);
    assert!(matches!(&admitted[0], Admission::Drain { comment: None, .. }), "{admitted:?}");
    let unknown = admit(&budget(5, 5), &slurm.picture(), at(NOW), &[("x1", "r")]);
    assert!(matches!(&unknown[0], Admission::No(withheld) if withheld.words.contains("no partition")));
}

/// What a leader does next.
#[derive(Debug, Clone, Copy)]
enum Next {
    Look,
    Drain,
    LookAgain,
    Done,
}

proptest! {
    // D01, D03: leaders that look at the same moment, in every order of their looks and drains, where each takes the
    // second look no sooner than a second after its drain.
    #[test]
    fn however_many_fail_at_once_the_budget_is_kept_exactly(
        leaders in 2_usize..12,
        held_nodes in 1_u32..5,
        new_nodes in 1_u32..5,
        order in proptest::collection::vec((0_usize..12, 0_i64..3), 30..120),
    ) {
        let budget = budget(held_nodes, new_nodes);
        let mut slurm = Slurm::of(12);
        let mut states = vec![(Next::Look, Vec::new(), 0_i64); leaders];
        let mut clock = NOW;
        // What is left after that comes in order.
        let rest = (0..leaders * 3).map(|step| (step % leaders, 2));
        for (who, pause) in order.into_iter().chain(rest) {
            clock += pause;
            let Some((next, admitted, drained)) = states.get_mut(who) else { continue };
            let name = format!("n{who}");
            match *next {
                Next::Look => {
                    *admitted = admit(&budget, &slurm.picture(), at(clock), &[(&name, "aimaster: x job=1 n=1")]);
                    *next = Next::Drain;
                }
                Next::Drain => {
                    *next = Next::Done;
                    if let Some(Admission::Drain { reason, comment, .. }) = admitted.first() {
                        slurm.drain(who, clock, reason, comment.clone());
                        (*next, *drained) = (Next::LookAgain, clock);
                    }
                }
                Next::LookAgain if clock > *drained => {
                    *next = Next::Done;
                    let over = surplus(&budget, &slurm.picture(), at(clock), &[&name]);
                    if !over.is_empty() {
                        slurm.back(who);
                        slurm.nodes[who].comment.clear();
                    }
                }
                Next::LookAgain | Next::Done => {}
            }
        }
        let most = held_nodes.min(new_nodes).min(u32::try_from(leaders).unwrap());
        prop_assert_eq!(slurm.held(), most as usize, "neither more nor fewer");
    }
}
