//! What an Xid or SXid of NVIDIA's driver means: whose fault it is, how often it takes, and what is done. The built-in
//! rows are in `xid/defaults.rs`, with their source; a site adds and changes rows in its policy (field case I06).
//!
//! How log lines are read is in [`crate::health::kernel_log`], how events are counted in [`ledger`].

mod defaults;
pub mod ledger;

use std::collections::BTreeMap;
use std::fmt;

use serde::ser::SerializeSeq as _;
use serde::{Deserialize, Serialize, Serializer};

use crate::health::{Action, Class};

/// Where the built-in rows come from.
pub const SOURCE: &str = "NVIDIA's Xid catalogue for A100, H100, B100 and GB200, Xid 1 to 172 \
                          (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), and the tables of SXid in \
                          the Fabric Manager User Guide of 2025-11";

/// Highest number that is believed; the catalogue ends below 200, and SXid have five digits.
pub const MOST_CODE: u32 = 99_999;

/// Highest count that a row can ask for: an event that comes more often than this in a window is seen long before.
pub const MOST_COUNT: u32 = 1000;

/// Longest window of a row: a week, as long as jobs are in most partitions.
pub const MOST_WINDOW_S: u32 = 7 * 86_400;

/// Which of the driver's two lists a number is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Of a GPU.
    Xid,
    /// Of an NVSwitch.
    Sxid,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Xid => "Xid",
            Self::Sxid => "SXid",
        })
    }
}

/// How bad the driver itself says an event is, where it does: NVLink of Blackwell, NVSwitch, and Xid 154, which is
/// fatal if it asks for a recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Something was lost.
    Fatal,
    /// Work goes on.
    Nonfatal,
}

/// Generation of a GPU, where a number means another thing on another one (field case I02).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Generation {
    /// V100.
    Volta,
    /// T4.
    Turing,
    /// A100 and its like.
    Ampere,
    /// L4, L40.
    Ada,
    /// H100 and its like.
    Hopper,
    /// B200 and its like.
    Blackwell,
}

impl Generation {
    /// By the product's name as NVML gives it; `None` for what is not known here.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        name.split([' ', '-', '_', '/']).find_map(|word| {
            Some(match word.to_ascii_uppercase().as_str() {
                "V100" | "V100S" => Self::Volta,
                "T4" => Self::Turing,
                "A2" | "A10" | "A16" | "A30" | "A40" | "A100" | "A800" => Self::Ampere,
                "L4" | "L20" | "L40" | "L40S" => Self::Ada,
                "H20" | "H100" | "H200" | "H800" | "GH200" => Self::Hopper,
                "B100" | "B200" | "B300" | "GB200" | "GB300" => Self::Blackwell,
                _ => return None,
            })
        })
    }
}

/// What a row is about; `None`: whatever it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Which list.
    pub family: Family,
    /// The number.
    pub code: u32,
    /// Only on this generation.
    pub generation: Option<Generation>,
    /// Only where the driver says so.
    pub severity: Option<Severity>,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// Whose fault it is.
    pub class: Class,
    /// How many it takes, on one part.
    pub count: u32,
    /// In how many seconds; 0: in the whole job.
    pub window_s: u32,
    /// What is done then. Fewer are told, unless the action is to ignore them.
    pub action: Action,
}

impl Rule {
    /// For numbers that no row knows: told, and nobody is drained (field case I09).
    pub const UNKNOWN: Self = Self { class: Class::Unknown, count: 1, window_s: 0, action: Action::Report };
}

/// All rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XidTable(BTreeMap<Key, Rule>);

impl Default for XidTable {
    fn default() -> Self {
        Self(defaults::rows().collect())
    }
}

impl XidTable {
    /// Adds a row, or changes the one with this key.
    pub fn set(&mut self, key: Key, rule: Rule) {
        self.0.insert(key, rule);
    }

    /// Takes the place of every row of this number: what a site says without a generation and a severity holds for all.
    pub fn replace(&mut self, key: Key, rule: Rule) {
        let whole = key.generation.is_none() && key.severity.is_none();
        self.0.retain(|known, _| !(whole && (known.family, known.code) == (key.family, key.code)));
        self.set(key, rule);
    }

    /// The rule for an event: of the rows that fit, the one that says most; severity says more than generation.
    #[must_use]
    pub fn rule(
        &self,
        family: Family,
        code: u32,
        generation: Option<Generation>,
        severity: Option<Severity>,
    ) -> Rule {
        let row = |generation, severity| self.0.get(&Key { family, code, generation, severity }).copied();
        let with = |severity: Option<Severity>| {
            generation.and_then(|one| row(Some(one), severity)).or_else(|| row(None, severity))
        };
        severity
            .and_then(|said| with(Some(said)))
            .or_else(|| with(None))
            .or_else(|| defaults::by_severity(family, severity))
            .unwrap_or(Rule::UNKNOWN)
    }
}

/// Rows as a policy writes them: those that say the same stand together.
#[derive(Serialize)]
struct Row<'a> {
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    xid: &'a [u32],
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    sxid: &'a [u32],
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<Generation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    severity: Option<Severity>,
    #[serde(flatten)]
    rule: Rule,
}

impl Serialize for XidTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        type Alike = (Family, Option<Generation>, Option<Severity>, Class, u32, u32, Action);
        let mut alike: BTreeMap<Alike, Vec<u32>> = BTreeMap::new();
        for (key, rule) in &self.0 {
            let of = (
                key.family,
                key.generation,
                key.severity,
                rule.class,
                rule.count,
                rule.window_s,
                rule.action,
            );
            alike.entry(of).or_default().push(key.code);
        }
        let mut rows = serializer.serialize_seq(Some(alike.len()))?;
        for ((family, generation, severity, class, count, window_s, action), codes) in &alike {
            let (xid, sxid): (&[u32], &[u32]) = match family {
                Family::Xid => (codes, &[]),
                Family::Sxid => (&[], codes),
            };
            let rule = Rule { class: *class, count: *count, window_s: *window_s, action: *action };
            rows.serialize_element(&Row { xid, sxid, generation: *generation, severity: *severity, rule })?;
        }
        rows.end()
    }
}

#[cfg(test)]
mod tests;
