//! A stranger on the network of a job: what the tests of hostile hellos run on a node that is not part of the job.
//! It speaks as much of the nodes' protocol as an attacker can read in its source, and knows no secret.
//!
//! `stranger record PORT CLUSTER JOB NODES NAME` plays the leader on a port and prints the hello that a node sends. It is
//! believed, for it runs as root of that leader's node.
//! `stranger attack CLUSTER JOB NODES FIRST LAST HELLO NAME=ADDRESS...` works on every open port of the range until
//! its standard input ends, then prints how many connections it made. HELLO is a recorded hello.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cluster::auth::{Authenticator, SiteKey};
use serde_json::{Value, json};

/// A closed port refuses at once; one that does not answer is not worth more.
const CONNECT: Duration = Duration::from_millis(200);
/// How long an answer is waited for.
const ANSWER: Duration = Duration::from_millis(100);
/// Between two rounds over all ports: the machine is measured meanwhile.
const REST: Duration = Duration::from_millis(10);
/// Connections that stay open and say nothing; more than a meeting of a few nodes keeps pending.
const SILENT: usize = 400;
/// Longest frame that is read.
const LONGEST: usize = 64 * 1024;
/// What connections between workers open with.
const DATA_MAGIC: &[u8] = b"AIMDATA1";

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["record", port, cluster, job, nodes, name] => {
            record(port.parse()?, cluster, job.parse()?, nodes.parse()?, name)
        }
        ["attack", cluster, job, nodes, first, last, hello, ref hosts @ ..] => {
            let hosts = hosts.iter().map(|host| host_of(host)).collect::<Result<_>>()?;
            let (job, nodes) = (job.parse()?, nodes.parse()?);
            let ports = first.parse()?..=last.parse()?;
            Attack {
                cluster,
                job,
                nodes,
                hello,
                hosts,
                ports,
                silent: VecDeque::new(),
                made: 0,
                turns: BTreeMap::new(),
            }
            .run()
        }
        _ => bail!(
            "usage: stranger record PORT CLUSTER JOB NODES NAME | attack CLUSTER JOB NODES FIRST LAST HELLO NAME=ADDRESS..."
        ),
    }
}

fn host_of(text: &str) -> Result<(String, IpAddr)> {
    let (name, address) = text.split_once('=').context("NAME=ADDRESS")?;
    Ok((name.to_owned(), address.parse()?))
}

fn frame(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), body].concat()
}

fn read_frame(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut body = vec![0; (u32::from_be_bytes(length) as usize).min(LONGEST)];
    stream.read_exact(&mut body)?;
    Ok(body)
}

/// Challenges the first node that dials, and prints its answer.
fn record(port: u16, cluster: &str, job: u32, nodes: u32, name: &str) -> Result<()> {
    let terms = json!({
        "purpose": "aimaster offer", "cluster": cluster, "job_id": job, "restart": 0, "nodes": nodes,
        "role": "leader", "from": name, "key": vec![3; 32],
    });
    let offer = munge(&["munge"], &terms.to_string())?;
    let challenge = json!({
        "magic": "aimaster", "protocol": 2, "nonce": vec![7; 32], "job_id": job, "restart": 0, "node": 0,
        "offer": { "sealed": offer },
    });
    let listener = TcpListener::bind(("0.0.0.0", port))?;
    println!("listening");
    for stream in listener.incoming() {
        let mut stream = stream?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.write_all(&frame(challenge.to_string().as_bytes()))?;
        if let Ok(hello) = read_frame(&mut stream)
            && hello.starts_with(b"{\"claim\"")
        {
            println!("hello {}", String::from_utf8_lossy(&hello));
            return Ok(());
        }
    }
    Ok(())
}

/// How many ways there are to molest a port.
const WAYS: usize = 10;

struct Attack<'a> {
    cluster: &'a str,
    job: u32,
    nodes: u32,
    hello: &'a str,
    hosts: Vec<(String, IpAddr)>,
    ports: std::ops::RangeInclusive<u16>,
    silent: VecDeque<TcpStream>,
    made: usize,
    /// Connections to each port so far: every port meets every way, whatever the others answer.
    turns: BTreeMap<SocketAddr, usize>,
}

impl Attack<'_> {
    fn run(mut self) -> Result<()> {
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        thread::spawn(move || {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            seen.store(true, Ordering::Relaxed);
        });
        println!("attacking");
        while !over.load(Ordering::Relaxed) {
            for (name, address) in self.hosts.clone() {
                for port in self.ports.clone() {
                    let at = SocketAddr::new(address, port);
                    if let Ok(stream) = TcpStream::connect_timeout(&at, CONNECT) {
                        let turn = self.turns.entry(at).or_default();
                        *turn += 1;
                        let way = *turn % WAYS;
                        // A connection that breaks is what the other side is for.
                        let _ = self.molest(stream, &name, way);
                        self.made += 1;
                    }
                }
            }
            thread::sleep(REST);
        }
        println!("made {}", self.made);
        Ok(())
    }

    /// One of the ways.
    fn molest(&mut self, mut stream: TcpStream, name: &str, way: usize) -> Result<()> {
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        match way {
            0 => stream.write_all(&noise(64)?)?,
            1 => stream.write_all(&frame(&noise(8000)?))?,
            2 => stream.write_all(&[u32::MAX.to_be_bytes().as_slice(), &noise(4096)?].concat())?,
            3 => stream.write_all(&frame(b""))?,
            4 => stream.write_all(&frame(b"{\"claim\":{\"claim\":[[[[[[[[[[[["))?,
            5 => stream.write_all(&frame(self.hello.as_bytes()))?,
            6 => stream.write_all(&[DATA_MAGIC, &noise(57)?].concat())?,
            7 => self.claim(&mut stream, name, json!({"job_id": self.job + 1}))?,
            8 => self.claim(&mut stream, name, json!({"from": "n9"}))?,
            _ => {
                self.silent.push_back(stream);
                if self.silent.len() > SILENT {
                    self.silent.pop_front();
                }
                return Ok(());
            }
        }
        // Who hangs up at once is refused for that and for nothing else.
        let _ = stream.read_to_end(&mut Vec::new());
        Ok(())
    }

    /// Answers the challenge with a claim, wrong in one thing: sealed by the key that is offered, as far as this user can read it,
    /// else by a credential of its own.
    fn claim(&self, stream: &mut TcpStream, listener: &str, wrong: Value) -> Result<()> {
        let challenge: Value = serde_json::from_slice(&read_frame(stream)?)?;
        let mut claim = json!({
            "purpose": "aimaster hello", "cluster": self.cluster, "job_id": self.job, "restart": 0,
            "nodes": self.nodes, "from": "n3", "to": listener,
            "role": if listener == self.hosts[0].0 { "leader" } else { "deputy" },
            "listener_nonce": challenge["nonce"], "dialer_nonce": vec![1; 32], "session_key": vec![2; 32],
            "data_key": null,
        });
        for (key, value) in wrong.as_object().into_iter().flatten() {
            claim[key] = value.clone();
        }
        let offer = challenge["offer"]["sealed"].as_str().unwrap_or_default();
        let terms = munge(&["unmunge", "--metadata=/dev/null"], offer).unwrap_or_default();
        let terms: Value = serde_json::from_str(&terms).unwrap_or_default();
        let sealed = match serde_json::from_value::<Vec<u8>>(terms["key"].clone()) {
            Ok(key) => seal(&key, &claim)?,
            Err(_) => munge(&["munge"], &claim.to_string())?,
        };
        let reply = json!({ "claim": sealed });
        Ok(stream.write_all(&frame(reply.to_string().as_bytes()))?)
    }
}

fn noise(count: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A claim as a node seals it.
fn seal(key: &[u8], claim: &Value) -> Result<String> {
    let auth = Authenticator::Key(SiteKey::from_secret(key));
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    Ok(runtime.block_on(auth.seal(claim.to_string().into_bytes().into()))?)
}

/// What one of MUNGE's programs makes of a text.
fn munge(command: &[&str], text: &str) -> Result<String> {
    let (program, args) = command.split_first().context("a program")?;
    let mut child = Command::new(program).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    child.stdin.take().context("its standard input")?.write_all(text.as_bytes())?;
    let output = child.wait_with_output()?;
    // A credential that was opened before is opened again, with a complaint.
    if output.stdout.is_empty() {
        bail!("{program} refused");
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
