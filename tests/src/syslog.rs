//! A node's system log: the socket behind its `/dev/log`, and a thread that writes every message
//! to `<base>/log/syslog.<node>`. It keeps messages as they come and parses nothing.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};

/// Longest message kept; what is longer is cut, as syslogd does.
const LONGEST: usize = 64 * 1024;

/// Ends the thread; no log message is empty.
const END: &[u8] = b"";

/// The collector of one node.
#[derive(Debug)]
pub(crate) struct Syslog {
    socket: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Syslog {
    /// Binds `socket` (seen in the node as `/dev/log`) and appends its messages to `file`.
    pub(crate) fn start(socket: &Path, file: &Path) -> Result<Self> {
        let _ = fs::remove_file(socket);
        let from = UnixDatagram::bind(socket).with_context(|| format!("cannot bind {}", socket.display()))?;
        fs::set_permissions(socket, Permissions::from_mode(0o666)).context("mode of the log socket")?;
        let to = OpenOptions::new()
            .create(true)
            .append(true)
            .open(file)
            .with_context(|| format!("cannot open {}", file.display()))?;
        let thread = thread::spawn(move || collect(&from, to));
        Ok(Self { socket: socket.to_owned(), thread: Some(thread) })
    }
}

impl Drop for Syslog {
    fn drop(&mut self) {
        let sent = UnixDatagram::unbound().and_then(|s| s.send_to(END, &self.socket));
        // Joining is safe only if the message to end was sent; else the thread is left to itself.
        if let (Ok(_), Some(thread)) = (sent, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn collect(from: &UnixDatagram, mut to: File) {
    let mut buffer = vec![0; LONGEST];
    while let Ok(length) = from.recv(&mut buffer) {
        if length == 0 {
            return;
        }
        let text = String::from_utf8_lossy(&buffer[..length]);
        let line = text.trim_end_matches(['\n', '\0']).replace('\n', " ");
        let _ = writeln!(to, "{line}");
    }
}
