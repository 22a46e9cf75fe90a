//! File names with `*` and `?`, as plugstack.conf and slurm.conf have them.

use std::path::{Component, Path, PathBuf};

/// Most files that a pattern may come to.
const MOST: usize = 1000;

/// The files that fit, in order of name.
pub fn files(pattern: &Path) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::new()];
    for part in pattern.components() {
        let Component::Normal(name) = part else {
            found.iter_mut().for_each(|path| path.push(part));
            continue;
        };
        let name = name.to_string_lossy();
        if !name.contains(['*', '?', '[']) {
            found.iter_mut().for_each(|path| path.push(name.as_ref()));
            continue;
        }
        found = found.iter().flat_map(|folder| inside(folder, &name)).take(MOST).collect();
    }
    found.retain(|path| path.exists());
    found
}

fn inside(folder: &Path, wanted: &str) -> Vec<PathBuf> {
    let names = crate::files::names(folder).unwrap_or_default();
    // As in a shell, a name that begins with a dot is meant only where it is written.
    let fits = |name: &String| (wanted.starts_with('.') || !name.starts_with('.')) && fits(wanted, name);
    names.iter().filter(|name| fits(name)).map(|name| folder.join(name)).collect()
}

/// Whether a name fits. Sets in brackets fit every character: a file too many is looked at then.
pub fn fits(wanted: &str, name: &str) -> bool {
    let mut rest = wanted.chars();
    match rest.next() {
        None => name.is_empty(),
        Some('*') => {
            let rest = rest.as_str();
            name.char_indices().map(|(at, _)| at).chain([name.len()]).any(|at| fits(rest, &name[at..]))
        }
        Some('[') => {
            let after = rest.as_str().split_once(']').map_or("", |(_, after)| after);
            let mut name = name.chars();
            name.next().is_some() && fits(after, name.as_str())
        }
        Some(one) => {
            let mut name = name.chars();
            name.next().is_some_and(|other| one == '?' || one == other) && fits(rest.as_str(), name.as_str())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_as_in_a_shell() {
        for (wanted, name, fit) in [
            ("*", "a.sh", true),
            ("*.conf", "b.conf", true),
            ("*.conf", "b.conf.bak", false),
            ("0?-*", "00-x", true),
            ("[0-9]*", "7x", true),
            ("a", "ab", false),
            ("", "", true),
        ] {
            assert_eq!(fits(wanted, name), fit, "{wanted} {name}");
        }
        let folder = tempfile::tempdir().unwrap();
        for name in ["a/x.conf", "b/x.conf", "b/.x.conf", "b/y.txt"] {
            std::fs::create_dir_all(folder.path().join(name).parent().unwrap()).unwrap();
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let found = files(&folder.path().join("*/*.conf"));
        assert_eq!(found, ["a/x.conf", "b/x.conf"].map(|name| folder.path().join(name)));
        assert!(files(&folder.path().join("c/*.conf")).is_empty());
        assert_eq!(files(&folder.path().join("b/y.txt")).len(), 1);
    }
}
