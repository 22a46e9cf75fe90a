//! PyTorch: a process a GPU that runs `peer.py` and stays for all turns.

use std::process::Stdio;
use std::time::Duration;

use prolog::protocol::Collective;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::{Instant, timeout_at};

use super::theirs::command;
use super::turns::Reading;

/// A python with torch.
const PYTHON: &str = "AIMASTER_PYTHON";

/// How long an answer may take: the first needs torch to be read from a disk that has never seen it.
const LIMIT: Duration = Duration::from_secs(120);

struct Peer {
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
    /// Killed when it is dropped.
    _child: Child,
}

/// A process on each GPU.
pub struct Torch {
    peers: Vec<Peer>,
    /// Of torch and its libraries.
    pub version: String,
}

impl Torch {
    /// Starts them, and waits until torch is there.
    pub async fn start(uuids: &[String]) -> Result<Self, String> {
        let python = std::env::var_os(PYTHON).filter(|path| !path.is_empty());
        let python = python.ok_or(format!("{PYTHON} names no python with torch"))?;
        let port = free_port().map_err(|error| format!("no free port: {error}"))?;
        let mut peers = Vec::new();
        for (rank, uuid) in uuids.iter().enumerate() {
            let mut command = command(&python, std::slice::from_ref(uuid));
            command.args(["-c", include_str!("peer.py")]);
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", uuids.len().to_string());
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let python = std::path::Path::new(&python).display();
            let mut child = command.spawn().map_err(|error| format!("{python} can't be started: {error}"))?;
            let pipes = child.stdin.take().zip(child.stdout.take());
            let (to, from) = pipes.ok_or("a process without pipes")?;
            peers.push(Peer { to, from: BufReader::new(from).lines(), _child: child });
        }
        let mut torch = Self { peers, version: String::new() };
        let said = torch.ask("versions").await?;
        torch.version = said.first().and_then(Value::as_str).unwrap_or("PyTorch").to_owned();
        Ok(torch)
    }

    /// TFLOP/s of each GPU, all at once.
    pub async fn products(&mut self, window: Duration) -> Reading {
        let said = self.ask(&format!("product {}", window.as_secs_f64())).await?;
        Ok(said.iter().map(Value::as_f64).collect())
    }

    /// Busbw of each size, GB/s; all ranks say the same.
    pub async fn collective(&mut self, collective: Collective, window: Duration) -> Reading {
        let name = match collective {
            Collective::AllReduce => "all_reduce",
            Collective::AllGather => "all_gather",
            Collective::AllToAll => "all_to_all",
        };
        let said = self.ask(&format!("{name} {}", window.as_secs_f64())).await?;
        let rates = said.first().and_then(Value::as_array).ok_or("no rates")?;
        Ok(rates.iter().map(Value::as_f64).collect())
    }

    /// Has all of them do the same, and gathers what they answer.
    async fn ask(&mut self, what: &str) -> Result<Vec<Value>, String> {
        let deadline = Instant::now() + LIMIT;
        let gone = |error: std::io::Error| format!("torch's process is gone: {error}");
        for peer in &mut self.peers {
            peer.to.write_all(format!("{what}\n").as_bytes()).await.map_err(gone)?;
        }
        let mut answers = Vec::new();
        for peer in &mut self.peers {
            let late = |_| format!("torch did not answer within {} s", LIMIT.as_secs());
            let line = timeout_at(deadline, peer.from.next_line()).await.map_err(late)?.map_err(gone)?;
            let line = line.ok_or("torch's process ended; what it said is above")?;
            let answer: Value = serde_json::from_str(&line).map_err(|error| format!("{error}: {line}"))?;
            if let Some(error) = answer["error"].as_str() {
                return Err(error.to_owned());
            }
            answers.push(answer["value"].clone());
        }
        Ok(answers)
    }
}

/// A port that nobody listens on at this moment.
fn free_port() -> std::io::Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
