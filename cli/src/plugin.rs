//! `aimaster plugin`: puts the plugin that a package brought in place. Slurm loads a plugin only with the number of its own
//! release in it, and no package knows that number: so the package brings one without it, and this makes the one that Slurm
//! loads, beside it, and sees to the line in plugstack.conf (`lines.rs`). Packages call it when they are installed, when
//! Slurm is upgraded and before they are removed.

mod lines;
mod release;

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cluster::slurm::config::{SlurmConf, USUAL_PLACES};
use cluster::slurm::stamp;
use diag::doctor::facts::Release;
use diag::plugstack::{HELPERS, PLUGIN};

use crate::doctor::plugstack::MOST_PLUGIN_BYTES;

/// What a package brings: the plugin with no release in it.
const UNSTAMPED: &str = "spank_aimaster.so.unstamped";

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
        Command::Off(place) => drop(place.off()?),
        Command::Configure(place) => match release::find(place.slurm.as_deref()) {
            Ok(release) => {
                // A site that has switched it off wants it to stay so after an upgrade.
                let first = !place.plugin().exists();
                place.stamp(release)?;
                // Without its line it is not there yet: the next call tries again.
                if first && let Err(error) = place.on() {
                    let _ = fs::remove_file(place.plugin());
                    return Err(error);
                }
            }
            Err(error) => say(&format!(
                "{error:#}; then: `aimaster plugin on`, with --slurm RELEASE where it can't be told"
            )),
        },
        Command::Unconfigure(place) => {
            if place.off()? {
                // Who has read the line finds the file.
                std::thread::sleep(GRACE);
            }
            match fs::remove_file(place.plugin()) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(error).with_context(|| format!("can't remove {}", place.plugin().display()))?;
                }
                _ => {}
            }
        }
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
        put(&to, &bytes, 0o644, None)?;
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

    fn on(&self) -> Result<()> {
        let Some(conf) = self.conf()? else { return Ok(()) };
        say(&lines::on(&conf, &self.plugin())?);
        Ok(())
    }

    /// Whether there was a line to take out.
    fn off(&self) -> Result<bool> {
        let Some(conf) = self.conf()? else { return Ok(false) };
        let said = lines::off(&conf)?;
        said.iter().for_each(|text| say(text));
        Ok(!said.is_empty())
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

fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path)?;
    std::io::Read::read_to_end(&mut std::io::Read::take(file, MOST_PLUGIN_BYTES + 1), &mut bytes)?;
    if bytes.len() as u64 > MOST_PLUGIN_BYTES {
        bail!("it is longer than {} MiB", MOST_PLUGIN_BYTES >> 20);
    }
    Ok(bytes)
}

/// Puts a file in another's place by a rename: whoever reads or has mapped the old one keeps it whole.
fn put(to: &Path, bytes: &[u8], mode: u32, owner: Option<(u32, u32)>) -> Result<()> {
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    // A name with a dot: no pattern of an include fits it. One that a crash left is taken away.
    // On storage that machines share each has its own.
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let fresh = to.with_file_name(format!(".{name}.{host}.new"));
    let whole = || -> std::io::Result<()> {
        let _ = fs::remove_file(&fresh);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(bytes)?;
        if let Some((user, group)) = owner {
            fchown(&file, Some(user), Some(group))?;
        }
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&fresh, to)
    };
    let written = whole();
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written.with_context(|| format!("can't write {}", to.display()))
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn a_package_comes_and_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let run = |command: Command| run(&command).map(drop).map_err(|error| format!("{error:#}"));
        fs::write(path("plugstack.conf"), "optional site.so\n").unwrap();
        let error = run(Command::Configure(place(folder.path()))).unwrap_err();
        assert!(error.contains(UNSTAMPED), "{error}");
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
        assert!(
            fs::read_dir(folder.path())
                .unwrap()
                .all(|one| { !one.unwrap().file_name().to_string_lossy().ends_with(".new") })
        );
    }
}
