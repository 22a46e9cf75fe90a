//! A mistake in what somebody wrote: where, what is wrong, what would be right. The inputs are other people's
//! text, so whatever of them is shown is escaped and shortened here, and nowhere else.

use std::fmt;

use crate::plain::is_plain;

/// Most mistakes that one reading reports: more than a person mends in one go, few enough for a terminal.
pub const MAX_MISTAKES: usize = 50;

/// Most characters of a foreign word that a message shows.
const MAX_SHOWN_CHARS: usize = 60;

/// Most characters of a path, of keys or of a file, that a message shows: longer than a word because its end
/// matters.
const MAX_PATH_CHARS: usize = 200;

/// Longest word for which a near name is looked for; all known names are far shorter.
const MAX_NEAR_BYTES: usize = 64;

/// Least likeness (Jaro-Winkler, 0 to 1) at which a known name is suggested: it takes beginnings, such as `gemm`;
/// below it suggestions are noise.
const MIN_LIKENESS: f64 = 0.85;

/// Where a mistake stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A flag, such as `--sanity-check`.
    Flag(&'static str),
    /// An environment variable, such as `AIMASTER_SANITY_CHECK`.
    Environment(&'static str),
    /// The AIMaster document.
    Document {
        /// How the document was given, such as `--aimaster=job.json`; empty if that is not known.
        source: String,
        /// Keys from the top, joined by dots; empty: the document as a whole.
        path: String,
    },
    /// The site's policy.
    Policy {
        /// Keys from the top, joined by dots; empty: the file as a whole.
        path: String,
        /// Line in the file, from 1.
        line: Option<usize>,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) | Self::Environment(name) => f.write_str(name),
            Self::Document { source, path } => {
                f.write_str(&if source.is_empty() { "document".to_owned() } else { shown_path(source) })?;
                if path.is_empty() { Ok(()) } else { write!(f, ": {}", shown_path(path)) }
            }
            Self::Policy { path, line } => {
                f.write_str("policy")?;
                if let Some(line) = line {
                    write!(f, " line {line}")?;
                }
                if path.is_empty() { Ok(()) } else { write!(f, ": {}", shown_path(path)) }
            }
        }
    }
}

/// One mistake; prints as one line without control characters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {wrong}; {right}")]
pub struct Mistake {
    /// Where it stands.
    pub origin: Origin,
    /// What is wrong.
    pub wrong: String,
    /// What would be right.
    pub right: String,
}

/// Collects mistakes up to [`MAX_MISTAKES`] and counts the rest.
#[derive(Debug, Default)]
pub struct Mistakes {
    list: Vec<Mistake>,
    unseen: usize,
}

impl Mistakes {
    /// Adds one.
    pub fn push(&mut self, origin: Origin, wrong: impl Into<String>, right: impl Into<String>) {
        if self.list.len() < MAX_MISTAKES {
            self.list.push(Mistake { origin, wrong: wrong.into(), right: right.into() });
        } else {
            self.unseen += 1;
        }
    }

    /// Adds those of another reading.
    pub fn extend(&mut self, others: Vec<Mistake>) {
        for Mistake { origin, wrong, right } in others {
            self.push(origin, wrong, right);
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The value if there was no mistake, else all mistakes; the last one says how many are not shown.
    pub fn into_result<T>(mut self, value: T) -> Result<T, Vec<Mistake>> {
        if self.list.is_empty() {
            return Ok(value);
        }
        if self.unseen > 0
            && let Some(last) = self.list.last_mut()
        {
            last.right.push_str(&format!(" (and {} more mistakes that are not shown)", self.unseen));
        }
        Err(self.list)
    }
}

/// Foreign text for a message: one line, control and direction characters escaped, shortened.
#[must_use]
pub fn shown(text: &str) -> String {
    escaped(text, MAX_SHOWN_CHARS)
}

/// The same for paths and for messages of the system, which are longer.
#[must_use]
pub fn shown_path(text: &str) -> String {
    escaped(text, MAX_PATH_CHARS)
}

fn escaped(text: &str, max_chars: usize) -> String {
    let mut out = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == max_chars {
            out.push_str("...");
            break;
        }
        if is_plain(c) {
            out.push(c);
        } else {
            out.extend(c.escape_default());
        }
    }
    out
}

/// The same, in quotes.
#[must_use]
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", shown(text))
}

/// The known name that `word` was most likely meant to be.
#[must_use]
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > MAX_NEAR_BYTES {
        return None;
    }
    let word = word.to_lowercase();
    let likeness = |name: &str| strsim::jaro_winkler(&word, name);
    known
        .into_iter()
        .map(|name| (strsim::osa_distance(&word, name), name))
        // One slip in three letters is still a slip.
        .filter(|(slips, name)| *slips <= name.len() / 3 || likeness(name) >= MIN_LIKENESS)
        .min_by(|(a, x), (b, y)| a.cmp(b).then_with(|| likeness(y).total_cmp(&likeness(x))))
        .map(|(_, name)| name)
}

/// "did you mean X? " if there is a near name, then "known: " and all of them.
#[must_use]
pub fn known_names(word: &str, known: &[&str]) -> String {
    let near = nearest(word, known.iter().copied());
    let near = near.map_or_else(String::new, |name| format!("did you mean {name}? "));
    format!("{near}known: {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_whatever_the_input_holds() {
        let hostile = "a\x1b[2J\r\n\u{202e}\u{2028}b";
        let mistake = Mistake {
            origin: Origin::Document { source: hostile.into(), path: hostile.into() },
            wrong: format!("{} is unknown", quoted(hostile)),
            right: "none".into(),
        };
        let line = mistake.to_string();
        assert!(line.chars().all(is_plain), "{line}");
        assert!(line.contains("\\u{1b}[2J\\r\\n"), "{line}");
    }

    #[test]
    fn long_input_is_shortened_by_characters() {
        assert_eq!(shown(&"ä".repeat(61)), format!("{}...", "ä".repeat(60)));
        assert_eq!(shown(&"ä".repeat(60)), "ä".repeat(60));
    }

    #[test]
    fn near_names_are_suggested_and_far_ones_are_not() {
        let known = ["gemm_flops", "all_reduce_1", "all_reduce_2"];
        assert_eq!(nearest("GEMM_flop", known), Some("gemm_flops"));
        assert_eq!(nearest("allreduce_2", known), Some("all_reduce_2"));
        assert_eq!(nearest("all_reduce_3", ["all_reduce", "all_reduce_1"]), Some("all_reduce_1"));
        assert_eq!(nearest("gemm", known), Some("gemm_flops"));
        assert_eq!(nearest("zzz", known), None);
        assert_eq!(nearest(&"gemm_flops".repeat(100), known), None);
    }

    #[test]
    fn what_is_not_shown_is_counted() {
        let mut mistakes = Mistakes::default();
        for _ in 0..MAX_MISTAKES + 7 {
            mistakes.push(Origin::Flag("--x"), "wrong", "right");
        }
        let list = mistakes.into_result(()).unwrap_err();
        assert_eq!(list.len(), MAX_MISTAKES);
        assert!(list[MAX_MISTAKES - 1].to_string().contains("7 more mistakes"));
    }
}
