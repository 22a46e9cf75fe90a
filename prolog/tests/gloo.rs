//! `pytorch_gloo_2` with real worker processes: with the real torch where this machine has one, without any, and
//! with programs that stand for a broken one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails panics")]

mod support;

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use prolog::protocol::{Collected, Gloo, Glooed, Member, Reply, Request, Tag};
use prolog::worker_client::Worker;
use rustix::process::{Pid, Signal, kill_process};
use support::{alive, gone, joined, run};

const PYTHON: &str = "/usr/bin/python3";

/// Two nodes of two ranks, and the round that they are in.
struct Pair {
    workers: [Worker; 2],
    members: Vec<Member>,
    round: u32,
}

impl Pair {
    async fn start() -> Self {
        let (mut workers, mut members) = (Vec::new(), Vec::new());
        for node in [0, 1] {
            let (worker, ports) = joined(node, 2).await;
            workers.push(worker);
            members.extend((0..).zip(ports).map(|(rank, port)| Member {
                node,
                rank,
                address: IpAddr::V4(Ipv4Addr::LOCALHOST),
                port,
            }));
        }
        Self { workers: workers.try_into().unwrap(), members, round: 0 }
    }

    fn request(&mut self, python: Option<&Path>, start: Duration) -> Request {
        Request::Gloo(Gloo {
            tag: Tag { round: self.round, group: 0 },
            members: self.members.clone(),
            python: python.map(Path::to_owned),
            interface: String::new(),
            port_first: 45_000,
            port_last: 45_199,
            window_ms: 300,
            limit_ms: 8000,
            start_ms: u64::try_from(start.as_millis()).unwrap(),
        })
    }

    async fn gloo(&mut self, pythons: [Option<&Path>; 2], start: Duration) -> [Glooed; 2] {
        self.round += 1;
        let requests = pythons.map(|python| self.request(python, start));
        let [first, second] = requests;
        let [one, other] = &mut self.workers;
        let within = Duration::from_secs(50);
        let (one, other) = tokio::join!(one.call(first, within), other.call(second, within));
        [one, other].map(|reply| match reply.unwrap() {
            Reply::Gloo(glooed) => glooed,
            other => panic!("{other:?}"),
        })
    }
}

fn has_torch() -> bool {
    let import = Command::new(PYTHON).args(["-I", "-c", "import torch.distributed"]).output();
    let has = import.is_ok_and(|output| output.status.success());
    if !has {
        eprintln!("skipped: {PYTHON} has no torch");
    }
    has
}

/// A program that stands for python.
struct Fake {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn fake(script: &str) -> Fake {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let (text, path) = (folder.path().join("text"), folder.path().join("python3"));
    std::fs::write(&text, format!("#!/bin/sh\n{script}\n")).unwrap();
    // By a process of its own: a test that forks meanwhile would hold the file open for writing.
    assert!(Command::new("install").arg(text).arg(&path).status().unwrap().success());
    Fake { _folder: folder, path }
}

fn ring(glooed: &Glooed) -> &[(u32, String)] {
    let Glooed::Ring { collected: Collected::Measured(busbw), lacking } = glooed else {
        panic!("{glooed:?}")
    };
    assert!(busbw.gb_per_s > 0.0 && busbw.right == Some(1.0), "{busbw:?}");
    lacking
}

fn broken(glooed: &Glooed) -> &str {
    let Glooed::Broken { message } = glooed else { panic!("{glooed:?}") };
    message
}

const START: Duration = Duration::from_secs(30);

#[test]
fn the_real_torch_reduces_and_says_where_gloo_was() {
    if !has_torch() {
        return;
    }
    run(async {
        let mut pair = Pair::start().await;
        let python = Some(Path::new(PYTHON));
        for glooed in pair.gloo([python, python], START).await {
            let Glooed::Torch { busbw, version, addresses } = &glooed else { panic!("{glooed:?}") };
            println!("torch {version}: {} GB/s, {addresses:?}", busbw.gb_per_s);
            assert!(busbw.gb_per_s > 0.0 && busbw.iterations >= 2, "{busbw:?}");
            assert_eq!(busbw.right, Some(1.0));
            assert_eq!(addresses.iter().map(|(node, _)| *node).collect::<Vec<_>>(), [0, 1]);
        }
    });
}

#[test]
fn one_without_torch_makes_both_run_the_ring() {
    run(async {
        let mut pair = Pair::start().await;
        let results = pair.gloo([None, None], START).await;
        let none = "there is no python (paths.python)".to_owned();
        assert_eq!(ring(&results[0]), [(0, none.clone()), (1, none.clone())]);
        assert_eq!(ring(&results[1]), ring(&results[0]));
        if has_torch() {
            for glooed in &pair.gloo([Some(Path::new(PYTHON)), None], START).await {
                assert_eq!(ring(glooed), [(1, none.clone())]);
            }
        }
        let module = fake(r#"echo '{"absent": "there is no module torch"}'"#);
        for glooed in &pair.gloo([None, Some(&module.path)], START).await {
            assert_eq!(ring(glooed)[1], (1, "there is no module torch".to_owned()));
        }
    });
}

// F02, F03, F10: whatever else it prints, an exit or a number that can't be is no result.
#[test]
fn a_broken_torch_is_its_own_nodes_error_only() {
    run(async {
        let mut pair = Pair::start().await;
        let cases = [
            ("echo garbage; sleep 60", "it said"),
            ("echo oh no 1>&2; exit 3", "exit status: 3: ...oh no"),
            (r#"echo '{"broken": "ImportError: libc10.so"}'"#, "ImportError: libc10.so"),
            ("yes 1234567 | tr -d '\\n'", "it said more than"),
            ("sleep 60", "torch did not start within 2.0 s"),
            (
                r#"echo '{"ready": "9"}'; read order; echo '{"port": 45111}'; read order; exit 0"#,
                "torch gave no numbers",
            ),
            (
                r#"echo '{"ready": "9"}'; echo '{"port": 45111}'; echo '{"result": {"gb_per_s": -1, "bytes": 1,
"iterations": 1, "right": 1, "samples": [], "seconds": 1}}' | tr '\n' ' '; echo; sleep 60"#,
                "make no sense",
            ),
        ];
        let healthy =
            fake(r#"echo '{"ready": "9"}'; sleep 1; echo '{"failed": "the peer is gone"}'; sleep 60"#);
        for (script, wanted) in cases {
            let bad = fake(script);
            let began = Instant::now();
            let [one, other] =
                pair.gloo([Some(&bad.path), Some(&healthy.path)], Duration::from_secs(2)).await;
            assert!(broken(&one).contains(wanted), "{script}: {one:?}");
            assert_eq!(other, Glooed::PeerBroken, "{script}");
            assert!(began.elapsed() < Duration::from_secs(20), "{script}");
        }
        let unreadable = PathBuf::from("/etc/passwd");
        let [one, _] = pair.gloo([Some(&unreadable), None], START).await;
        assert!(broken(&one).contains("can't be run"), "{one:?}");
    });
}

#[test]
fn a_wrong_sum_is_a_number_that_says_so() {
    run(async {
        let mut pair = Pair::start().await;
        let result = r#"{"result": {"gb_per_s": 1.5, "bytes": 16384, "iterations": 4, "right": 0.5, "samples": [1.5], "seconds": 0.1}}"#;
        let low = fake(&format!(
            r#"echo '{{"ready": "9"}}'; read order; echo '{{"port": 45111}}'; read order; echo '{result}'; sleep 60"#
        ));
        let high = fake(&format!(r#"echo '{{"ready": "9"}}'; read order; echo '{result}'; sleep 60"#));
        for glooed in pair.gloo([Some(&low.path), Some(&high.path)], START).await {
            let Glooed::Torch { busbw, .. } = &glooed else { panic!("{glooed:?}") };
            assert_eq!(busbw.right, Some(0.5));
        }
    });
}

#[test]
fn what_torch_raises_is_a_way_that_does_not_work() {
    run(async {
        let mut pair = Pair::start().await;
        let low = fake(
            r#"echo '{"ready": "9"}'; read order; echo '{"port": 45111}'; read order; echo '{"failed": "timed out"}'; sleep 60"#,
        );
        let high = fake(r#"echo '{"ready": "9"}'; read order; echo '{"failed": "timed out"}'; sleep 60"#);
        let [one, other] = pair.gloo([Some(&low.path), Some(&high.path)], START).await;
        for (glooed, from) in [(one, 0), (other, 1)] {
            let Glooed::Unreachable(ways) = &glooed else { panic!("{glooed:?}") };
            assert_eq!((ways[0].from, ways[0].to, ways[0].why.as_str()), (from, 1 - from, "timed out"));
        }
    });
}

#[test]
fn a_name_that_leads_to_loopback_is_named_on_both_sides() {
    run(async {
        let mut pair = Pair::start().await;
        // The workers know each other by an address of the machine's own that is no loopback one.
        let Some(own) = own_address() else {
            eprintln!("skipped: this machine has no address of its own");
            return;
        };
        for member in &mut pair.members {
            member.address = own;
        }
        let place = r#"{"advertised": [["127.0.1.1", 4444]]}"#;
        let low = fake(&format!(
            r#"echo '{{"ready": "9"}}'; read order; echo '{{"port": 45111}}'; read order; echo '{place}'
echo '{{"failed": "timed out"}}'; sleep 60"#
        ));
        let high = fake(r#"echo '{"ready": "9"}'; read order; echo '{"failed": "timed out"}'; sleep 60"#);
        for glooed in pair.gloo([Some(&low.path), Some(&high.path)], START).await {
            let Glooed::Unreachable(ways) = &glooed else { panic!("{glooed:?}") };
            assert_eq!(ways.len(), 1);
            let way = &ways[0];
            assert_eq!(
                (way.from, way.to, way.port, way.address.to_string().as_str()),
                (1, 0, 4444, "127.0.1.1")
            );
            assert!(way.why.contains("resolves to a loopback address"), "{way:?}");
        }
    });
}

fn own_address() -> Option<IpAddr> {
    // Connecting a datagram socket sends nothing; it only looks for the route.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_loopback())
}

#[test]
fn a_killed_worker_leaves_no_python() {
    run(async {
        let mut pair = Pair::start().await;
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let note = folder.path().join("pid");
        let script = format!("id -u > {0}.uid; echo $$ > {0}; exec sleep 60", note.display());
        let hanging = fake(&script);
        let request = pair.request(Some(&hanging.path), START);
        let call = pair.workers[0].call(request, Duration::from_secs(2));
        assert!(call.await.is_err());
        let pid: u32 = std::fs::read_to_string(&note).unwrap().trim().parse().unwrap();
        assert!(alive(pid));
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        assert!(status.contains("NoNewPrivs:\t1"), "{status}");
        if rustix::process::geteuid().is_root() {
            let uid = std::fs::read_to_string(format!("{}.uid", note.display())).unwrap();
            assert_ne!(uid.trim(), "0");
        }
        let worker = pair.workers[0].pid().unwrap();
        kill_process(Pid::from_raw(worker.cast_signed()).unwrap(), Signal::KILL).unwrap();
        assert!(gone(pid), "python {pid} outlived its worker");
    });
}
