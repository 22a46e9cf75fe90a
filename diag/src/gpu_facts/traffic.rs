//! Traffic on a node's ports that is not the checks' own: looked for right before and right after a measurement between nodes,
//! while the checks send nothing. It explains a slow number, and no part is at fault for it.

use std::collections::BTreeSet;

use super::network::of_gpus;
use super::reading::Moved;
use super::{Compared, Fact, FactKind};
use crate::facts::NodeId;
use crate::measurement::Subject;

/// Share of a port's rate from which on other traffic counts: below it no number falls by more than healthy ones scatter.
const FOREIGN_SHARE: f64 = 0.05;

/// What the ports had moved at two moments between which the checks sent nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Quiet {
    /// At the first.
    pub first: Vec<Moved>,
    /// At the second.
    pub second: Vec<Moved>,
    /// Time between them.
    pub apart_ms: u64,
}

impl Quiet {
    /// Share of `gbit_s` that a port moved; `None` where it is not known, or its counter began anew.
    fn share(&self, device: &str, port: u32, gbit_s: u32) -> Option<f64> {
        let of = |all: &[Moved]| {
            all.iter().find(|one| one.device == device && one.port == port).map(|one| one.bytes)
        };
        let bytes = of(&self.second)?.checked_sub(of(&self.first)?)?;
        #[allow(clippy::cast_precision_loss, reason = "a share of five per cent needs few digits")]
        let (bytes, ms) = (bytes as f64, self.apart_ms as f64);
        (ms > 0.0).then(|| bytes * 8.0 / (ms / 1000.0) / (f64::from(gbit_s) * 1e9))
    }
}

/// The ports of `node` that carry other traffic; `named`: devices that the policy names.
#[must_use]
pub fn other_traffic(
    (node, name): (NodeId, &str),
    seen: &Compared,
    named: &BTreeSet<String>,
    before: &Quiet,
    after: &Quiet,
) -> Vec<Fact> {
    let mut facts = Vec::new();
    for port in of_gpus(seen, named) {
        let Some(rate) = port.rate_gbit_s else { continue };
        let share = |quiet: &Quiet| quiet.share(&port.device, port.number, rate).unwrap_or(0.0);
        let (before, after) = (share(before), share(after));
        if before.max(after) <= FOREIGN_SHARE {
            continue;
        }
        let words = format!(
            "{name}: {} port {} carries other traffic: {:.0} % of its {rate} Gbit/s right before the measurement, {:.0} % right \
             after it; check again when that is over",
            port.device,
            port.number,
            before * 100.0,
            after * 100.0
        );
        let subject = Subject::Nic { node, name: port.device.clone() };
        facts.push(Fact::new(FactKind::Cause, subject, words));
    }
    facts
}
