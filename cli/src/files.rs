//! Where the reports of a job lie, and what stands in them. The folder may be one that others write in: what is read is a
//! plain file and no link, and no more of it than a report can have.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cluster::report_file::REPORT_FILE;
use diag::plain::is_plain;
use diag::report::Report;
use diag::runtime_report::{FILE_NAME, MOST_BYTES, RuntimeReport};
use rustix::fs::OFlags;

use crate::report::Arguments;

/// Longest report that is read: some thousand nodes of 8 GPUs.
pub const MOST_REPORT_BYTES: u64 = 256 << 20;

/// Most runtime reports of a check that are read: those of nodes that found something.
const MOST_RUNTIME: usize = 256;

/// What a job's check left.
#[derive(Debug, Default)]
pub struct Found {
    /// The report of the checks before the start, and its text.
    pub report: Option<(Report, String)>,
    /// What the agents said while it ran: of the job's first node first.
    pub runtime: Vec<RuntimeReport>,
    /// What lies there and can't be read.
    pub troubles: Vec<String>,
}

/// Reads what a check left in its folder.
///
/// # Errors
/// There is nothing, or the report can't be read.
pub fn read(folder: &Path) -> Result<Found> {
    let mut found = Found::default();
    let path = folder.join(REPORT_FILE);
    let others = runtime_files(folder)?;
    if path.exists() || others.is_empty() {
        let text = text(&path, MOST_REPORT_BYTES).with_context(|| {
            format!("can't read {}; a report is readable by its owner and the job's group", path.display())
        })?;
        let report =
            serde_json::from_str(&text).with_context(|| format!("{} is no report", path.display()))?;
        found.report = Some((report, text));
    }
    for path in others {
        match runtime(&path) {
            Ok(one) => found.runtime.push(one),
            Err(error) => found.troubles.push(format!("{error:#}")),
        }
    }
    if found.report.is_none() && found.runtime.is_empty() {
        bail!("{}", found.troubles.join("; "));
    }
    Ok(found)
}

/// One runtime report.
///
/// # Errors
/// It can't be read, or is none.
pub fn runtime(path: &Path) -> Result<RuntimeReport> {
    let text = text(path, MOST_BYTES).with_context(|| format!("can't read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no runtime report", path.display()))
}

/// `runtime.json`, then `runtime.<node>.json`.
fn runtime_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut names = names(folder)?;
    names.retain(|name| name == FILE_NAME || (name.starts_with("runtime.") && name.ends_with(".json")));
    names.sort_by_key(|name| (name != FILE_NAME, name.clone()));
    names.truncate(MOST_RUNTIME);
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

/// A report, and the user that owns its file.
///
/// # Errors
/// It can't be read, or is none.
pub fn owned_report(path: &Path) -> Result<(Report, u32)> {
    let (text, owner) =
        owned_text(path, MOST_REPORT_BYTES).with_context(|| format!("can't read {}", path.display()))?;
    let report = serde_json::from_str(&text).with_context(|| format!("{} is no report", path.display()))?;
    Ok((report, owner))
}

/// The text of a plain file of at most so many bytes.
///
/// # Errors
/// It is no such file, or can't be read.
pub fn text(path: &Path, most: u64) -> Result<String> {
    Ok(owned_text(path, most)?.0)
}

/// The same of a file of somebody else's, in whatever letters he writes.
///
/// # Errors
/// It is no such file, or can't be read.
pub fn bytes(path: &Path, most: u64) -> Result<Vec<u8>> {
    Ok(owned_bytes(path, most)?.0)
}

fn owned_text(path: &Path, most: u64) -> Result<(String, u32)> {
    let (bytes, owner) = owned_bytes(path, most)?;
    Ok((String::from_utf8(bytes).context("it is no text in UTF-8")?, owner))
}

fn owned_bytes(path: &Path, most: u64) -> Result<(Vec<u8>, u32)> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file: File = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        bail!("it is no plain file");
    }
    let mut bytes = Vec::new();
    if file.take(most + 1).read_to_end(&mut bytes)? as u64 > most {
        bail!("it is longer than {} MiB", most >> 20);
    }
    Ok((bytes, metadata.uid()))
}

/// The folder of a check: of the wanted one, else of the last; of the only cluster that has it.
///
/// # Errors
/// There is none, or more than one cluster has it.
pub fn find(folder: &Path, arguments: &Arguments) -> Result<PathBuf> {
    let job = arguments.job_id.to_string();
    if !folder.is_dir() {
        bail!(
            "no report of job {job} here: {} does not exist on this machine; look on the job's first node, or let \
             paths.report_dir of the policy be on shared storage",
            folder.display()
        );
    }
    let clusters = match &arguments.cluster {
        Some(cluster) => vec![cluster.clone()],
        None => names(folder)?,
    };
    let found: Vec<PathBuf> =
        clusters.iter().map(|cluster| folder.join(cluster).join(&job)).filter(|path| path.is_dir()).collect();
    let job_folder = match found.as_slice() {
        [one] => one,
        [] => bail!(
            "no report of job {job} under {}{}; it is on the job's first node unless that folder is shared",
            folder.display(),
            arguments.cluster.as_ref().map_or_else(String::new, |cluster| format!(" for cluster {cluster}"))
        ),
        several => {
            let several: Vec<String> = several.iter().map(|path| path.display().to_string()).collect();
            bail!("several clusters have a job {job} ({}): name one with --cluster", several.join(", "))
        }
    };
    let checks: Vec<u32> = names(job_folder)?.iter().filter_map(|name| name.parse().ok()).collect();
    let check = match arguments.check {
        Some(check) if !checks.contains(&check) => {
            let known: Vec<String> = checks.iter().map(ToString::to_string).collect();
            bail!("job {job} has no check {check}; it has {}", known.join(", "))
        }
        Some(check) => check,
        None => *checks.iter().max().with_context(|| format!("{} holds no report", job_folder.display()))?,
    };
    Ok(job_folder.join(check.to_string()))
}

/// What lies in a folder, in order.
///
/// # Errors
/// It can't be read.
pub fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("can't read {}", folder.display()))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    // A name that could move the cursor is none of ours; users may make some there.
    let mut names: Vec<String> = names.filter(|name| name.chars().all(is_plain)).collect();
    names.sort();
    Ok(names)
}
