//! The program that asks NVML while a job runs: an ordinary user's process, since NVML is not loaded as root, and one
//! that can be left behind when a driver does not come back. It tells lines of [`Told`] on the socket that is its
//! standard input, decides nothing, and ends as soon as that socket does.
//!
//! Each GPU has two threads of its own, one that asks and one that waits for events, so that one that hangs holds up no
//! other.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use diag::gpu_facts::ids::GpuId;
use diag::gpu_facts::reading::{Device, GpuReading};
use diag::health::reading::Told;
use kernels::nvml::Nvml;
use kernels::{Libraries, Purpose};
use serde::{Deserialize, Serialize};

use super::lines::{Lines, MOST_LINE_BYTES, line};

/// How long the first readings may take before those that came are told; a driver that is loaded for its first client
/// takes seconds (E11).
const START_LIMIT: Duration = Duration::from_secs(15);

/// From sample to sample.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// Samples from one whole reading to the next: a whole one costs some two hundred calls into the driver.
const WHOLE_EVERY: u32 = 5;

/// How often it is said that a driver owes an answer, and from when on.
const SILENT_EVERY: Duration = Duration::from_secs(5);

/// How long one wait for events lasts: it only bounds how late the thread ends.
const EVENT_WAIT: Duration = Duration::from_secs(2);

/// Messages that wait to be written; samples beyond it are dropped.
const MOST_WAITING: usize = 1024;

/// How long the other end may leave a line unread before it is taken for dead.
const SEND_WAIT: Duration = Duration::from_secs(10);

/// What the watcher is to watch: the first and only line that it reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    /// The job's GPUs.
    pub gpus: Vec<GpuId>,
    /// NVML's library by the policy; empty: the loader's own search.
    pub nvml: PathBuf,
}

/// The whole life of a watcher. `parent` is the pid of who started it.
#[must_use]
pub fn run(parent: u32) -> ExitCode {
    if let Err(error) = kernels::confined::confine(parent) {
        eprintln!("aimaster-watcher: {error}");
        return ExitCode::FAILURE;
    }
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("aimaster-watcher: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returning ends the process, whatever its threads do.
fn serve() -> io::Result<()> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_write_timeout(Some(SEND_WAIT))?;
    let mut first = Vec::new();
    let limit = u64::try_from(MOST_LINE_BYTES).unwrap_or(u64::MAX);
    BufReader::new(socket.try_clone()?.take(limit)).read_until(b'\n', &mut first)?;
    let mut lines = Lines::default();
    lines.push(&first);
    let wanted: Wanted = lines.next().map_err(io::Error::other)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let (sender, told) = sync_channel(MOST_WAITING);
    let mut reader = socket.try_clone()?;
    named("socket", move || {
        // Nothing is said on it any more: whatever comes, it has ended, and so does this process, whatever its other
        // threads do.
        _ = reader.read(&mut [0]);
        std::process::exit(0)
    })?;
    let asked = Asked::default();
    let watched = asked.clone();
    named("nvml", move || ask(&wanted, &sender, &watched))?;
    write(socket, &told, &asked)
}

fn named(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// Which GPUs owe an answer, and since when.
#[derive(Debug, Clone, Default)]
struct Asked(Arc<Mutex<Vec<(String, Instant)>>>);

impl Asked {
    fn now(&self, uuid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((uuid.to_owned(), Instant::now()));
    }

    fn answered(&self, uuid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|(asked, _)| asked != uuid);
    }

    fn silent(&self) -> Vec<Told> {
        let asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let each = |(uuid, since): &(String, Instant)| {
            let for_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
            (since.elapsed() >= SILENT_EVERY).then(|| Told::Silent { uuid: uuid.clone(), for_ms })
        };
        asked.iter().filter_map(each).collect()
    }
}

/// Writes what is told until the other end is gone or does not read.
fn write(mut socket: UnixStream, told: &Receiver<Told>, asked: &Asked) -> io::Result<()> {
    let mut next = Instant::now() + SILENT_EVERY;
    loop {
        match told.recv_timeout(SAMPLE_EVERY / 2) {
            Ok(told) => socket.write_all(&line(&told)?)?,
            Err(RecvTimeoutError::Timeout) => (),
            // Nobody is left who asks; the other end decides what that means.
            Err(RecvTimeoutError::Disconnected) => thread::sleep(SAMPLE_EVERY / 2),
        }
        if Instant::now() >= next {
            for silent in asked.silent() {
                socket.write_all(&line(&silent)?)?;
            }
            next = Instant::now() + SILENT_EVERY;
        }
    }
}

/// Finds the GPUs, tells how they are, and starts to watch them. Where a send fails nobody listens any more.
fn ask(wanted: &Wanted, sender: &SyncSender<Told>, asked: &Asked) {
    let begun = Instant::now();
    let nothing = |trouble: String| Told::Start { gpus: vec![], absent: vec![], trouble: vec![trouble] };
    let nvml: &'static Nvml = match open(&wanted.nvml) {
        // Never given back: its end would wait for a driver that hangs.
        Ok(nvml) => Box::leak(Box::new(nvml)),
        Err(words) => {
            _ = sender.send(nothing(words));
            return;
        }
    };
    let (reading, devices) = match nvml.find(&wanted.gpus) {
        Ok(found) => found,
        Err(error) => {
            _ = sender.send(nothing(error.to_string()));
            return;
        }
    };
    let (first, firsts) = sync_channel(devices.len().max(1));
    for (at, device) in devices.iter().cloned().enumerate() {
        let (first, sender, asked) = (first.clone(), sender.clone(), asked.clone());
        // Without a thread it counts as one that does not answer.
        _ = named("gpu", move || watch(nvml, at, &device, &first, &sender, &asked));
    }
    drop(first);
    let mut gpus: Vec<Option<GpuReading>> = vec![None; devices.len()];
    while gpus.iter().any(Option::is_none) {
        match firsts.recv_timeout(START_LIMIT.saturating_sub(begun.elapsed())) {
            Ok((at, gpu)) => gpus[at] = Some(gpu),
            Err(_) => break,
        }
    }
    let silent = |device: Device| GpuReading {
        unreadable: vec![format!("no answer within {} s", START_LIMIT.as_secs())],
        device,
        ..GpuReading::default()
    };
    let gpus =
        devices.into_iter().zip(gpus).map(|(device, gpu)| gpu.unwrap_or_else(|| silent(device))).collect();
    _ = sender.send(Told::Start { gpus, absent: reading.absent, trouble: Vec::new() });
}

fn open(policy: &Path) -> Result<Nvml, String> {
    if policy.as_os_str().is_empty() {
        return Nvml::open(None).map_err(|error| error.to_string());
    }
    let libraries = Libraries { nvml: Some(policy.to_owned()), ..Libraries::default() };
    let file = libraries.candidates(Purpose::Nvml).into_iter().next();
    let file = file.ok_or_else(|| {
        format!("NVML: there is no {} in {}", Purpose::Nvml.files().join(" or "), policy.display())
    })?;
    Nvml::open(Some(&file)).map_err(|error| error.to_string())
}

/// One GPU for as long as the process lives.
fn watch(
    nvml: &'static Nvml,
    at: usize,
    device: &Device,
    first: &SyncSender<(usize, GpuReading)>,
    sender: &SyncSender<Told>,
    asked: &Asked,
) {
    let name = device.uuid.clone().unwrap_or_default();
    // Events count from before the first reading: what happens between the two shows in one of them.
    if let Some(uuid) = device.uuid.clone() {
        let sender = sender.clone();
        _ = named("events", move || listen(nvml, &uuid, &sender));
    }
    let whole = || {
        asked.now(&name);
        let reading = nvml.gpu(device, &[]);
        asked.answered(&name);
        reading
    };
    let reading = whole();
    let lost = device.uuid.is_none() || reading.lost.is_some();
    if first.send((at, reading)).is_err() || lost {
        return;
    }
    for round in 1_u32.. {
        thread::sleep(SAMPLE_EVERY);
        let told = if round.is_multiple_of(WHOLE_EVERY) {
            Told::Whole(Box::new(whole()))
        } else {
            asked.now(&name);
            let sample = nvml.sample(&name);
            asked.answered(&name);
            match sample {
                Ok(sample) => Told::Sample { uuid: name.clone(), sample: Box::new(sample) },
                Err(error) => Told::Lost { uuid: name.clone(), words: error.to_string() },
            }
        };
        // A full queue is a reader that is late: the next one tells the same.
        if let Err(TrySendError::Disconnected(_)) = sender.try_send(told) {
            return;
        }
    }
}

/// Events of one GPU; a driver without them is asked by samples only.
fn listen(nvml: &'static Nvml, uuid: &str, sender: &SyncSender<Told>) {
    let Ok(events) = nvml.events(uuid) else { return };
    loop {
        match events.next(EVENT_WAIT) {
            Ok(None) => (),
            Ok(Some(event)) => {
                if sender.send(Told::Event { uuid: uuid.to_owned(), event }).is_err() {
                    return;
                }
            }
            // Lost: the samples say so too. A driver that fails at once must not be asked in a circle.
            Err(_) => thread::sleep(EVENT_WAIT),
        }
    }
}
