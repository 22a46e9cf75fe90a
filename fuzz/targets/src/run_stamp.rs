//! When a run of a job began, as its run folder says, and the clock of the machine that asks.
//!
//! A file is two inputs: the stamp as JSON; the machine's boot, then how long it is up and how old a run must be, in seconds,
//! with a space after each.

use diag::run_stamp::{MAX_BYTES, RunStamp};

use crate::holds;

/// What was over stays over; a run of this start without a lasting step, or of a start that is not known, is never over.
pub fn run(data: &[u8]) {
    let mut parts = holds::parts(data);
    let (stamp, now) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let Ok(stamp) = serde_json::from_slice::<RunStamp>(stamp) else { return };
    let written = serde_json::to_vec(&stamp).unwrap();
    assert_eq!(serde_json::from_slice::<RunStamp>(&written).unwrap(), stamp);
    let fresh = RunStamp::new("01234567-89ab-cdef-0123-456789abcdef".into(), i64::MIN, false);
    assert!(serde_json::to_vec(&fresh).unwrap().len() as u64 <= MAX_BYTES);
    let now = holds::text(now);
    let mut words = now.split(' ');
    let boot = words.next().unwrap_or_default();
    let mut seconds = || words.next().and_then(|word| word.parse::<i64>().ok()).unwrap_or_default();
    let (uptime_s, least_s) = (seconds(), seconds());
    let over = stamp.needs_a_step(boot, uptime_s, least_s);
    assert!(!over || stamp.needs_a_step(boot, i64::MAX, least_s));
    assert!(!over || stamp.needs_a_step(boot, uptime_s, i64::MIN));
    if boot.is_empty() || stamp.schema != 1 || (stamp.boot == boot && !stamp.lasting) {
        assert!(!over);
    }
}
