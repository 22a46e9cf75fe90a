//! Ports that go down, flap, count, and ports that nobody uses.

use proptest::prelude::*;

use super::*;
use crate::health::{Board, Turn};

fn port(device: &str, state: &str) -> NicReading {
    NicReading {
        device: device.to_owned(),
        pci: Some("0000:81:00.0".to_owned()),
        port: 1,
        state: Some(state.to_owned()),
        physical_state: Some("LinkUp".to_owned()),
        downs: Some(4),
        moved_bytes: Some(0),
        counts: [Some(0); COUNTERS.len()],
        ..NicReading::default()
    }
}

fn used(device: &str, state: &str) -> NicReading {
    NicReading { moved_bytes: Some(1 << 40), ..port(device, state) }
}

fn named(conditions: &[Condition]) -> Vec<(&str, Action)> {
    conditions.iter().map(|one| (one.what.as_str(), one.action)).collect()
}

fn ports(readings: Vec<NicReading>) -> Ports {
    Ports::new(0, BTreeSet::new(), readings)
}

#[test]
fn a_port_that_the_job_uses_and_that_goes_down_drains() {
    let mut ports = ports(vec![port("mlx5_0", "ACTIVE")]);
    assert_eq!(ports.step(1000, vec![used("mlx5_0", "ACTIVE")]), []);
    let found = ports.step(2000, vec![used("mlx5_0", "DOWN")]);
    assert_eq!(named(&found), [("down", Action::Drain)]);
    assert!(found[0].words.starts_with("mlx5_0 port 1 is DOWN (LinkUp)"), "{}", found[0].words);
    // Up when the job started and not used since.
    assert_eq!(named(&ports.step(3000, vec![port("mlx5_0", "DOWN")])), [("down", Action::Report)]);
    // J06: a device that dies is missed, and not taken for one that never was.
    assert_eq!(named(&ports.step(4000, vec![])), [("down", Action::Drain)]);
}

// J01, J03.
#[test]
fn ports_that_were_not_up_are_nobody_s_loss() {
    let mut all = ports(vec![port("mlx5_0", "DOWN"), port("mlx5_1", "INIT")]);
    for second in 1..100 {
        let noisy = NicReading { downs: Some(4 + second), ..used("mlx5_0", "DOWN") };
        assert_eq!(all.step(second * 1000, vec![noisy]), []);
    }
    // Where the site names devices, these and no others are in use.
    let only = BTreeSet::from(["mlx5_1".to_owned()]);
    let mut some = Ports::new(0, only, vec![port("mlx5_0", "ACTIVE"), port("mlx5_1", "ACTIVE")]);
    let found = some.step(1000, vec![port("mlx5_0", "DOWN"), port("mlx5_1", "DOWN")]);
    assert_eq!(named(&found), [("down", Action::Drain)]);
    assert_eq!(found[0].part, Part::Nic { device: "mlx5_1".to_owned(), port: 1 });
    assert_eq!((some.used("0000:81:00.0"), all.used("0000:81:00.0")), (Some("mlx5_1"), None));
}

// J07.
#[test]
fn flapping_is_counted_in_a_window_and_forgotten_after_it() {
    let mut ports = ports(vec![port("mlx5_0", "ACTIVE")]);
    let mut board = Board::default();
    let mut told = Vec::new();
    for second in 1..1500 {
        // Down at 60, 120 and 180 s for less than a look takes.
        let downs = 4 + [60, 120, 180].iter().filter(|at| second >= **at).count() as u64;
        let now = NicReading { downs: Some(downs), ..used("mlx5_0", "ACTIVE") };
        let found = ports.step(second * 1000, vec![now]);
        told.extend(
            board.step(second * 1000, found).into_iter().map(|event| (second, event.turn, event.action)),
        );
    }
    let [(60, Turn::Began, Action::Report), (180, Turn::Worse, Action::Drain), (over, Turn::Ended, _)] =
        told[..]
    else {
        panic!("{told:?}")
    };
    assert!((700..=800).contains(&over), "ten minutes after the last but no days: {over}");
}

#[test]
fn counters_count_against_a_limit_in_a_full_window() {
    let mut counting = ports(vec![port("mlx5_0", "ACTIVE")]);
    let at = |second: u64, per_second: u64| {
        let mut now = used("mlx5_0", "ACTIVE");
        now.counts[0] = Some(second * per_second);
        now.counts[5] = Some(second * per_second);
        now
    };
    for second in 1..60 {
        assert_eq!(counting.step(second * 1000, vec![at(second, 3)]), [], "no full window yet");
    }
    let found = counting.step(60_000, vec![at(60, 3)]);
    assert_eq!(named(&found), [("errors", Action::Report), ("resent", Action::Report)]);
    assert!(found[0].words.contains("symbol_error 180 a minute (limit 120)"), "{}", found[0].words);
    let mut calm = ports(vec![port("mlx5_0", "ACTIVE")]);
    for second in 1..300 {
        assert_eq!(calm.step(second * 1000, vec![at(second, 1)]), [], "60 a minute are not above 60");
    }
}

#[test]
fn a_single_burst_is_no_rate() {
    let told = |per_second: u64| {
        let (mut all, mut board) = (ports(vec![port("mlx5_0", "ACTIVE")]), Board::default());
        let mut told = Vec::new();
        for second in (2..400).step_by(2) {
            let mut now = used("mlx5_0", "ACTIVE");
            now.counts[0] = Some(second * per_second + if second >= 100 { 100_000 } else { 0 });
            let found = all.step(second * 1000, vec![now]);
            told.extend(board.step(second * 1000, found).into_iter().map(|event| (second, event.what)));
        }
        told
    };
    assert_eq!(told(0), []);
    let steady = told(5);
    assert!(matches!(&steady[..], [(130..=140, what)] if what == "errors"), "{steady:?}");
}

#[test]
fn a_counter_that_was_set_to_zero_is_no_flood() {
    assert_eq!(grown(Some(u64::MAX), Some(2)), Some(2));
    assert_eq!((grown(None, Some(2)), grown(Some(2), None), grown(Some(2), Some(2))), (None, None, Some(0)));
}

proptest! {
    // Nothing is found on ports that stay as they are, however the looks fall; and memory is bounded.
    #[test]
    fn a_quiet_port_is_silent(looks in proptest::collection::vec(1_u64..20_000, 1..400)) {
        let mut ports = ports(vec![used("mlx5_0", "ACTIVE"), port("mlx5_1", "DOWN")]);
        let mut now_ms = 0;
        for later_ms in looks {
            now_ms += later_ms;
            prop_assert_eq!(ports.step(now_ms, vec![used("mlx5_0", "ACTIVE"), port("mlx5_1", "DOWN")]), vec![]);
            prop_assert!(ports.kept.len() as u64 <= FLAP_WINDOW_MS / KEEP_EVERY_MS + 2);
        }
    }
}
