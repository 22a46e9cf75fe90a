//! `aimaster doctor`: whether an installation can do its work. From facts to what is to be changed, to what, and why. How the
//! facts are found is the command line's matter.

pub mod facts;
mod files;
mod machine;
mod plugin;
mod settings;
mod summary;

use serde::Serialize;

pub use facts::Facts;
pub use summary::{page, text};

/// How much something matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Something does not work, or will not.
    Mistake,
    /// It works, and an admin should know.
    Note,
}

/// Something to change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Which rule found it.
    pub rule: &'static str,
    /// How much it matters.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What to change to what.
    pub change: String,
    /// Why.
    pub why: String,
}

/// What the rules say, the most important first.
#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn mistake(
        &mut self,
        rule: &'static str,
        found: impl Into<String>,
        change: impl Into<String>,
        why: impl Into<String>,
    ) {
        self.push(Level::Mistake, rule, found.into(), change.into(), why.into());
    }

    fn note(
        &mut self,
        rule: &'static str,
        found: impl Into<String>,
        change: impl Into<String>,
        why: impl Into<String>,
    ) {
        self.push(Level::Note, rule, found.into(), change.into(), why.into());
    }

    fn push(&mut self, level: Level, rule: &'static str, found: String, change: String, why: String) {
        self.0.push(Finding { rule, level, found, change, why });
    }
}

/// Looks at everything.
#[must_use]
pub fn examine(facts: &Facts) -> Vec<Finding> {
    let mut findings = Findings::default();
    settings::rules(facts, &mut findings);
    plugin::rules(facts, &mut findings);
    files::rules(facts, &mut findings);
    machine::rules(facts, &mut findings);
    let mut all = findings.0;
    all.sort_by_key(|finding| finding.level);
    all
}

/// Whether there is a mistake among them.
#[must_use]
pub fn has_mistakes(findings: &[Finding]) -> bool {
    findings.iter().any(|one| one.level == Level::Mistake)
}
