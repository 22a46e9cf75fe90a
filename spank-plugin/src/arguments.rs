//! The plugin's arguments in `plugstack.conf`: `policy=FILE helpers=DIR prolog=on|off`.

use std::path::{Path, PathBuf};

use diag::policy::POLICY_FILE;
use slurm_spank::SpankHandle;

use crate::boundary;

/// What the line in `plugstack.conf` says, with defaults filled in.
#[derive(Debug, PartialEq, Eq)]
pub struct Arguments {
    /// The site's policy.
    pub policy: PathBuf,
    /// Folder of `aimaster-prolog` and `aimaster-epilog`.
    pub helpers: PathBuf,
    /// Whether the plugin starts the helpers. Off where the site calls them from its own Prolog and Epilog.
    pub starts_helpers: bool,
    /// What could not be used, one line each; the defaults hold there.
    mistakes: Vec<String>,
}

impl Default for Arguments {
    fn default() -> Self {
        Self {
            policy: POLICY_FILE.into(),
            helpers: "/usr/libexec/aimaster".into(),
            starts_helpers: true,
            mistakes: Vec::new(),
        }
    }
}

impl Arguments {
    /// Those of this plugin's line.
    pub fn of(spank: &SpankHandle) -> Self {
        match spank.plugin_argv() {
            Ok(words) => Self::parse(&words),
            Err(cause) => Self {
                mistakes: vec![format!("plugstack.conf: the plugin's arguments can't be read: {cause}")],
                ..Self::default()
            },
        }
    }

    fn parse(words: &[&str]) -> Self {
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

    /// Tells the admin, in slurmd's log, what could not be used.
    pub fn log_mistakes(&self) {
        self.mistakes.iter().for_each(|mistake| boundary::error(mistake));
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
        let parsed = Arguments::parse(&["policy=/a.toml", "helpers=/h", "prolog=off"]);
        assert_eq!(parsed.policy, Path::new("/a.toml"));
        assert_eq!(parsed.helpers, Path::new("/h"));
        assert!(!parsed.starts_helpers);
        assert!(parsed.mistakes.is_empty());
    }

    #[test]
    fn wrong_arguments_are_named_and_leave_the_defaults() {
        let parsed = Arguments::parse(&["polcy=/a.toml", "helpers=h", "prolog=maybe", "x\n"]);
        assert_eq!(parsed.mistakes.len(), 4);
        assert!(parsed.mistakes.iter().all(|line| !line.contains('\n')));
        assert_eq!(Arguments { mistakes: Vec::new(), ..parsed }, Arguments::default());
    }
}
