//! Rules for GPUs: what NVML says now against what it said when the job started. What was wrong then was the checks'
//! matter before the start; here counts what comes while the job runs. Pure: the caller brings readings and the time.
//!
//! Memory errors, NVLink, PCIe and a GPU that is lost are hardware's own word and drain. Heat and power are told: they
//! are the room's and the chassis's as often as the GPU's.

use std::collections::{BTreeMap, VecDeque};

use super::reading::GpuEvent;
use super::{Action, Class, Condition, Part, grown};
use crate::gpu_facts::reading::{Ecc, GpuReading, GpuSample, NvLink, Recovery};
use crate::gpu_facts::{FactKind, IDLE, MIN_SAMPLES, STORM_PER_S, Slowed, number, slowed};
use crate::xid::Generation;

/// Samples of this long decide about clocks and the PCIe link: a kernel that throttles for seconds is seen, one spike is
/// not.
const SAMPLES_MS: u64 = 60_000;

/// Most samples that are kept: one a second, and some.
const MOST_SAMPLES: usize = 64;

/// Rates of counters are taken over at least this long, and readings are kept for twice that.
const RATE_MS: u64 = 30_000;

/// Most whole readings that are kept, one every few seconds.
const MOST_KEPT: usize = 32;

/// A state must hold this long: two whole readings.
const CONFIRM_MS: u64 = 6000;

/// A rate must be high for longer than its window: then no single burst makes it, and two windows agree.
const RATE_CONFIRM_MS: u64 = RATE_MS + 15_000;

/// After this long without it a state is over.
const RECOVERY_MS: u64 = 120_000;

/// A driver that owes an answer this long is in trouble; field case E17 had 45 s, healthy ones take milliseconds.
const SILENT_MS: u64 = 20_000;

/// Packets with a wrong checksum, or sent again, a second, on one link: a healthy link has some a day.
const LINK_ERRORS_PER_S: f64 = 100.0;

/// Packets sent again over PCIe a second: a healthy link has some a day. Told only: the link repairs them.
const PCIE_REPLAYS_PER_S: f64 = 10.0;

/// One GPU since the job's start.
#[derive(Debug, Clone)]
pub struct Gpu {
    part: Part,
    start: GpuReading,
    now: GpuReading,
    /// Counters of whole readings, oldest first.
    kept: VecDeque<(u64, Counters)>,
    samples: VecDeque<(u64, GpuSample)>,
    lost: Option<String>,
    silent_ms: u64,
    double_bits: u64,
}

/// What of a whole reading is compared over time.
#[derive(Debug, Clone, Default)]
struct Counters {
    links: BTreeMap<u32, NvLink>,
    pcie_replays: Option<u64>,
    corrected: Option<u64>,
}

impl From<&GpuReading> for Counters {
    fn from(reading: &GpuReading) -> Self {
        Self {
            links: reading.links.iter().map(|link| (link.link, *link)).collect(),
            pcie_replays: reading.pcie.replays.map(u64::from),
            corrected: reading.ecc.volatile_corrected,
        }
    }
}

impl Gpu {
    /// As it is when the job starts.
    #[must_use]
    pub fn new(now_ms: u64, start: GpuReading) -> Self {
        let part = Part::Gpu { index: number(&start.device), pci: start.device.pci.clone() };
        Self {
            part,
            kept: VecDeque::from([(now_ms, Counters::from(&start))]),
            samples: VecDeque::new(),
            now: start.clone(),
            lost: start.lost.clone(),
            start,
            silent_ms: 0,
            double_bits: 0,
        }
    }

    /// What it is called.
    #[must_use]
    pub fn part(&self) -> &Part {
        &self.part
    }

    /// Its UUID.
    #[must_use]
    pub fn uuid(&self) -> Option<&str> {
        self.start.device.uuid.as_deref()
    }

    /// Its PCI address.
    #[must_use]
    pub fn pci(&self) -> Option<&str> {
        self.start.device.pci.as_deref()
    }

    /// Its generation, where the name says it.
    #[must_use]
    pub fn generation(&self) -> Option<Generation> {
        Generation::of(self.start.device.name.as_deref()?)
    }

    /// How busy it was at the last look, in percent, and the bits that hold its clocks down.
    #[must_use]
    pub fn load(&self) -> (Option<u32>, Option<u64>) {
        self.samples.back().map_or((None, None), |(_, one)| (one.busy_percent, one.clocks.reasons))
    }

    /// The processes that the last whole reading found on it.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.now.processes.iter().flatten().map(|one| one.pid)
    }

    /// Takes a whole reading.
    pub fn whole(&mut self, now_ms: u64, reading: GpuReading) {
        self.lost.clone_from(&reading.lost);
        self.silent_ms = 0;
        if reading.lost.is_none() {
            self.kept.push_back((now_ms, Counters::from(&reading)));
            self.now = reading;
        }
        let old = |kept: &VecDeque<(u64, Counters)>| {
            kept.get(1).is_some_and(|(at, _)| now_ms.saturating_sub(*at) >= 2 * RATE_MS)
        };
        while self.kept.len() > MOST_KEPT || old(&self.kept) {
            self.kept.pop_front();
        }
    }

    /// Takes a sample.
    pub fn sample(&mut self, now_ms: u64, sample: GpuSample) {
        self.silent_ms = 0;
        self.samples.push_back((now_ms, sample));
        let old = |(at, _): &(u64, GpuSample)| now_ms.saturating_sub(*at) > SAMPLES_MS;
        while self.samples.len() > MOST_SAMPLES || self.samples.front().is_some_and(old) {
            self.samples.pop_front();
        }
    }

    /// Takes that it can't be asked any more.
    pub fn lost(&mut self, words: String) {
        self.lost = Some(words);
    }

    /// Takes that its driver owes an answer.
    pub fn silent(&mut self, for_ms: u64) {
        self.silent_ms = for_ms;
    }

    /// Takes an event; an Xid is the ledger's matter.
    pub fn event(&mut self, event: GpuEvent) {
        if event == GpuEvent::DoubleBit {
            self.double_bits = self.double_bits.saturating_add(1);
        }
    }

    /// What holds now.
    #[must_use]
    pub fn conditions(&self, now_ms: u64) -> Vec<Condition> {
        let mut found = Vec::new();
        let who = &self.part;
        let mut add = |lasting, what: &str, class, action, words: String| {
            let (confirm_ms, recovery_ms) = match lasting {
                Lasting::State => (CONFIRM_MS, Some(RECOVERY_MS)),
                Lasting::Rate => (RATE_CONFIRM_MS, Some(RECOVERY_MS)),
                Lasting::Happened => (0, None),
            };
            found.push(Condition {
                part: who.clone(),
                what: what.to_owned(),
                class,
                action,
                words: format!("{who}: {words}"),
                confirm_ms,
                recovery_ms,
                since_ms: None,
            });
        };
        if let Some(lost) = self.lost.as_ref().filter(|_| self.start.lost.is_none()) {
            let words = format!("is lost: {lost}; reset it, or restart the node and check its seat");
            add(Lasting::State, "lost", Class::Gpu, Action::Drain, words);
        }
        if self.silent_ms >= SILENT_MS {
            let words = format!("the driver has not answered for {} s", self.silent_ms / 1000);
            add(Lasting::State, "silent", Class::Driver, Action::Report, words);
        }
        self.memory(&mut add);
        self.links(now_ms, &mut add);
        self.pcie(now_ms, &mut add);
        self.clocks(&mut add);
        found
    }

    /// The newest counts of memory errors: samples are newer than whole readings.
    fn ecc(&self) -> Ecc {
        self.samples.back().map_or(self.now.ecc, |(_, sample)| sample.ecc)
    }

    fn memory(&self, add: &mut impl FnMut(Lasting, &str, Class, Action, String)) {
        let (then, now) = (self.start.ecc, self.ecc());
        let counted = grown(then.volatile_uncorrected, now.volatile_uncorrected);
        let in_chip = grown(
            then.sram.map(|sram| sram.volatile_uncorrected),
            now.sram.map(|sram| sram.volatile_uncorrected),
        );
        let count = counted.max(in_chip).unwrap_or_default().max(self.double_bits);
        if count > 0 {
            let words = format!(
                "{count} uncorrected memory errors since the job started (limit 0); reset it, replace it if they come back"
            );
            add(Lasting::Happened, "uncorrected", Class::Memory, Action::Drain, words);
        }
        let passed = |ecc: Ecc| ecc.sram.is_some_and(|sram| sram.threshold_exceeded);
        if passed(now) && !passed(then) {
            let words =
                "uncorrected errors of the memory inside the chip passed the vendor's threshold; replace it";
            add(Lasting::Happened, "sram threshold", Class::Memory, Action::Drain, words.to_owned());
        }
        let rows = |of: fn(&GpuReading) -> bool| of(&self.now) && !of(&self.start);
        if rows(|one| one.rows.is_some_and(|rows| rows.failed)) {
            let words = "a bad row of memory could not be replaced; replace the GPU".to_owned();
            add(Lasting::Happened, "row not replaced", Class::Memory, Action::Drain, words);
        }
        if rows(|one| one.rows.is_some_and(|rows| rows.pending)) {
            let words = "a bad row of memory waits to be replaced; reset the GPU to do it".to_owned();
            add(Lasting::Happened, "row waits", Class::Memory, Action::Drain, words);
        }
        if rows(|one| one.pages.pending == Some(true)) {
            let words = "bad pages of memory wait to be taken out of use; reset the GPU".to_owned();
            add(Lasting::Happened, "pages wait", Class::Memory, Action::Drain, words);
        }
        if self.now.recovery == self.start.recovery {
            return;
        }
        let (wanted, action) = match self.now.recovery {
            None | Some(Recovery::None) => return,
            Some(Recovery::Reset) => ("a reset".to_owned(), Action::Drain),
            Some(Recovery::Reboot) => ("a restart of the node".to_owned(), Action::Drain),
            Some(Recovery::DrainP2p) => {
                ("a reset together with the GPUs that reach it by NVLink".to_owned(), Action::Drain)
            }
            Some(Recovery::DrainAndReset) => ("a reset once what runs has ended".to_owned(), Action::Drain),
            // I09: what has no name yet is told and blames nobody.
            Some(Recovery::Other(other)) => (format!("recovery action {other}"), Action::Report),
        };
        let words = format!("the driver asks for {wanted} before it can be used again");
        add(Lasting::State, "recovery", Class::Gpu, action, words);
    }

    /// The counters of a moment long enough ago, and how long ago that was, in seconds.
    fn before(&self, now_ms: u64) -> Option<(&Counters, f64)> {
        let (at, counters) = self.kept.iter().rev().find(|(at, _)| now_ms.saturating_sub(*at) >= RATE_MS)?;
        let (newest, _) = self.kept.back()?;
        #[allow(clippy::cast_precision_loss, reason = "a rate is compared with a round number")]
        let seconds = newest.checked_sub(*at).filter(|ms| *ms > 0)? as f64 / 1000.0;
        Some((counters, seconds))
    }

    fn links(&self, now_ms: u64, add: &mut impl FnMut(Lasting, &str, Class, Action, String)) {
        let at_start: BTreeMap<u32, &NvLink> = self.start.links.iter().map(|one| (one.link, one)).collect();
        // K02: what was not up when the job started is not missed.
        let was_up = |link: &&NvLink| at_start.get(&link.link).is_some_and(|one| one.active == Some(true));
        let down: Vec<String> = self
            .now
            .links
            .iter()
            .filter(was_up)
            .filter(|link| link.active == Some(false))
            .map(|link| link.link.to_string())
            .collect();
        if !down.is_empty() {
            let words = format!(
                "NVLink {} went down since the job started; reset the GPU, then look at board and NVSwitch",
                down.join(",")
            );
            add(Lasting::State, "nvlink down", Class::Nvlink, Action::Drain, words);
        }
        let Some((before, seconds)) = self.before(now_ms) else { return };
        let mut high = Vec::new();
        for link in &self.now.links {
            let Some(then) = before.links.get(&link.link) else { continue };
            for (name, then, now) in [
                ("wrong checksums", then.crc_errors, link.crc_errors),
                ("replays", then.replays, link.replays),
            ] {
                let rate = per_second(then, now, seconds);
                if rate >= LINK_ERRORS_PER_S {
                    high.push(format!("link {} {rate:.0} {name} a second", link.link));
                }
            }
        }
        if !high.is_empty() {
            let words = format!("NVLink: {} (limit {LINK_ERRORS_PER_S}); reset the GPU", high.join(", "));
            add(Lasting::Rate, "nvlink errors", Class::Nvlink, Action::Drain, words);
        }
        let trained = |link: &NvLink| {
            let before = at_start.get(&link.link).and_then(|one| one.recoveries);
            grown(before, link.recoveries).unwrap_or_default()
        };
        let again: Vec<String> = self
            .now
            .links
            .iter()
            .filter(was_up)
            .filter(|link| trained(link) > 0)
            .map(|link| format!("{} ({} times)", link.link, trained(link)))
            .collect();
        if !again.is_empty() {
            let words = format!("NVLink {} was trained again since the job started", again.join(", "));
            add(Lasting::Happened, "nvlink trained again", Class::Nvlink, Action::Report, words);
        }
    }

    fn pcie(&self, now_ms: u64, add: &mut impl FnMut(Lasting, &str, Class, Action, String)) {
        const NEXT: &str = "seat the card again, then look at slot and riser";
        let (then, now) = (&self.start.pcie, &self.now.pcie);
        // Lanes are not given up to save power.
        if let (Some(then), Some(now)) = (then.width, now.width)
            && now < then
        {
            let words = format!("PCIe has {now} lanes, {then} when the job started; {NEXT}");
            add(Lasting::State, "pcie width", Class::Pcie, Action::Drain, words);
        }
        // An idle GPU lowers the generation: only the highest while it worked says something.
        let working = self.working();
        let highest = |of: fn(&GpuSample) -> Option<u32>| working.iter().filter_map(of).max();
        if working.len() >= MIN_SAMPLES
            && let (Some(now), Some(most)) =
                (highest(|one| one.pcie.generation), highest(|one| one.pcie.generation_max))
            && now < most
        {
            let words = format!("PCIe generation {now} while it works, card and slot can do {most}; {NEXT}");
            add(Lasting::Rate, "pcie generation", Class::Pcie, Action::Drain, words);
        }
        if let Some((before, seconds)) = self.before(now_ms) {
            let rate = per_second(before.pcie_replays, now.replays.map(u64::from), seconds);
            if rate >= PCIE_REPLAYS_PER_S {
                let words = format!(
                    "PCIe sends {rate:.0} packets a second again (limit {PCIE_REPLAYS_PER_S}); {NEXT}"
                );
                add(Lasting::Rate, "pcie replays", Class::Pcie, Action::Report, words);
            }
            let rate = per_second(before.corrected, self.now.ecc.volatile_corrected, seconds);
            if rate >= STORM_PER_S {
                let words = format!(
                    "{rate:.0} corrected memory errors a second (limit {STORM_PER_S}); replace the GPU"
                );
                add(Lasting::Rate, "corrected storm", Class::Memory, Action::Drain, words);
            }
        }
    }

    /// H01 to H06: only while it works, only what lasts, and only what is a fault.
    fn clocks(&self, add: &mut impl FnMut(Lasting, &str, Class, Action, String)) {
        let working = self.working();
        slowed("it is", &self.start, &working, &mut |by, kind, words| {
            let (what, class) = match by {
                Slowed::Brake => ("power brake", Class::Power),
                Slowed::Heat => ("heat", Class::Heat),
                Slowed::Hardware => ("hardware slowdown", Class::Power),
                Slowed::Other => return,
            };
            if kind == FactKind::Fault {
                let words = words.strip_prefix("it is: ").unwrap_or(&words).to_owned();
                add(Lasting::State, what, class, Action::Report, words);
            }
        });
    }

    /// Samples in which something is known to have run on it; where that is not known there are none.
    fn working(&self) -> Vec<GpuSample> {
        let works = |sample: &GpuSample| match (sample.busy_percent, sample.clocks.reasons) {
            (Some(percent), _) => percent > 0,
            // H03.
            (None, Some(reasons)) => reasons & IDLE == 0,
            (None, None) => false,
        };
        self.samples.iter().map(|(_, sample)| *sample).filter(works).collect()
    }
}

/// How it comes and goes.
#[derive(Clone, Copy)]
enum Lasting {
    /// It is so, and may pass.
    State,
    /// It is counted over a window, and may pass.
    Rate,
    /// It has happened.
    Happened,
}

fn per_second(before: Option<u64>, after: Option<u64>, seconds: f64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "a rate is compared with a round number")]
    let count = grown(before, after).unwrap_or_default() as f64;
    count / seconds
}

#[cfg(test)]
mod tests;
