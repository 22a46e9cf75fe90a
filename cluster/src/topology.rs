//! Slurm's file on the wiring of the network, beside slurm.conf: `topology.yaml`, else `topology.conf`, as Slurm itself looks for
//! them. What they mean is [`diag::topology`]'s to say. The node that leads a meeting reads it, and the others get it with the
//! roster.
//!
//! Nothing that is wrong with it fails a check: without it nobody is told from his switch. A line in the log says what is wrong; that there
//! is none is nothing wrong.

use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use diag::topology::{Leaves, MAX_BYTES, Mistake, Topology, parse_conf, parse_yaml};
use rustix::fs::OFlags;

/// Reads one of the files.
type Parse = fn(&str) -> Result<Topology, Vec<Mistake>>;

/// The files, the one that counts first.
const FILES: [(&str, Parse); 2] = [("topology.yaml", parse_yaml), ("topology.conf", parse_conf)];

/// Most mistakes that one line of the log tells.
const MOST_TOLD: usize = 4;

/// Below which leaf switch each of `nodes` is, by the file beside `slurm_conf`; empty where none says it. The other half is what
/// the log should say, if anything.
#[must_use]
pub fn leaves(slurm_conf: &Path, nodes: &[String]) -> (Leaves, Option<String>) {
    let nothing =
        |why: String| (Leaves::default(), Some(format!("{why}: nodes are not told from their switches")));
    let folder = slurm_conf.parent().unwrap_or(Path::new("/"));
    for (name, parse) in FILES {
        let path = folder.join(name);
        let text = match read(&path) {
            Ok(Some(text)) => text,
            Ok(None) => continue,
            Err(error) => return nothing(format!("{}: {error}", path.display())),
        };
        return match parse(&text) {
            Ok(topology) => {
                let leaves = topology.of_job(nodes);
                let unknown = leaves.names.is_empty();
                let why = format!("{} names none of the job's nodes", path.display());
                if unknown { nothing(why) } else { (leaves, None) }
            }
            Err(mistakes) => nothing(format!("{} has mistakes: {}", path.display(), told(&mistakes))),
        };
    }
    // Most sites have none.
    (Leaves::default(), None)
}

fn told(mistakes: &[Mistake]) -> String {
    let mut words: Vec<String> = mistakes.iter().take(MOST_TOLD).map(ToString::to_string).collect();
    if let Some(more) = mistakes.len().checked_sub(MOST_TOLD).filter(|more| *more > 0) {
        words.push(format!("{more} more"));
    }
    words.join("; ")
}

/// A file's text; `None`: there is none.
fn read(path: &Path) -> std::io::Result<Option<String>> {
    // A pipe would keep whoever opens it waiting for its other end.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = match std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    // One more than is read: what is longer is a mistake with its length, not a file cut short.
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    String::from_utf8(bytes).map(Some).map_err(|_| std::io::Error::other("not a text in UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name and content.
    type File<'f> = (&'f str, &'f [u8]);

    fn told_of(files: &[File<'_>]) -> (Leaves, String) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let nodes = ["n1", "n2", "n3"].map(str::to_owned);
        let (leaves, log) = leaves(&folder.path().join("slurm.conf"), &nodes);
        (leaves, log.unwrap_or_default())
    }

    #[test]
    fn the_newer_file_counts_where_there_are_two() {
        let conf: File<'_> = ("topology.conf", b"SwitchName=old Nodes=n[1-3]\n");
        let yaml = b"- topology: t\n  tree:\n    switches:\n      - switch: new\n        nodes: n[1-2]\n";
        let (leaves, log) = told_of(&[conf]);
        assert_eq!((leaves.names, log.as_str()), (vec!["old".to_owned()], ""));
        let (leaves, log) = told_of(&[conf, ("topology.yaml", yaml)]);
        assert_eq!((leaves.of, log.as_str()), (vec![Some(0), Some(0), None], ""));
        assert_eq!(leaves.names, ["new"]);
    }

    #[test]
    fn what_is_wrong_with_the_file_is_said_and_nothing_else_happens() {
        let long = vec![b'#'; MAX_BYTES + 10];
        let many = "Nodes=x\n".repeat(9);
        assert_eq!(told_of(&[]), (Leaves::default(), String::new()), "there is none");
        let cases: [(&[File<'_>], &str); 5] = [
            (&[("topology.conf", b"SwitchName=s Nodes=n[1-\n")], "line 1: s: a bracket"),
            (&[("topology.conf", &long)], "at most"),
            (&[("topology.conf", b"SwitchName=s\xff Nodes=n1\n")], "UTF-8"),
            (&[("topology.conf", b"SwitchName=s Nodes=x[1-3]\n")], "names none of the job's nodes"),
            (&[("topology.conf", many.as_bytes())], "; 5 more"),
        ];
        for (files, words) in cases {
            let (leaves, log) = told_of(files);
            assert_eq!(leaves, Leaves::default(), "{log}");
            assert!(log.contains(words) && log.ends_with("nodes are not told from their switches"), "{log}");
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("topology.yaml")).unwrap();
        let (leaves, log) = leaves(&folder.path().join("slurm.conf"), &[]);
        assert!(leaves.names.is_empty() && log.unwrap().contains("not a regular file"));
    }
}
