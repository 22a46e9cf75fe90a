//! `aimaster plugin`: puts the plugin that a package brought in place. Slurm loads a plugin only with the number of its own
//! release in it, and no package knows that number: so the package brings one without it, and this makes the one that Slurm
//! loads, beside it, and sees to the line in plugstack.conf (`lines.rs`). Packages call it when they are installed, when
//! Slurm is upgraded and before they are removed.

mod lines;
mod put;
mod release;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cluster::slurm::config::{SlurmConf, USUAL_PLACES};
use cluster::slurm::stamp;
use diag::doctor::facts::Release;
use diag::plugstack::{HELPERS, PLUGIN};

use crate::doctor::plugstack::{MOST_PLUGIN_BYTES, stamp_of};
use put::{Rights, put};

/// What a package brings: the plugin with no release in it.
pub const UNSTAMPED: &str = "spank_aimaster.so.unstamped";

/// How long a program of Slurm's may take from reading plugstack.conf to loading what its lines name: some milliseconds.
const GRACE: Duration = Duration::from_secs(1);

/// What to do.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Makes the plugin anew for the Slurm that is installed; needed after each upgrade of Slurm.
    Stamp(Place),
    /// Makes the plugin, and puts its line into plugstack.conf if there is none yet.
    On(Place),
    /// Takes out the line that `on` put into plugstack.conf; a line that somebody else wrote stays.
    Off(Place),
    /// For packages: `on` where there is no plugin yet, else `stamp`. Without Slurm it does nothing and says so.
    #[command(hide = true)]
    Configure(Place),
    /// For packages, before their files go: `off`, then removes the plugin.
    #[command(hide = true)]
    Unconfigure(Place),
}

/// Where.
#[derive(clap::Args)]
pub struct Place {
    /// The folder of the plugin and the helpers.
    #[arg(long, value_name = "DIR", default_value = HELPERS)]
    helpers: PathBuf,
    /// The file of lines [default: PlugStackConfig of /etc/slurm/slurm.conf, else /etc/slurm/plugstack.conf].
    #[arg(long, value_name = "FILE")]
    plugstack: Option<PathBuf>,
    /// The release of Slurm, such as 24.11.5 [default: what slurmd of this machine says, or Slurm's own plugins].
    #[arg(long, value_name = "RELEASE")]
    slurm: Option<String>,
}

/// Does it, and says what was done.
///
/// # Errors
/// There is no Slurm, a file can't be read or written.
pub fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Stamp(place) => place.stamp(release::find(place.slurm.as_deref())?)?,
        Command::On(place) => {
            place.stamp(release::find(place.slurm.as_deref())?)?;
            place.on()?;
        }
        Command::Off(place) => _ = place.conf()?.as_deref().map_or(Ok(false), take_out)?,
        Command::Configure(place) => place.configure(release::find(place.slurm.as_deref()))?,
        Command::Unconfigure(place) => place.unconfigure()?,
    }
    Ok(ExitCode::SUCCESS)
}

fn say(text: &str) {
    println!("aimaster: {}", diag::report::printable(text));
}

impl Place {
    /// The plugin that Slurm loads.
    fn plugin(&self) -> PathBuf {
        self.helpers.join(PLUGIN)
    }

    fn stamp(&self, release: Release) -> Result<()> {
        let from = self.helpers.join(UNSTAMPED);
        let mut bytes = read(&from).with_context(|| format!("can't read {}", from.display()))?;
        stamp::stamp(&mut bytes, release.number()).with_context(|| from.display().to_string())?;
        let to = self.plugin();
        let shown = to.display();
        let there = read(&to).ok();
        if there.as_ref() == Some(&bytes) {
            say(&format!("{shown} is the one for Slurm {release}"));
            return Ok(());
        }
        put(&to, &bytes, &Rights::new(0o644))?;
        let before = there.and_then(|bytes| stamp::stamped(&bytes).ok()).map(Release::of_number);
        // A slurmd of the new release that found the old plugin calls no prolog of it.
        let restart = match before {
            Some(before) if !before.fits(release) => {
                format!(" (it was for {before}); restart slurmd if it has started since Slurm was changed")
            }
            _ => String::new(),
        };
        say(&format!("{shown} is made for Slurm {release}{restart}"));
        Ok(())
    }

    /// `found`: the Slurm of this machine.
    fn configure(&self, found: Result<Release>) -> Result<()> {
        let plugin = self.plugin();
        let error = match found {
            Ok(release) => {
                // A site that has switched it off wants it to stay so after an upgrade.
                let first = !plugin.exists();
                self.stamp(release)?;
                // Without its line it is not there yet: the next call tries again.
                if first && let Err(error) = self.on() {
                    let _ = fs::remove_file(plugin);
                    return Err(error);
                }
                return Ok(());
            }
            Err(error) => error,
        };
        // One that is there was made for a Slurm that somebody named; plugin and helpers have to be of one version.
        if let Some(release) = stamp_of(&plugin).ok().filter(|_| self.slurm.is_none()) {
            say(&format!("{error:#}; the plugin that is there says {release}"));
            return self.stamp(release);
        }
        say(&format!(
            "{error:#}; the plugin is not in place: `aimaster plugin on` makes it, with --slurm RELEASE where it can't be told"
        ));
        Ok(())
    }

    fn unconfigure(&self) -> Result<()> {
        let (conf, plugin) = (self.conf()?, self.plugin());
        if conf.as_deref().map_or(Ok(false), take_out)? {
            // Who has read the line finds the file.
            std::thread::sleep(GRACE);
        }
        let needed = conf.and_then(|conf| lines::requires(&conf, &plugin));
        if let Some(line) = needed.filter(|_| plugin.exists()) {
            say(&format!(
                "{} stays, for {}:{} makes every srun fail without it: take that line out, then remove the file",
                plugin.display(),
                line.file.display(),
                line.line
            ));
            return Ok(());
        }
        match fs::remove_file(&plugin) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("can't remove {}", plugin.display()))
            }
            _ => Ok(()),
        }
    }

    fn on(&self) -> Result<()> {
        let Some(conf) = self.conf()? else { return Ok(()) };
        say(&lines::on(&conf, &self.plugin())?);
        Ok(())
    }

    /// The file of lines, unless it is another machine's; then that is said.
    fn conf(&self) -> Result<Option<PathBuf>> {
        if let Some(named) = &self.plugstack {
            return Ok(Some(named.clone()));
        }
        let [usual, others @ ..] = USUAL_PLACES.map(Path::new);
        if usual.is_file() {
            let conf = SlurmConf::read(usual)?;
            let named = conf.get("plugstackconfig").map(PathBuf::from).filter(|path| path.is_absolute());
            return Ok(Some(named.unwrap_or_else(|| usual.with_file_name("plugstack.conf"))));
        }
        if let Some(other) = others.iter().find(|path| path.is_file()) {
            say(&format!(
                "{} is this machine's slurm.conf: the line `optional {}` belongs into plugstack.conf where that comes from",
                other.display(),
                self.plugin().display()
            ));
            return Ok(None);
        }
        if !usual.parent().is_some_and(Path::is_dir) {
            say("there is no /etc/slurm, so no line is there; once there is: `aimaster plugin on`");
            return Ok(None);
        }
        Ok(Some(usual.with_file_name("plugstack.conf")))
    }
}

/// Takes our line out; whether there was any for the plugin.
fn take_out(conf: &Path) -> Result<bool> {
    let said = lines::off(conf)?;
    said.iter().for_each(|text| say(text));
    Ok(!said.is_empty())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path)?;
    std::io::Read::read_to_end(&mut std::io::Read::take(file, MOST_PLUGIN_BYTES + 1), &mut bytes)?;
    if bytes.len() as u64 > MOST_PLUGIN_BYTES {
        bail!("it is longer than {} MiB", MOST_PLUGIN_BYTES >> 20);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn place(folder: &Path) -> Place {
        Place {
            helpers: folder.to_owned(),
            plugstack: Some(folder.join("plugstack.conf")),
            slurm: Some("24.11.5".to_owned()),
        }
    }

    /// A library with the constant, as small as cargo's compiler makes one.
    fn plugin(folder: &Path) {
        let source = folder.join("plugin.rs");
        let code = "#![no_std]\n#[no_mangle] pub static plugin_version: u32 = 0;\n\
                    #[panic_handler] fn p(_: &core::panic::PanicInfo) -> ! { loop {} }";
        fs::write(&source, code).unwrap();
        let options = ["--edition=2021", "--crate-type=cdylib", "-Cpanic=abort", "-Awarnings", "-o"];
        let mut rustc = std::process::Command::new("rustc");
        assert!(rustc.args(options).args([&folder.join(UNSTAMPED), &source]).status().unwrap().success());
    }

    // A19.
    #[test]
    fn a_package_comes_and_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let run = |command: Command| run(&command).map(drop).map_err(|error| format!("{error:#}"));
        fs::write(path("plugstack.conf"), "optional site.so\n").unwrap();
        let error = run(Command::Configure(place(folder.path()))).unwrap_err();
        assert!(error.contains(UNSTAMPED), "{error}");
        // No line comes before its file.
        assert_eq!(fs::read_to_string(path("plugstack.conf")).unwrap(), "optional site.so\n");
        plugin(folder.path());

        run(Command::Configure(place(folder.path()))).unwrap();
        let stamped = || stamp::stamped(&fs::read(path(PLUGIN)).unwrap()).unwrap();
        assert_eq!(stamped(), 0x18_0b_05);
        assert_eq!(fs::metadata(path(PLUGIN)).unwrap().permissions().mode() & 0o7777, 0o644);
        let with_line = fs::read_to_string(path("plugstack.conf")).unwrap();
        assert!(with_line.starts_with("optional site.so\n") && with_line.contains(PLUGIN), "{with_line}");
        assert_eq!(stamp::stamped(&fs::read(path(UNSTAMPED)).unwrap()).unwrap(), 0, "the package's own");

        // Again, for another release, after the site has switched it off: the line stays out.
        run(Command::Off(place(folder.path()))).unwrap();
        let other = Place { slurm: Some("25.05.0".to_owned()), ..place(folder.path()) };
        run(Command::Configure(other)).unwrap();
        assert_eq!(stamped(), 0x19_05_00);
        assert_eq!(fs::read_to_string(path("plugstack.conf")).unwrap(), "optional site.so\n");

        run(Command::On(place(folder.path()))).unwrap();
        assert_eq!(fs::read_to_string(path("plugstack.conf")).unwrap(), with_line);
        run(Command::Unconfigure(place(folder.path()))).unwrap();
        run(Command::Unconfigure(place(folder.path()))).unwrap();
        assert_eq!(fs::read_to_string(path("plugstack.conf")).unwrap(), "optional site.so\n");
        assert!(!path(PLUGIN).exists() && path(UNSTAMPED).exists());
        nothing_is_left_half_written(folder.path());
    }

    #[test]
    fn an_upgrade_without_a_slurm_that_is_found_keeps_the_release_that_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        plugin(folder.path());
        let named = place(folder.path());
        let unnamed = Place { slurm: None, ..place(folder.path()) };
        let nothing = || Err(anyhow::anyhow!("Slurm is not installed"));
        // The first time there is none to keep.
        unnamed.configure(nothing()).unwrap();
        assert!(!path(PLUGIN).exists() && !path("plugstack.conf").exists());
        run(&Command::On(named)).unwrap();
        let before = fs::read(path(PLUGIN)).unwrap();

        // The new version's file differs.
        let mut newer = fs::read(path(UNSTAMPED)).unwrap();
        newer.push(0);
        fs::write(path(UNSTAMPED), &newer).unwrap();
        unnamed.configure(nothing()).unwrap();
        let after = fs::read(path(PLUGIN)).unwrap();
        assert_eq!(stamp::stamped(&after).unwrap(), 0x18_0b_05);
        assert_eq!(after.len(), before.len() + 1);
        // What is no plugin says no release, and a package does not fail for it.
        fs::write(path(PLUGIN), "text").unwrap();
        unnamed.configure(nothing()).unwrap();
        assert_eq!(fs::read_to_string(path(PLUGIN)).unwrap(), "text");
    }

    #[test]
    fn a_plugin_that_a_site_s_line_requires_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        plugin(folder.path());
        let line = |kind: &str| {
            fs::write(path("plugstack.conf"), format!("{kind} {}\n", path(PLUGIN).display())).unwrap();
        };
        for (kind, stays) in [("required", true), ("optional", false)] {
            line(kind);
            run(&Command::Configure(place(folder.path()))).unwrap();
            run(&Command::Unconfigure(place(folder.path()))).unwrap();
            assert_eq!(path(PLUGIN).exists(), stays, "{kind}");
            assert!(fs::read_to_string(path("plugstack.conf")).unwrap().starts_with(kind), "{kind}");
        }
    }

    fn nothing_is_left_half_written(folder: &Path) {
        assert!(
            fs::read_dir(folder)
                .unwrap()
                .all(|one| { !one.unwrap().file_name().to_string_lossy().ends_with(".new") })
        );
    }
}
