//! What NVML and the kernel say of this node's GPUs, read on threads of their own: a driver that does not come back
//! keeps a thread of this process, and the answer says so. Nothing is judged here.

#[cfg(test)]
mod tests;
mod watch;

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use diag::gpu_facts::reading::{Device, GpuReading, MachineReading, NodeReading, Process};
use kernels::Purpose;
use kernels::nvml::Nvml;
use kernels::sysfs::{self, Root};

use crate::protocol::Look;
pub(super) use watch::Watch;

/// Name of the worker's program, as the kernel cuts it: two workers may share a GPU, and neither is a stranger.
const OWN_NAME: &str = "aimaster-worker";

/// How long a GPU's memory may take to come back from a job that has just ended: the driver frees it after the process is
/// gone, which takes a second for a large one.
const SETTLE: Duration = Duration::from_secs(3);

/// How often it is looked at meanwhile.
const SETTLE_REST: Duration = Duration::from_millis(200);

/// What is looked with, once it is there.
#[derive(Debug, Clone, Default)]
pub(super) struct Looker(Arc<OnceLock<Eyes>>);

/// NVML and the kernel's files.
#[derive(Debug, Clone)]
struct Eyes {
    /// Never given back: its end would wait for a driver that hangs.
    nvml: &'static Nvml,
    root: Root,
}

/// What a thread has found.
enum Found {
    Trouble(String),
    Node(Box<NodeReading>, Vec<Device>),
    Gpu(usize, Box<GpuReading>),
    Machine(Box<MachineReading>),
}

impl Looker {
    /// Has everything read and hands it to `done` at the limit at the latest.
    pub(super) fn look(
        &self,
        wanted: Look,
        done: impl FnOnce(NodeReading) + Send + 'static,
    ) -> std::io::Result<()> {
        let (sender, found) = channel();
        let until = Instant::now() + Duration::from_millis(wanted.limit_ms);
        let kept = Arc::clone(&self.0);
        let (kernel, root) = (sender.clone(), Root::new(&wanted.root));
        named("nvml", move || ask_nvml(&wanted, &kept, &sender))?;
        named("look", move || done(collect(&found, kernel, &root, until)))
    }

    /// Watches GPUs from now on; nothing where NVML does not work.
    pub(super) fn watch(&self, gpus: &[Watched], window: Duration) -> Option<Watch> {
        Some(Watch::start(self.0.get()?, gpus, window))
    }
}

/// A GPU that is watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Watched {
    pub uuid: String,
    pub pci: String,
}

fn named(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// Nobody listens any more where a send fails: the limit ran out.
fn ask_nvml(wanted: &Look, kept: &OnceLock<Eyes>, sender: &Sender<Found>) {
    let told = |found| _ = sender.send(found);
    let eyes = match open(&wanted.nvml) {
        Ok(nvml) => {
            kept.get_or_init(|| Eyes { nvml: Box::leak(Box::new(nvml)), root: Root::new(&wanted.root) })
        }
        Err(words) => return told(Found::Trouble(words)),
    };
    match eyes.nvml.find(&wanted.gpus) {
        Err(error) => told(Found::Trouble(error.to_string())),
        Ok((reading, devices)) => {
            told(Found::Node(Box::new(reading), devices.clone()));
            for (at, device) in devices.into_iter().enumerate() {
                let (sender, eyes) = (sender.clone(), eyes.clone());
                let least = wanted.gpu_free_bytes;
                // One that hangs holds up no other. Without a thread it counts as one that does not answer.
                let read = move || _ = sender.send(Found::Gpu(at, Box::new(settled(&eyes, &device, least))));
                _ = named("nvml gpu", read);
            }
        }
    }
}

/// A GPU, once enough of its memory is free or it has had its time.
fn settled(eyes: &Eyes, device: &Device, least_bytes: u64) -> GpuReading {
    let until = Instant::now() + SETTLE;
    loop {
        let mut gpu = eyes.nvml.gpu(device, &[std::process::id()]);
        let short = gpu.memory.is_some_and(|memory| memory.free_bytes < least_bytes);
        if !short || Instant::now() >= until {
            gpu.processes = gpu.processes.map(|all| strangers(&eyes.root, all));
            return gpu;
        }
        thread::sleep(SETTLE_REST);
    }
}

fn open(policy: &Path) -> Result<Nvml, String> {
    if policy.as_os_str().is_empty() {
        return Nvml::open(None).map_err(|error| error.to_string());
    }
    let libraries = kernels::Libraries { nvml: Some(policy.to_owned()), ..kernels::Libraries::default() };
    let file = libraries.candidates(Purpose::Nvml).into_iter().next();
    let file = file.ok_or_else(|| {
        format!("NVML: there is no {} in {}", Purpose::Nvml.files().join(" or "), policy.display())
    })?;
    Nvml::open(Some(&file)).map_err(|error| error.to_string())
}

/// Processes that are no workers of this software, with who they are.
fn strangers(root: &Root, processes: Vec<Process>) -> Vec<Process> {
    let own = rustix::process::geteuid().as_raw();
    let with_owner = processes.into_iter().map(|process| {
        let owner = sysfs::process_owner(root, process.pid);
        Process { owner, ..process }
    });
    // The name alone could be anybody's.
    let ours = |process: &Process| {
        process.owner.as_ref().is_some_and(|owner| owner.command == OWN_NAME && owner.uid == own)
    };
    with_owner.filter(|process| !ours(process)).collect()
}

/// Puts together what is found until everything is, or the limit runs out; then it says what is missing.
fn collect(found: &Receiver<Found>, kernel: Sender<Found>, root: &Root, until: Instant) -> NodeReading {
    let begun = Instant::now();
    let mut reading = NodeReading::default();
    let mut devices: Option<Vec<Device>> = None;
    let mut gpus: Vec<Option<GpuReading>> = Vec::new();
    let mut machine = None;
    let mut failed = false;
    let mut kernel = Some(kernel);
    loop {
        let asked = failed || devices.is_some();
        if asked && let Some(sender) = kernel.take() {
            let pci: Vec<String> = devices.iter().flatten().filter_map(|gpu| gpu.pci.clone()).collect();
            let root = root.clone();
            let read = move || {
                _ = sender.send(Found::Machine(Box::new(sysfs::machine(&root, &pci, false))));
            };
            _ = named("sysfs", read);
        }
        if asked && machine.is_some() && gpus.iter().all(Option::is_some) {
            break;
        }
        match found.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Found::Trouble(words)) => {
                reading.trouble.push(words);
                failed = true;
            }
            Ok(Found::Node(node, meant)) => {
                reading = *node;
                gpus = vec![None; meant.len()];
                devices = Some(meant);
            }
            Ok(Found::Gpu(at, gpu)) => gpus[at] = Some(*gpu),
            Ok(Found::Machine(seen)) => machine = Some(*seen),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    let waited = format!("within {} ms", begun.elapsed().as_millis());
    if !failed && devices.is_none() {
        reading.trouble.push(format!(
            "NVML: the driver does not answer {waited}; the kernel's log may have its Xid; restart the node if it stays so"
        ));
    }
    if machine.is_none() && kernel.is_none() {
        reading.trouble.push(format!("files below /sys and /proc can't be read {waited}: a driver hangs"));
    }
    let silent = |device: Device| GpuReading {
        device,
        unreadable: vec![format!("no answer {waited}")],
        ..GpuReading::default()
    };
    let devices = devices.unwrap_or_default();
    reading.gpus =
        devices.into_iter().zip(gpus).map(|(device, gpu)| gpu.unwrap_or_else(|| silent(device))).collect();
    reading.machine = machine.unwrap_or_default();
    if reading.gpus.iter().any(|gpu| gpu.fabric.as_ref().is_some_and(|it| it.cluster_uuid.is_some())) {
        reading.machine.imex = Some(sysfs::imex(root));
    }
    reading
}
