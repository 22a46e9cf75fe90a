//! The worker process: gives up its rights, then runs the primitives that the coordinator asks for over the
//! socket that is its standard input. It decides nothing, and it ends as soon as that socket does.

mod authenticate;
mod cuda;
mod exchange;
mod host;
mod launch;
mod listen;
mod look;
mod timed;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::protocol::{Answer, Call, Decoder, Reply, Request, encode};
use cuda::Cuda;
use host::Host;
use look::Looker;
use timed::Cancel;

/// How long a request that was overtaken by the next one may take to notice.
const CANCEL_WAIT: Duration = Duration::from_secs(2);

/// How often that is looked at.
const CANCEL_POLL: Duration = Duration::from_millis(2);

/// How long the coordinator may leave an answer unread before the worker takes it for dead.
const SEND_WAIT: Duration = Duration::from_secs(10);

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;

/// Becomes another program if the command line says so; see [`launch`].
#[must_use]
pub fn become_other() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    (arguments.next()? == launch::FLAG).then(|| launch::launch(arguments))
}

/// The whole life of a worker. `parent` is the coordinator's pid.
#[must_use]
pub fn run(parent: u32) -> ExitCode {
    if let Err(error) = kernels::confined::confine(parent) {
        eprintln!("aimaster-worker: {error}");
        return ExitCode::FAILURE;
    }
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from);
    match socket.and_then(|socket| Worker::new(&socket)?.serve(socket)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("aimaster-worker: the coordinator's socket: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A request at work.
struct Job {
    cancel: Cancel,
    thread: JoinHandle<()>,
}

struct Worker {
    replies: Arc<Mutex<UnixStream>>,
    listeners: Vec<TcpListener>,
    host: Option<Arc<Host>>,
    cuda: Option<Arc<Cuda>>,
    looker: Looker,
    job: Option<Job>,
}

impl Worker {
    fn new(socket: &UnixStream) -> std::io::Result<Self> {
        socket.set_write_timeout(Some(SEND_WAIT))?;
        let replies = Arc::new(Mutex::new(socket.try_clone()?));
        Ok(Self {
            replies,
            listeners: Vec::new(),
            host: None,
            cuda: None,
            looker: Looker::default(),
            job: None,
        })
    }

    /// Reads requests until the socket ends. Returning ends the process, whatever its threads do.
    fn serve(mut self, mut socket: UnixStream) -> std::io::Result<()> {
        let mut decoder = Decoder::default();
        let mut piece = vec![0; READ_BYTES];
        loop {
            while let Some(call) = decoder.message::<Call>().map_err(std::io::Error::other)? {
                if call.request == Request::Stop {
                    return send(&self.replies, call.id, Reply::Stopping);
                }
                if !self.overtake() {
                    return Err(std::io::Error::other("a request does not end; a new worker is needed"));
                }
                self.start(call)?;
            }
            match socket.read(&mut piece)? {
                0 => return Ok(()),
                count => decoder.push(&piece[..count]),
            }
        }
    }

    /// Cancels the request at work; false if it does not end.
    fn overtake(&mut self) -> bool {
        let Some(job) = self.job.take() else { return true };
        job.cancel.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + CANCEL_WAIT;
        while !job.thread.is_finished() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(CANCEL_POLL);
        }
        job.thread.join().is_ok()
    }

    fn start(&mut self, call: Call) -> std::io::Result<()> {
        let reply = match call.request {
            Request::Ping => Reply::Ready,
            Request::Listen(wanted) => match listen::bind(&wanted) {
                Ok((listeners, rank_ports)) => {
                    self.listeners = listeners;
                    Reply::Listening { rank_ports }
                }
                Err(error) => Reply::Failed { message: error.to_string() },
            },
            Request::Look(wanted) => {
                let replies = Arc::clone(&self.replies);
                // As below: a socket that can't be written to has ended.
                let told = move |reading| _ = send(&replies, call.id, Reply::Looked(Box::new(reading)));
                return self.looker.look(wanted, told);
            }
            Request::Open(wanted) => match Cuda::open(&wanted, self.looker.clone()) {
                Ok((cuda, opened)) => {
                    self.cuda = Some(Arc::new(cuda));
                    Reply::Opened(opened)
                }
                Err(message) => Reply::Failed { message },
            },
            Request::Join { .. } if self.host.is_some() => {
                Reply::Failed { message: "this worker has joined already".to_owned() }
            }
            Request::Join { node, key } => match Host::start(node, key, &self.listeners) {
                Ok(host) => {
                    self.host = Some(Arc::new(host));
                    Reply::Ready
                }
                Err(error) => Reply::Failed { message: format!("the listeners can't be served: {error}") },
            },
            primitive => return self.measure(call.id, primitive),
        };
        send(&self.replies, call.id, reply)
    }

    /// Runs a primitive on a thread of its own, so that the next request can overtake it.
    fn measure(&mut self, id: u64, primitive: Request) -> std::io::Result<()> {
        let Some(host) = self.host.clone() else {
            let message = "a primitive was asked for before Join".to_owned();
            return send(&self.replies, id, Reply::Failed { message });
        };
        let cuda = self.cuda.clone();
        let cancel = Cancel::default();
        let (replies, seen) = (Arc::clone(&self.replies), Arc::clone(&cancel));
        let thread = std::thread::Builder::new().name("primitive".to_owned()).spawn(move || {
            let reply = catch_unwind(AssertUnwindSafe(|| {
                let on_gpus = cuda.as_ref().and_then(|cuda| cuda.measure(&host, &primitive, &seen));
                on_gpus.unwrap_or_else(|| host.measure(&primitive, &seen))
            }))
            .unwrap_or_else(|_| Reply::Failed { message: "the worker hit a bug (panic)".to_owned() });
            // A socket that can't be written to has ended: the reader sees that too, and ends the process.
            let _ = send(&replies, id, reply);
        })?;
        self.job = Some(Job { cancel, thread });
        Ok(())
    }
}

fn send(replies: &Mutex<UnixStream>, id: u64, reply: Reply) -> std::io::Result<()> {
    let frame = encode(&Answer { id, reply }).map_err(std::io::Error::other)?;
    replies.lock().unwrap_or_else(PoisonError::into_inner).write_all(&frame)
}
