//! What Slurm says: slurmctld's settings, or slurm.conf's where it does not answer; its nodes; the site's Prolog.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cluster::slurm::config::{self, SlurmConf};
use cluster::slurm::scontrol::Scontrol;
use diag::action::drains::Picture;
use diag::doctor::facts::{Is, Release, SiteProlog, Slurm};
use diag::policy::Policy;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use tokio::time::Instant;

use super::entries;
use crate::{command, files, pattern};

/// How long all calls to Slurm may take together.
const CALLS: Duration = Duration::from_secs(20);

/// What stands before the controller's time.
const AS_OF: &str = "Configuration data as of ";

/// This software's helper, in a script of the site's.
const HELPER: &str = "aimaster-prolog";

/// Largest script that is searched for it.
const MOST_SCRIPT_BYTES: u64 = 1 << 20;

/// Slurm on this machine.
pub struct Asked {
    /// For the rules.
    pub slurm: Slurm,
    /// All nodes, where the controller answered.
    pub picture: Option<Picture>,
    /// slurm.conf, where it can be read.
    pub conf: Option<SlurmConf>,
    /// Its file.
    pub conf_file: Option<PathBuf>,
    /// To ask more.
    pub scontrol: Scontrol,
}

/// Asks it.
pub async fn ask(policy: &Policy) -> Asked {
    let named = std::env::var_os("SLURM_CONF").map(PathBuf::from);
    let conf_file = config::locate(named.as_deref()).ok();
    let conf = conf_file.as_deref().and_then(|path| SlurmConf::read(path).ok());
    let paths = &policy.paths;
    let call = Duration::from_secs(policy.time.scontrol_s.into());
    let scontrol = Scontrol::new(paths.scontrol.clone(), paths.scancel.clone(), named.clone(), call);
    let programs = [
        paths.scontrol.clone(),
        paths.scancel.clone(),
        paths.scontrol.with_file_name("squeue"),
        paths.scontrol.with_file_name("sinfo"),
    ];
    let mut slurm =
        Slurm { programs: programs.iter().map(|path| entries::look(path)).collect(), ..Slurm::default() };
    let version = command::said(&paths.scontrol, &["--version"], named.as_ref()).await;
    slurm.release = version.ok().and_then(|text| Release::parse(text.trim()));
    let deadline = Instant::now() + CALLS;
    let mut picture = None;
    match scontrol.settings(deadline).await {
        Ok(text) => {
            slurm.clock_ahead_s = ahead_s(&text);
            slurm.settings = settings(&text);
            picture = scontrol.picture(deadline).await.ok();
        }
        Err(error) => {
            slurm.silent = Some(cluster::chain(&error));
            let own = conf.iter().flat_map(SlurmConf::all);
            slurm.settings = own.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        }
    }
    slurm.prologs = prologs(&slurm.settings);
    Asked { slurm, picture, conf, conf_file, scontrol }
}

/// `Key = value` lines; keys in lower case.
fn settings(text: &str) -> BTreeMap<String, String> {
    let line = |line: &str| {
        let (key, value) = line.split_once('=')?;
        Some((key.trim().to_ascii_lowercase(), value.trim().to_owned()))
    };
    text.lines().filter_map(line).collect()
}

/// How far this machine's clock is ahead of the controller's, which wrote its time as UTC into the first line.
fn ahead_s(text: &str) -> Option<f64> {
    let at = text.lines().find_map(|line| line.strip_prefix(AS_OF))?;
    let civil: DateTime = at.trim().parse().ok()?;
    let controller = civil.to_zoned(TimeZone::UTC).ok()?.timestamp();
    Some(Timestamp::now().duration_since(controller).as_secs_f64())
}

/// The site's Prolog: `Prolog = a,b`, or `Prolog[0] = a` and so on.
fn prologs(settings: &BTreeMap<String, String>) -> Vec<SiteProlog> {
    let of = settings.iter().filter(|(key, _)| *key == "prolog" || key.starts_with("prolog["));
    let patterns = of.flat_map(|(_, value)| value.split(',')).map(str::trim);
    patterns.filter(|pattern| !matches!(*pattern, "" | "(null)")).map(prolog).collect()
}

fn prolog(pattern: &str) -> SiteProlog {
    let found = pattern::files(Path::new(pattern));
    let mut calls_us = false;
    let files = found.iter().map(|path| {
        let mut entry = entries::look(path);
        match files::text(path, MOST_SCRIPT_BYTES) {
            Ok(text) => calls_us |= text.contains(HELPER),
            // A program, or one that only root may read.
            Err(_) if !rustix::process::geteuid().is_root() => entry.is = Is::Hidden,
            Err(_) => {}
        }
        entry
    });
    SiteProlog { pattern: pattern.to_owned(), files: files.collect(), calls_us }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_scontrol_prints_is_read() {
        let now = Timestamp::now().to_zoned(TimeZone::UTC).datetime();
        let text = format!(
            "Configuration data as of {}\nAuthInfo                = cred_expire=5,socket=/x\nProlog[0]  = /no/such/*\n\
             PrologFlags = Alloc\n\nCgroup Support Configuration:\nCgroupPlugin            = (null)\n",
            now.strftime("%Y-%m-%dT%H:%M:%S")
        );
        let settings = settings(&text);
        assert_eq!(settings["authinfo"], "cred_expire=5,socket=/x");
        assert_eq!(settings["cgroupplugin"], "(null)");
        assert!(ahead_s(&text).unwrap().abs() < 60.0);
        let found = prologs(&settings);
        assert_eq!((found.len(), found[0].pattern.as_str(), found[0].files.len()), (1, "/no/such/*", 0));
    }

    #[test]
    fn a_script_that_calls_the_helper_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("00-aimaster");
        std::fs::write(&path, "#!/bin/sh\nexec /usr/libexec/aimaster/aimaster-prolog\n").unwrap();
        assert!(prolog(path.to_str().unwrap()).calls_us);
        std::fs::write(&path, "#!/bin/sh\nexit 0\n").unwrap();
        let other = prolog(folder.path().join("*").to_str().unwrap());
        assert!(!other.calls_us && other.files.len() == 1);
    }
}
