//! The values that flags, environment twins, the document and the policy share: lists of checks, actions on a
//! fault, minutes. Only what is written is read here; whether it is allowed or built is decided elsewhere.

use std::fmt;

use crate::check::{ALL, CheckName, DEFAULT_CHECKS};
use crate::request::FailAction;
use crate::request::mistake::{Mistakes, Origin, known_names, quoted};

/// Every action: its own spelling first, then the other ones that PAI's users know.
const ACTIONS: &[(FailAction, &[&str])] = &[
    (FailAction::Retain, &["retain", "ignore", "none"]),
    (FailAction::Drain, &["drain"]),
    (FailAction::Fail, &["fail", "instance_startup_failed"]),
    (FailAction::Requeue, &["requeue", "rebuild", "rebuild_instance"]),
];

/// What the checks before start take.
pub const SANITY_ACTIONS: &[FailAction] =
    &[FailAction::Retain, FailAction::Drain, FailAction::Fail, FailAction::Requeue];

/// What the runtime check takes: a job that already runs can't fail to start.
pub const RUNTIME_ACTIONS: &[FailAction] = &[FailAction::Retain, FailAction::Drain, FailAction::Requeue];

/// Words of a list of checks that stand for others.
const LIST_WORDS: [&str; 3] = ["all", "default", "off"];

/// Longest list of checks: ten times all of them, so that looking for near names stays cheap.
const MAX_LIST_BYTES: usize = 2048;

/// What a list of checks must look like.
const LIST_WANTED: &str = "a comma-separated list of checks, all, default or off";

impl FailAction {
    /// The action that is spelled `text`, or has it as another name; letter case and spaces around it do not
    /// matter.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        ACTIONS
            .iter()
            .find(|(_, names)| names.iter().any(|name| name.eq_ignore_ascii_case(text)))
            .map(|(action, _)| *action)
    }

    /// Its spelling.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Retain => "retain",
            Self::Drain => "drain",
            Self::Fail => "fail",
            Self::Requeue => "requeue",
        }
    }
}

impl fmt::Display for FailAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// A list of checks as somebody wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckList {
    /// `off`.
    Off,
    /// Checks.
    Checks {
        /// In registry order, no repeats, not empty.
        names: Vec<CheckName>,
        /// Whether a check is named outright, and not only by `default`, `all` or a bare flag: leaving another
        /// one out is a choice only then.
        spelled_out: bool,
    },
}

impl CheckList {
    /// What a bare flag stands for.
    #[must_use]
    pub fn default_checks() -> Self {
        Self::Checks { names: DEFAULT_CHECKS.to_vec(), spelled_out: false }
    }

    /// Reads a list; what is wrong with it goes to `mistakes`, one entry an unknown name.
    pub fn parse(text: &str, origin: &Origin, mistakes: &mut Mistakes) -> Option<Self> {
        if text.trim().is_empty() {
            mistakes.push(origin.clone(), "the list of checks is empty", format!("give {LIST_WANTED}"));
            return None;
        }
        if text.len() > MAX_LIST_BYTES {
            let wrong = format!("the list of checks is longer than {MAX_LIST_BYTES} bytes");
            mistakes.push(origin.clone(), wrong, "name each check once");
            return None;
        }
        let words: Vec<String> = text.split(',').map(|word| word.trim().to_ascii_lowercase()).collect();
        let mut wanted = [false; ALL.len()];
        let (mut off, mut spelled_out, mut sound) = (false, false, true);
        for (index, word) in words.iter().enumerate() {
            match (word.as_str(), CheckName::parse(word)) {
                (_, Some(name)) => {
                    wanted[name as usize] = true;
                    spelled_out = true;
                }
                ("all", _) => wanted = [true; ALL.len()],
                ("default", _) => DEFAULT_CHECKS.iter().for_each(|name| wanted[*name as usize] = true),
                ("off", _) => off = true,
                ("", _) => {
                    sound = false;
                    let wrong = format!("item {} of the list is empty", index + 1);
                    mistakes.push(origin.clone(), wrong, "leave out the extra comma");
                }
                (word, _) => {
                    sound = false;
                    let known: Vec<&str> = ALL.iter().map(|spec| spec.text).chain(LIST_WORDS).collect();
                    let wrong = format!("there is no check {}", quoted(word));
                    mistakes.push(origin.clone(), wrong, known_names(word, &known));
                }
            }
        }
        let names: Vec<CheckName> =
            ALL.iter().map(|spec| spec.name).filter(|name| wanted[*name as usize]).collect();
        if off && words.iter().any(|word| word != "off") {
            sound = false;
            mistakes.push(origin.clone(), "off stands next to checks", "give either off or checks");
        }
        sound.then_some(if off { Self::Off } else { Self::Checks { names, spelled_out } })
    }
}

impl fmt::Display for CheckList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Checks { names, .. } => f.write_str(&name_list(names)),
        }
    }
}

/// Names of checks for a message.
#[must_use]
pub fn name_list(names: &[CheckName]) -> String {
    names.iter().map(|name| name.spec().text).collect::<Vec<_>>().join(", ")
}

/// Names of actions for a message.
#[must_use]
pub fn action_list(actions: &[FailAction]) -> String {
    actions.iter().map(|action| action.text()).collect::<Vec<_>>().join(", ")
}

/// Reads an action that must be one of `known`.
pub fn parse_action(
    text: &str,
    known: &[FailAction],
    origin: &Origin,
    mistakes: &mut Mistakes,
) -> Option<FailAction> {
    let action = FailAction::parse(text).filter(|action| known.contains(action));
    if action.is_none() {
        let names: Vec<&str> = ACTIONS
            .iter()
            .filter(|(action, _)| known.contains(action))
            .flat_map(|(_, names)| names.iter().copied())
            .collect();
        let wrong = format!("{} is not an action that can stand here", quoted(text));
        mistakes.push(origin.clone(), wrong, known_names(text, &names));
    }
    action
}

/// Reads whether the runtime check is wanted: `c4d` or `off`.
pub fn parse_runtime_list(text: &str, origin: &Origin, mistakes: &mut Mistakes) -> Option<bool> {
    if text.len() > MAX_LIST_BYTES {
        let wrong = format!("the list of checks is longer than {MAX_LIST_BYTES} bytes");
        mistakes.push(origin.clone(), wrong, "give c4d or off");
        return None;
    }
    let (mut on, mut off, mut sound) = (false, false, true);
    for word in text.split(',').map(str::trim) {
        if word.eq_ignore_ascii_case("c4d") {
            on = true;
        } else if word.eq_ignore_ascii_case("off") {
            off = true;
        } else {
            sound = false;
            let wrong = format!("there is no runtime check {}", quoted(word));
            mistakes.push(origin.clone(), wrong, known_names(word, &["c4d", "off"]));
        }
    }
    if on && off {
        mistakes.push(origin.clone(), "off stands next to c4d", "give either off or c4d");
        return None;
    }
    sound.then_some(on)
}

/// Reads whole minutes from a text.
pub fn parse_minutes(text: &str, origin: &Origin, mistakes: &mut Mistakes) -> Option<u32> {
    let digits = text.trim();
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    // A number of digits only fails to parse when it is too large.
    let minutes = is_number.then(|| digits.parse::<u32>().ok()).flatten().filter(|minutes| *minutes >= 1);
    if minutes.is_none() {
        refuse_minutes(&quoted(text), origin, mistakes);
    }
    minutes
}

/// Notes that something is not a number of minutes.
pub fn refuse_minutes(what: &str, origin: &Origin, mistakes: &mut Mistakes) {
    let right = format!("give whole minutes, from 1 to {}", u32::MAX);
    mistakes.push(origin.clone(), format!("{what} is not a timeout"), right);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: Origin = Origin::Flag("--sanity-check");

    fn list(text: &str) -> Result<CheckList, Vec<String>> {
        let mut mistakes = Mistakes::default();
        let list = CheckList::parse(text, &ORIGIN, &mut mistakes);
        let lines = mistakes.into_result(()).err().unwrap_or_default();
        match list {
            Some(list) if lines.is_empty() => Ok(list),
            None if !lines.is_empty() => Err(lines.iter().map(ToString::to_string).collect()),
            odd => panic!("{odd:?} with {lines:?}"),
        }
    }

    fn minutes(text: &str) -> Option<u32> {
        let mut mistakes = Mistakes::default();
        let minutes = parse_minutes(text, &ORIGIN, &mut mistakes);
        assert_eq!(minutes.is_none(), !mistakes.is_empty(), "{text:?}");
        minutes
    }

    #[test]
    fn actions_have_other_names_and_letter_case_does_not_matter() {
        use FailAction::{Drain, Fail, Requeue, Retain};
        let spellings = [
            (Retain, "Ignore"),
            (Retain, "NONE"),
            (Drain, "drain"),
            (Fail, " Instance_Startup_Failed"),
            (Requeue, "rebuild"),
            (Requeue, "Rebuild_Instance"),
        ];
        for (action, text) in spellings {
            assert_eq!(FailAction::parse(text), Some(action), "{text}");
        }
        for (action, names) in ACTIONS {
            assert_eq!(names[0], action.text());
            assert_eq!(serde_json::to_value(action).unwrap(), action.text());
        }
        assert_eq!(FailAction::parse("retai"), None);
        assert_eq!(FailAction::parse(""), None);
    }

    #[test]
    fn a_list_takes_spaces_letter_case_and_repeats() {
        let checks =
            |names: &[CheckName], spelled_out| CheckList::Checks { names: names.to_vec(), spelled_out };
        let both = checks(&[CheckName::GemmFlops, CheckName::AllReduce2], true);
        assert_eq!(list(" ALL_reduce_2 , gemm_flops,\tGEMM_FLOPS ").unwrap(), both);
        assert_eq!(list("default").unwrap(), CheckList::default_checks());
        let CheckList::Checks { names, spelled_out: false } = list("All").unwrap() else { panic!() };
        assert_eq!(names.len(), ALL.len());
        assert_eq!(list("OFF, off").unwrap(), CheckList::Off);
        let CheckList::Checks { names, .. } = list("default,kernel_launch").unwrap() else { panic!() };
        assert_eq!(names.len(), DEFAULT_CHECKS.len() + 1);
    }

    #[test]
    fn a_wrong_list_says_every_mistake() {
        let lines = list("gem_flops,,all_reduce_3,nonsense!").unwrap_err();
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(lines[0].contains("did you mean gemm_flops?"), "{}", lines[0]);
        assert!(lines[0].contains("comp_comm_overlap"), "{}", lines[0]);
        assert!(lines[1].contains("item 2"), "{}", lines[1]);
        assert!(lines[2].contains("did you mean all_reduce_1?"), "{}", lines[2]);
        for empty in ["", "  ", ","] {
            assert!(list(empty).unwrap_err()[0].contains("empty"), "{empty:?}");
        }
        assert!(list(&"gemm_flops,".repeat(1000)).unwrap_err()[0].contains("2048 bytes"));
        assert_eq!(list("off,gemm_flops").unwrap_err().len(), 1);
        assert_eq!(list("off,default").unwrap_err().len(), 1);
    }

    #[test]
    fn minutes_are_whole_and_at_least_one() {
        assert_eq!(minutes(" 100 "), Some(100));
        assert_eq!(minutes("4294967295"), Some(u32::MAX));
        for wrong in ["0", "-5", "+5", "1.5", "5.0", "", " ", "five", "5m", "1e2", "4294967296", "٣"] {
            assert_eq!(minutes(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn the_runtime_check_is_c4d_or_off() {
        let read = |text: &str| {
            let mut mistakes = Mistakes::default();
            let on = parse_runtime_list(text, &ORIGIN, &mut mistakes);
            assert_eq!(on.is_none(), !mistakes.is_empty(), "{text:?}");
            on
        };
        assert_eq!(read("C4D"), Some(true));
        assert_eq!(read(" c4d , C4d"), Some(true));
        assert_eq!(read("off"), Some(false));
        for wrong in ["", "c4", "c4d,off", "c4d,x", "gemm_flops"] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }
}
