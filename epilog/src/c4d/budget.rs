//! How many lines an agent may write into the node's log about what ranks tell. A rank's ring is its user's, and findings that
//! come and go must not fill a disk. Not what is said of the hardware, nor what stands in the report.

use std::time::{Duration, Instant};

/// Lines that may be written at once: more than a person reads.
const MOST_AT_ONCE: u32 = 200;

/// How long it takes until there is room for a further one.
const ONE_MORE: Duration = Duration::from_secs(10);

/// The lines that are left.
#[derive(Debug)]
pub struct Budget {
    left: u32,
    counted: Instant,
    unwritten: u64,
}

impl Budget {
    /// A whole one.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { left: MOST_AT_ONCE, counted: now, unwritten: 0 }
    }

    /// Takes a line: how many before it were not written, if this one may be.
    pub fn take(&mut self, now: Instant) -> Option<u64> {
        while self.left < MOST_AT_ONCE && now.saturating_duration_since(self.counted) >= ONE_MORE {
            (self.left, self.counted) = (self.left + 1, self.counted + ONE_MORE);
        }
        if self.left == MOST_AT_ONCE {
            self.counted = now;
        }
        let Some(left) = self.left.checked_sub(1) else {
            self.unwritten += 1;
            return None;
        };
        self.left = left;
        Some(std::mem::take(&mut self.unwritten))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_a_line_now_and_then_is_always_written() {
        let begun = Instant::now();
        let mut budget = Budget::new(begun);
        let flood = |budget: &mut Budget, now| (0..1000).filter(|_| budget.take(now).is_some()).count();
        assert_eq!(flood(&mut budget, begun), MOST_AT_ONCE as usize);
        let later = begun + 3 * ONE_MORE;
        assert_eq!(budget.take(later), Some(1000 - u64::from(MOST_AT_ONCE)));
        assert_eq!(flood(&mut budget, later), 2);
        let much_later = later + ONE_MORE * 10 * MOST_AT_ONCE;
        assert_eq!(flood(&mut budget, much_later), MOST_AT_ONCE as usize);
        let mut slow = Budget::new(begun);
        assert!((0..1000).all(|count| slow.take(begun + ONE_MORE * count) == Some(0)));
    }
}
