//! For the tests of real worker processes: a program that its user may run, ports of its own for each test, and
//! a runtime with a deadline.
#![allow(dead_code, reason = "each test file uses its part")]

use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use prolog::protocol::DataKey;
use prolog::worker_client::{Options, Worker};

/// The key of every suite here.
pub const KEY: DataKey = DataKey([5; 32]);

/// More than any bounded step takes.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A copy of the worker in a folder that its unprivileged user can reach; the build folder may be closed.
static PROGRAM: LazyLock<(tempfile::TempDir, PathBuf)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = folder.path().join("aimaster-worker");
    // A process of its own copies: a test that forks meanwhile would hold the file open for writing.
    let copy = Command::new("cp").arg(env!("CARGO_BIN_EXE_aimaster-worker")).arg(&program).status();
    assert!(copy.unwrap().success());
    (folder, program)
});

static NEXT_PORT: AtomicU16 = AtomicU16::new(0);

/// Path of the worker.
pub fn program() -> PathBuf {
    PROGRAM.1.clone()
}

/// Options with a range of ports that no other test of this process uses.
pub fn options(ranks: u32) -> Options {
    // Test programs run at the same time as others of this kind: spread them by pid.
    let base = 20_000 + u16::try_from(std::process::id() % 300).unwrap() * 40;
    let port_first = base + NEXT_PORT.fetch_add(16, Ordering::Relaxed);
    Options {
        user: String::new(),
        ranks,
        port_first,
        port_last: port_first + 15,
        job_id: 7,
        devices: None,
        environment: Vec::new(),
    }
}

/// A worker of node `node` that has joined.
pub async fn joined(node: u32, ranks: u32) -> (Worker, Vec<u16>) {
    let mut worker = Worker::spawn(&program(), options(ranks)).unwrap();
    let ports = worker.hello(PATIENCE).await.unwrap().to_vec();
    worker.join(node, KEY, PATIENCE).await.unwrap();
    (worker, ports)
}

/// Runs a test in the coordinator's kind of runtime, for a minute at most.
pub fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limit = Duration::from_secs(60);
    runtime.block_on(async { tokio::time::timeout(limit, test).await }).expect("the test hangs");
}

/// Whether there is a process with this pid that is not a zombie.
pub fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
}

/// Waits until a process is gone; false if it is still there.
pub fn gone(pid: u32) -> bool {
    (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        !alive(pid)
    })
}
