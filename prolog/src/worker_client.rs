//! The coordinator's handle on its worker: starts it without rights, asks it for primitives, restarts it where
//! it no longer answers, and ends it. What a worker does with a request is in [`crate::worker`].

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use diag::facts::NodeId;
use diag::gpu_facts::reading::NodeReading;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout};
use zeroize::{Zeroize as _, Zeroizing};

use crate::protocol::{
    Answer, Call, DataKey, Decoder, Devices, FrameError, Listen, Look, Opened, Reply, Request, encode,
};

use crate::thread_state;

pub use kernels::confined::UserError;

/// How long a worker may take to give up what it does and say so, before it is replaced.
const CANCEL_WAIT: Duration = Duration::from_secs(3);

/// How long a new worker may take to bind its ports.
const START_WAIT: Duration = Duration::from_secs(5);

/// How long each step of an end may take: the request, SIGTERM, SIGKILL. The three together stay below the 5 s
/// in which a cancelled job's prolog must be gone.
const STOP_WAIT: Duration = Duration::from_secs(1);

/// Most new workers a suite: one that keeps dying is no accident.
const MAX_RESTARTS: u32 = 3;

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;

/// How to run a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// `paths.worker_user`: a name, `uid:gid`, or empty. It counts only where the coordinator is root.
    pub user: String,
    /// How many ranks, one port each.
    pub ranks: u32,
    /// First port of the site's range.
    pub port_first: u16,
    /// Last port of the site's range, inclusive.
    pub port_last: u16,
    /// The job.
    pub job_id: u32,
    /// The GPUs to open; `None`: the host engine.
    pub devices: Option<Devices>,
    /// All of its environment.
    pub environment: Vec<(String, String)>,
}

/// Why a worker did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// No user to run it as.
    #[error("the worker has no user to run as (paths.worker_user)")]
    User(#[source] UserError),
    /// The process could not be started.
    #[error("the worker {} can't be started; check that it is installed and that its user may run it", .path.display())]
    Start {
        /// The program.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// The socket broke.
    #[error("the worker can't be talked to")]
    Socket(#[source] std::io::Error),
    /// A message was too long or can't be read.
    #[error("the worker sent, or was to be sent, something that is no message; is it of another version?")]
    Frame(#[source] FrameError),
    /// It ended by itself.
    #[error("the worker ended ({status}) instead of answering; see the kernel log for an out-of-memory kill")]
    Died {
        /// How, in words.
        status: String,
    },
    /// It did not answer in time.
    #[error("the worker did not answer within {} ms{waits}", .within.as_millis())]
    Timeout {
        /// How long it had.
        within: Duration,
        /// Which of its threads wait inside the kernel, in words; empty: none.
        waits: String,
    },
    /// It said that it can't.
    #[error("the worker can't: {message}")]
    Refused {
        /// What it said.
        message: String,
    },
    /// It ended too often.
    #[error("the worker had to be replaced {MAX_RESTARTS} times and is not started again")]
    KeepsEnding,
    /// It survived SIGKILL, as a process does that waits for a device.
    #[error(
        "the worker (pid {pid}, state {state}) is still there after SIGKILL; it waits inside the kernel and is left \
         behind, its GPUs are not measured: see the kernel's log, and restart the node if it stays so"
    )]
    StillThere {
        /// Its pid.
        pid: i32,
        /// Its state, the letter of /proc.
        state: char,
    },
}

/// A running worker. Dropping it kills the process.
#[derive(Debug)]
pub struct Worker {
    path: PathBuf,
    options: Options,
    process: Option<Process>,
    /// Where its ranks listen; a replacement listens there too.
    rank_ports: Vec<u16>,
    joined: Option<(NodeId, DataKey)>,
    /// What it is to look at, and the number of that request.
    look: Option<(Look, u64)>,
    /// What it saw first.
    seen: Option<NodeReading>,
    next_id: u64,
    restarts: u32,
    /// A request was sent whose answer was not waited for.
    unanswered: bool,
    /// Pid and state of a process that could not be ended: it holds the ports and the GPUs, so there is no other.
    left_behind: Option<(i32, char)>,
}

#[derive(Debug)]
struct Process {
    /// It knows all that its predecessor knew.
    ready: bool,
    child: Child,
    socket: UnixStream,
    decoder: Decoder,
    /// What is not sent yet: a caller that gives up in the middle of a frame must not cut it.
    outgoing: Zeroizing<Vec<u8>>,
}

impl Worker {
    /// Starts the program at `path`. Needs a tokio runtime with IO and time. The kernel kills the worker when
    /// the calling thread ends, not only the process: call it on the main thread.
    pub fn spawn(path: &Path, options: Options) -> Result<Self, WorkerError> {
        let process = Process::start(path, &options)?;
        Ok(Self {
            path: path.to_owned(),
            options,
            process: Some(process),
            rank_ports: Vec::new(),
            joined: None,
            look: None,
            seen: None,
            next_id: 0,
            restarts: 0,
            unanswered: false,
            left_behind: None,
        })
    }

    /// Has it bind its ports: rank i listens on the i-th one.
    pub async fn hello(&mut self, within: Duration) -> Result<&[u16], WorkerError> {
        let listen = Listen {
            ranks: self.options.ranks,
            port_first: self.options.port_first,
            port_last: self.options.port_last,
            job_id: self.options.job_id,
            exactly: self.rank_ports.clone(),
        };
        match self.ask(Request::Listen(listen), within).await? {
            Reply::Listening { rank_ports } => {
                self.rank_ports = rank_ports;
                Ok(&self.rank_ports)
            }
            other => Err(refusal(other)),
        }
    }

    /// Has it read what NVML and the kernel say of this node, beside whatever it is asked next.
    pub fn look(&mut self, look: Look) -> Result<(), WorkerError> {
        let Some(process) = &mut self.process else { return Ok(()) };
        self.next_id += 1;
        let call = Call { id: self.next_id, request: Request::Look(look.clone()) };
        process.outgoing.extend_from_slice(&encode(&call).map_err(WorkerError::Frame)?);
        self.look = Some((look, self.next_id));
        Ok(())
    }

    /// What it read, waited for at most `within`.
    pub async fn looked(&mut self, within: Duration) -> Result<&NodeReading, WorkerError> {
        if let (None, Some(process), Some((_, id))) = (&self.seen, &mut self.process, &self.look) {
            match timeout(within, process.exchange(*id, &mut self.seen)).await {
                Ok(answer) => _ = answer?,
                Err(_) => return Err(self.silent(within)),
            }
        }
        self.reading().ok_or_else(|| WorkerError::Died { status: "before it told what it saw".to_owned() })
    }

    /// What it read at first, if it has.
    #[must_use]
    pub fn reading(&self) -> Option<&NodeReading> {
        self.seen.as_ref()
    }

    /// Has it load the CUDA engine's libraries and open the GPUs, rank i being the i-th of them.
    pub async fn open(&mut self) -> Result<Opened, WorkerError> {
        let Some(devices) = self.options.devices.clone() else {
            return Err(WorkerError::Refused { message: "the host engine has no GPUs to open".to_owned() });
        };
        self.make_ready().await?;
        self.ask_open(devices).await
    }

    /// Tells it who this node is and the key of the data connections, once the rendezvous is over.
    pub async fn join(&mut self, node: NodeId, key: DataKey, within: Duration) -> Result<(), WorkerError> {
        self.joined = Some((node, key.clone()));
        self.make_ready().await?;
        self.ask_join(node, key, within).await
    }

    /// Asks for a primitive. After an error, or after the caller gave up waiting, the next call works: the
    /// worker drops what it did, or is replaced by one with the same ports.
    pub async fn call(&mut self, request: Request, within: Duration) -> Result<Reply, WorkerError> {
        self.make_ready().await?;
        self.ask(request, within).await
    }

    /// Replaces a process that has ended, so that its ranks are there when others connect to them. One that is
    /// only silent is left to the next call.
    pub async fn revive(&mut self, until: Instant) -> Result<(), WorkerError> {
        if self.process.is_some() {
            return Ok(());
        }
        let within = until.saturating_duration_since(Instant::now());
        match timeout(within, self.make_ready()).await {
            Ok(ready) => ready,
            Err(_) => Err(self.silent(within)),
        }
    }

    /// The pid, while there is a process.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().and_then(|process| process.child.id())
    }

    /// Ends it: asked, then SIGTERM, then SIGKILL. Takes at most three seconds; a process that survives that is
    /// left and named.
    pub async fn stop(mut self) -> Result<(), WorkerError> {
        if self.process.is_none() {
            return self.none_left_behind();
        }
        // Its answer does not matter: what counts is that it ends.
        let _ = self.ask(Request::Stop, STOP_WAIT).await;
        let Some(process) = self.process.as_mut() else { return Ok(()) };
        if process.ended().await {
            return Ok(());
        }
        process.signal(Signal::TERM);
        if process.ended().await {
            return Ok(());
        }
        process.kill().await
    }

    async fn make_ready(&mut self) -> Result<(), WorkerError> {
        if let Some(process) = &self.process {
            let ready = process.ready;
            if ready
                && (!self.unanswered
                    || matches!(self.ask(Request::Ping, CANCEL_WAIT).await, Ok(Reply::Ready)))
            {
                return Ok(());
            }
            if let Some(process) = self.process.take() {
                self.end(process).await?;
            }
        }
        self.none_left_behind()?;
        if self.restarts >= MAX_RESTARTS {
            return Err(WorkerError::KeepsEnding);
        }
        self.restarts += 1;
        self.process = Some(Process { ready: false, ..Process::start(&self.path, &self.options)? });
        self.hello(START_WAIT).await?;
        if let Some((look, _)) = self.look.clone() {
            self.look(look)?;
        }
        if let Some(devices) = self.options.devices.clone() {
            self.ask_open(devices).await?;
        }
        if let Some((node, key)) = self.joined.clone() {
            self.ask_join(node, key, START_WAIT).await?;
        }
        if let Some(process) = &mut self.process {
            process.ready = true;
        }
        Ok(())
    }

    async fn ask_open(&mut self, devices: Devices) -> Result<Opened, WorkerError> {
        let within = Duration::from_millis(devices.limit_ms) + START_WAIT;
        match self.ask(Request::Open(devices), within).await? {
            Reply::Opened(opened) => Ok(opened),
            other => Err(refusal(other)),
        }
    }

    async fn ask_join(&mut self, node: NodeId, key: DataKey, within: Duration) -> Result<(), WorkerError> {
        match self.ask(Request::Join { node, key }, within).await? {
            Reply::Ready => Ok(()),
            other => Err(refusal(other)),
        }
    }

    async fn ask(&mut self, request: Request, within: Duration) -> Result<Reply, WorkerError> {
        let process = self
            .process
            .as_mut()
            .ok_or_else(|| WorkerError::Died { status: "before this request".to_owned() })?;
        self.next_id += 1;
        let id = self.next_id;
        process.outgoing.extend_from_slice(&encode(&Call { id, request }).map_err(WorkerError::Frame)?);
        self.unanswered = true;
        let error = match timeout(within, process.exchange(id, &mut self.seen)).await {
            Ok(Ok(reply)) => {
                self.unanswered = false;
                return Ok(reply);
            }
            Ok(Err(error)) => error,
            // It may still be busy; the next call finds out.
            Err(_) => return Err(self.silent(within)),
        };
        // The stream is of no use any more, whatever the process does.
        let Some(mut process) = self.process.take() else { return Err(error) };
        match (error, timeout(STOP_WAIT, process.child.wait()).await) {
            (WorkerError::Socket(_), Ok(Ok(status))) => Err(WorkerError::Died { status: describe(status) }),
            (error, _) => {
                self.end(process).await?;
                Err(error)
            }
        }
    }

    /// Kills a process, or takes note that this one can't be.
    async fn end(&mut self, mut process: Process) -> Result<(), WorkerError> {
        let ended = process.kill().await;
        if let Err(WorkerError::StillThere { pid, state }) = ended {
            self.left_behind = Some((pid, state));
        }
        ended
    }

    fn none_left_behind(&self) -> Result<(), WorkerError> {
        match self.left_behind {
            Some((pid, state)) => Err(WorkerError::StillThere { pid, state }),
            None => Ok(()),
        }
    }

    /// The process did not answer.
    fn silent(&self, within: Duration) -> WorkerError {
        let pid = self.pid().and_then(|pid| i32::try_from(pid).ok());
        WorkerError::Timeout {
            within,
            waits: pid.map_or_else(String::new, thread_state::those_inside_kernel),
        }
    }
}

impl Process {
    fn start(path: &Path, options: &Options) -> Result<Self, WorkerError> {
        let identity = kernels::confined::resolve(&options.user).map_err(WorkerError::User)?;
        let start = |source| WorkerError::Start { path: path.to_owned(), source };
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(start)?;
        ours.set_nonblocking(true).map_err(start)?;
        let socket = UnixStream::from_std(ours).map_err(start)?;
        // NCCL registers memory with network cards, and the worker can't raise its limit: it inherits this one.
        let unlimited = Rlimit { current: None, maximum: None };
        let _ = setrlimit(Resource::Memlock, unlimited); // not root: as much as this user has
        let mut command = Command::new(path);
        command
            .arg(std::process::id().to_string())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .env_clear()
            .envs(options.environment.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .kill_on_drop(true);
        if let Some((uid, gid)) = identity {
            // The standard library drops the supplementary groups with a change of user.
            command.uid(uid).gid(gid);
        }
        let child = command.spawn().map_err(start)?;
        Ok(Self { ready: true, child, socket, decoder: Decoder::default(), outgoing: Zeroizing::default() })
    }

    /// Sends what is to be sent and waits for the answer `id`; older answers belong to callers who gave up.
    /// Dropping the future at any point loses nothing: what it saw is kept whenever it comes.
    async fn exchange(&mut self, id: u64, seen: &mut Option<NodeReading>) -> Result<Reply, WorkerError> {
        while !self.outgoing.is_empty() {
            let sent = self.socket.write(&self.outgoing).await.map_err(WorkerError::Socket)?;
            self.outgoing.drain(..sent);
        }
        // It may have been the key.
        self.outgoing.zeroize();
        let mut piece = vec![0; READ_BYTES];
        loop {
            while let Some(answer) = self.decoder.message::<Answer>().map_err(WorkerError::Frame)? {
                if let Reply::Looked(reading) = &answer.reply {
                    seen.get_or_insert_with(|| (**reading).clone());
                }
                if answer.id == id {
                    return Ok(answer.reply);
                }
            }
            let count = self.socket.read(&mut piece).await.map_err(WorkerError::Socket)?;
            if count == 0 {
                return Err(WorkerError::Socket(std::io::ErrorKind::UnexpectedEof.into()));
            }
            self.decoder.push(&piece[..count]);
        }
    }

    async fn ended(&mut self) -> bool {
        matches!(timeout(STOP_WAIT, self.child.wait()).await, Ok(Ok(_)))
    }

    /// Sends a signal; a process that is gone, and not yet waited for, takes it without effect.
    fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = kill_process(pid, signal);
        }
    }

    async fn kill(&mut self) -> Result<(), WorkerError> {
        self.signal(Signal::KILL);
        let pid = self.child.id();
        if self.ended().await {
            return Ok(());
        }
        let pid = pid.and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0);
        Err(WorkerError::StillThere { pid, state: thread_state::of_process(pid) })
    }
}

fn refusal(reply: Reply) -> WorkerError {
    match reply {
        Reply::Failed { message } => WorkerError::Refused { message },
        other => WorkerError::Refused { message: format!("it answered {other:?} to something else") },
    }
}

fn describe(status: ExitStatus) -> String {
    status.to_string()
}
