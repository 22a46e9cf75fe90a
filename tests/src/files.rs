//! Files in nodes: reading, writing, the policy, the system log, run folders, and folders that differ on one
//! node. Everything goes through the node's own view of its files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::fault::Fault;
use crate::install::NODE_DIR;
use crate::wait;

const POLICY_DIR: &str = "/etc/aimaster";

impl Cluster {
    /// The content of a file as a node sees it, invalid UTF-8 replaced.
    pub fn read_file(&self, node: &str, path: &str) -> Result<String> {
        let output = self.command(node, ["cat", "--", path]).run()?;
        if !output.success() {
            bail!("cannot read {path} on {node}: {}", output.stderr.trim());
        }
        Ok(output.stdout)
    }

    /// Writes a file in a node as root; missing folders are made.
    pub fn write_file(&self, node: &str, path: &str, content: &str) -> Result<()> {
        let script = "mkdir -p -- \"${0%/*}/\" && cat >\"$0\"";
        self.command(node, ["sh", "-c", script, path]).stdin(content).ok()?;
        Ok(())
    }

    /// Sets `/etc/aimaster/aimaster.toml` of all machines but those with a policy of their own.
    pub fn set_policy(&self, text: &str) -> Result<()> {
        write_whole(&self.base().join("etc/aimaster/aimaster.toml"), text)
    }

    /// Sets `/etc/aimaster/baselines/<engine>.toml` of all machines but those with a policy of their own: the limits that hold
    /// in place of those that ship.
    pub fn set_baselines(&self, engine: &str, text: &str) -> Result<()> {
        let folder = self.base().join("etc/aimaster/baselines");
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        write_whole(&folder.join(format!("{engine}.toml")), text)
    }

    /// Gives one node a policy of its own, until the fault is mended.
    pub fn set_node_policy(&self, node: &str, text: &str) -> Result<Fault<'_>> {
        let fault = self.own_folder(node, POLICY_DIR)?;
        write_whole(&self.own_path(node, POLICY_DIR)?.join("aimaster.toml"), text)?;
        Ok(fault)
    }

    /// Takes an installed program away from one node, until the fault is mended.
    pub fn remove_helper(&self, node: &str, name: &str) -> Result<Fault<'_>> {
        let fault = self.own_folder(node, NODE_DIR)?;
        let path = self.own_path(node, NODE_DIR)?.join(name);
        fs::remove_file(&path).with_context(|| format!("{name} is not installed on {node}"))?;
        Ok(fault)
    }

    /// Gives one node a copy of a folder in place of the shared one; [`Cluster::own_path`] says
    /// where the copy can be changed. A second call keeps the first copy.
    pub fn own_folder(&self, node: &str, path: &str) -> Result<Fault<'_>> {
        let copy = self.own_path(node, path)?;
        if !copy.exists() {
            fs::create_dir_all(&copy).with_context(|| format!("cannot create {}", copy.display()))?;
            let from = format!("{path}/.");
            self.command(node, ["cp", "-a", "--", &from, &copy.to_string_lossy()]).ok()?;
            self.mount_copy(node, &copy, path)?;
        }
        Ok(Fault::folder(self, node, path))
    }

    /// Where the node's own copy of a folder lies on this machine.
    pub fn own_path(&self, node: &str, path: &str) -> Result<PathBuf> {
        Ok(self.find(node)?.dir.join("own").join(path.trim_start_matches('/').replace('/', "+")))
    }

    pub(crate) fn restore_folder(&self, node: &str, path: &str) -> Result<()> {
        let copy = self.own_path(node, path)?;
        if !copy.exists() {
            return Ok(());
        }
        if self.find(node)?.is_up() {
            self.command(node, ["umount", "-l", path]).ok()?;
        }
        fs::remove_dir_all(&copy).with_context(|| format!("cannot remove {}", copy.display()))
    }

    /// Brings all shared folders back on a node.
    pub(crate) fn restore_folders(&self, node: &str) -> Result<()> {
        self.copies(node)?.iter().try_for_each(|(_, path)| self.restore_folder(node, path))
    }

    /// Shows a node that was started anew its own copies again.
    pub(crate) fn remount_folders(&self, node: &str) -> Result<()> {
        self.copies(node)?.iter().try_for_each(|(copy, path)| self.mount_copy(node, copy, path))
    }

    fn mount_copy(&self, node: &str, copy: &Path, path: &str) -> Result<()> {
        self.command(node, ["mount", "--bind", &copy.to_string_lossy(), path]).ok().map(drop)
    }

    /// The folders that a node has of its own: the copy, and where the node sees it.
    fn copies(&self, node: &str) -> Result<Vec<(PathBuf, String)>> {
        let Ok(entries) = fs::read_dir(self.find(node)?.dir.join("own")) else { return Ok(Vec::new()) };
        let path = |name: &std::ffi::OsStr| format!("/{}", name.to_string_lossy().replace('+', "/"));
        Ok(entries.flatten().map(|e| (e.path(), path(&e.file_name()))).collect())
    }

    /// The run folders on a node, as this machine sees them.
    ///
    /// # Errors
    /// There is no such node.
    pub fn run_folders(&self, node: &str) -> Result<Vec<PathBuf>> {
        let folder = self.find(node)?.run_file(&format!("aimaster/aim/{node}"));
        Ok(fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect())
    }

    /// Moves the begin of all runs that have a folder on a node back by two hours: no test waits for so long.
    ///
    /// # Errors
    /// A run does not say when it began.
    pub fn age_runs(&self, node: &str) -> Result<()> {
        for folder in self.run_folders(node)? {
            let path = folder.join("run.json");
            let text = match fs::read_to_string(&path) {
                // Its epilog came meanwhile.
                Err(_) if !folder.exists() => continue,
                text => text.with_context(|| format!("cannot read {}", path.display()))?,
            };
            let mut run: Value = serde_json::from_str(&text).context("run.json")?;
            let uptime = run["uptime_s"].as_i64().context("run.json has no uptime_s")?;
            run["uptime_s"] = (uptime - 7200).into();
            write_whole(&path, &run.to_string())?;
        }
        Ok(())
    }

    /// What a node wrote to its system log so far, one message a line.
    pub fn syslog(&self, node: &str) -> String {
        fs::read_to_string(self.log_file(&format!("syslog.{node}"))).unwrap_or_default()
    }

    /// Waits for a message in a node's system log.
    pub fn wait_syslog(
        &self,
        node: &str,
        matches: impl Fn(&str) -> bool,
        timeout: Duration,
    ) -> Result<String> {
        wait::until(timeout, format!("a message in the system log of {node}"), || {
            Ok(self.syslog(node).lines().find(|l| matches(l)).map(str::to_owned))
        })
    }
}

/// Replaces a file in one step: whoever reads it sees the old or the new text.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, text).with_context(|| format!("cannot write {}", new.display()))?;
    fs::rename(&new, path).with_context(|| format!("cannot write {}", path.display()))
}

/// Copies a program with the rights of an installed one.
pub(crate) fn install_file(from: &Path, to: &Path) -> Result<()> {
    let output = Command::new("install")
        .args(["-o", "root", "-g", "root", "-m", "755", "--"])
        .args([from, to])
        .output()
        .context("cannot run install")?;
    if !output.status.success() {
        bail!("cannot install {}: {}", from.display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
