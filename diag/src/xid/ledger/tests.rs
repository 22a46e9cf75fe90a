//! What is counted, what is not, and what follows.

use proptest::prelude::*;

use super::*;
use crate::health::board::Board;
use crate::xid::Key;

const PCI: &str = "0000:3b:00.0";

fn watched() -> Vec<Watched> {
    let part = Part::Gpu { index: 3, pci: Some(PCI.to_owned()) };
    vec![Watched { pci: PCI.to_owned(), part, generation: Some(Generation::Hopper) }]
}

fn event(seq: Option<u64>, at_ms: u64, code: u32) -> Event {
    Event {
        place: seq.map(|seq| Place { boot: "b".to_owned(), seq }),
        at_ms,
        pci: PCI.to_owned(),
        family: Family::Xid,
        code,
        severity: None,
        words: "the driver's words".to_owned(),
    }
}

fn after(events: impl IntoIterator<Item = Event>, now_ms: u64) -> Vec<Condition> {
    let mut ledger = Ledger::new(0);
    events.into_iter().for_each(|one| ledger.add(one));
    ledger.conditions(&XidTable::default(), &watched(), now_ms)
}

#[test]
fn a_lost_gpu_drains_with_the_first_event() {
    let found = after([event(Some(7), 100, 79)], 200);
    let [found] = &found[..] else { panic!("{found:?}") };
    assert_eq!((found.class, found.action, found.since_ms), (Class::Gpu, Action::Drain, Some(100)));
    assert_eq!(found.words, "GPU 3 (0000:3b:00.0): Xid 79 once: the driver's words");
}

// I01: however many, and whatever a table in memory says.
#[test]
fn a_program_s_own_faults_never_drain() {
    let mut table = XidTable::default();
    let rule = Rule { class: Class::Application, count: 1, window_s: 0, action: Action::Drain };
    table.set(Key { family: Family::Xid, code: 43, generation: None, severity: None }, rule);
    let mut ledger = Ledger::new(0);
    for seq in 0..2000 {
        ledger.add(event(Some(seq), seq, [13, 31, 43, 45][usize::try_from(seq % 4).unwrap()]));
    }
    let found = ledger.conditions(&table, &watched(), 2000);
    assert_eq!(found.len(), 4);
    assert!(
        found.iter().all(|one| (one.class, one.action) == (Class::Application, Action::Report)),
        "{found:?}"
    );
}

// I03: the same moment, the same GPU, the same number: two records are two, one record read twice is one.
#[test]
fn records_are_known_by_their_number_not_by_their_time() {
    let twice =
        [event(Some(7), 100, 74), event(Some(8), 100, 74), event(Some(7), 100, 74), event(Some(8), 100, 74)];
    assert!(after(twice.clone(), 200)[0].words.contains("2 times"));
    let third = after(twice.into_iter().chain([event(Some(9), 100, 74)]), 200);
    assert_eq!(third[0].action, Action::Drain, "{third:?}");
}

// I05.
#[test]
fn what_was_before_the_job_does_not_count() {
    let mut ledger = Ledger::new(5000);
    ledger.add(event(Some(1), 4999, 79));
    assert_eq!(ledger.conditions(&XidTable::default(), &watched(), 6000), []);
}

#[test]
fn a_window_slides() {
    let spread = [0, 3_000_000, 6_000_000].map(|at| event(Some(at), at, 74));
    assert_eq!(after(spread, 6_000_000)[0].action, Action::Report, "three in 6000 s");
    let dense = [0, 3_000_000, 3_000_001, 6_600_000].map(|at| event(Some(at), at, 74));
    let found = after(dense, 6_600_000);
    assert_eq!(found[0].action, Action::Drain, "three in an hour");
    assert!(found[0].words.contains("4 times (limit 3 in 3600 s)"), "{}", found[0].words);
}

// I09.
#[test]
fn a_number_that_nobody_knows_is_told() {
    let found = after([event(Some(1), 1, 999)], 2);
    assert_eq!((found[0].class, found[0].action), (Class::Unknown, Action::Report));
}

// I10: the log decides; NVML fills its silence, after the log has had its time.
#[test]
fn nvml_counts_only_where_the_log_is_silent() {
    let both =
        [event(None, 1000, 45), event(Some(1), 1400, 62), event(Some(2), 1400, 45), event(None, 1500, 45)];
    let mut ledger = Ledger::new(0);
    both.into_iter().for_each(|one| ledger.add(one));
    for now_ms in [1500, 20_000] {
        let found = ledger.conditions(&XidTable::default(), &watched(), now_ms);
        let named: Vec<(&str, bool)> =
            found.iter().map(|one| (one.what.as_str(), one.words.contains("once"))).collect();
        assert_eq!(named, [("Xid 45", true), ("Xid 62", true)]);
    }
    ledger.add(event(None, 60_000, 79));
    let count = |ledger: &mut Ledger, now| ledger.conditions(&XidTable::default(), &watched(), now).len();
    assert_eq!((count(&mut ledger, 64_000), count(&mut ledger, 66_000)), (2, 3));
}

#[test]
fn parts_of_others_and_ignored_numbers_are_silent() {
    let other = Event { pci: "0000:99:00.0".to_owned(), ..event(Some(1), 1, 79) };
    assert_eq!(after([other, event(Some(2), 1, 106)], 2), []);
}

#[test]
fn a_flood_is_bounded_and_what_is_left_out_is_counted() {
    let mut ledger = Ledger::new(0);
    for code in 1..=1000 {
        ledger.add(event(Some(code.into()), 1, code));
    }
    assert_eq!(ledger.unkept(), 1000 - MOST_KINDS as u64);
    let mut ledger = Ledger::new(0);
    for seq in 0..10_000 {
        ledger.add(event(Some(seq), seq, 79));
    }
    let replayed = |ledger: &mut Ledger| {
        (0..10_000).for_each(|seq| ledger.add(event(Some(seq), seq, 79)));
        ledger.conditions(&XidTable::default(), &watched(), 10_000)[0].words.clone()
    };
    assert!(replayed(&mut ledger).contains("10000 times"));
}

// D02: as many as were seen at one site.
#[test]
fn a_storm_of_one_number_is_told_once_and_drains_nobody() {
    const STORM: u64 = 168_924;
    let (mut ledger, mut board) = (Ledger::new(0), Board::default());
    let mut told = Vec::new();
    for seq in 0..STORM {
        ledger.add(event(Some(seq), seq, 45));
        if seq % 1000 == 999 {
            told.extend(board.step(seq, ledger.conditions(&XidTable::default(), &watched(), seq)));
        }
    }
    let [once] = &told[..] else { panic!("{told:?}") };
    assert_eq!((once.class, once.action), (Class::Application, Action::Report));
    let found = ledger.conditions(&XidTable::default(), &watched(), STORM);
    let [all] = &found[..] else { panic!("{found:?}") };
    assert!(all.words.contains("168924 times"), "{}", all.words);
}

proptest! {
    // I03: read from anywhere again and again, each record counts once.
    #[test]
    fn rereading_changes_nothing(
        codes in proptest::collection::vec(prop::sample::select(vec![13_u32, 48, 74, 79, 999]), 1..60),
        rereads in proptest::collection::vec((0_usize..60, 0_usize..60), 0..8),
    ) {
        let all: Vec<Event> = (0..).zip(&codes).map(|(seq, code)| event(Some(seq), 10, *code)).collect();
        let plain = after(all.clone(), 100);
        let mut ledger = Ledger::new(0);
        for (from, to) in rereads {
            let (from, to) = (from.min(all.len()), to.min(all.len()));
            all.get(from..to).into_iter().flatten().for_each(|one| ledger.add(one.clone()));
        }
        all.iter().for_each(|one| ledger.add(one.clone()));
        let again = ledger.conditions(&XidTable::default(), &watched(), 100);
        prop_assert_eq!(plain, again);
    }
}
