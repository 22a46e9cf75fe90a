//! A line of `plugstack.conf`, and the arguments of this software's plugin on it. The plugin reads them as Slurm hands them
//! over; `aimaster doctor` reads the file.

use std::path::{Path, PathBuf};

use crate::policy::POLICY_FILE;

/// Folder of the helpers if nobody names another.
pub const HELPERS: &str = "/usr/libexec/aimaster";

/// What the plugin's file is called.
pub const PLUGIN: &str = "spank_aimaster.so";

/// What a line says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// Nothing: a comment, or empty.
    Nothing,
    /// More lines are in these files.
    Include(String),
    /// A plugin.
    Plugin(Plugin),
    /// None of these.
    Unknown,
}

/// A plugin's line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plugin {
    /// Whether Slurm's programs fail without it.
    pub required: bool,
    /// Its file, as it is written.
    pub path: PathBuf,
    /// Its arguments.
    pub words: Vec<String>,
}

impl Plugin {
    /// Whether it is this software's.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.path.file_name().is_some_and(|name| name == PLUGIN)
    }
}

impl Line {
    /// Reads one.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let text = text.split('#').next().unwrap_or_default();
        let mut words = text.split_whitespace();
        let first = words.next().unwrap_or_default().to_ascii_lowercase();
        match (first.as_str(), words.next()) {
            ("", _) => Self::Nothing,
            ("include", Some(files)) => Self::Include(files.to_owned()),
            (kind @ ("optional" | "required"), Some(path)) => Self::Plugin(Plugin {
                required: kind == "required",
                path: path.into(),
                words: words.map(str::to_owned).collect(),
            }),
            _ => Self::Unknown,
        }
    }
}

/// The plugin's arguments, with defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arguments {
    /// The site's policy.
    pub policy: PathBuf,
    /// Folder of `aimaster-prolog` and `aimaster-epilog`.
    pub helpers: PathBuf,
    /// Whether the plugin starts the helpers. Off where the site calls them from its own Prolog and Epilog.
    pub starts_helpers: bool,
    /// What could not be used, one line each; the defaults hold there.
    pub mistakes: Vec<String>,
}

impl Default for Arguments {
    fn default() -> Self {
        Self {
            policy: POLICY_FILE.into(),
            helpers: HELPERS.into(),
            starts_helpers: true,
            mistakes: Vec::new(),
        }
    }
}

impl Arguments {
    /// Reads them.
    #[must_use]
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
        let mut parsed = Self::default();
        for word in words {
            let wrong = match word.split_once('=') {
                Some(("policy", path)) => absolute(path, &mut parsed.policy),
                Some(("helpers", path)) => absolute(path, &mut parsed.helpers),
                Some(("prolog", "on")) => set(&mut parsed.starts_helpers, true),
                Some(("prolog", "off")) => set(&mut parsed.starts_helpers, false),
                Some(("prolog", _)) => Some("is neither on nor off"),
                _ => Some("is unknown; known: policy=FILE, helpers=DIR, prolog=on|off"),
            };
            if let Some(wrong) = wrong {
                parsed
                    .mistakes
                    .push(format!("plugstack.conf: argument \"{}\" {wrong}", word.escape_default()));
            }
        }
        parsed
    }
}

fn absolute(path: &str, into: &mut PathBuf) -> Option<&'static str> {
    if !Path::new(path).is_absolute() {
        return Some("is not an absolute path");
    }
    *into = path.into();
    None
}

fn set(flag: &mut bool, value: bool) -> Option<&'static str> {
    *flag = value;
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_arguments_are_used() {
        let parsed = Arguments::parse(["policy=/a.toml", "helpers=/h", "prolog=off"]);
        assert_eq!(parsed.policy, Path::new("/a.toml"));
        assert_eq!(parsed.helpers, Path::new("/h"));
        assert!(!parsed.starts_helpers);
        assert!(parsed.mistakes.is_empty());
    }

    #[test]
    fn wrong_arguments_are_named_and_leave_the_defaults() {
        let parsed = Arguments::parse(["polcy=/a.toml", "helpers=h", "prolog=maybe", "x\n"]);
        assert_eq!(parsed.mistakes.len(), 4);
        assert!(parsed.mistakes.iter().all(|line| !line.contains('\n')));
        assert_eq!(Arguments { mistakes: Vec::new(), ..parsed }, Arguments::default());
    }

    #[test]
    fn lines_are_told_apart() {
        assert_eq!(Line::parse("  # optional spank_aimaster.so"), Line::Nothing);
        assert_eq!(
            Line::parse("include /etc/slurm/p.d/*.conf"),
            Line::Include("/etc/slurm/p.d/*.conf".into())
        );
        assert_eq!(Line::parse("required"), Line::Unknown);
        let Line::Plugin(plugin) = Line::parse("Optional\t/x/spank_aimaster.so policy=/p  prolog=off # y")
        else {
            panic!("no plugin");
        };
        assert!(plugin.is_ours() && !plugin.required);
        assert_eq!(plugin.words, ["policy=/p", "prolog=off"]);
        assert!(!matches!(Line::parse("optional spank_x.so"), Line::Plugin(other) if other.is_ours()));
    }
}
