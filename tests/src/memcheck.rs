//! What valgrind wrote of one process, as XML: which program it was, and which errors have a certain library in their
//! stacks. A reader of the few elements that are needed, not of XML.

/// One error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Valgrind's kind, such as `InvalidRead` or `Leak_DefinitelyLost`.
    pub kind: String,
    /// The innermost functions with their libraries, for people.
    pub stack: Vec<String>,
    /// Paths of all libraries and programs in its stacks.
    objects: Vec<String>,
}

/// Kinds of lost memory that a process could not reach any more.
const LEAKS: [&str; 2] = ["Leak_DefinitelyLost", "Leak_IndirectlyLost"];
/// Kinds of memory that it may still have reached: a leak by nobody's definition.
const KEPT: [&str; 2] = ["Leak_StillReachable", "Leak_PossiblyLost"];

/// Most functions of a stack that are shown.
const SHOWN: usize = 12;

impl Finding {
    /// Whether a library of this name is in its stacks.
    #[must_use]
    pub fn has(&self, library: &str) -> bool {
        self.objects.iter().any(|object| object.rsplit('/').next() == Some(library))
    }

    /// Whether it is lost memory.
    #[must_use]
    pub fn is_leak(&self) -> bool {
        LEAKS.contains(&self.kind.as_str())
    }
}

/// What was seen of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The program's name, for slurmstepd with what it is for.
    pub program: String,
    /// Whether it was watched to its end, leaks included; a process that became another program was not.
    pub finished: bool,
    /// All errors and definite leaks.
    pub findings: Vec<Finding>,
}

/// Reads the file of one process; `None` where it was not even begun.
#[must_use]
pub fn read(xml: &str) -> Option<Seen> {
    let arguments = between(xml, "<argv>", "</argv>")?;
    let path = between(arguments, "<exe>", "</exe>")?;
    let name = path.rsplit('/').next()?;
    let mut program = name.strip_suffix("-wlm").unwrap_or(name).to_owned();
    let words: Vec<&str> = all(arguments, "<arg>", "</arg>");
    if words.first() == Some(&"spank") {
        program += &format!(" {}", words.join(" "));
    }
    let findings = all(xml, "<error>", "</error>").into_iter().filter_map(finding).collect();
    Some(Seen { program, finished: xml.contains("<state>FINISHED</state>"), findings })
}

fn finding(error: &str) -> Option<Finding> {
    let kind = between(error, "<kind>", "</kind>")?.to_owned();
    if KEPT.contains(&kind.as_str()) {
        return None;
    }
    let frames = all(error, "<frame>", "</frame>");
    let part = |frame: &str, name: &str| {
        between(frame, &format!("<{name}>"), &format!("</{name}>")).unwrap_or("?").to_owned()
    };
    let stack =
        frames.iter().take(SHOWN).map(|frame| format!("{} in {}", part(frame, "fn"), part(frame, "obj")));
    let stack = stack.collect();
    let objects = frames.iter().map(|frame| part(frame, "obj")).collect();
    Some(Finding { kind, stack, objects })
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(start)?;
    Some(rest.split_once(end)?.0)
}

fn all<'a>(text: &'a str, start: &str, end: &str) -> Vec<&'a str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once(start) {
        let Some((inside, left)) = after.split_once(end) else { break };
        found.push(inside);
        rest = left;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "<valgrindoutput><args><vargv><exe>/usr/bin/valgrind.bin</exe><arg>--xml=yes</arg></vargv>\
        <argv><exe>/usr/sbin/slurmstepd-wlm</exe><arg>spank</arg><arg>prolog</arg></argv></args>";

    fn error(kind: &str, object: &str) -> String {
        format!(
            "<error><kind>{kind}</kind><stack><frame><obj>/usr/libexec/vgpreload.so</obj><fn>malloc</fn></frame>\
             <frame><obj>{object}</obj><fn>f</fn></frame></stack></error>"
        )
    }

    #[test]
    fn errors_are_told_by_the_library_in_their_stack() {
        let ours = "/opt/aimaster/spank_aimaster.so";
        let text = [
            HEAD,
            &error("InvalidRead", ours),
            &error("Leak_DefinitelyLost", ours),
            &error("Leak_StillReachable", ours),
            &error("UninitCondition", "/usr/lib/libslurm.so"),
            "<status><state>FINISHED</state></status></valgrindoutput>",
        ]
        .concat();
        let seen = read(&text).unwrap();
        assert_eq!((seen.program.as_str(), seen.finished), ("slurmstepd spank prolog", true));
        let of = |library: &str| -> Vec<(&str, bool)> {
            let found = seen.findings.iter().filter(|one| one.has(library));
            found.map(|one| (one.kind.as_str(), one.is_leak())).collect()
        };
        assert_eq!(of("spank_aimaster.so"), [("InvalidRead", false), ("Leak_DefinitelyLost", true)]);
        assert_eq!(of("libslurm.so").len(), 1);
        assert!(of("aimaster.so").is_empty());
        assert_eq!(seen.findings[0].stack[1], format!("f in {ours}"));
    }

    #[test]
    fn a_file_that_was_cut_off_is_read_as_far_as_it_goes() {
        let seen = read(&format!("{HEAD}{}<error><kind>", error("InvalidWrite", "/x.so"))).unwrap();
        assert_eq!((seen.findings.len(), seen.finished), (1, false));
        assert_eq!(read("<valgrindoutput>"), None);
    }
}
