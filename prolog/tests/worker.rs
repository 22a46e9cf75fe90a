//! Contracts of the worker process: what it may do, when it ends, and that the next call always works.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails panics")]

mod support;

use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use prolog::protocol::{Reply, Request};
use prolog::worker_client::{Options, Worker, WorkerError};
use rustix::process::{Pid, Signal, kill_process};
use support::{KEY, PATIENCE, alive, gone, joined, options, program, run};

const LONG: Request = Request::Product { window_ms: 30_000, limit_ms: 30_000, ranks: 1 };
const SHORT: Request = Request::Product { window_ms: 20, limit_ms: 5_000, ranks: 1 };

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

async fn works(worker: &mut Worker) {
    let reply = worker.call(SHORT, PATIENCE).await.unwrap();
    let Reply::Product(products) = reply else { panic!("{reply:?}") };
    assert!(products.products > 0);
    assert_eq!(products.right, 1.0);
}

// N09.
#[test]
fn it_runs_without_rights_environment_and_outside_folders() {
    // One that is not closed on exec, as a shell or a container may leave it.
    let (left_open, _other) = rustix::pipe::pipe().unwrap();
    let left_open = std::fs::read_link(format!("/proc/self/fd/{}", left_open.as_raw_fd())).unwrap();
    run(async {
        let (worker, ports) = joined(0, 2).await;
        assert_eq!(ports.len(), 2);
        let pid = worker.pid().unwrap();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(field("NoNewPrivs:"), ["1"]);
        assert_eq!(field("Umask:"), ["0077"]);
        if rustix::process::geteuid().is_root() {
            assert!(field("Uid:").iter().all(|uid| uid != "0"), "{status}");
            assert!(field("Gid:").iter().all(|gid| gid != "0"), "{status}");
            assert!(field("Groups:").is_empty(), "{status}");
            for capabilities in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
                let empty = field(capabilities).iter().all(|mask| mask.trim_start_matches('0').is_empty());
                assert!(empty, "{status}");
            }
            let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
            let open: Vec<_> = open.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect();
            assert!(open.len() > 3 && !open.contains(&left_open), "{open:?}");
            assert_eq!(std::fs::read(format!("/proc/{pid}/environ")).unwrap(), b"");
            assert_eq!(std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), Path::new("/"));
            // Not dumpable: what belongs to the process belongs to root, so its key is safe from its own user.
            let owner = std::fs::metadata(format!("/proc/{pid}/mem")).unwrap();
            assert_eq!(std::os::unix::fs::MetadataExt::uid(&owner), 0);
        }
        worker.stop().await.unwrap();
        assert!(!alive(pid));
    });
}

#[test]
fn a_killed_worker_is_an_error_and_then_replaced_on_its_ports() {
    run(async {
        let (mut worker, ports) = joined(0, 2).await;
        let pid = worker.pid().unwrap();
        signal(pid, Signal::KILL);
        let error = worker.call(SHORT, PATIENCE).await.unwrap_err();
        assert!(matches!(error, WorkerError::Died { .. }), "{error:?}");
        assert!(error.to_string().contains("signal: 9"), "{error}");
        assert_eq!(worker.pid(), None);
        worker.revive(tokio::time::Instant::now() + PATIENCE).await.unwrap();
        assert_ne!(worker.pid().unwrap(), pid);
        for port in ports {
            std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        }
        works(&mut worker).await;
        worker.stop().await.unwrap();
    });
}

#[test]
fn one_whose_start_was_given_up_is_replaced_by_one_that_knows_all() {
    run(async {
        let (mut worker, _) = joined(0, 1).await;
        signal(worker.pid().unwrap(), Signal::KILL);
        worker.call(SHORT, PATIENCE).await.unwrap_err();
        // No time to say what its predecessor knew.
        worker.revive(tokio::time::Instant::now()).await.unwrap_err();
        let half = worker.pid();
        works(&mut worker).await;
        assert!(half.is_some() && worker.pid() != half);
        worker.stop().await.unwrap();
    });
}

#[test]
fn one_that_keeps_dying_is_given_up() {
    run(async {
        let (mut worker, _) = joined(0, 1).await;
        let mut last = None;
        for _ in 0..20 {
            if let Some(pid) = worker.pid() {
                signal(pid, Signal::KILL);
            }
            last = worker.call(SHORT, PATIENCE).await.err();
        }
        assert!(matches!(last, Some(WorkerError::KeepsEnding)), "{last:?}");
    });
}

#[test]
fn a_call_that_timed_out_or_was_dropped_does_not_disturb_the_next() {
    run(async {
        let (mut worker, _) = joined(0, 1).await;
        let pid = worker.pid();
        let began = Instant::now();
        let error = worker.call(LONG, Duration::from_millis(200)).await.unwrap_err();
        assert!(matches!(error, WorkerError::Timeout { .. }), "{error:?}");
        works(&mut worker).await;
        let dropped = tokio::time::timeout(Duration::from_millis(200), worker.call(LONG, PATIENCE)).await;
        assert!(dropped.is_err());
        works(&mut worker).await;
        assert_eq!(worker.pid(), pid, "cancelled, not replaced");
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
        worker.stop().await.unwrap();
    });
}

#[test]
fn a_frozen_worker_is_replaced_and_can_be_stopped() {
    run(async {
        let (mut worker, _) = joined(0, 1).await;
        let pid = worker.pid().unwrap();
        signal(pid, Signal::STOP);
        let error = worker.call(SHORT, Duration::from_millis(200)).await.unwrap_err();
        assert!(matches!(error, WorkerError::Timeout { .. }), "{error:?}");
        works(&mut worker).await;
        assert!(gone(pid));
        let pid = worker.pid().unwrap();
        signal(pid, Signal::STOP);
        let began = Instant::now();
        worker.stop().await.unwrap();
        assert!(!alive(pid) && began.elapsed() < Duration::from_secs(4));
    });
}

#[test]
fn a_busy_worker_stops_when_asked() {
    run(async {
        let (mut worker, _) = joined(0, 1).await;
        let pid = worker.pid().unwrap();
        let _ = worker.call(LONG, Duration::from_millis(100)).await;
        let began = Instant::now();
        worker.stop().await.unwrap();
        assert!(!alive(pid) && began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
    });
}

// E06: it is asked, then told, and killed last, with time to end in between.
#[test]
fn sigkill_comes_last() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let (text, path) = (folder.path().join("text"), folder.path().join("worker"));
        // It is deaf to its socket; the second one to SIGTERM, too.
        for then in ["exit 0", "true"] {
            let note = folder.path().join("note");
            let (file, wait) = (note.display(), "while :; do sleep 0.02; done");
            let script = format!(
                "#!/bin/sh\nprintf 'begun ' >{file}\ntrap \"printf 'told ' >>{file}; {then}\" TERM\n{wait}\n"
            );
            std::fs::write(&text, script).unwrap();
            assert!(Command::new("install").arg(&text).arg(&path).status().unwrap().success());
            let worker = Worker::spawn(&path, options(1)).unwrap();
            let pid = worker.pid().unwrap();
            while !note.exists() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            worker.stop().await.unwrap();
            assert!(!alive(pid));
            assert_eq!(std::fs::read_to_string(&note).unwrap(), "begun told ", "{then}");
            std::fs::remove_file(&note).unwrap();
        }
    });
}

#[test]
fn a_dropped_handle_leaves_no_process() {
    run(async {
        let (worker, _) = joined(0, 1).await;
        let pid = worker.pid().unwrap();
        drop(worker);
        assert!(gone(pid));
    });
}

// B11, G02.
#[test]
fn what_can_not_start_says_why() {
    run(async {
        let missing = Worker::spawn(Path::new("/nonexistent/aimaster-worker"), options(1)).unwrap_err();
        assert!(matches!(missing, WorkerError::Start { .. }), "{missing:?}");
        if rustix::process::geteuid().is_root() {
            for user in ["root", "no such user"] {
                let options = Options { user: user.to_owned(), ..options(1) };
                let refused = Worker::spawn(&program(), options).unwrap_err();
                assert!(matches!(refused, WorkerError::User(_)), "{refused:?}");
            }
        }
        let mut other = Worker::spawn(Path::new("/bin/true"), options(1)).unwrap();
        let error = other.hello(PATIENCE).await.unwrap_err();
        assert!(matches!(error, WorkerError::Died { .. }), "{error:?}");
    });
}

#[test]
fn nothing_is_measured_before_join_and_nobody_joins_twice() {
    run(async {
        let mut worker = Worker::spawn(&program(), options(1)).unwrap();
        worker.hello(PATIENCE).await.unwrap();
        assert!(matches!(worker.call(SHORT, PATIENCE).await.unwrap(), Reply::Failed { .. }));
        worker.join(0, KEY, PATIENCE).await.unwrap();
        assert!(matches!(worker.join(1, KEY, PATIENCE).await, Err(WorkerError::Refused { .. })));
        worker.stop().await.unwrap();
    });
}

/// The coordinator of the next test: this program again, killed in the middle of a long request.
#[test]
#[ignore = "started by the next test"]
fn coordinator_to_be_killed() {
    run(async {
        let (mut worker, _) = joined(0, 1).await;
        println!("worker={}", worker.pid().unwrap());
        let _ = worker.call(LONG, Duration::from_secs(30)).await;
    });
}

#[test]
fn a_killed_coordinator_leaves_no_worker() {
    let mut coordinator = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "coordinator_to_be_killed", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(coordinator.stdout.take().unwrap());
    let pid: u32 = output
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.split_once("worker=").and_then(|(_, pid)| pid.parse().ok()))
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(alive(pid));
    coordinator.kill().unwrap();
    coordinator.wait().unwrap();
    assert!(gone(pid), "worker {pid} outlived its coordinator");
}

#[test]
fn the_program_says_that_it_is_not_for_people() {
    let output = Command::new(program()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("started by aimaster-prolog only"));
    // A parent that is somebody else: the coordinator died before the worker could be bound to it.
    let orphan = Command::new(program()).arg("1").stdin(Stdio::null()).output().unwrap();
    assert!(!orphan.status.success());
}
