//! Watches GPUs and network devices of a job on one node: the kernel's log, NVML through a process without rights, and
//! the counters of network ports. The rules are in [`diag::health`]; this reads, and gives what is news.
//!
//! [`Watch::poll`] takes what is there and is meant to be called once a second; it waits for nothing but, for half a
//! second at most, a watcher that it has to end. What can't be read is not healthy but unknown, and [`Watch::blind`] says
//! so.

mod gpus;
mod kmsg;
mod lines;
mod nics;
mod watcher;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use diag::gpu_facts::ids::{self, GpuId};
use diag::gpu_facts::number;
use diag::gpu_facts::reading::Device;
use diag::health::gpu::Gpu;
use diag::health::kernel_log::{Said, said};
use diag::health::nic::{self, Ports};
use diag::health::reading::{GpuEvent, Told};
use diag::health::{Board, Condition, HealthEvent, Part};
use diag::xid::ledger::{Event, Ledger, Place, Watched};
use diag::xid::{Family, Generation, XidTable};
use kernels::sysfs::{self, Root};

pub use gpus::{Hired, Watcher};
pub use kmsg::{Begin, KernelLog};
pub use watcher::run as run_watcher;

use gpus::Gpus;
use nics::Nics;
use watcher::Wanted;

/// Most events that wait until it is known which GPUs are the job's.
const MOST_WAITING: usize = 256;

/// Most NVSwitches of a node: the largest boards have six.
const MOST_SWITCHES: usize = 32;

/// Most processes of a GPU that are told: four ranks, and whatever else a user starts.
const MOST_PIDS: usize = 64;

/// Most network devices that are kept as failed.
const MOST_FAILED: usize = 64;

/// After this long without a reading of the network ports a driver hangs.
const PORTS_LATE: Duration = Duration::from_secs(30);

/// What is watched, and how.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The job's GPUs on this node; none: no GPU is watched.
    pub gpus: Vec<GpuId>,
    /// `cuda.nvml` of the policy; empty: the loader's own search.
    pub nvml: PathBuf,
    /// Folder that holds `sys` and `proc`; `/` but in tests.
    pub root: PathBuf,
    /// The kernel's log; `/dev/kmsg` but in tests.
    pub kernel_log: PathBuf,
    /// Where in it to begin: [`Begin::Now`] when the job starts, behind [`Watch::place`] when an agent is started anew.
    pub begin: Begin,
    /// `runtime.xid` of the policy.
    pub table: XidTable,
    /// Network devices that the site names as in use; empty: those that are up now.
    pub nics: BTreeSet<String>,
}

impl Settings {
    /// This machine, its GPUs named by the job.
    #[must_use]
    pub fn new(gpus: Vec<GpuId>) -> Self {
        Self {
            gpus,
            nvml: PathBuf::new(),
            root: "/".into(),
            kernel_log: "/dev/kmsg".into(),
            begin: Begin::Now,
            table: XidTable::default(),
            nics: BTreeSet::new(),
        }
    }
}

/// How a GPU is at this moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuNow {
    /// Its number on the node, as Slurm counts.
    pub index: u32,
    /// Its UUID.
    pub uuid: String,
    /// How busy it is.
    pub busy_percent: Option<u32>,
    /// Processes that use it, as the node numbers them, at the last whole reading.
    pub pids: Vec<u32>,
}

/// A watch, from the start of a job to its end. Dropping it ends its process and thread.
#[derive(Debug)]
pub struct Watch {
    settings: Settings,
    started: Instant,
    boot: String,
    log: Result<KernelLog, String>,
    nics: Result<Nics, String>,
    gpus: Option<Gpus>,
    /// The job's GPUs as NVML tells them.
    told: BTreeMap<String, Gpu>,
    /// Parts whose events count: GPUs, and switches that spoke.
    parts: Vec<Watched>,
    parts_known: bool,
    waiting: VecDeque<(u64, Place, Said)>,
    ports: Option<Ports>,
    port_conditions: Vec<Condition>,
    failed: BTreeMap<String, Condition>,
    ledger: Ledger,
    board: Board,
    trouble: Vec<String>,
    unkept: u64,
}

impl Watch {
    /// Begins. It needs to read the kernel's log, and no other right; `hired` are the processes that ask NVML.
    #[must_use]
    pub fn start(settings: Settings, hired: Hired) -> Self {
        let root = Root::new(&settings.root);
        let unreadable = |error: std::io::Error| {
            format!("{} can't be read: {error}; Xids are known from NVML only", settings.kernel_log.display())
        };
        let wanted = Wanted { gpus: settings.gpus.clone(), nvml: settings.nvml.clone() };
        let hired = if settings.gpus.is_empty() { Hired::none() } else { hired };
        Self {
            started: Instant::now(),
            // Without a number it is the same start for all events of this watch.
            boot: sysfs::boot_id(&root).unwrap_or_default(),
            log: KernelLog::open(&settings.kernel_log, settings.begin).map_err(unreadable),
            nics: Nics::start(root).map_err(|error| format!("no thread for network devices: {error}")),
            gpus: Gpus::start(hired, wanted),
            told: BTreeMap::new(),
            parts: Vec::new(),
            parts_known: settings.gpus.is_empty(),
            waiting: VecDeque::new(),
            ports: None,
            port_conditions: Vec::new(),
            failed: BTreeMap::new(),
            ledger: Ledger::new(0),
            board: Board::default(),
            trouble: Vec::new(),
            unkept: 0,
            settings,
        }
    }

    /// What is news since the last call; at most [`diag::health::board::MOST_EVENTS`], the rest comes with the next.
    pub fn poll(&mut self, now: Instant) -> Vec<HealthEvent> {
        let now_ms = self.ms(now);
        let told = self.gpus.as_mut().map(|gpus| gpus.poll(now)).unwrap_or_default();
        told.into_iter().for_each(|one| self.take(now_ms, one));
        if let Some(listed) = self.nics.as_ref().ok().and_then(Nics::gpus) {
            self.list(&listed);
        }
        if let Some(readings) = self.nics.as_ref().ok().and_then(Nics::take) {
            match &mut self.ports {
                Some(ports) => self.port_conditions = ports.step(now_ms, readings),
                None => self.ports = Some(Ports::new(now_ms, self.settings.nics.clone(), readings)),
            }
        }
        self.read_log(now, now_ms);
        let mut conditions = self.ledger.conditions(&self.settings.table, &self.parts, now_ms);
        conditions.extend(self.told.values().flat_map(|gpu| gpu.conditions(now_ms)));
        conditions.extend(self.port_conditions.iter().chain(self.failed.values()).cloned());
        self.board.step(now_ms, conditions)
    }

    /// What is not watched, and why: unknown, not healthy.
    #[must_use]
    pub fn blind(&self, now: Instant) -> Vec<String> {
        let mut blind = self.trouble.clone();
        blind.extend(self.gpus.as_ref().and_then(Gpus::trouble).map(ToOwned::to_owned));
        match &self.log {
            Ok(log) if log.lost() > 0 => {
                blind.push(format!("{} records of the kernel's log were overwritten unread", log.lost()));
            }
            Ok(_) => (),
            Err(words) => blind.push(words.clone()),
        }
        match &self.nics {
            Ok(nics) if nics.age(now) > PORTS_LATE => blind.push(format!(
                "network devices can't be read for {} s: a driver hangs",
                nics.age(now).as_secs()
            )),
            Ok(_) => (),
            Err(words) => blind.push(words.clone()),
        }
        let unkept = self.unkept + self.ledger.unkept() + self.board.unkept();
        if unkept > 0 {
            blind.push(format!("{unkept} events had no room"));
        }
        blind
    }

    /// Whether it is known how everything was when the job started: what changes from here on is seen.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.parts_known && self.ports.is_some()
    }

    /// How busy the job's GPUs are.
    #[must_use]
    pub fn loads(&self) -> Vec<GpuNow> {
        let each = |(uuid, gpu): (&String, &Gpu)| match gpu.part() {
            Part::Gpu { index, .. } => Some(GpuNow {
                index: *index,
                uuid: uuid.clone(),
                busy_percent: gpu.load().0,
                pids: gpu.pids().take(MOST_PIDS).collect(),
            }),
            _ => None,
        };
        self.told.iter().filter_map(each).collect()
    }

    /// How far the kernel's log was read, for an agent that is started anew.
    #[must_use]
    pub fn place(&self) -> Option<u64> {
        self.log.as_ref().ok().and_then(KernelLog::last)
    }

    fn ms(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.started).as_millis()).unwrap_or(u64::MAX)
    }

    /// The job's GPUs by the driver's own list; NVML may be what is broken.
    fn list(&mut self, listed: &[Device]) {
        let meant: BTreeSet<usize> =
            self.settings.gpus.iter().filter_map(|id| ids::find(id, listed)).collect();
        meant.into_iter().filter_map(|at| listed.get(at)).for_each(|device| self.know(device));
        // One that the driver does not name yet is NVML's to tell.
        self.parts_known |= self.gpus.is_none() || self.parts.len() == self.settings.gpus.len();
    }

    fn know(&mut self, device: &Device) {
        let Some(pci) = device.pci.clone().filter(|pci| self.parts.iter().all(|part| part.pci != *pci))
        else {
            return;
        };
        self.parts.push(Watched {
            part: Part::Gpu { index: number(device), pci: Some(pci.clone()) },
            generation: device.name.as_deref().and_then(Generation::of),
            pci,
        });
    }

    fn take(&mut self, now_ms: u64, told: Told) {
        match told {
            Told::Start { gpus, absent, trouble } => {
                for gpu in gpus {
                    self.know(&gpu.device);
                    let Some(uuid) = gpu.device.uuid.clone() else { continue };
                    // A watcher that was started anew does not change how the job began.
                    match self.told.get_mut(&uuid) {
                        Some(known) => known.whole(now_ms, gpu),
                        None => drop(self.told.insert(uuid, Gpu::new(now_ms, gpu))),
                    }
                }
                self.parts_known = true;
                self.trouble = trouble;
                if !absent.is_empty() {
                    self.trouble.push(format!("NVML does not show GPU {}", absent.join(", ")));
                }
            }
            Told::Whole(reading) => {
                let gpu = reading.device.uuid.as_ref().and_then(|uuid| self.told.get_mut(uuid));
                if let Some(gpu) = gpu {
                    gpu.whole(now_ms, *reading);
                }
            }
            Told::Sample { uuid, sample } => self.of(&uuid, |gpu| gpu.sample(now_ms, *sample)),
            Told::Lost { uuid, words } => self.of(&uuid, |gpu| gpu.lost(words)),
            Told::Silent { uuid, for_ms } => self.of(&uuid, |gpu| gpu.silent(for_ms)),
            Told::Event { uuid, event: GpuEvent::Xid(code) } => {
                let pci = self.told.get(&uuid).and_then(Gpu::pci).map(ToOwned::to_owned);
                if let Some(pci) = pci {
                    let words = "told by NVML".to_owned();
                    let family = Family::Xid;
                    self.ledger.add(Event {
                        place: None,
                        at_ms: now_ms,
                        pci,
                        family,
                        code,
                        severity: None,
                        words,
                    });
                }
            }
            Told::Event { uuid, event } => self.of(&uuid, |gpu| gpu.event(event)),
        }
    }

    fn of(&mut self, uuid: &str, act: impl FnOnce(&mut Gpu)) {
        if let Some(gpu) = self.told.get_mut(uuid) {
            act(gpu);
        }
    }

    fn read_log(&mut self, now: Instant, now_ms: u64) {
        let late = self.nics.as_ref().map_or(true, |nics| nics.age(now) > PORTS_LATE);
        let known = self.parts_known && (self.ports.is_some() || late);
        if known {
            while let Some((at_ms, place, what)) = self.waiting.pop_front() {
                self.heard(at_ms, place, what);
            }
        }
        let records = match &mut self.log {
            Ok(log) => log.read(),
            Err(_) => return,
        };
        let records = match records {
            Ok(records) => records,
            Err(error) => {
                self.log = Err(format!("the kernel's log can't be read any more: {error}"));
                return;
            }
        };
        for record in records {
            let Some(what) = said(&record) else { continue };
            let place = Place { boot: self.boot.clone(), seq: record.seq };
            if known {
                self.heard(now_ms, place, what);
            } else if self.waiting.len() < MOST_WAITING {
                self.waiting.push_back((now_ms, place, what));
            } else {
                self.unkept += 1;
            }
        }
    }

    fn heard(&mut self, at_ms: u64, place: Place, what: Said) {
        match what {
            Said::Xid { family, pci, code, severity, words } => {
                let known = self.parts.iter().any(|part| part.pci == pci);
                if family == Family::Sxid
                    && !known
                    && self.parts.len() < MOST_SWITCHES + self.settings.gpus.len()
                {
                    let part = Part::Switch { pci: pci.clone() };
                    self.parts.push(Watched { pci: pci.clone(), part, generation: None });
                } else if !known {
                    // A GPU of another job.
                    return;
                }
                let place = Some(place);
                self.ledger.add(Event { place, at_ms, pci, family, code, severity, words });
            }
            Said::NicFailed { pci, words } => {
                let device = self.ports.as_ref().and_then(|ports| ports.used(&pci));
                if let Some(device) = device.filter(|_| self.failed.len() < MOST_FAILED) {
                    self.failed.insert(pci, nic::failed(device, &words));
                }
            }
        }
    }
}
