//! A worker that not even SIGKILL ends, as one does that waits inside a driver: it is left behind and named, and nobody waits
//! for it (field case E01); and the prolog's helper itself, where the disk of its history hangs. The state is real: it waits for
//! a file system that was asked and does not answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails panics")]

mod support;

use std::ffi::CString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prolog::protocol::Look;
use prolog::worker_client::{Worker, WorkerError};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use support::{KEY, PATIENCE, alive, gone, options, program, run};
use tempfile::TempDir;

/// The first request of FUSE, which has to be answered before others come.
const INIT: u32 = 26;

/// The interface that the answer speaks: 7.31, whose answer has 64 bytes.
const VERSION: [u32; 2] = [7, 31];

/// A folder of a file system whose server takes requests and answers none.
struct Silent {
    folder: TempDir,
    asked: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Silent {
    /// `None`, with a word, where this can't be mounted.
    fn mount() -> Option<Self> {
        Self::mount_below(&std::env::temp_dir())
    }

    fn mount_below(parent: &Path) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root to mount a file system");
            return None;
        }
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let folder = tempfile::Builder::new().prefix("aimaster-").tempdir_in(parent).unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let place = folder.path().join("silent");
        std::fs::create_dir(&place).unwrap();
        let fd = device.as_raw_fd();
        let data = format!("fd={fd},rootmode=40755,user_id=0,group_id=0,allow_other");
        let data = CString::new(data).unwrap();
        mount("silent", &place, "fuse", MountFlags::NOSUID | MountFlags::NODEV, data.as_c_str()).unwrap();
        let asked = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&asked);
        let server = Some(std::thread::spawn(move || serve(device, &seen)));
        Some(Self { folder, asked, server })
    }

    /// Waits until somebody waits for an answer.
    fn wait(&self) {
        let asked = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            self.asked.load(Ordering::Relaxed)
        });
        assert!(asked, "nobody asked");
    }

    fn place(&self) -> PathBuf {
        self.folder.path().join("silent")
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // Ends all waits for it with an error.
        let _ = unmount(self.place(), UnmountFlags::FORCE | UnmountFlags::DETACH);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

/// Takes requests until the file system is gone.
fn serve(mut device: File, asked: &AtomicBool) {
    let mut request = vec![0; 1 << 20];
    while let Ok(count @ 16..) = device.read(&mut request) {
        let opcode = u32::from_ne_bytes(request[4..8].try_into().unwrap());
        if opcode != INIT {
            asked.store(count > 0, Ordering::Relaxed);
            continue;
        }
        // Length, no error, and the request's own number; then the version, and room that nobody uses.
        let mut answer = Vec::new();
        answer.extend(80_u32.to_ne_bytes());
        answer.extend(0_i32.to_ne_bytes());
        answer.extend(&request[8..16]);
        answer.extend(VERSION.into_iter().flat_map(u32::to_ne_bytes));
        answer.resize(80, 0);
        // The largest write.
        answer[36..40].copy_from_slice(&4096_u32.to_ne_bytes());
        device.write_all(&answer).unwrap();
    }
}

fn is_left_behind(error: &WorkerError, expected: u32) {
    assert!(
        matches!(error, WorkerError::StillThere { pid, state: 'D' } if pid.cast_unsigned() == expected),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(text.contains(&format!("pid {expected}, state D")) && text.contains("left behind"), "{text}");
}

#[test]
fn a_worker_that_can_t_be_killed_is_named_and_has_no_successor() {
    let Some(silent) = Silent::mount() else { return };
    run(async {
        let (text, path) = (silent.folder.path().join("text"), silent.folder.path().join("worker"));
        let script = format!("#!/bin/sh\nexec cat {}/file\n", silent.place().display());
        std::fs::write(&text, script).unwrap();
        assert!(Command::new("install").arg(&text).arg(&path).status().unwrap().success());
        let mut worker = Worker::spawn(&path, options(1)).unwrap();
        let pid = worker.pid().unwrap();
        silent.wait();
        let error = worker.hello(Duration::from_millis(200)).await.unwrap_err();
        assert!(matches!(error, WorkerError::Timeout { .. }), "{error:?}");
        is_left_behind(&worker.join(0, KEY, PATIENCE).await.unwrap_err(), pid);
        assert!(alive(pid) && worker.pid().is_none());
        // Its ports and its GPUs are taken: nobody waits for it again, and no other is started.
        let begun = Instant::now();
        is_left_behind(&worker.join(0, KEY, PATIENCE).await.unwrap_err(), pid);
        assert!(begun.elapsed() < Duration::from_secs(1) && worker.pid().is_none());
        is_left_behind(&worker.stop().await.unwrap_err(), pid);
        drop(silent);
        assert!(gone(pid));
    });
}

#[test]
fn a_worker_with_a_thread_inside_the_kernel_is_told_of_by_that_thread_and_not_waited_for() {
    let Some(silent) = Silent::mount() else { return };
    run(async {
        let mut worker = Worker::spawn(&program(), options(1)).unwrap();
        worker.hello(PATIENCE).await.unwrap();
        let pid = worker.pid().unwrap();
        // What is below /sys and /proc is read by a thread of its own.
        let look = Look {
            gpus: Vec::new(),
            nvml: silent.folder.path().join("none"),
            root: silent.place(),
            gpu_free_bytes: 0,
            limit_ms: 700,
        };
        worker.look(look).unwrap();
        let reading = worker.looked(PATIENCE).await.unwrap();
        assert!(reading.trouble.iter().any(|line| line.contains("can't be read within")), "{reading:?}");
        let begun = Instant::now();
        is_left_behind(&worker.stop().await.unwrap_err(), pid);
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        drop(silent);
        assert!(gone(pid));
    });
}

/// The job of the helper below, whose folder stands where every job's does.
const CLUSTER: &str = "unkillable";

/// The prolog's helper, as the plugin starts it, for a job whose node keeps its history in `state`. The nodes can't meet: there
/// is no munge. That is an error of this software, and so the job starts.
fn helper(files: &Path, state: &Path) -> Child {
    let (policy, conf) = (files.join("policy.toml"), files.join("slurm.conf"));
    let text = format!(
        "engine = 'host'\nchecks.always = ['gemm_flops']\npaths.state_dir = '{}'\npaths.libmunge = '/nonexistent/libmunge.so'\n",
        state.display()
    );
    std::fs::write(&policy, text).unwrap();
    let text = format!("ClusterName={CLUSTER}\nSlurmctldHost=n1\nNodeName=n1 NodeAddr=127.0.0.1\n");
    std::fs::write(&conf, text).unwrap();
    let variables = [
        ("SLURM_JOB_ID", "7"),
        ("SLURM_JOB_UID", "0"),
        ("SLURM_JOB_GID", "0"),
        ("SLURM_CLUSTER_NAME", CLUSTER),
        ("SLURMD_NODENAME", "n1"),
        ("SLURM_NODELIST", "n1"),
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_aimaster-prolog"));
    command.arg("--policy").arg(policy).env_clear().envs(variables).env("SLURM_CONF", conf);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Removes the run folder of [`CLUSTER`], also where a test fails.
struct Tidy;

impl Drop for Tidy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(Path::new(diag::gate::RUN_ROOT).join(CLUSTER));
    }
}

#[test]
fn a_store_that_hangs_keeps_the_helper_from_ending_and_not_the_job_from_starting() {
    // Below a folder that nobody else can change: another one is not even looked into.
    let Some(silent) = Silent::mount_below(Path::new("/var/lib")) else { return };
    let (_tidy, files) = (Tidy, tempfile::tempdir().unwrap());
    let mut helper = helper(files.path(), &silent.place().join("state"));
    let (say, said) = mpsc::channel();
    let output = BufReader::new(helper.stdout.take().unwrap());
    let reader = std::thread::spawn(move || {
        output.lines().map_while(Result::ok).for_each(|line| say.send(line).unwrap())
    });
    silent.wait();
    let line = || said.recv_timeout(PATIENCE).unwrap();
    let (deadline, done) = (line(), line());
    assert!(deadline.starts_with("deadline_ms "), "{deadline}");
    assert_eq!(done, "done");
    let gate = Path::new(diag::gate::RUN_ROOT).join(CLUSTER).join("n1/7.0").join(diag::gate::FILE_NAME);
    let gate: diag::gate::Gate = serde_json::from_slice(&std::fs::read(gate).unwrap()).unwrap();
    assert!(gate.start, "{gate:?}");
    // What the plugin then sees: not even SIGKILL ends it.
    helper.kill().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(helper.try_wait().unwrap().is_none());
    drop(silent);
    let ended = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        helper.try_wait().unwrap().is_some()
    });
    assert!(ended && reader.join().is_ok());
}
