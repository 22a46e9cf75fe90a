//! MUNGE with a munged of its own, in a folder of its own.
#![allow(clippy::unwrap_used)] // the helpers of tests fail like tests

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cluster::auth::{AuthError, Authenticator, KeyFileError, SiteKey};
use cluster::log::LogSink;
use cluster::munge::{Munge, MungeError};
use cluster::rendezvous::{JobKey, MeetConfig, MeetError, meet};
use cluster::session::Session;
use diag::facts::{Engine, NodeFacts};
use diag::gpu_facts::Known;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

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

const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn config(munged: &Munged, me: u32, nodes: u32, first_port: u16, lines: &Lines) -> MeetConfig {
    let lines = Arc::clone(lines);
    MeetConfig {
        job: JobKey { cluster: "c".into(), job_id: 0, restart: 0 },
        nodes: (0..nodes).map(|node| format!("n{node}").into()).collect(),
        me,
        addresses: [(0, HOME), (1, HOME)].into(),
        ports: first_port..=first_port + 15,
        leaves: diag::topology::Leaves::default(),
        join_window: Duration::from_secs(10),
        auth: Authenticator::Munge { munge: munged.munge(), trusted: 0 },
        log: LogSink::new(move |line| lines.lock().unwrap().push(line.to_owned())),
    }
}

fn facts() -> NodeFacts {
    NodeFacts {
        version: "1".into(),
        request_digest: "d".into(),
        engine: Engine::Host,
        address: None,
        rank_ports: vec![],
        gpus: Vec::new(),
        libraries: String::new(),
        known: Known::default(),
        unable: None,
    }
}

type Lines = Arc<Mutex<Vec<String>>>;

fn said(lines: &Lines, text: &str) -> bool {
    lines.lock().unwrap().iter().any(|line| line.contains(text))
}

#[tokio::test]
async fn nodes_meet_by_munge() {
    let Some(munged) = Munged::start() else { return };
    let lines = Lines::default();
    let started: Vec<_> =
        (0..8).map(|me| tokio::spawn(meet(config(&munged, me, 8, 20_900, &lines), facts()))).collect();
    for one in started {
        assert_eq!(one.await.unwrap().unwrap().roster().able().count(), 8);
    }
}

async fn frame(stream: &mut TcpStream) -> Vec<u8> {
    let length = stream.read_u32().await.unwrap();
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body).await.unwrap();
    body
}

async fn put(stream: &mut TcpStream, body: &[u8]) {
    stream.write_u32(u32::try_from(body.len()).unwrap()).await.unwrap();
    stream.write_all(body).await.unwrap();
}

/// A node that is told that the leader lives where this listens.
async fn fooled(mut config: MeetConfig) -> (tokio::net::TcpListener, JoinHandle<Result<Session, MeetError>>) {
    let trap = tokio::net::TcpListener::bind((HOME, 0)).await.unwrap();
    let port = trap.local_addr().unwrap().port();
    config.ports = port..=port;
    config.addresses.remove(&1);
    config.join_window = Duration::from_millis(100);
    let node = tokio::spawn(meet(config, facts()));
    (trap, node)
}

#[tokio::test]
async fn a_hello_that_was_recorded_opens_no_other_connection_and_no_other_node() {
    let Some(munged) = Munged::start() else { return };
    let lines = Lines::default();
    let start = |me| tokio::spawn(meet(config(&munged, me, 4, 20_916, &lines), facts()));
    let (leader, deputy) = (start(0), start(1));
    tokio::time::sleep(Duration::from_millis(200)).await;
    let (trap, node) = fooled(config(&munged, 2, 4, 20_916, &lines)).await;
    let (mut victim, _) = trap.accept().await.unwrap();
    let mut real = TcpStream::connect((HOME, 20_916)).await.unwrap();
    put(&mut victim, &frame(&mut real).await).await;
    let hello = frame(&mut victim).await;
    for port in [20_916, 20_917] {
        let mut again = TcpStream::connect((HOME, port)).await.unwrap();
        frame(&mut again).await;
        put(&mut again, &hello).await;
        let answer = String::from_utf8(frame(&mut again).await).unwrap();
        assert!(answer.contains("refused"), "{answer}");
    }
    // The deputy offers a key of its own.
    assert!(said(&lines, "does not answer this connection's challenge"), "{lines:?}");
    assert!(said(&lines, "not made with the same key"), "{lines:?}");
    node.abort();
    leader.abort();
    deputy.abort();
}

/// What a node says of a leader that offers `credential`.
async fn of_an_offer(munged: &Munged, credential: &str) -> String {
    let (trap, node) = fooled(config(munged, 2, 4, 20_932, &Lines::default())).await;
    let (mut victim, _) = trap.accept().await.unwrap();
    let challenge = serde_json::json!({
        "magic": "aimaster", "protocol": 2, "nonce": vec![7; 32], "job_id": 0, "restart": 0, "node": 0,
        "offer": { "sealed": credential },
    });
    put(&mut victim, challenge.to_string().as_bytes()).await;
    let answer = String::from_utf8(frame(&mut victim).await).unwrap();
    node.abort();
    answer
}

#[tokio::test]
async fn an_offer_of_another_user_job_or_role_gets_no_hello() {
    let Some(munged) = Munged::start() else { return };
    let socket = munged.folder.path().join("s");
    let terms = |key: &str, value: serde_json::Value| {
        let mut terms = serde_json::json!({
            "purpose": "aimaster offer", "cluster": "c", "job_id": 0, "restart": 0, "nodes": 4, "role": "leader",
            "from": "n0", "key": vec![3; 32],
        });
        terms[key] = value;
        terms.to_string()
    };
    let right = terms("restart", 0.into());
    let made = Command::new("setpriv")
        .args(["--reuid=nobody", "--clear-groups", "munge", "-u", "0", "-s", &right, "-S"])
        .arg(&socket)
        .output()
        .unwrap();
    let foreign = String::from_utf8(made.stdout).unwrap();
    assert!(of_an_offer(&munged, foreign.trim()).await.contains("only uid 0 is trusted"));
    for (key, value, why) in [
        ("purpose", "aimaster hello".into(), "claim is for purpose"),
        ("cluster", "d".into(), "claim is for cluster"),
        ("job_id", 1.into(), "claim is for job"),
        ("restart", 1.into(), "claim is for restart"),
        ("nodes", 5.into(), "claim is for number of nodes"),
        ("role", "deputy".into(), "claim is for role"),
        ("from", "n3".into(), "claim is for node"),
        ("more", 1.into(), "offer can't be read"),
    ] {
        let wrong = munged.munge().encode(terms(key, value).as_bytes(), 0).unwrap();
        let answer = of_an_offer(&munged, &wrong).await;
        assert!(answer.contains(why), "{key}: {answer}");
    }
    let good = munged.munge().encode(right.as_bytes(), 0).unwrap();
    assert!(of_an_offer(&munged, &good).await.starts_with("{\"claim\""));
}
