//! Programs of the system, asked for what they know: by absolute path, with an empty environment, bounded in time and output.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::time::timeout;

/// How long one may take: each reads a file or asks a socket of this machine.
const WITHIN: Duration = Duration::from_secs(5);

/// Most that one may print: the list of all libraries of a machine has some hundred KB.
const MOST_BYTES: u64 = 4 << 20;

/// What it prints.
///
/// # Errors
/// It does not start, fails, or takes too long.
pub async fn said(program: &Path, arguments: &[&str], slurm_conf: Option<&PathBuf>) -> Result<String> {
    let shown = program.display();
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("LC_ALL", "C").kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    if let Some(conf) = slurm_conf {
        command.env("SLURM_CONF", conf);
    }
    let mut child = command.spawn().with_context(|| format!("can't run {shown}"))?;
    let out = child.stdout.take().context("it has no output")?;
    let mut text = String::new();
    let ended = timeout(WITHIN, async {
        out.take(MOST_BYTES).read_to_string(&mut text).await?;
        child.wait().await
    });
    let status = ended.await.with_context(|| format!("{shown} did not end within {WITHIN:?}"))??;
    if !status.success() {
        bail!("{shown} ended with {status}");
    }
    Ok(text)
}
