//! Our line in plugstack.conf, or in a file of a folder that it includes. It stands below a comment that marks it as ours:
//! what has no such mark is the site's and stays as it is, to the letter.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use diag::plugstack::Line;

use super::put;
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
    let text = if there { text(conf)? } else { String::new() };
    let target = included(conf, &text).unwrap_or_else(|| conf.to_owned());
    let fresh = !target.exists();
    let mut all = if fresh { format!("{MADE}\n") } else { self::text(&target)? };
    if !all.is_empty() && !all.ends_with('\n') {
        all.push('\n');
    }
    all += &format!("{MARK}\noptional {}\n", plugin.display());
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
        let Some(rest) = without(&text(&file)?) else { continue };
        if rest.trim() == MADE {
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

/// Whether there is such a file. A link that leads nowhere now is no missing file: what it leads to is the site's.
fn is_there(path: &Path) -> Result<bool> {
    let leads = path.try_exists().with_context(|| format!("can't look at {}", path.display()))?;
    if !leads && path.symlink_metadata().is_ok() {
        anyhow::bail!("{} is a link that leads to no file: is its storage mounted?", path.display());
    }
    Ok(leads)
}

/// The text without our line and its mark; none if it isn't there. Words that the site added to our line go with it.
fn without(text: &str) -> Option<String> {
    let mut rest = String::new();
    let mut lines = text.split_inclusive('\n').peekable();
    let mut taken = false;
    while let Some(line) = lines.next() {
        let is_ours = |next: &&str| matches!(Line::parse(next), Line::Plugin(one) if one.is_ours());
        if line.trim_end() == MARK && lines.peek().is_some_and(is_ours) {
            lines.next();
            taken = true;
        } else {
            rest += line;
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

fn text(path: &Path) -> Result<String> {
    // A link is followed: sites lead plugstack.conf to a shared place.
    let path = fs::canonicalize(path).with_context(|| format!("can't find {}", path.display()))?;
    files::text(&path, MOST_TEXT_BYTES).with_context(|| format!("can't read {}", path.display()))
}

/// Mode and owner stay: who reads and writes it is the site's business.
fn write(path: &Path, text: &str) -> Result<()> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let there = fs::metadata(&path).ok();
    let mode = there.as_ref().map_or(MODE, |there| there.permissions().mode() & 0o7777);
    put(&path, text.as_bytes(), mode, there.map(|there| (there.uid(), there.gid())))
}

#[cfg(test)]
mod tests {
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
