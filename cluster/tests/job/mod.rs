//! A job of the tests: its nodes are tasks of this process, on loopback, with the key file's handshake.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cluster::auth::{Authenticator, SiteKey};
use cluster::log::LogSink;
use cluster::rendezvous::{JobKey, MeetConfig, MeetError, meet};
use cluster::session::{Answers, Session, SessionError};
use diag::facts::{Engine, NodeFacts, NodeId};
use diag::gpu_facts::Known;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

#[derive(Clone)]
pub struct Job {
    pub id: u32,
    pub nodes: u32,
    pub first_port: u16,
    pub window: Duration,
    pub lines: Arc<Mutex<Vec<String>>>,
}

impl Job {
    /// Each test has 16 ports of its own, outside the range that the system deals out, and starts on the first.
    pub fn new(test: u16, nodes: u32) -> Self {
        Self {
            id: 16 * 1000,
            nodes,
            first_port: 21_008 + 16 * test,
            window: Duration::from_secs(10),
            lines: Arc::default(),
        }
    }

    pub fn config(&self, me: NodeId) -> MeetConfig {
        let lines = Arc::clone(&self.lines);
        MeetConfig {
            job: JobKey { cluster: "c".into(), job_id: self.id, restart: 0 },
            nodes: (0..self.nodes).map(|node| format!("n{node}").into()).collect(),
            me,
            addresses: BTreeMap::from([(0, HOME), (1, HOME)]),
            ports: self.first_port..=self.first_port + 15,
            leaves: diag::topology::Leaves::default(),
            join_window: self.window,
            auth: Authenticator::Key(SiteKey::from_secret(&[7; 64])),
            log: LogSink::new(move |line| lines.lock().unwrap().push(line.to_owned())),
        }
    }

    pub fn start(&self, me: NodeId) -> JoinHandle<Result<Session, MeetError>> {
        tokio::spawn(meet(self.config(me), facts()))
    }

    pub fn said(&self, text: &str) -> bool {
        self.lines.lock().unwrap().iter().any(|line| line.contains(text))
    }
}

pub type Map = Result<Answers<u32>, SessionError>;

pub fn facts() -> NodeFacts {
    NodeFacts {
        version: "1".into(),
        request_digest: "d".into(),
        engine: Engine::Host,
        address: Some(HOME),
        rank_ports: vec![1, 2],
        gpus: Vec::new(),
        libraries: "NCCL 2.28.9".into(),
        known: Known::default(),
        unable: None,
    }
}

pub fn soon(ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(ms)
}

pub async fn all(job: &Job) -> Vec<Session> {
    let started: Vec<_> = (0..job.nodes).map(|me| job.start(me)).collect();
    let mut sessions = Vec::new();
    for one in started {
        sessions.push(one.await.unwrap().unwrap());
    }
    sessions
}

/// Every session exchanges its node's number times ten; the maps in order of nodes.
pub async fn exchange_all(sessions: Vec<Session>, tag: u32, ms: u64) -> Vec<(Session, Map)> {
    let tasks: Vec<_> = sessions
        .into_iter()
        .map(|mut session| {
            tokio::spawn(async move {
                let mine = session.me() * 10;
                let map = session.exchange(tag, &mine, soon(ms)).await;
                (session, map)
            })
        })
        .collect();
    let mut done = Vec::new();
    for task in tasks {
        done.push(task.await.unwrap());
    }
    done
}

pub async fn relay(from: u16, to: u16) -> Arc<std::sync::atomic::AtomicBool> {
    let trap = tokio::net::TcpListener::bind((HOME, from)).await.unwrap();
    let dumb = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let told = Arc::clone(&dumb);
    let pass = move |client: TcpStream, told: Arc<std::sync::atomic::AtomicBool>| async move {
        // A leader that is gone refuses.
        let Ok(real) = TcpStream::connect((HOME, to)).await else { return };
        let (mut from_real, mut to_real) = real.into_split();
        let (mut from_client, mut to_client) = client.into_split();
        tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_real).await });
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = from_real.read(&mut bytes).await {
            if !told.load(std::sync::atomic::Ordering::Relaxed)
                && to_client.write_all(&bytes[..n]).await.is_err()
            {
                break;
            }
        }
    };
    tokio::spawn(async move {
        while let Ok((client, _)) = trap.accept().await {
            tokio::spawn(pass(client, Arc::clone(&told)));
        }
    });
    dumb
}
