//! Reads `[c4d]`, the thresholds of the rules while the job runs, and the list of NCCL versions whose profiler is left
//! alone. Which values are right is said by [`Settings::check`].

use crate::c4d::settings::Settings;
use crate::fields::{Section, Value};
use crate::policy::slots::read_boolean;
use crate::request::mistake::{Mistakes, quoted};

/// NCCL whose own profiler support is broken, as NVIDIA's documentation of its resiliency extension says.
pub(super) const BROKEN: &str = "2.28.3-2.28.8";

/// Most entries of `runtime.nccl_deny`: the profiler plugin reads at most 511 bytes, and an entry has at most 18.
pub const MOST_DENIED: usize = 28;

pub(super) fn read(section: &mut Section<'_>, settings: &mut Settings, m: &mut Mistakes) {
    let s = &mut *settings;
    for (key, slot) in [
        ("floor_ms", &mut s.floor_ms),
        ("ceiling_ms", &mut s.ceiling_ms),
        ("grace_ms", &mut s.grace_ms),
        ("warmup_ops", &mut s.warmup_ops),
        ("confirm_ms", &mut s.confirm_ms),
        ("silent_ms", &mut s.silent_ms),
        ("expire_ms", &mut s.expire_ms),
        ("busy_io_bytes", &mut s.busy_io_bytes),
        ("window_ms", &mut s.window_ms),
        ("min_ops", &mut s.min_ops),
        ("late_us", &mut s.late_us),
        ("hot_us", &mut s.hot_us),
    ] {
        read_whole(section, key, slot, m);
    }
    read_whole(section, "busy_percent", &mut s.busy_percent, m);
    for (key, slot) in [
        ("gap_factor", &mut s.gap_factor),
        ("late_share", &mut s.late_share),
        ("slow_share", &mut s.slow_share),
        ("slow_ratio", &mut s.slow_ratio),
        ("hot_ratio", &mut s.hot_ratio),
        ("work_ratio", &mut s.work_ratio),
    ] {
        if let Some(number) = section.field(key).and_then(|field| field.number(|_| true, m, "a number")) {
            *slot = number;
        }
    }
    read_boolean(section, "telemetry_may_drain", &mut s.telemetry_may_drain, m);
}

/// A whole number of any size; the range is a matter of the settings as a whole.
fn read_whole<T: TryFrom<i128>>(
    section: &mut Section<'_>,
    key: &'static str,
    slot: &mut T,
    m: &mut Mistakes,
) {
    let Some(field) = section.field(key) else { return };
    let value = if let Value::Integer(value) = field.value { T::try_from(*value).ok() } else { None };
    match value {
        Some(value) => *slot = value,
        None => field.refuse(m, "a whole number, not below 0 and not above what it can be"),
    }
}

/// `nccl_deny`: versions and ranges of versions.
pub(super) fn read_denied(section: &mut Section<'_>, slot: &mut Vec<String>, m: &mut Mistakes) {
    let Some(field) = section.field("nccl_deny") else { return };
    let Some(items) = field.list(m, "a list of NCCL versions") else { return };
    let wanted = "a version of NCCL, or a range of them, lowest first, such as \"2.28.3-2.28.8\"";
    slot.clear();
    for item in &items {
        match item.text(m, wanted) {
            Some(text) if is_range(text) => slot.push(text.to_owned()),
            Some(_) => item.refuse(m, wanted),
            None => {}
        }
    }
    if items.len() > MOST_DENIED {
        let wrong = format!("{} entries, the profiler plugin reads {MOST_DENIED}", items.len());
        m.push(field.origin(), wrong, format!("join neighbours to one range, such as {}", quoted(BROKEN)));
    }
}

/// As the profiler plugin reads it, without the spaces that it would skip.
fn is_range(text: &str) -> bool {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    version(from).zip(version(to)).is_some_and(|(from, to)| from <= to)
}

fn version(text: &str) -> Option<[u32; 3]> {
    let digits = |part: &str| {
        let plain = !part.is_empty() && part.len() <= 2 && part.bytes().all(|b| b.is_ascii_digit());
        part.parse().ok().filter(|_| plain)
    };
    let parts: Vec<u32> = text.split('.').map(digits).collect::<Option<_>>()?;
    parts.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    fn wrong(text: &str) -> Vec<String> {
        Policy::parse(text).unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_threshold_is_read_and_shown_again() {
        let policy = Policy::parse(
            "[c4d]\nfloor_ms = 20000\nceiling_ms = 60000\ngap_factor = 2\ngrace_ms = 100000\nwarmup_ops = 7\n\
             confirm_ms = 2000\nsilent_ms = 6000\nexpire_ms = 30000\nbusy_percent = 60\nbusy_io_bytes = 2\n\
             window_ms = 5000\nmin_ops = 9\nlate_share = 0.8\nslow_share = 0.2\nlate_us = 30\nslow_ratio = 3\n\
             hot_ratio = 4\nhot_us = 60\nwork_ratio = 1.2\ntelemetry_may_drain = true",
        )
        .unwrap();
        let (read, default) = (policy.c4d, Settings::default());
        let values =
            |settings: &Settings| serde_json::to_value(settings).unwrap().as_object().unwrap().clone();
        let same: Vec<String> = values(&default)
            .into_iter()
            .filter_map(|(key, value)| (values(&read)[&key] == value).then_some(key))
            .collect();
        assert!(same.is_empty(), "not read: {same:?}");
        assert_eq!(Policy::parse(&policy.to_toml().unwrap()).unwrap(), policy);
    }

    #[test]
    fn a_threshold_that_can_t_be_is_refused_by_its_key() {
        let found = wrong(
            "[c4d]\nfloor_ms = 1\nceiling_ms = -5\nbusy_percent = 300\nlate_share = 0.5\ngap_factor = \"3\"\n\
             floor_s = 10\ntelemetry_may_drain = 1",
        );
        for (key, right) in [
            ("floor_ms", "from 2000 to"),
            ("ceiling_ms", "a whole number"),
            ("busy_percent", "a whole number"),
            ("late_share", "from 0.51 to 1"),
            ("gap_factor", "a number"),
            ("floor_s", "floor_ms"),
            ("telemetry_may_drain", "true or false"),
        ] {
            let said = |line: &&String| line.contains(&format!("c4d.{key}")) && line.contains(right);
            assert!(found.iter().any(|line| said(&line)), "{key}: {found:#?}");
        }
        let found = wrong("[c4d]\nfloor_ms = 5000");
        assert!(found[0].contains("c4d.silent_ms: 5000 is not below c4d.floor_ms (5000)"), "{found:?}");
    }

    // O01, O03.
    #[test]
    fn denied_versions_are_in_the_form_that_the_profiler_plugin_reads() {
        let denied = |list: &str| Policy::parse(&format!("runtime.nccl_deny = {list}"));
        let policy = denied("['2.30.1', '2.27.3-2.27.5']").unwrap();
        assert_eq!(policy.runtime.nccl_deny, ["2.30.1", "2.27.3-2.27.5"]);
        assert_eq!(Policy::default().runtime.nccl_deny, [BROKEN]);
        assert!(denied("[]").unwrap().runtime.nccl_deny.is_empty());
        for bad in [
            "2.30",
            "2.30.x",
            "2.30.1-",
            "2.300.1",
            "2.28.8-2.28.3",
            " 2.28.3",
            "2.28.3,2.30.1",
            "",
            "+2.1.1",
        ] {
            let found = wrong(&format!("runtime.nccl_deny = ['{bad}']"));
            assert!(
                found[0].contains("runtime.nccl_deny[0]") && found[0].contains("such as"),
                "{bad}: {found:?}"
            );
        }
        let many = format!("[{}]", "'2.27.3-2.27.5',".repeat(MOST_DENIED + 1));
        assert!(denied(&many).unwrap_err()[0].to_string().contains("29 entries"));
    }
}
