//! A handful of the fault matrix (`cargo xtask matrix`): faults in moments that no other test here hits.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use aimaster_tests::matrix::cell::Cell;
use aimaster_tests::matrix::{line, run_all, table};
use aimaster_tests::side_by_side;

/// Chosen by name.
const CELLS: [&str; 3] = [
    // The deputy does what the leader was about to do.
    "kill coordinator n1 act",
    // An agent is wanted, and the coordinator stands still long before it would start one.
    "stop coordinator n3 measure",
    // The second start of the epilog's helper removes what the first left.
    "kill epilog helper n1 epilog",
];

#[test]
fn faults_in_moments_that_are_short() {
    let _machine = side_by_side().unwrap();
    let all = table::cells().into_iter();
    let chosen: Vec<Cell> = all.filter(|cell| CELLS.contains(&cell.name().as_str())).collect();
    assert_eq!(chosen.len(), CELLS.len(), "{chosen:?}");
    let done = run_all(&chosen, CELLS.len(), |done| println!("{}", line(done)));
    for one in done {
        assert!(one.seen.wrong.is_empty(), "{}: {:#?}\n{}", one.cell.name(), one.seen, one.evidence);
        assert_eq!(one.missed, None, "{}, at each try", one.cell.name());
    }
}
