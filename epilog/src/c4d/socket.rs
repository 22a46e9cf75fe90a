//! Where ranks come in: an abstract seqpacket socket. A process of the job's user sends one hello, with its ring's memfd,
//! and is gone; nothing is ever sent back. Everybody else is refused, which is a line of the log and nothing more. What
//! the bytes of a hello and of a ring mean is in `nccl_profiler`.
//!
//! Bounds: [`MOST_PENDING`] connections that have not said hello, each for [`HELLO_WAIT`]; one message of 40 bytes; one
//! descriptor, which must be a memfd of the ring's size that nobody can change.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener as StdListener;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nccl_profiler::handover::{HELLO_BYTES, Hello, Status};
use nccl_profiler::ring::FILE_BYTES;
use rustix::fs::{FileType, SealFlags, fcntl_get_seals, fstat};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SocketAddrUnix,
    SocketFlags, SocketType, bind, listen, recvmsg, socket_with,
};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Connections that the kernel keeps until they are accepted: all ranks of a large node at once, twice.
const BACKLOG: i32 = 256;

/// Most connections that have not said hello. With more the kernel's queue fills, and a plugin does without telemetry.
const MOST_PENDING: usize = 64;

/// How long a connection may take for its hello: the plugin sends it at once.
const HELLO_WAIT: Duration = Duration::from_secs(2);

/// Rest when the system has no descriptor for a new connection.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Seals without which a reader could be cut short: `read_at` of a file that shrinks is only an error, but one that
/// grows has no bound.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The socket, bound before anybody can know its name.
#[derive(Debug)]
pub struct Door {
    socket: OwnedFd,
    uid: u32,
}

/// A rank that came.
#[derive(Debug)]
pub struct Arrival {
    /// Its process, as this node numbers it.
    pub pid: u32,
    /// What it said.
    pub hello: Hello,
    /// Its ring, if it has one.
    pub ring: Option<File>,
}

/// Somebody who was sent away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Whose process it was.
    pub uid: Option<u32>,
    /// Which; `None`: not known.
    pub pid: Option<u32>,
    /// Why.
    pub because: String,
}

impl Door {
    /// Opens the socket of this name for processes of `uid`.
    ///
    /// # Errors
    /// The name is taken, or the system refuses.
    pub fn open(name: &str, uid: u32) -> Result<Self> {
        let open = || -> io::Result<OwnedFd> {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
            listen(&socket, BACKLOG)?;
            Ok(socket)
        };
        Ok(Self { socket: open().with_context(|| format!("the socket @{name} can't be opened"))?, uid })
    }
}

/// Waits for ranks.
pub struct Arrivals {
    door: UnixListener,
    uid: u32,
    pending: JoinSet<Result<Option<Arrival>, Refusal>>,
}

impl Arrivals {
    /// Starts to accept; inside a tokio runtime.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new(door: Door) -> io::Result<Self> {
        Ok(Self {
            door: UnixListener::from_std(StdListener::from(door.socket))?,
            uid: door.uid,
            pending: JoinSet::new(),
        })
    }

    /// The next rank, or the next who was refused. Nothing is lost where this is dropped.
    pub async fn next(&mut self) -> Result<Arrival, Refusal> {
        loop {
            tokio::select! {
                Some(done) = self.pending.join_next() => match done {
                    Ok(Ok(None)) => {}
                    Ok(Ok(Some(arrival))) => return Ok(arrival),
                    Ok(Err(refusal)) => return Err(refusal),
                    Err(error) => return Err(stranger(format!("internal error: {error}"))),
                },
                accepted = self.door.accept(), if self.pending.len() < MOST_PENDING => match accepted {
                    Ok((peer, _)) => _ = self.pending.spawn(hear(peer, self.uid)),
                    Err(_) => sleep(ACCEPT_REST).await,
                },
            }
        }
    }
}

fn stranger(because: String) -> Refusal {
    Refusal { uid: None, pid: None, because }
}

/// Hears one connection out. One that ends without a word is a thread whose process has come already.
async fn hear(stream: UnixStream, job_uid: u32) -> Result<Option<Arrival>, Refusal> {
    let who = stream.peer_cred().map_err(|error| stranger(format!("who it is can't be told: {error}")))?;
    let pid = who.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
    let refuse = |because: String| Refusal { uid: Some(who.uid()), pid, because };
    if who.uid() != job_uid {
        return Err(refuse(format!("it is of uid {}, the job of uid {job_uid}", who.uid())));
    }
    let pid = pid.ok_or_else(|| refuse("its process is not one of this node's".into()))?;
    let message = timeout(HELLO_WAIT, receive(&stream)).await;
    let message = message.map_err(|_| refuse(format!("it said nothing within {HELLO_WAIT:?}")))?;
    let (bytes, files) = message.map_err(|error| refuse(error.to_string()))?;
    if bytes.is_empty() && files.is_empty() {
        return Ok(None);
    }
    let hello = Hello::decode(&bytes).map_err(|because| refuse(because.to_owned()))?;
    let mut files = files.into_iter();
    let ring = match (hello.status, files.next(), files.next()) {
        (Status::Ring, Some(file), None) => Some(checked(file).map_err(refuse)?),
        (Status::Ring, _, _) => return Err(refuse("it did not send exactly one descriptor".into())),
        // What it sent all the same is closed here.
        _ => None,
    };
    Ok(Some(Arrival { pid, hello, ring }))
}

/// Reads one message and its descriptors.
async fn receive(stream: &UnixStream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    loop {
        stream.readable().await?;
        match stream.try_io(Interest::READABLE, || receive_now(stream)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
    }
}

fn receive_now(stream: &UnixStream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    // One byte more than a hello and one descriptor more than a ring, so that too much shows.
    let mut bytes = [0; HELLO_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut bytes)];
    let got = recvmsg(stream.as_fd(), &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            files.extend(more);
        }
    }
    if got.flags.intersects(ReturnFlags::CTRUNC | ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "its message is longer than a hello"));
    }
    Ok((bytes[..got.bytes.min(bytes.len())].to_vec(), files))
}

/// A descriptor that is safe to read from: a memfd whose size is the ring's for good.
fn checked(file: OwnedFd) -> Result<File, String> {
    let seals = fcntl_get_seals(&file).map_err(|_| "its descriptor is no memfd".to_owned())?;
    if !seals.contains(SEALS) {
        return Err("its memfd is not sealed against a change of size".into());
    }
    let stat = fstat(&file).map_err(|errno| format!("its memfd can't be looked at: {errno}"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_size != FILE_BYTES as i64 {
        return Err(format!("its memfd has {} bytes, a ring has {FILE_BYTES}", stat.st_size));
    }
    Ok(File::from(file))
}

#[cfg(test)]
mod tests;
