//! slurm.conf as far as a meeting needs it: addresses of nodes, munged's socket, who runs slurmd. Not a check of
//! the file: what Slurm accepts and we don't understand is passed over.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use diag::hostlist::expand;

/// Where slurm.conf is when SLURM_CONF doesn't say it: the usual place, Debian's older one, the configless cache.
pub const USUAL_PLACES: [&str; 4] = [
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/var/spool/slurmd/conf-cache/slurm.conf",
];
/// SlurmdSpoolDir where the file does not say.
const SPOOL_DIR: &str = "/var/spool/slurmd";
/// From this release on every prolog runs at the allocation (26.05).
const ALWAYS_AT_ALLOCATION: u32 = 0x1a_05_00;

/// Includes inside includes.
const MAX_DEPTH: u32 = 8;
/// Files in all.
const MAX_FILES: u32 = 256;
/// A file of tens of thousands of nodes has a few MiB.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// Why the configuration can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The main file can't be read.
    #[error("can't read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's words.
        #[source]
        source: std::io::Error,
    },
    /// Too many files, too deep, too long.
    #[error("{path}: more than {MAX_FILES} files, {MAX_DEPTH} levels of Include or 16 MiB")]
    Bounds {
        /// The file that was too much.
        path: PathBuf,
    },
    /// None of the usual places has one.
    #[error("no slurm.conf: SLURM_CONF is not set and none of {USUAL_PLACES:?} exists")]
    Nowhere,
}

/// What slurm.conf says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SlurmConf {
    values: BTreeMap<String, String>,
    addresses: BTreeMap<String, String>,
    /// Included files that could not be read.
    pub missing: Vec<PathBuf>,
}

/// The file in use: `SLURM_CONF`, else the first of the usual places.
///
/// # Errors
/// There is none.
pub fn locate(slurm_conf: Option<&Path>) -> Result<PathBuf, ConfigError> {
    let usual = || USUAL_PLACES.iter().map(PathBuf::from).find(|path| path.is_file());
    slurm_conf.map(Path::to_owned).or_else(usual).ok_or(ConfigError::Nowhere)
}

impl SlurmConf {
    /// Reads the file and what it includes.
    ///
    /// # Errors
    /// The file itself can't be read, or a bound is passed. An Include that can't be read is noted only.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let mut conf = Self::default();
        let text = text(path)?;
        let mut files = 1;
        conf.take(path, &text, 1, &mut files)?;
        Ok(conf)
    }

    fn take(&mut self, path: &Path, text: &str, depth: u32, files: &mut u32) -> Result<(), ConfigError> {
        for line in lines(text) {
            let mut words = words(&line);
            let Some((key, value)) = words.first().cloned() else { continue };
            match key.as_str() {
                "include" => {
                    let Some(file) = value.or_else(|| words.get(1).map(|(raw, _)| raw.clone())) else {
                        continue;
                    };
                    *files += 1;
                    if depth >= MAX_DEPTH || *files > MAX_FILES {
                        return Err(ConfigError::Bounds { path: file.into() });
                    }
                    self.include(path, Path::new(&file), depth, files)?;
                }
                "nodename" => {
                    let line: BTreeMap<String, String> =
                        words.drain(..).filter_map(|(key, value)| Some((key, value?))).collect();
                    self.nodes(&line);
                }
                // Their lines hold keys that mean something else elsewhere.
                "partitionname" | "downnodes" | "frontendname" | "nodeset" => (),
                _ => {
                    self.values.extend(words.into_iter().filter_map(|(key, value)| Some((key, value?))));
                }
            }
        }
        Ok(())
    }

    /// A relative name is one beside the including file; in the configless cache that is true of all of them.
    fn include(&mut self, from: &Path, file: &Path, depth: u32, files: &mut u32) -> Result<(), ConfigError> {
        let folder = from.parent().unwrap_or(Path::new("/"));
        let beside = file.file_name().map(|name| folder.join(name));
        for candidate in [Some(folder.join(file)), beside].into_iter().flatten() {
            match text(&candidate) {
                Ok(text) => return self.take(&candidate, &text, depth + 1, files),
                Err(ConfigError::Read { .. }) => (),
                Err(error) => return Err(error),
            }
        }
        self.missing.push(file.to_owned());
        Ok(())
    }

    fn nodes(&mut self, line: &BTreeMap<String, String>) {
        let Some(names) = line.get("nodename").filter(|name| !name.eq_ignore_ascii_case("DEFAULT")) else {
            return;
        };
        let Ok(names) = expand(names) else { return };
        // NodeAddr says where; without it NodeHostname does, without that the name itself.
        let Some(address) = line.get("nodeaddr").or_else(|| line.get("nodehostname")) else { return };
        // An IPv6 address in brackets is no host list.
        let list = expand(address).ok().filter(|list| list.len() == names.len());
        let at = |i: usize| list.as_ref().map_or_else(|| address.clone(), |list| list[i].clone());
        if list.is_none() && names.len() > 1 && address.contains('[') {
            return; // lists of different lengths: nobody knows which is whose
        }
        self.addresses.extend(names.into_iter().enumerate().map(|(i, name)| (name, at(i))));
    }

    /// Address or name of a node, where it is not the node's own name.
    #[must_use]
    pub fn node_addr(&self, node: &str) -> Option<&str> {
        self.addresses.get(node).map(String::as_str)
    }

    /// A value by key, in any case.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(&key.to_ascii_lowercase()).map(String::as_str)
    }

    /// All keys, in lower case, with their values.
    pub fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Where slurmd keeps the sockets of its steps; `host` is this machine's name.
    #[must_use]
    pub fn slurmd_spool_dir(&self, node: &str, host: &str) -> PathBuf {
        let folder = self.get("SlurmdSpoolDir").unwrap_or(SPOOL_DIR);
        folder.replace("%h", host.split('.').next().unwrap_or(host)).replace("%n", node).into()
    }

    /// Whether each job has a step on each of its nodes for all of its life (PrologFlags=Contain, which X11 and RunInJob
    /// bring along).
    #[must_use]
    pub fn has_extern_steps(&self) -> bool {
        let flags = self.get("PrologFlags").unwrap_or_default();
        let brings =
            |flag: &str| ["contain", "x11", "runinjob"].iter().any(|one| flag.eq_ignore_ascii_case(one));
        flags.split(',').map(str::trim).any(brings)
    }

    /// Why the prologs of a job's nodes can't wait for each other, if they can't. `release` is Slurm's, as `0xMMmmpp`, where
    /// that is known.
    ///
    /// Without Alloc a node's prolog runs when the node's first task starts, with NoHold tasks do not wait for it, and with Serial
    /// two jobs can each hold a node that the other one's prolog waits for.
    #[must_use]
    pub fn prologs_apart(&self, release: Option<u32>) -> Option<&'static str> {
        let flags = self.get("PrologFlags").unwrap_or_default();
        let has = |flag: &str| flags.split(',').any(|one| one.trim().eq_ignore_ascii_case(flag));
        let at_allocation = has("alloc")
            || self.has_extern_steps()
            || release.is_some_and(|release| release >= ALWAYS_AT_ALLOCATION);
        if has("serial") {
            Some("PrologFlags in slurm.conf has Serial")
        } else if has("nohold") {
            Some("PrologFlags in slurm.conf has NoHold")
        } else {
            (!at_allocation).then_some("PrologFlags in slurm.conf lacks Alloc")
        }
    }

    /// munged's socket of AuthInfo.
    #[must_use]
    pub fn munge_socket(&self) -> Option<PathBuf> {
        let options = self.get("AuthInfo")?.split(',');
        let value = |option: &str| {
            let (key, value) = option.trim().split_once('=')?;
            key.eq_ignore_ascii_case("socket").then(|| PathBuf::from(value))
        };
        options.filter_map(value).next()
    }

    /// Who runs slurmd; root unless it says otherwise.
    #[must_use]
    pub fn slurmd_user(&self) -> &str {
        self.get("SlurmdUser").unwrap_or("root").split('(').next().unwrap_or("root")
    }
}

fn text(path: &Path) -> Result<String, ConfigError> {
    use std::io::Read;
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(std::io::Error::other("not a regular file")));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(ConfigError::Bounds { path: path.to_owned() });
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Logical lines: without comments, continued lines joined.
fn lines(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for line in text.lines() {
        let line = without_comment(line);
        let (line, more) =
            line.trim_end().strip_suffix('\\').map_or((line.as_str(), false), |line| (line, true));
        if let Some(last) = lines.last_mut() {
            last.push_str(line);
        }
        if !more {
            lines.push(String::new());
        }
    }
    lines
}

/// `#` begins a comment unless a backslash stands before it.
fn without_comment(line: &str) -> String {
    let mut kept = String::new();
    for c in line.chars() {
        match c {
            '#' if kept.ends_with('\\') => {
                kept.pop();
                kept.push('#');
            }
            '#' => break,
            _ => kept.push(c),
        }
    }
    kept
}

/// `Key=value` words, keys in lower case, values without their quotes; a bare word has no value.
fn words(line: &str) -> Vec<(String, Option<String>)> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let key_end = rest.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(rest.len());
        let (key, after) = rest.split_at(key_end);
        let after_space = after.trim_start();
        let Some(value) = after_space.strip_prefix('=') else {
            // Bare words keep their case: it may be the name of an included file.
            let bare = if words.is_empty() { key.to_ascii_lowercase() } else { key.to_owned() };
            words.push((bare, None));
            rest = after_space;
            continue;
        };
        let value = value.trim_start();
        let (value, after) = match value.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => value.split_at(value.find(char::is_whitespace).unwrap_or(value.len())),
        };
        words.push((key.to_ascii_lowercase(), Some(value.to_owned())));
        rest = after.trim_start();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn conf(files: &[(&str, &str)]) -> SlurmConf {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        SlurmConf::read(&folder.path().join("slurm.conf")).unwrap()
    }

    #[test]
    fn addresses_are_found_whichever_way_they_are_written() {
        let conf = conf(&[
            (
                "slurm.conf",
                "clustername=c # x\nAuthInfo=cred_expire=5,socket=/run/m.s\nSlurmdUser=root(0)\n\
                 NodeName=DEFAULT CPUs=4 NodeAddr=bad\nnodename=a[1-2] \\\n  NODEADDR=10.0.0.[7-8] State=UNKNOWN\n\
                 #NodeName=a1 NodeAddr=1.1.1.1\nInclude more.conf\nInclude /elsewhere/absent.conf\n\
                 PartitionName=p Nodes=ALL ClusterName=wrong\n",
            ),
            (
                "more.conf",
                "NodeName=s[1-3] NodeAddr=127.0.0.1 Port=[1-3]\nNodeName=h NodeHostname=real\nNodeName=q",
            ),
        ]);
        let addr = |node| conf.node_addr(node);
        assert_eq!((addr("a1"), addr("a2")), (Some("10.0.0.7"), Some("10.0.0.8")));
        assert_eq!((addr("s3"), addr("h"), addr("q")), (Some("127.0.0.1"), Some("real"), None));
        assert_eq!(addr("DEFAULT"), None);
        assert_eq!(conf.get("ClusterName"), Some("c"));
        assert_eq!(conf.munge_socket(), Some("/run/m.s".into()));
        assert_eq!(conf.slurmd_user(), "root");
        assert_eq!(conf.missing, [PathBuf::from("/elsewhere/absent.conf")]);
    }

    #[test]
    fn the_configless_cache_holds_included_files_beside_the_main_one() {
        let conf = conf(&[
            ("slurm.conf", "Include /etc/slurm/nodes.conf\n"),
            ("nodes.conf", "NodeName=n NodeAddr=1.2.3.4"),
        ]);
        assert_eq!(conf.node_addr("n"), Some("1.2.3.4"));
    }

    #[test]
    fn a_file_that_includes_itself_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slurm.conf");
        std::fs::write(&path, "Include slurm.conf\n").unwrap();
        assert!(matches!(SlurmConf::read(&path), Err(ConfigError::Bounds { .. })));
    }

    #[test]
    fn quotes_and_spaces_around_the_sign() {
        let read = words(r#"A = "b c" d=e"f  g"#);
        let expected = [("a", Some("b c")), ("d", Some("e\"f")), ("g", None)];
        assert_eq!(read, expected.map(|(key, value)| (key.to_owned(), value.map(str::to_owned))));
        assert_eq!(lines("a\\#b#c\nd"), ["a#b", "d", ""]);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "[ -~\\n]{0,300}") {
            let mut conf = SlurmConf::default();
            let mut files = 1;
            let _ = conf.take(Path::new("/nonexistent/x"), &text, 1, &mut files);
        }
    }

    #[test]
    fn where_steps_are_seen_and_whether_there_is_always_one() {
        let conf = |text: &str| {
            let mut conf = SlurmConf::default();
            conf.take(Path::new("/x"), text, 1, &mut 1).unwrap();
            conf
        };
        let spool = |text: &str| conf(text).slurmd_spool_dir("n1", "host.site");
        assert_eq!(spool(""), Path::new("/var/spool/slurmd"));
        assert_eq!(spool("SlurmdSpoolDir=/s/%h.%n\n"), Path::new("/s/host.n1"));
        for (text, lasting) in [
            ("", false),
            ("PrologFlags=Alloc,DeferBatch\n", false),
            ("PrologFlags=Alloc,contain\n", true),
            ("PrologFlags=X11\n", true),
        ] {
            assert_eq!(conf(text).has_extern_steps(), lasting, "{text}");
        }
    }

    // A29.
    #[test]
    fn prologs_meet_where_they_run_at_the_allocation_and_hold_the_tasks() {
        for (flags, apart) in [
            ("", Some("lacks Alloc")),
            ("DeferBatch", Some("lacks Alloc")),
            ("Alloc,DeferBatch", None),
            ("deferbatch,ALLOC", None),
            ("Contain", None),
            ("Alloc,NoHold", Some("NoHold")),
            ("Contain,serial", Some("Serial")),
        ] {
            let conf = conf(&[("slurm.conf", &format!("PrologFlags={flags}\n"))]);
            let told = conf.prologs_apart(Some(0x16_05_00));
            assert_eq!(told.is_some(), apart.is_some(), "{flags}: {told:?}");
            assert!(told.unwrap_or_default().contains(apart.unwrap_or_default()), "{flags}: {told:?}");
            assert_eq!(conf.prologs_apart(None), told);
        }
        assert_eq!(conf(&[("slurm.conf", "")]).prologs_apart(Some(0x1a_05_01)), None);
    }
}
