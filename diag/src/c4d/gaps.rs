//! How long a communicator is silent by itself, and from that how long is too long.

use crate::c4d::settings::Settings;

/// How many minutes count as recent.
const MINUTES: usize = 10;

/// A minute.
const MINUTE_MS: u64 = 60_000;

/// The longest silences of the last minutes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Gaps {
    longest: [u32; MINUTES],
    /// The minute that the newest entry belongs to.
    minute: u64,
}

impl Gaps {
    fn turn_to(&mut self, now_ms: u64) {
        let minute = now_ms / MINUTE_MS;
        let passed = minute.saturating_sub(self.minute).min(MINUTES as u64);
        for step in 1..=passed {
            self.longest[Self::place(self.minute + step)] = 0;
        }
        if passed == MINUTES as u64 {
            self.longest = [0; MINUTES];
        }
        self.minute = self.minute.max(minute);
    }

    fn place(minute: u64) -> usize {
        usize::try_from(minute % MINUTES as u64).unwrap_or(0)
    }

    /// Notes a silence that ended at that time.
    pub fn note(&mut self, gap_ms: u64, at_ms: u64) {
        self.turn_to(at_ms);
        let slot = &mut self.longest[Self::place(self.minute)];
        *slot = (*slot).max(u32::try_from(gap_ms).unwrap_or(u32::MAX));
    }

    /// The longest silence within the last minutes.
    pub fn longest_ms(&self, now_ms: u64) -> u64 {
        let mut turned = *self;
        turned.turn_to(now_ms);
        u64::from(turned.longest.into_iter().max().unwrap_or(0))
    }

    /// How long a silence is too long now, for a communicator with so many operations behind it.
    pub fn too_long_ms(&self, ops: u64, now_ms: u64, settings: &Settings) -> u64 {
        if ops < settings.warmup_ops {
            return settings.grace_ms;
        }
        // Counting in thousandths keeps the product in whole numbers; factors have a few digits at most.
        let longest = self.longest_ms(now_ms);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a checked setting, 1 to 100"
        )]
        let thousandths = (settings.gap_factor * 1000.0) as u64;
        (longest.saturating_mul(thousandths) / 1000).clamp(settings.floor_ms, settings.ceiling_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_long_follows_the_longest_recent_silence_between_floor_and_ceiling() {
        let settings = Settings::default();
        let mut gaps = Gaps::default();
        assert_eq!(gaps.too_long_ms(4, 0, &settings), settings.grace_ms);
        assert_eq!(gaps.too_long_ms(5, 0, &settings), settings.floor_ms);
        gaps.note(7_000, 10_000);
        gaps.note(2_000, 12_000);
        assert_eq!(gaps.too_long_ms(9, 20_000, &settings), 21_000);
        gaps.note(3_600_000, 70_000);
        assert_eq!(gaps.too_long_ms(9, 80_000, &settings), settings.ceiling_ms);
        // Ten minutes later that is long ago; the minute in between is not.
        gaps.note(5_000, 300_000);
        assert_eq!(gaps.too_long_ms(9, 700_000, &settings), 15_000);
        assert_eq!(gaps.too_long_ms(9, 7_000_000, &settings), settings.floor_ms);
    }
}
