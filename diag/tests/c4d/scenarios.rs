//! Scenario files: a simulated job, what happens to it, and what must be found. One without an expectation must find nothing:
//! those are what only looks like a fault.

use std::path::Path;

use diag::c4d::finding::{Class, State};
use serde::Deserialize;

use crate::faults::Watch;
use crate::job::{Event, Plan, Shape};

/// One file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    /// What it is, in a sentence; with the number of a case from the field where it is one.
    about: String,
    #[serde(default = "small")]
    shape: Shape,
    seconds: u64,
    compute_ms: Option<f64>,
    first_step: Option<f64>,
    uneven: Option<f64>,
    jitter: Option<f64>,
    late_digests: Option<f64>,
    #[serde(default)]
    event: Vec<Event>,
    /// Every finding that is confirmed, in order of time.
    #[serde(default)]
    expect: Vec<Expected>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    class: Class,
    ranks: Vec<usize>,
    /// Latest time.
    by_ms: u64,
    /// Words that its message or evidence has.
    #[serde(default)]
    says: Vec<String>,
    /// Bounds of its confidence.
    #[serde(default)]
    at_least: f64,
    #[serde(default = "one")]
    at_most: f64,
    /// Words of its withdrawal; without: it stands at the end.
    withdrawn: Option<String>,
}

fn small() -> Shape {
    Shape::SMALL
}

fn one() -> f64 {
    1.0
}

impl Scenario {
    fn run(&self) -> Watch {
        let mut plan = Plan::new(self.shape, 7);
        plan.events.clone_from(&self.event);
        for (slot, value) in [
            (&mut plan.compute_ms, self.compute_ms),
            (&mut plan.first_step, self.first_step),
            (&mut plan.uneven, self.uneven),
            (&mut plan.jitter, self.jitter),
            (&mut plan.late_digests, self.late_digests),
        ] {
            *slot = value.unwrap_or(*slot);
        }
        let mut watch = Watch::new(plan);
        watch.until(self.seconds * 1000);
        watch
    }

    fn check(&self, name: &str) {
        let watch = self.run();
        let confirmed = watch.confirmed();
        let said: Vec<String> = watch
            .said
            .iter()
            .map(|(at, one)| format!("{at} {} {:?}: {}", one.class, one.state, one.message))
            .collect();
        assert_eq!(confirmed.len(), self.expect.len(), "{name}: {}: {said:#?}", self.about);
        let stand = self.expect.iter().filter(|one| one.withdrawn.is_none()).count();
        assert_eq!(watch.picture.standing().count(), stand, "{name}: {said:#?}");
        for ((at_ms, found), expected) in confirmed.iter().zip(&self.expect) {
            let mut ranks: Vec<usize> = found.suspects.iter().map(|who| who.pid as usize - 100_000).collect();
            ranks.sort_unstable();
            assert_eq!((found.class, &ranks), (expected.class, &expected.ranks), "{name}: {said:#?}");
            assert!(*at_ms <= expected.by_ms, "{name}: after {at_ms} ms");
            let text = format!("{} {}", found.message, found.evidence.join(" "));
            for words in &expected.says {
                assert!(text.contains(words), "{name}: {words:?} is not in {text}");
            }
            let sure = found.confidence;
            assert!((expected.at_least..=expected.at_most).contains(&sure), "{name}: confidence {sure}");
            let over = watch.said.iter().find_map(|(_, one)| match &one.state {
                State::Withdrawn { because }
                    if (one.class, &one.suspects) == (found.class, &found.suspects) =>
                {
                    Some(because)
                }
                _ => None,
            });
            match (&expected.withdrawn, over) {
                (Some(words), Some(because)) => assert!(because.contains(words), "{name}: {because}"),
                (None, None) => {}
                (expected, over) => assert_eq!(over, expected.as_ref(), "{name}: withdrawn"),
            }
        }
    }
}

#[test]
fn every_scenario_comes_out_as_it_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c4d/scenarios");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 20, "{}", files.len());
    let mut wrong = Vec::new();
    for file in files {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&file).unwrap();
        let scenario: Scenario = toml::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        if let Err(error) = std::panic::catch_unwind(|| scenario.check(&name)) {
            wrong.push(error.downcast_ref::<String>().cloned().unwrap_or(name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
