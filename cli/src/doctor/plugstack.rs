//! plugstack.conf with what it includes, the file that its line names, and the release that this is stamped for.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cluster::slurm::stamp;
use diag::doctor::facts::{PlugLine, Plugin, Release};
use diag::plugstack::Line;

use super::entries;
use crate::{files, pattern};

/// Includes inside includes.
const MOST_DEPTH: u32 = 8;

/// Largest file of lines, and largest plugin: ours has some MB.
pub const MOST_TEXT_BYTES: u64 = 1 << 20;
pub const MOST_PLUGIN_BYTES: u64 = 256 << 20;

/// All of it; `folders` are those in which Slurm looks for a plugin without a path.
pub fn look(conf: &Path, folders: &[PathBuf]) -> Plugin {
    let mut plugin = Plugin { conf: conf.to_owned(), ..Plugin::default() };
    if let Err(error) = read(conf, MOST_DEPTH, &mut plugin) {
        plugin.unreadable = Some(format!("{error:#}"));
        return plugin;
    }
    let Some(Line::Plugin(first)) = plugin.lines.first().map(|line| Line::parse(&line.text)) else {
        return plugin;
    };
    let path = if first.path.is_absolute() {
        first.path
    } else {
        let known = folders.iter().map(|folder| folder.join(&first.path)).find(|path| path.exists());
        known.unwrap_or_else(|| folders.first().cloned().unwrap_or_default().join(&first.path))
    };
    let file = entries::guarded(&path);
    if path.exists() {
        plugin.stamp = Some(stamp_of(&path).map_err(|error| format!("{error:#}")));
    }
    plugin.file = Some(file);
    plugin
}

fn read(file: &Path, depth: u32, plugin: &mut Plugin) -> Result<()> {
    // Sites lead it to a shared place by a link; an include goes from where it is named.
    let bytes = files::bytes(&std::fs::canonicalize(file)?, MOST_TEXT_BYTES)?;
    // Slurm takes any bytes, such as those of a comment in Latin-1; our line has none that are lost here.
    let text = String::from_utf8_lossy(&bytes);
    for (index, text) in text.lines().enumerate() {
        match Line::parse(text) {
            Line::Plugin(one) if one.is_ours() => {
                plugin.lines.push(PlugLine { file: file.to_owned(), line: index + 1, text: text.to_owned() });
            }
            Line::Include(wanted) => {
                if depth == 0 {
                    bail!("more than {MOST_DEPTH} includes inside each other");
                }
                let beside = file.parent().unwrap_or(Path::new("/")).join(&wanted);
                let found = pattern::files(&beside);
                if found.is_empty() {
                    plugin.empty_includes.push(wanted);
                }
                for one in found {
                    read(&one, depth - 1, plugin).with_context(|| one.display().to_string())?;
                }
            }
            Line::Plugin(_) | Line::Nothing | Line::Unknown => {}
        }
    }
    Ok(())
}

/// The release that a plugin is stamped for.
pub fn stamp_of(path: &Path) -> Result<Release> {
    let file = std::fs::File::open(path)?;
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(file, MOST_PLUGIN_BYTES), &mut bytes)?;
    Ok(Release::of_number(stamp::stamped(&bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_through_includes() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let conf = folder.path().join("plugstack.conf");
        assert!(look(&conf, &[]).unreadable.unwrap().contains("No such file"));
        std::fs::create_dir(folder.path().join("d")).unwrap();
        put("plugstack.conf", "# none\noptional other.so\ninclude d/*.conf\ninclude e/*.conf\n");
        put("d/b.conf", "\noptional spank_aimaster.so helpers=/h\n");
        put("d/b.txt", "optional spank_aimaster.so\n");
        let found = look(&conf, &[folder.path().join("lib")]);
        assert_eq!(found.lines.len(), 1);
        assert_eq!(
            (found.lines[0].line, found.lines[0].file.as_path()),
            (2, folder.path().join("d/b.conf").as_path())
        );
        assert_eq!(found.empty_includes, ["e/*.conf"]);
        assert!(found.file.unwrap().path.ends_with("lib/spank_aimaster.so") && found.stamp.is_none());

        std::fs::create_dir(folder.path().join("lib")).unwrap();
        put("lib/spank_aimaster.so", "text");
        let found = look(&conf, &[folder.path().join("lib")]);
        assert!(found.stamp.unwrap().unwrap_err().contains("no ELF file"));
        put("d/b.conf", "include b.conf");
        assert!(look(&conf, &[]).unreadable.unwrap().contains("includes inside each other"));
    }
}
