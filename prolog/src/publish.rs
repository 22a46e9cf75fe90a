//! Where a report goes: `<report_dir>/<cluster>/<job>/<check_number>/report.json`, readable by root and the job's
//! group.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use diag::report::Report;

/// Name of the report's file.
pub const REPORT_FILE: &str = "report.json";

/// Writes the report, whole or not at all, and says where it is.
///
/// # Errors
/// If the folder or the file can't be written.
pub fn report(report_dir: &Path, report: &Report, group: Option<u32>) -> io::Result<PathBuf> {
    let folder = report_dir
        .join(&report.cluster)
        .join(report.job_id.to_string())
        .join(report.check_number.to_string());
    fs::create_dir_all(&folder)?;
    // The way in is open, the file itself is not.
    for folder in folder.ancestors().take_while(|folder| folder.starts_with(report_dir)) {
        fs::set_permissions(folder, Permissions::from_mode(0o755))?;
    }
    let fresh = folder.join("report.new");
    let mut text = serde_json::to_vec_pretty(report)?;
    text.push(b'\n');
    fs::write(&fresh, text)?;
    chown(&fresh, None, group)?;
    fs::set_permissions(&fresh, Permissions::from_mode(0o640))?;
    let path = folder.join(REPORT_FILE);
    fs::rename(&fresh, &path)?;
    Ok(path)
}
