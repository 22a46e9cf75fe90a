//! Whether the job is still on this node, from the sockets of its slurmstepds: no question to slurmd or slurmctld. It is
//! the second net: the epilog ends the agent, and this ends it where no epilog runs.
//!
//! slurmstepd binds `<SlurmdSpoolDir>/<node>_<job>.<step>`, an extern step too. A file alone proves nothing, since a
//! slurmstepd that was killed leaves its file; and a line of `/proc/net/unix` alone proves nothing, since a user's
//! process in a mount namespace of its own can bind any path. Both together are believed.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cluster::order::Steps;

/// How long the first step may take to come: until then a site's own prolog scripts may run, on all nodes.
pub const FIRST_STEP: Duration = Duration::from_secs(600);

/// So long without a step, where the job has one all of its life, and the job is gone. More than one look.
pub const NO_STEP: Duration = Duration::from_secs(4);

/// The same where steps come and go: a user of salloc may think for a while.
pub const NO_STEP_BETWEEN: Duration = Duration::from_secs(3600);

/// So long after the lasting step others may be there while the job ends: longer than any KillWait that is in use.
pub const LINGERING: Duration = Duration::from_secs(600);

/// Most files that are looked at: those of the steps and jobs on one node.
const MOST_FILES: usize = 20_000;

/// Slurm's number of the extern step.
const EXTERN: &str = "4294967292";

/// Where the kernel lists bound sockets.
pub(crate) const BOUND: &str = "/proc/net/unix";

/// Most bytes of that list: some hundred thousand sockets. Users make them, and a longer list is one that can't be looked at.
pub(crate) const MOST_BOUND_BYTES: u64 = 32 << 20;

/// Looks for the job's steps.
#[derive(Debug)]
pub struct Watchdog {
    folder: PathBuf,
    prefix: String,
    lasting: bool,
    seen: bool,
    last: Instant,
    /// Whether the step that is there for all of the job's life was seen, and is no more.
    extern_seen: bool,
    ends: Option<Instant>,
}

impl Watchdog {
    /// For a job on a node; it counts from `now` on.
    #[must_use]
    pub fn new(steps: &Steps, node: &str, job_id: u32, now: Instant) -> Self {
        let Steps { folder, lasting } = steps.clone();
        Self {
            folder,
            prefix: format!("{node}_{job_id}."),
            lasting,
            seen: false,
            last: now,
            extern_seen: false,
            ends: None,
        }
    }

    /// Looks once; why the job is taken for gone, if it is.
    pub fn look(&mut self, now: Instant) -> Option<String> {
        // A machine that can't be looked at says nothing about the job.
        let here = self.is_here(now);
        if *here.as_ref().unwrap_or(&true) {
            self.seen |= here.is_ok();
            self.last = now;
            return None;
        }
        let patience = match (self.seen, self.lasting) {
            (false, _) => FIRST_STEP,
            (true, true) => NO_STEP,
            (true, false) => NO_STEP_BETWEEN,
        };
        let silent = now.saturating_duration_since(self.last);
        (silent >= patience)
            .then(|| format!("no step of the job was on this node for {} s", silent.as_secs()))
    }

    /// Whether the job is being ended on this node: the step that lasts as long as the job is gone, before the others whose
    /// processes may take their time to end.
    #[must_use]
    pub fn ends(&self) -> bool {
        self.ends.is_some()
    }

    /// Whether it should have ended long ago: that step alone is gone, for another reason than the job's end.
    #[must_use]
    pub fn lingers(&self, now: Instant) -> bool {
        self.ends.is_some_and(|since| now.saturating_duration_since(since) >= LINGERING)
    }

    /// Whether a step was ever seen.
    #[must_use]
    pub fn has_seen(&self) -> bool {
        self.seen
    }

    fn is_here(&mut self, now: Instant) -> io::Result<bool> {
        let (mut bound, mut any, mut lasts) = (None, false, false);
        for entry in std::fs::read_dir(&self.folder)?.take(MOST_FILES) {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| is_step(name, &self.prefix)) else { continue };
            let bound = match &bound {
                Some(bound) => bound,
                // Anybody may bind a name that is no text.
                None => bound.insert(
                    String::from_utf8_lossy(&all(File::open(BOUND)?, MOST_BOUND_BYTES)?).into_owned(),
                ),
            };
            if is_bound(bound, &entry.path().to_string_lossy()) {
                any = true;
                lasts |= name.strip_prefix(&self.prefix) == Some(EXTERN);
            }
        }
        self.extern_seen |= lasts;
        if self.extern_seen && !lasts {
            self.ends.get_or_insert(now);
        }
        Ok(any)
    }
}

/// All that it gives, unless that is more than so many bytes.
fn all(from: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes)?;
    let fits = u64::try_from(bytes.len()).is_ok_and(|length| length <= most);
    fits.then_some(bytes).ok_or_else(|| io::Error::other("there are more sockets than are looked at"))
}

/// `<prefix><step>`, or `<prefix><step>.<component>` of a heterogeneous step.
pub(crate) fn is_step(name: &str, prefix: &str) -> bool {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    name.strip_prefix(prefix).is_some_and(|rest| rest.split('.').count() <= 2 && rest.split('.').all(number))
}

/// Whether a process holds a socket of this path.
fn is_bound(list: &str, path: &str) -> bool {
    // The path is the last of the columns; it may hold blanks.
    list.lines().any(|line| line.strip_suffix(path).is_some_and(|before| before.ends_with(' ')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_sockets_of_this_job_s_steps_count() {
        for name in ["n1_7.0", "n1_7.4294967292", "n1_7.0.1"] {
            assert!(is_step(name, "n1_7."), "{name}");
        }
        for name in ["n1_77.0", "n1_7.", "n1_7.x", "n1_7.0.1.2", "n11_7.0", "n1_7", "n1_7..0", "job00007"] {
            assert!(!is_step(name, "n1_7."), "{name}");
        }
    }

    #[test]
    fn a_list_without_end_is_none() {
        assert_eq!(all(&b"list"[..], 4).unwrap(), b"list");
        assert!(all(io::repeat(b'x'), 4).is_err());
    }

    #[test]
    fn a_path_counts_whole_and_only_as_it_is() {
        let list = "Num RefCount Protocol Flags Type St Inode Path\n\
            0000: 00000002 00000000 00010000 0001 01 1 /s/n1_7.0\n0000: 00000002 00000000 00010000 0001 01 1 @/s/n1_8.0\n";
        assert!(is_bound(list, "/s/n1_7.0"));
        for path in ["/n1_7.0", "/s/n1_7.", "/s/n1_8.0", "/s/n1_7.01"] {
            assert!(!is_bound(list, path), "{path}");
        }
    }

    #[test]
    fn a_job_ends_when_the_step_that_lasts_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let steps = Steps { folder: folder.path().to_owned(), lasting: true };
        let begun = Instant::now();
        let mut dog = Watchdog::new(&steps, "n1", 7, begun);
        let bind = |name: &str| UnixListener::bind(folder.path().join(name)).unwrap();
        let step = bind("n1_7.0");
        assert_eq!((dog.look(begun), dog.ends()), (None, false));
        let lasting = bind("n1_7.4294967292");
        assert_eq!((dog.look(begun), dog.ends()), (None, false));
        drop(step);
        assert_eq!((dog.look(begun), dog.ends()), (None, false), "steps come and go");
        let _step = bind("n1_7.1");
        drop(lasting);
        assert_eq!((dog.look(begun), dog.ends()), (None, true));
        assert!(!dog.lingers(begun) && dog.lingers(begun + LINGERING));
    }

    #[test]
    fn a_job_is_gone_when_its_steps_are_but_not_before_its_first() {
        let folder = tempfile::tempdir().unwrap();
        let steps = |lasting| Steps { folder: folder.path().to_owned(), lasting };
        let begun = Instant::now();
        let after = |time: Duration| begun + time;
        let mut dogs = [true, false].map(|lasting| Watchdog::new(&steps(lasting), "n1", 7, begun));
        for dog in &mut dogs {
            assert_eq!(dog.look(after(FIRST_STEP / 2)), None);
        }
        let path = folder.path().join("n1_7.0");
        let socket = UnixListener::bind(&path).unwrap();
        let shown = FIRST_STEP * 2;
        for dog in &mut dogs {
            assert_eq!(dog.look(after(shown)), None);
        }
        // The file stays, as that of a slurmstepd that was killed.
        drop(socket);
        assert!(path.exists());
        let [lasting, coming] = &mut dogs;
        assert_eq!(lasting.look(after(shown + NO_STEP / 2)), None);
        assert!(lasting.look(after(shown + NO_STEP)).is_some());
        assert_eq!(coming.look(after(shown + NO_STEP)), None);
        assert!(coming.look(after(shown + NO_STEP_BETWEEN)).is_some());
        let mut never = Watchdog::new(&steps(true), "n1", 7, begun);
        assert!(never.look(after(FIRST_STEP)).is_some());
        let unreadable = Steps { folder: folder.path().join("none"), lasting: true };
        assert_eq!(Watchdog::new(&unreadable, "n1", 7, begun).look(after(FIRST_STEP)), None);
    }
}
