//! MUNGE with a munged of its own, in a folder of its own.
#![allow(clippy::unwrap_used)] // the helpers of tests fail like tests

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cluster::auth::{AuthError, Authenticator, KeyFileError, SiteKey};
use cluster::log::LogSink;
use cluster::munge::{Munge, MungeError};
use cluster::rendezvous::{JobKey, MeetConfig, meet};
use diag::facts::{Engine, NodeFacts};
use diag::gpu_facts::Known;

/// A munged, as the user munge.
struct Munged {
    child: Child,
    folder: tempfile::TempDir,
}

impl Munged {
    /// `None` where it is not installed or the tests don't run as root.
    fn start() -> Option<Self> {
        let installed = Path::new("/usr/sbin/munged").exists() && rustix::process::geteuid().is_root();
        if !installed {
            eprintln!("skipped: needs root and /usr/sbin/munged");
            return None;
        }
        let folder = tempfile::Builder::new()
            .permissions(PermissionsExt::from_mode(0o755))
            .tempdir_in("/run")
            .unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("key"), [5; 128]).unwrap();
        std::fs::set_permissions(path("key"), PermissionsExt::from_mode(0o600)).unwrap();
        assert!(
            Command::new("chown").args(["-R", "munge:munge"]).arg(folder.path()).status().unwrap().success()
        );
        let file = |option: &str, name: &str| format!("--{option}={}", path(name).display());
        let child = Command::new("setpriv")
            .args([
                "--reuid=munge",
                "--regid=munge",
                "--clear-groups",
                "/usr/sbin/munged",
                "--foreground",
                "--force",
            ])
            .args([file("key-file", "key"), file("socket", "s"), file("pid-file", "pid")])
            .args([file("log-file", "log"), file("seed-file", "seed")])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begin = Instant::now();
        while !path("s").exists() {
            assert!(begin.elapsed() < Duration::from_secs(5), "munged did not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(Self { child, folder })
    }

    fn munge(&self) -> Munge {
        Munge::open(Path::new("libmunge.so.2"), &self.folder.path().join("s")).unwrap()
    }
}

impl Drop for Munged {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn credentials_carry_payload_and_maker_and_replays_are_told() {
    let Some(munged) = Munged::start() else { return };
    let munge = munged.munge();
    let credential = munge.encode(b"payload", 0).unwrap();
    assert!(!credential.contains("payload"));
    let decoded = munge.decode(&credential).unwrap();
    assert_eq!(
        (&**decoded.payload, decoded.uid, decoded.gid, decoded.replayed),
        (&b"payload"[..], 0, 0, false)
    );
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(decoded.encoded_at.abs_diff(i64::try_from(now).unwrap()) < 5);
    assert!(munge.decode(&credential).unwrap().replayed);
    for forged in
        ["", "MUNGE:AAAA:", "garbage", &credential.replace('A', "B"), &credential[..credential.len() / 2]]
    {
        assert!(matches!(munge.decode(forged), Err(MungeError::Decode { .. })), "{forged}");
    }
    assert!(matches!(munge.decode(&"x".repeat(20_000)), Err(MungeError::Malformed { length: 20_000 })));
    // One that is meant for another user.
    let foreign = munge.encode(b"payload", 12_345).unwrap();
    let refused = munge.decode(&foreign).unwrap_err().to_string();
    assert!(refused.contains("nauthorized"), "{refused}");
}

#[tokio::test]
async fn only_the_trusted_users_credentials_open() {
    let Some(munged) = Munged::start() else { return };
    let socket = munged.folder.path().join("s");
    let made = Command::new("setpriv")
        .args(["--reuid=nobody", "--clear-groups", "munge", "-u", "0", "-s", "hello", "-S"])
        .arg(&socket)
        .output()
        .unwrap();
    let credential = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let auth = Authenticator::Munge { munge: munged.munge(), trusted: 0 };
    assert!(matches!(auth.open(credential).await, Err(AuthError::Untrusted { trusted: 0, .. })));
    let own = auth.seal(b"x".to_vec().into()).await.unwrap();
    assert_eq!(&**auth.open(own).await.unwrap(), b"x");
}

#[test]
fn a_missing_library_or_munged_is_an_error_that_names_it() {
    let error = Munge::open(Path::new("/nowhere/libmunge.so"), Path::new("/s")).unwrap_err();
    assert!(error.to_string().contains("/nowhere/libmunge.so"));
    if let Ok(munge) = Munge::open(Path::new("libmunge.so.2"), Path::new("/nowhere/socket")) {
        let error = munge.encode(b"x", 0).unwrap_err();
        assert!(error.to_string().contains("/nowhere/socket"), "{error}");
    }
}

#[tokio::test]
async fn a_key_file_must_be_a_private_regular_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let put = |name: &str, length: usize, mode: u32| {
        std::fs::write(path(name), vec![7; length]).unwrap();
        std::fs::set_permissions(path(name), PermissionsExt::from_mode(mode)).unwrap();
    };
    let owner = rustix::process::geteuid().as_raw();
    put("good", 64, 0o600);
    put("open", 64, 0o640);
    put("short", 31, 0o600);
    std::os::unix::fs::symlink(path("good"), path("link")).unwrap();
    let key = SiteKey::read(&path("good"), owner).unwrap();
    assert!(matches!(SiteKey::read(&path("open"), owner), Err(KeyFileError::Unsafe { .. })));
    assert!(matches!(SiteKey::read(&path("good"), owner + 1), Err(KeyFileError::Unsafe { .. })));
    assert!(matches!(SiteKey::read(&path("short"), owner), Err(KeyFileError::Length { length: 31, .. })));
    assert!(matches!(SiteKey::read(&path("link"), owner), Err(KeyFileError::Read { .. })));
    assert!(matches!(SiteKey::read(folder.path(), owner), Err(KeyFileError::Unsafe { .. })));
    let auth = Authenticator::Key(key);
    let sealed = auth.seal(b"secret".to_vec().into()).await.unwrap();
    assert_eq!(&**auth.open(sealed.clone()).await.unwrap(), b"secret");
    for at in [0, 40, 70, sealed.len() - 1] {
        let mut forged = sealed.clone().into_bytes();
        forged[at] = if forged[at] == b'0' { b'1' } else { b'0' };
        assert!(matches!(auth.open(String::from_utf8(forged).unwrap()).await, Err(AuthError::Forged)));
    }
    for garbage in ["", "é", "00", "0"] {
        assert!(matches!(auth.open(garbage.to_owned()).await, Err(AuthError::Forged)));
    }
}

#[tokio::test]
async fn nodes_meet_by_munge() {
    let Some(munged) = Munged::start() else { return };
    let home = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    let start = |me: u32| {
        let config = MeetConfig {
            job: JobKey { cluster: "c".into(), job_id: 0, restart: 0 },
            nodes: (0..8).map(|node| format!("n{node}").into()).collect(),
            me,
            addresses: [(0, home), (1, home)].into(),
            ports: 20_900..=20_915,
            leaves: diag::topology::Leaves::default(),
            join_window: Duration::from_secs(10),
            auth: Authenticator::Munge { munge: munged.munge(), trusted: 0 },
            log: LogSink::silent(),
        };
        let facts = NodeFacts {
            version: "1".into(),
            request_digest: "d".into(),
            engine: Engine::Host,
            address: None,
            rank_ports: vec![],
            gpus: Vec::new(),
            libraries: String::new(),
            known: Known::default(),
            unable: None,
        };
        tokio::spawn(meet(config, facts))
    };
    let started: Vec<_> = (0..8).map(start).collect();
    for one in started {
        assert_eq!(one.await.unwrap().unwrap().roster().able().count(), 8);
    }
}
