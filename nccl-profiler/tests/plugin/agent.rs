//! Plays the agent: listens, takes the ring, checks what the agent checks. Also starts the processes that play ranks: this
//! program again, with the name of a scenario, because the plugin's state is a process's.

use std::ffi::c_void;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nccl_profiler::handover::{Hello, SOCKET_VARIABLE, Status};
use nccl_profiler::ring::{
    Communicator, Counter, Entry, FILE_BYTES, ORDER_AT, Order, Polled, Reader, Record,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{SealFlags, fcntl_get_seals};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags,
    SocketType, accept, bind, listen, recvmsg, socket_with,
};

use crate::nccl::Nccl;

/// Names the scenario that a process is to play.
pub const SCENARIO: &str = "PLUGIN_TEST_SCENARIO";

/// For a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is built for the tests, once.
pub struct Built {
    pub plugin: PathBuf,
    pub fake_nccl: PathBuf,
}

pub fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let program = std::env::current_exe().unwrap();
        // target/<profile>/deps/<program>
        let target = program.ancestors().nth(3).unwrap();
        for arguments in [
            &["build", "--profile", "plugin", "-p", "nccl-profiler-plugin"][..],
            &["build", "-p", "nccl-profiler", "--example", "fake_nccl"],
        ] {
            let mut cargo = Command::new(env!("CARGO"));
            let cargo =
                cargo.args(arguments).arg("--target-dir").arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
            let output = cargo.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        Built {
            plugin: target.join("plugin/libnccl_profiler_aimaster.so"),
            fake_nccl: target.join("debug/examples/libfake_nccl.so"),
        }
    })
}

/// In a rank: the plugin, as a NCCL of this interface version loads it.
pub fn load(api: u32) -> Nccl {
    let folder = std::env::var("PLUGIN_TEST_FILES").unwrap();
    let (plugin, fake) = folder.split_once(':').unwrap();
    // SAFETY: the file has a function of this name and no initialiser; it stays loaded.
    let log = unsafe {
        let library = libloading::Library::new(fake).unwrap();
        let log = *library.get::<*const c_void>(b"fake_nccl_log").unwrap();
        std::mem::forget(library);
        log
    };
    Nccl::load(Path::new(plugin), api, log)
}

/// In a rank: says a line and waits for the agent's answer.
pub fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(b"\x01").unwrap();
    out.write_all(line.as_bytes()).unwrap();
    out.write_all(b"\x02").unwrap();
    out.flush().unwrap();
    let mut answer = [0];
    std::io::stdin().read_exact(&mut answer).unwrap();
}

/// A process that plays a scenario.
pub struct Rank {
    child: Child,
    listener: Option<OwnedFd>,
    name: String,
}

pub fn listener(name: &str, kind: SocketType, queue: i32) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    listen(&socket, queue).unwrap();
    socket
}

pub fn fresh_name() -> String {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    format!("aimaster-c4d/test/{}/{number}", std::process::id())
}

fn command(scenario: &str) -> Command {
    let built = built();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "rank", "--nocapture", "--test-threads=1"])
        .env(SCENARIO, scenario)
        .env("PLUGIN_TEST_FILES", format!("{}:{}", built.plugin.display(), built.fake_nccl.display()))
        .env_remove(SOCKET_VARIABLE)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

impl Rank {
    pub fn start(scenario: &str) -> Self {
        Self::start_with(scenario, &[])
    }

    pub fn start_with(scenario: &str, variables: &[(&str, &str)]) -> Self {
        let mut rank = Self::start_deaf(scenario, variables);
        rank.listen();
        rank.answer();
        rank
    }

    /// A rank whose agent does not listen yet. It waits for an answer before it begins.
    pub fn start_deaf(scenario: &str, variables: &[(&str, &str)]) -> Self {
        let name = fresh_name();
        let mut command = command(scenario);
        let child = command.env(SOCKET_VARIABLE, &name).envs(variables.iter().copied()).spawn().unwrap();
        Self { child, listener: None, name }
    }

    /// The agent begins to listen.
    pub fn listen(&mut self) {
        self.listener = Some(listener(&self.name, SocketType::SEQPACKET, 16));
    }

    /// Ends the process from outside.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// A process without an agent; the socket's name is what `variables` say.
    pub fn play_alone(scenario: &str, variables: &[(&str, &str)]) {
        let mut rank = command(scenario).envs(variables.iter().copied()).spawn().unwrap();
        rank.stdin.as_mut().unwrap().write_all(b".").unwrap();
        let status = wait(&mut rank);
        assert!(status.success(), "{scenario}: {status}");
    }

    /// What the rank says in [`tell`].
    pub fn hear(&mut self) -> String {
        let out = self.child.stdout.as_mut().unwrap();
        let mut byte = [0];
        let mut next = || {
            out.read_exact(&mut byte).expect("the rank ended before it said what is waited for");
            byte[0]
        };
        while next() != 1 {}
        let mut line = Vec::new();
        loop {
            match next() {
                2 => return String::from_utf8(line).unwrap(),
                letter => line.push(letter),
            }
        }
    }

    /// Lets the rank go on.
    pub fn answer(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b".").unwrap();
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The message, and the ring if there is one.
    pub fn hello(&self) -> (Hello, Option<Ring>) {
        self.try_hello(PATIENCE).unwrap_or_else(|| panic!("nobody said hello on {}", self.name))
    }

    /// None if no message comes in this time. A thread that finds another's ring may knock and go without a word.
    pub fn try_hello(&self, patience: Duration) -> Option<(Hello, Option<Ring>)> {
        let listener = self.listener.as_ref().unwrap();
        loop {
            let patience = Timespec::try_from(patience).unwrap();
            let mut fds = [PollFd::new(listener, PollFlags::IN)];
            if poll(&mut fds, Some(&patience)).unwrap() == 0 {
                return None;
            }
            let found = message(&accept(listener).unwrap());
            if found.is_some() {
                return found;
            }
        }
    }

    pub fn ring(&self) -> Ring {
        self.hello().1.unwrap()
    }

    /// Waits for the process's end, which must be a good one.
    pub fn finish(mut self) {
        let status = wait(&mut self.child);
        let mut said = String::new();
        let _ = self.child.stdout.take().unwrap().read_to_string(&mut said);
        assert!(status.success(), "{status}: {said}");
        assert!(self.try_hello(Duration::ZERO).is_none(), "a process says hello once");
    }

    /// The ring after the process's end.
    pub fn play(scenario: &str) -> Ring {
        let rank = Self::start(scenario);
        let ring = rank.ring();
        rank.finish();
        ring
    }
}

/// What a plugin that connected says; none if it went without a word.
pub fn message(peer: &OwnedFd) -> Option<(Hello, Option<Ring>)> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 64];
    let mut into = [std::io::IoSliceMut::new(&mut bytes)];
    let got = recvmsg(peer, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap().bytes;
    if got == 0 {
        return None;
    }
    let hello = Hello::decode(&bytes[..got]).unwrap();
    let files = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let mut files: Vec<OwnedFd> = files.flatten().collect();
    assert!(files.len() <= 1);
    let ring = files.pop().map(|file| Ring::check(File::from(file)));
    assert_eq!(ring.is_some(), hello.status == Status::Ring);
    Some((hello, ring))
}

fn wait(child: &mut Child) -> std::process::ExitStatus {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if began.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("the rank did not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A ring as the agent has it.
pub struct Ring {
    pub reader: Reader<File>,
}

impl Ring {
    fn check(file: File) -> Self {
        let seals = fcntl_get_seals(&file).unwrap();
        assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL), "{seals:?}");
        assert_eq!(file.metadata().unwrap().len(), FILE_BYTES);
        Self { reader: Reader::open(file).unwrap() }
    }

    pub fn order(&self, order: Order) {
        self.reader.source().write_all_at(&order.to_bytes(), ORDER_AT).unwrap();
    }

    pub fn poll(&mut self) -> (Vec<Entry>, Polled) {
        let mut entries = Vec::new();
        let polled = self.reader.poll(u64::MAX, &mut entries).unwrap();
        (entries, polled)
    }

    /// All records; none may be lost.
    pub fn records(&mut self) -> Vec<Record> {
        let (entries, polled) = self.poll();
        assert_eq!((polled.lost, polled.odd, polled.more), (0, 0, false));
        assert_eq!(polled.read, self.reader.header().unwrap().written);
        entries.into_iter().map(|entry| entry.record).collect()
    }

    pub fn count(&self, counter: Counter) -> u64 {
        self.reader.header().unwrap().counter(counter)
    }

    /// That nothing was dropped but what is named.
    pub fn counts(&self, expected: &[(Counter, u64)]) {
        for counter in [
            Counter::CommunicatorsFull,
            Counter::OpsFull,
            Counter::StepsFull,
            Counter::RecordBusy,
            Counter::Stale,
            Counter::Foreign,
            Counter::Repeated,
            Counter::Evicted,
        ] {
            let wanted = expected.iter().find(|(one, _)| *one == counter).map_or(0, |(_, count)| *count);
            assert_eq!(self.count(counter), wanted, "{counter:?}");
        }
    }

    pub fn communicators(&self) -> Vec<Communicator> {
        self.reader.communicators().unwrap()
    }

    pub fn communicator(&self) -> Communicator {
        let mut all = self.communicators();
        assert_eq!(all.len(), 1);
        all.remove(0)
    }
}

/// The numbers of the operations that are done.
pub fn done(records: &[Record]) -> Vec<u64> {
    records
        .iter()
        .filter_map(|record| if let Record::Done { op, .. } = record { Some(op.sequence) } else { None })
        .collect()
}
