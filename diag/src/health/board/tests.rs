//! What is told of conditions that come, stay, weigh more and go.

use proptest::prelude::*;

use super::*;
use crate::measurement::Subject;

fn link_down(action: Action) -> Condition {
    Condition {
        part: Part::Nic { device: "mlx5_0".to_owned(), port: 1 },
        what: "down".to_owned(),
        class: Class::Network,
        action,
        words: "mlx5_0 port 1 is DOWN".to_owned(),
        confirm_ms: 3000,
        recovery_ms: Some(60_000),
        since_ms: None,
    }
}

fn turns(events: &[HealthEvent]) -> Vec<Turn> {
    events.iter().map(|event| event.turn).collect()
}

// I07.
#[test]
fn it_is_told_once_when_it_has_held_and_taken_back_when_it_is_long_gone() {
    let mut board = Board::default();
    let mut told = Vec::new();
    for second in 0..200 {
        let holds = (10..40).contains(&second);
        let now = holds.then(|| link_down(Action::Drain)).into_iter().collect();
        told.extend(board.step(second * 1000, now).into_iter().map(|event| (second, event)));
    }
    let [(begun, began), (over, ended)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((*begun, began.turn, began.action, began.age_ms), (13, Turn::Began, Action::Drain, 3000));
    // J07: 60 s after it was last seen, in second 39.
    assert_eq!((*over, ended.turn), (99, Turn::Ended));
    assert!(ended.words.starts_with("over, not seen for 60 s; it was mlx5_0"), "{}", ended.words);
}

#[test]
fn one_look_alone_is_not_told() {
    let mut board = Board::default();
    for second in 0..20 {
        let now = (second % 2 == 0).then(|| link_down(Action::Drain)).into_iter().collect();
        assert_eq!(board.step(second * 1000, now), []);
    }
}

#[test]
fn what_weighs_more_later_is_told_again_and_what_is_ignored_never() {
    let mut board = Board::default();
    let now = |action| vec![Condition { confirm_ms: 0, ..link_down(action) }];
    assert_eq!(board.step(0, now(Action::Ignore)), []);
    assert_eq!(turns(&board.step(1000, now(Action::Report))), [Turn::Began]);
    assert_eq!(board.step(2000, now(Action::Report)), []);
    assert_eq!(turns(&board.step(3000, now(Action::Drain))), [Turn::Worse]);
    assert_eq!(board.step(4000, now(Action::Report)), []);
}

#[test]
fn more_than_one_look_has_room_for_is_told_later_and_the_rest_is_counted() {
    let mut board = Board::default();
    let many = || {
        (0..300).map(|port| Condition {
            part: Part::Nic { device: "mlx5_0".to_owned(), port },
            confirm_ms: 0,
            recovery_ms: None,
            ..link_down(Action::Report)
        })
    };
    let mut told = board.step(0, many().collect()).len();
    assert_eq!((told, board.unkept()), (MOST_EVENTS, 300 - MOST_OPEN as u64));
    for second in 1..40 {
        told += board.step(second * 1000, Vec::new()).len();
    }
    assert_eq!(told, MOST_OPEN, "nothing that was kept is lost, and nothing is told twice");
}

#[test]
fn an_event_that_no_board_tells_is_not_sound() {
    let mut board = Board::default();
    let condition = Condition { confirm_ms: 0, words: "a\nb".repeat(400), ..link_down(Action::Drain) };
    let sound = board.step(0, vec![condition]).remove(0);
    assert!(sound.is_sound() && sound.words.len() <= MOST_WORDS_BYTES, "{sound:?}");
    assert_eq!(sound.part.subject(3), Subject::Nic { node: 3, name: "mlx5_0".to_owned() });
    for other in [
        HealthEvent { words: "x".repeat(MOST_WORDS_BYTES + 1), ..sound.clone() },
        HealthEvent { words: "a\u{1b}[2J".to_owned(), ..sound.clone() },
        HealthEvent { what: "x".repeat(MOST_NAME_BYTES + 1), ..sound.clone() },
        HealthEvent { part: Part::Switch { pci: "a\nb".to_owned() }, ..sound.clone() },
        HealthEvent { action: Action::Ignore, ..sound.clone() },
    ] {
        assert!(!other.is_sound(), "{other:?}");
    }
}

proptest! {
    // Began and Ended take turns, whatever is seen when.
    #[test]
    fn a_fault_ends_only_after_it_began(looks in proptest::collection::vec((1_u64..90_000, any::<bool>()), 0..60)) {
        let mut board = Board::default();
        let (mut now_ms, mut open) = (0, false);
        for (later_ms, holds) in looks {
            now_ms += later_ms;
            for event in board.step(now_ms, holds.then(|| link_down(Action::Report)).into_iter().collect()) {
                prop_assert_eq!(event.turn == Turn::Ended, open);
                open = event.turn != Turn::Ended;
                prop_assert!(event.age_ms <= now_ms && event.is_sound());
            }
        }
    }
}
