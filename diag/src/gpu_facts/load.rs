//! What a GPU tells while a measurement runs on it: what holds its clocks down, memory errors that grow, a PCIe link
//! that stays low. History before the measurement says nothing about it.

use super::gpu::{REASON_SETTING, held_down, locked, process, used_by};
use super::reading::{GpuReading, GpuSample, Load, Temperature};
use super::{Fact, FactKind, called, path_under_load, subject};
use crate::facts::NodeId;

/// NVML's bits that say what holds clocks down. 0x1 is an idle GPU and 0x4 a GPU at its power limit, which is what
/// good work looks like (field cases H01, H03).
pub(crate) const IDLE: u64 = 0x1;
const POWER_CAP: u64 = 0x4;
const HARDWARE: u64 = 0x8;
const SYNC_BOOST: u64 = 0x10;
const SOFTWARE_HEAT: u64 = 0x20;
const HARDWARE_HEAT: u64 = 0x40;
const POWER_BRAKE: u64 = 0x80;
const DISPLAY: u64 = 0x100;
const NAMED: u64 = IDLE
    | REASON_SETTING
    | POWER_CAP
    | HARDWARE
    | SYNC_BOOST
    | SOFTWARE_HEAT
    | HARDWARE_HEAT
    | POWER_BRAKE
    | DISPLAY;

/// Fewer samples than this show no share of time (field case H02).
pub(crate) const MIN_SAMPLES: usize = 4;

/// A reason counts that held in at least one of this many samples: less slows a measurement by less than its noise.
const LASTING: usize = 4;

/// From here to the point of slowing down a GPU is hot; sensors and NVML's whole degrees differ by less.
const HOT_MARGIN_C: i64 = 5;

/// Corrected errors a second that are a storm: field case E17 had 17,700, healthy GPUs have a few a day.
pub(crate) const STORM_PER_S: f64 = 1000.0;

/// NVML answers in milliseconds; field case E17 had 45 s.
const SLOW_ANSWER_MS: u64 = 5000;

/// Facts from what was seen while a GPU worked; `before` is its reading at rest.
#[must_use]
pub fn under_load(node: NodeId, name: &str, before: &GpuReading, load: &Load) -> Vec<Fact> {
    let who = called(name, before);
    let samples = load.samples.as_slice();
    let mut facts: Vec<Fact> =
        load.path.iter().flat_map(|path| path_under_load(&subject(node, before), &who, path)).collect();
    let mut add = |kind, words: String| facts.push(Fact::new(kind, subject(node, before), words));
    let slowest = samples.iter().map(|one| one.took_ms).max().unwrap_or_default();
    if slowest >= SLOW_ANSWER_MS {
        add(FactKind::Note, format!("{who}: the driver took {slowest} ms to answer while the GPU worked"));
    }
    // Those that were there before are told already.
    let known = |pid: u32| before.processes.iter().flatten().any(|one| one.pid == pid);
    for one in load.processes.iter().filter(|one| !known(one.pid)) {
        add(FactKind::Cause, used_by(&who, &process(one)));
    }
    errors(&who, samples, load.seconds, &mut add);
    pcie(&who, samples, &mut add);
    slowed(&who, before, samples, &mut |_, kind, words| add(kind, words));
    facts
}

/// What holds clocks down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slowed {
    /// The external power brake.
    Brake,
    /// Heat.
    Heat,
    /// The hardware, without saying why.
    Hardware,
    /// A setting, or what has no name here.
    Other,
}

/// What held the clocks down for long enough, said of `who`; nothing where samples are too few.
pub(crate) fn slowed(
    who: &str,
    before: &GpuReading,
    samples: &[GpuSample],
    add: &mut impl FnMut(Slowed, FactKind, String),
) {
    if samples.len() >= MIN_SAMPLES {
        reasons(who, before, samples, add);
    }
}

/// In how many samples a bit held while the clock was below its highest, and in how many the bits were known.
fn share(samples: &[GpuSample], bit: u64) -> (usize, usize) {
    let known = samples.iter().filter(|one| one.clocks.reasons.is_some());
    let slowed = |one: &&GpuSample| match (one.clocks.sm_mhz, one.clocks.sm_max_mhz) {
        (Some(now), Some(most)) => now < most,
        _ => true,
    };
    let held = known.clone().filter(|one| one.clocks.reasons.unwrap_or_default() & bit != 0).filter(slowed);
    (held.count(), known.count())
}

fn reasons(
    who: &str,
    before: &GpuReading,
    samples: &[GpuSample],
    add: &mut impl FnMut(Slowed, FactKind, String),
) {
    let lasting = |bit: u64| {
        let (held, known) = share(samples, bit);
        (known >= MIN_SAMPLES && held * LASTING >= known).then(|| format!("in {held} of {known} samples"))
    };
    let clock = clocks_seen(samples);
    let brake = lasting(POWER_BRAKE);
    if let Some(part) = &brake {
        add(
            Slowed::Brake,
            FactKind::Fault,
            format!(
                "{who}: slowed by the external power brake {part}{clock}; check power supplies and their cables"
            ),
        );
    }
    let heat = [(HARDWARE_HEAT, "hardware"), (SOFTWARE_HEAT, "the driver")]
        .into_iter()
        .find_map(|(bit, by)| lasting(bit).map(|part| (bit, by, part)));
    if let Some((bit, by, part)) = &heat {
        // H05.
        let (hot, seen) = hot(before, samples);
        let sure = hot.unwrap_or(*bit == HARDWARE_HEAT);
        if sure {
            add(
                Slowed::Heat,
                FactKind::Fault,
                format!("{who}: slowed for heat by {by} {part}{clock}, {seen}; check its cooling"),
            );
        } else {
            add(
                Slowed::Heat,
                FactKind::Cause,
                format!(
                    "{who}: said to be slowed for heat by {by} {part}{clock}, though {seen}: no fault by itself"
                ),
            );
        }
    }
    // H06: the bit also stands beside the two above.
    if let (None, None, Some(part)) = (&brake, &heat, lasting(HARDWARE)) {
        add(
            Slowed::Hardware,
            FactKind::Fault,
            format!("{who}: slowed by its hardware {part}{clock}; check power supplies and cooling"),
        );
    }
    // G10.
    let most = before.clocks.sm_max_mhz.or_else(|| samples.iter().find_map(|one| one.clocks.sm_max_mhz));
    let fastest = samples.iter().filter_map(|one| one.clocks.sm_mhz).max();
    if let (Some(_), Some(fastest), Some(most)) = (lasting(REASON_SETTING), fastest, most)
        && held_down(before, fastest, most)
    {
        add(Slowed::Other, FactKind::Cause, locked(who, fastest, most));
    }
    for (bit, what) in
        [(SYNC_BOOST, "the slowest GPU of its sync boost group"), (DISPLAY, "a display's setting")]
    {
        if let Some(part) = lasting(bit) {
            add(Slowed::Other, FactKind::Cause, format!("{who}: held down by {what} {part}{clock}"));
        }
    }
    // F11, I09: a bit without a name is told and blames nobody.
    let unknown =
        samples.iter().filter_map(|one| one.clocks.reasons).fold(0, |all, bits| all | bits) & !NAMED;
    if let Some(part) = lasting(unknown).filter(|_| unknown != 0) {
        add(
            Slowed::Other,
            FactKind::Cause,
            format!("{who}: held down by reason {unknown:#x} of NVML, which has no name here, {part}{clock}"),
        );
    }
}

/// `, at 1200 to 1410 of 1980 MHz`.
fn clocks_seen(samples: &[GpuSample]) -> String {
    let seen = || samples.iter().filter_map(|one| one.clocks.sm_mhz);
    let most = samples.iter().find_map(|one| one.clocks.sm_max_mhz);
    match (seen().min(), seen().max(), most) {
        (Some(low), Some(high), Some(most)) => format!(", at {low} to {high} of {most} MHz"),
        _ => String::new(),
    }
}

/// Whether GPU or memory came near the point of slowing down, if the sensors tell, and what they showed.
fn hot(before: &GpuReading, samples: &[GpuSample]) -> (Option<bool>, String) {
    let least = |of: fn(&Temperature, &Temperature) -> Option<i64>| {
        samples.iter().filter_map(|one| of(&one.temperature, &before.temperature)).min()
    };
    let gpu = least(|now, before| {
        let from_limit = || Some(i64::from(now.slowdown_c.or(before.slowdown_c)?) - i64::from(now.gpu_c?));
        now.margin_c.map(i64::from).or_else(from_limit)
    });
    let memory = least(|now, before| {
        Some(i64::from(now.memory_max_c.or(before.memory_max_c)?) - i64::from(now.memory_c?))
    });
    match gpu.into_iter().chain(memory).min() {
        Some(margin) => (Some(margin <= HOT_MARGIN_C), format!("{margin} °C below its limit at the least")),
        None => (None, "its temperature is not known".to_owned()),
    }
}

/// E17, and errors that nobody could correct.
fn errors(who: &str, samples: &[GpuSample], seconds: f64, add: &mut impl FnMut(FactKind, String)) {
    let grown = |of: fn(&GpuSample) -> Option<u64>| {
        let first = samples.iter().find_map(of)?;
        let last = samples.iter().rev().find_map(of)?;
        // A counter that went back was reset: F14.
        last.checked_sub(first).filter(|grown| *grown > 0)
    };
    if let Some(count) = grown(|one| one.ecc.volatile_uncorrected) {
        add(
            FactKind::Fault,
            format!(
                "{who}: {count} uncorrected memory errors while it worked; reset the GPU, replace it if they come back"
            ),
        );
    }
    #[allow(clippy::cast_precision_loss, reason = "a rate is compared with a round number")]
    let rate = grown(|one| one.ecc.volatile_corrected).map(|count| count as f64 / seconds);
    if let Some(rate) = rate.filter(|rate| seconds > 0.0 && *rate >= STORM_PER_S) {
        add(
            FactKind::Fault,
            format!(
                "{who}: {rate:.0} corrected memory errors a second while it worked (limit {STORM_PER_S}); replace the GPU"
            ),
        );
    }
}

/// J14: the highest that was seen counts, since a GPU raises its link only when it works.
fn pcie(who: &str, samples: &[GpuSample], add: &mut impl FnMut(FactKind, String)) {
    let works = |one: &&GpuSample| one.clocks.reasons.is_none_or(|reasons| reasons & IDLE == 0);
    let busy = || samples.iter().filter(works);
    if busy().count() < MIN_SAMPLES {
        return;
    }
    let highest = |of: fn(&GpuSample) -> Option<u32>| busy().filter_map(of).max();
    let pairs = [
        ("generation", highest(|one| one.pcie.generation), highest(|one| one.pcie.generation_max)),
        ("width", highest(|one| one.pcie.width), highest(|one| one.pcie.width_max)),
    ];
    for (what, now, most) in pairs {
        if let (Some(now), Some(most)) = (now, most)
            && now < most
        {
            add(
                FactKind::Fault,
                format!(
                    "{who}: PCIe {what} {now} while it worked, card and slot can do {most}; seat the card again, then look at slot and riser"
                ),
            );
        }
    }
}
