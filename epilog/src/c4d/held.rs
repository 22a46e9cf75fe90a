//! Events of a node's health as they are told to other nodes: again and again while they hold, and for a while after it.
//! A telling that is lost loses none of them, and a node that judges later learns of all. Not which events there are.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use diag::health::board::MOST_OPEN;
use diag::health::{HealthEvent, Part, Turn};

use crate::c4d::link::MAX_HEALTH;

/// How long one that is over is told: a judging node that was silent for as long is none any more.
const TOLD_OVER: Duration = Duration::from_secs(60);

/// The events of one node.
#[derive(Debug, Default)]
pub struct Held {
    events: BTreeMap<(Part, String), (Instant, HealthEvent)>,
}

impl Held {
    /// Takes what is news, and gives what is to be told now: what weighs most first, if there is more than may be told.
    pub fn tell(&mut self, news: Vec<HealthEvent>, now: Instant) -> Vec<HealthEvent> {
        for event in news {
            let key = (event.part.clone(), event.what.clone());
            if self.events.len() < MOST_OPEN || self.events.contains_key(&key) {
                self.events.insert(key, (now, event));
            }
        }
        let over = |when: &Instant, event: &HealthEvent| {
            event.turn == Turn::Ended && now.saturating_duration_since(*when) >= TOLD_OVER
        };
        self.events.retain(|_, (when, event)| !over(when, event));
        let mut told: Vec<HealthEvent> =
            self.events.values().map(|(when, event)| aged(event, *when, now)).collect();
        told.sort_by_key(|event| (event.turn == Turn::Ended, std::cmp::Reverse(event.action)));
        told.truncate(MAX_HEALTH);
        told
    }
}

/// The event as it is told now: it began longer ago by then.
fn aged(event: &HealthEvent, when: Instant, now: Instant) -> HealthEvent {
    let since = u64::try_from(now.saturating_duration_since(when).as_millis()).unwrap_or(u64::MAX);
    HealthEvent { age_ms: event.age_ms.saturating_add(since), ..event.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use diag::health::{Action, Class};

    fn event(index: u32, action: Action, turn: Turn) -> HealthEvent {
        HealthEvent {
            part: Part::Gpu { index, pci: None },
            what: "xid 79".into(),
            class: Class::Gpu,
            action,
            turn,
            words: "words".into(),
            age_ms: 100,
        }
    }

    #[test]
    fn an_event_is_told_until_a_while_after_its_end_and_gets_older() {
        let begun = Instant::now();
        let mut held = Held::default();
        assert_eq!(held.tell(vec![event(0, Action::Report, Turn::Began)], begun)[0].age_ms, 100);
        let later = begun + 2 * TOLD_OVER;
        assert_eq!(held.tell(Vec::new(), later)[0].age_ms, 100 + 120_000);
        assert_eq!(held.tell(vec![event(0, Action::Report, Turn::Ended)], later)[0].turn, Turn::Ended);
        assert_eq!(held.tell(Vec::new(), later + TOLD_OVER / 2).len(), 1);
        assert_eq!(held.tell(Vec::new(), later + TOLD_OVER), []);
    }

    #[test]
    fn of_more_than_may_be_told_those_that_weigh_most_are() {
        let mut held = Held::default();
        let many = |count: u32| (0..count).map(|index| event(index, Action::Report, Turn::Began));
        let drain = event(999, Action::Drain, Turn::Worse);
        let over = event(0, Action::Drain, Turn::Ended);
        let news = many(MOST_OPEN as u32 - 1).chain([drain.clone(), over.clone()]).collect();
        let now = Instant::now();
        let told = held.tell(news, now);
        assert_eq!((told.len(), &told[0]), (MAX_HEALTH, &drain));
        assert!(!told.contains(&over));
        assert_eq!(held.tell(vec![event(5000, Action::Drain, Turn::Began)], now)[0], drain);
    }
}
