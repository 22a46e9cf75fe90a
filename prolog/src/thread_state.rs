//! What the kernel says that threads are doing. Only files are read that wait for nothing, whatever the thread waits for
//! (field case E02).

use std::path::Path;

/// Most threads that are named: one a GPU, and that is many.
const MOST_NAMED: usize = 8;

/// The letter that /proc shows for a process: `D` if one of its threads waits inside the kernel, since the process is not
/// gone before all of them are; `?` where it can't be read.
pub(crate) fn of_process(pid: i32) -> char {
    if !inside(pid).is_empty() {
        return 'D';
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    named(&stat).map_or('?', |(_, state)| state)
}

/// Whether the thread of this `stat` file waits inside the kernel, where not even SIGKILL reaches it.
pub(crate) fn inside_kernel(stat: &Path) -> bool {
    let stat = std::fs::read_to_string(stat).unwrap_or_default();
    named(&stat).is_some_and(|(_, state)| state == 'D')
}

/// Which threads of a process do; a part of a sentence, empty where none does.
pub(crate) fn those_inside_kernel(pid: i32) -> String {
    let mut names = inside(pid);
    if names.is_empty() {
        return String::new();
    }
    names.sort();
    names.truncate(MOST_NAMED);
    format!("; of its process {pid} these threads are in state D, inside the kernel: {}", names.join(", "))
}

/// The names of those.
fn inside(pid: i32) -> Vec<String> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let stats = threads.flatten().filter_map(|one| std::fs::read_to_string(one.path().join("stat")).ok());
    let inside = |stat: String| {
        let (name, state) = named(&stat)?;
        (state == 'D').then(|| name.to_owned())
    };
    stats.filter_map(inside).collect()
}

/// Name and state. The name stands in parentheses and may contain anything.
fn named(stat: &str) -> Option<(&str, char)> {
    let (head, rest) = stat.rsplit_once(") ")?;
    Some((head.split_once('(')?.1, rest.chars().next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_and_state_are_told_apart_whatever_the_name_is() {
        assert_eq!(named("7 (rank 3) D 1 7 7"), Some(("rank 3", 'D')));
        assert_eq!(named("7 (a) S (b) D 1"), Some(("a) S (b", 'D')));
        assert_eq!(named(""), None);
    }

    #[test]
    fn this_process_runs_and_one_that_is_gone_is_not_known() {
        let own = i32::try_from(std::process::id()).unwrap();
        // Another test's thread may just wait for a disk.
        assert!((0..1000).any(|_| matches!(of_process(own), 'R' | 'S')));
        assert!((0..1000).any(|_| !inside_kernel(Path::new("/proc/self/stat"))));
        assert_eq!((of_process(i32::MAX), those_inside_kernel(i32::MAX)), ('?', String::new()));
    }
}
