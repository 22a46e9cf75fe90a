//! Our line in plugstack.conf, or in a file of a folder that it includes. It stands below a comment that marks it as ours:
//! what has no such mark is the site's and stays as it is, to the byte, whatever letters it is written in.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use diag::doctor::facts::PlugLine;
use diag::plugstack::Line;

use super::put::{Rights, put};
use crate::doctor::plugstack::{self, MOST_TEXT_BYTES};
use crate::{files, pattern};

/// Stands above our line.
const MARK: &str = "# The next line is the package aimaster's; `aimaster plugin off` takes it out.";

/// Stands at the top of a file that was not there before us, and that goes with the line.
const MADE: &str = "# This file was made for it.";

/// What our file in an included folder is called.
const OWN_FILE: &str = "aimaster.conf";

/// Mode of a file of ours: all of Slurm's programs read it.
const MODE: u32 = 0o644;

/// Puts the line in, if there is none; says what was done.
pub fn on(conf: &Path, plugin: &Path) -> Result<String> {
    let shown = conf.display();
    let there = is_there(conf)?;
    if there {
        let found = plugstack::look(conf, &[]);
        if let Some(why) = found.unreadable {
            anyhow::bail!("can't read {shown}: {why}");
        }
        if let Some(line) = found.lines.first() {
            let other = match Line::parse(&line.text) {
                Line::Plugin(one) if one.path != plugin => {
                    format!("; the package's plugin is {}", plugin.display())
                }
                _ => String::new(),
            };
            return Ok(format!("{}:{} has the plugin's line{other}", line.file.display(), line.line));
        }
    }
    let before = if there { bytes(conf)? } else { Vec::new() };
    let target = included(conf, &String::from_utf8_lossy(&before)).unwrap_or_else(|| conf.to_owned());
    let fresh = !target.exists();
    let mut all = if fresh { format!("{MADE}\n").into_bytes() } else { bytes(&target)? };
    if !all.is_empty() && !all.ends_with(b"\n") {
        all.push(b'\n');
    }
    all.extend(format!("{MARK}\noptional {}\n", plugin.display()).bytes());
    write(&target, &all)?;
    Ok(format!(
        "{} has the plugin's line now; a node that runs slurmd checks jobs once that is restarted",
        target.display()
    ))
}

/// Takes it out, wherever it stands; says what was done.
pub fn off(conf: &Path) -> Result<Vec<String>> {
    let mut said = Vec::new();
    if !is_there(conf)? {
        return Ok(said);
    }
    let found = plugstack::look(conf, &[]);
    if let Some(why) = found.unreadable {
        anyhow::bail!("can't read {}: {why}", conf.display());
    }
    let mut places: Vec<PathBuf> = found.lines.iter().map(|line| line.file.clone()).collect();
    places.dedup();
    for file in places {
        let Some(rest) = without(&bytes(&file)?) else { continue };
        if rest.trim_ascii() == MADE.as_bytes() {
            fs::remove_file(&file).with_context(|| format!("can't remove {}", file.display()))?;
        } else {
            write(&file, &rest)?;
        }
        said.push(format!("the plugin's line is out of {}", file.display()));
    }
    for line in plugstack::look(conf, &[]).lines {
        said.push(format!("{}:{} is the site's own line and stays", line.file.display(), line.line));
    }
    Ok(said)
}

/// A line that is left and makes Slurm's programs fail where the plugin is not there any more. One without a path may mean
/// the same file: Slurm looks for it in its own folders.
pub fn requires(conf: &Path, plugin: &Path) -> Option<PlugLine> {
    let is_it = |line: &PlugLine| {
        matches!(Line::parse(&line.text), Line::Plugin(one)
            if one.required && (one.path == plugin || one.path.is_relative() || is_same(&one.path, plugin)))
    };
    plugstack::look(conf, &[]).lines.into_iter().find(is_it)
}

/// Whether two ways lead to the same file.
fn is_same(one: &Path, other: &Path) -> bool {
    let leads = |path: &Path| fs::canonicalize(path).ok();
    leads(one).is_some_and(|one| Some(one) == leads(other))
}

/// Whether there is such a file. A link that leads nowhere now is no missing file: what it leads to is the site's.
fn is_there(path: &Path) -> Result<bool> {
    let leads = path.try_exists().with_context(|| format!("can't look at {}", path.display()))?;
    if !leads && path.symlink_metadata().is_ok() {
        anyhow::bail!("{} is a link that leads to no file: is its storage mounted?", path.display());
    }
    Ok(leads)
}

/// The rest without our line and its mark; none if it isn't there. Words that the site added to our line go with it.
fn without(all: &[u8]) -> Option<Vec<u8>> {
    let mut rest = Vec::with_capacity(all.len());
    let mut lines = all.split_inclusive(|byte| *byte == b'\n').peekable();
    let mut taken = false;
    while let Some(line) = lines.next() {
        let is_ours = |next: &&[u8]| matches!(Line::parse(&String::from_utf8_lossy(next)), Line::Plugin(one) if one.is_ours());
        if line.trim_ascii_end() == MARK.as_bytes() && lines.peek().is_some_and(is_ours) {
            lines.next();
            taken = true;
        } else {
            rest.extend(line);
        }
    }
    taken.then_some(rest)
}

/// Our file in a folder that plugstack.conf includes, if one of its includes takes it.
fn included(conf: &Path, text: &str) -> Option<PathBuf> {
    let folder = conf.parent().unwrap_or(Path::new("/"));
    text.lines().find_map(|line| {
        let Line::Include(wanted) = Line::parse(line) else { return None };
        let wanted = folder.join(wanted);
        let name = wanted.file_name()?.to_str()?;
        // A name without a pattern is a file of the site's; sets in brackets are not looked at as closely as Slurm does.
        let fits = name.contains(['*', '?']) && !name.contains('[') && pattern::fits(name, OWN_FILE);
        let inside = wanted.parent().filter(|folder| folder.is_dir())?;
        let free = inside.join(OWN_FILE).symlink_metadata().is_err();
        (fits && free).then(|| inside.join(OWN_FILE))
    })
}

fn bytes(path: &Path) -> Result<Vec<u8>> {
    // A link is followed: sites lead plugstack.conf to a shared place.
    let path = fs::canonicalize(path).with_context(|| format!("can't find {}", path.display()))?;
    files::bytes(&path, MOST_TEXT_BYTES).with_context(|| format!("can't read {}", path.display()))
}

/// Mode, owner and access list stay: who reads and writes it is the site's business.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let rights = Rights::of(&path).with_context(|| format!("can't look at {}", path.display()))?;
    put(&path, bytes, &rights.unwrap_or(Rights::new(MODE)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const PLUGIN: &str = "/x/spank_aimaster.so";

    struct Site(tempfile::TempDir);

    impl Site {
        fn new(text: Option<&str>) -> Self {
            let site = Self(tempfile::tempdir().unwrap());
            if let Some(text) = text {
                fs::write(site.conf(), text).unwrap();
            }
            site
        }

        fn conf(&self) -> PathBuf {
            self.0.path().join("plugstack.conf")
        }

        fn on(&self) -> String {
            on(&self.conf(), Path::new(PLUGIN)).unwrap()
        }

        fn off(&self) -> String {
            off(&self.conf()).unwrap().join("\n")
        }

        fn read(&self) -> Option<String> {
            fs::read_to_string(self.conf()).ok()
        }
    }

    #[test]
    fn a_line_comes_once_and_goes_without_a_trace() {
        for before in [None, Some(""), Some("# none\n"), Some("optional a.so\n\n\nrequired b.so x=1 # y\n")] {
            let site = Site::new(before);
            site.on();
            let with = site.read().unwrap();
            assert!(with.starts_with(before.unwrap_or_default()), "{with}");
            assert_eq!(with.matches(&format!("optional {PLUGIN}\n")).count(), 1, "{with}");
            assert!(site.on().contains("has the plugin's line"));
            assert_eq!(site.read().unwrap(), with, "again");
            assert!(site.off().contains("is out of"));
            assert_eq!(site.read().as_deref(), before, "{with}");
            assert_eq!(site.off(), "");
        }
    }

    #[test]
    fn words_that_the_site_added_to_it_go_with_it() {
        let site = Site::new(Some("optional a.so"));
        site.on();
        let with = site.read().unwrap().replace(PLUGIN, &format!("{PLUGIN} prolog=off"));
        fs::write(site.conf(), with + "optional c.so\n").unwrap();
        site.off();
        assert_eq!(site.read().unwrap(), "optional a.so\noptional c.so\n");
    }

    #[test]
    fn what_is_no_utf_8_stays_to_the_byte() {
        let text = b"# f\xfcr alle\noptional a.so x=\xe4";
        let site = Site::new(None);
        fs::write(site.conf(), text).unwrap();
        assert!(site.on().contains("has the plugin's line now"));
        let with = fs::read(site.conf()).unwrap();
        assert!(with.starts_with(text) && with.ends_with(format!("optional {PLUGIN}\n").as_bytes()));
        assert!(site.on().contains("plugstack.conf:4 has"), "again");
        assert!(site.off().contains("is out of"));
        assert_eq!(fs::read(site.conf()).unwrap(), [&text[..], b"\n"].concat());
    }

    #[test]
    fn a_required_line_needs_the_file_that_it_names() {
        let plugin = Path::new(PLUGIN);
        for (line, needs) in [
            (format!("required {PLUGIN} prolog=off"), true),
            ("required spank_aimaster.so".to_owned(), true),
            (format!("optional {PLUGIN}"), false),
            ("required /opt/spank_aimaster.so".to_owned(), false),
            ("required other.so".to_owned(), false),
            (format!("# required {PLUGIN}"), false),
        ] {
            let site = Site::new(Some(&format!("{line}\n")));
            assert_eq!(requires(&site.conf(), plugin).is_some(), needs, "{line}");
        }
        assert_eq!(requires(Path::new("/x/none"), plugin), None);
        // The same file by another way.
        let site = Site::new(None);
        let (file, link) = (site.0.path().join("spank_aimaster.so"), site.0.path().join("way"));
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(site.0.path(), &link).unwrap();
        fs::write(site.conf(), format!("required {}\n", link.join("spank_aimaster.so").display())).unwrap();
        assert!(requires(&site.conf(), &file).is_some());
    }

    #[test]
    fn a_site_s_own_line_stays_and_no_second_one_comes() {
        let text = "optional spank_aimaster.so policy=/p\n";
        let site = Site::new(Some(text));
        let said = site.on();
        assert!(said.contains("plugstack.conf:1") && said.contains(PLUGIN), "{said}");
        assert!(site.off().contains("site's own line"));
        assert_eq!(site.read().unwrap(), text);
    }

    #[test]
    fn an_included_folder_gets_a_file() {
        let text = "include elsewhere.conf\ninclude d/[0-9]*\ninclude d/*.conf\n";
        let site = Site::new(Some(text));
        fs::write(site.0.path().join("elsewhere.conf"), "").unwrap();
        fs::create_dir(site.0.path().join("d")).unwrap();
        site.on();
        let own = site.0.path().join("d/aimaster.conf");
        assert!(fs::read_to_string(&own).unwrap().contains(PLUGIN));
        assert!(site.on().contains("d/aimaster.conf:3"));
        assert_eq!(site.read().unwrap(), text);
        site.off();
        assert!(!own.exists());
        // One of the site's that is called so, and has no line for the plugin, is not ours to write into.
        fs::write(&own, "optional c.so\n").unwrap();
        site.on();
        assert_eq!(fs::read_to_string(&own).unwrap(), "optional c.so\n");
        assert!(site.read().unwrap().contains(PLUGIN));
    }

    #[test]
    fn a_link_stays_one_and_modes_stay() {
        let site = Site::new(None);
        let real = site.0.path().join("shared.conf");
        fs::write(&real, "optional a.so\n").unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&real, site.conf()).unwrap();
        site.on();
        assert!(site.conf().is_symlink() && site.read().unwrap().contains(PLUGIN));
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o7777, 0o640);
        site.off();
        assert_eq!(fs::read_to_string(&real).unwrap(), "optional a.so\n");
    }
}
