//! A munged of the bench's own: its key, its socket, its log in a folder that goes with it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// It starts in milliseconds.
const START: Duration = Duration::from_secs(10);

pub struct Munged {
    child: Child,
    folder: tempfile::TempDir,
}

impl Munged {
    /// Starts it as the user who runs this.
    pub fn start() -> Result<Self, String> {
        let path = std::env::var("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
        let program = folders.map(|folder| folder.join("munged")).find(|file| file.exists());
        let program = program.ok_or("no munged on the PATH or in /usr/sbin")?;
        let folder = tempfile::Builder::new()
            .permissions(PermissionsExt::from_mode(0o755))
            .tempdir()
            .map_err(|error| error.to_string())?;
        let place = |name: &str| folder.path().join(name);
        std::fs::write(place("key"), [5; 128]).unwrap();
        std::fs::set_permissions(place("key"), PermissionsExt::from_mode(0o600)).unwrap();
        let file = |option: &str, name: &str| format!("--{option}={}", place(name).display());
        let mut child = Command::new(program)
            .args(["--foreground", "--force"])
            .args([file("key-file", "key"), file("socket", "s"), file("pid-file", "pid")])
            .args([file("log-file", "log"), file("seed-file", "seed")])
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("munged does not start: {error}"))?;
        let begin = Instant::now();
        while !place("s").exists() {
            if begin.elapsed() > START || child.try_wait().is_ok_and(|ended| ended.is_some()) {
                let _ = child.kill();
                return Err("munged does not start".to_owned());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Self { child, folder })
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    /// Processor time of all its threads so far, in seconds.
    pub fn cpu_s(&self) -> f64 {
        let threads = Path::new("/proc").join(self.child.id().to_string()).join("task");
        let spent = |thread: std::fs::DirEntry| -> Option<f64> {
            let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<f64>().ok()
        };
        std::fs::read_dir(threads).unwrap().flatten().filter_map(spent).sum::<f64>() / 1e9
    }
}

impl Drop for Munged {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
