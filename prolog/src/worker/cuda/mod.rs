//! The CUDA engine: cuBLASLt, the driver and NCCL on this node's GPUs, one thread each. What is about TCP is measured by
//! the host engine on such nodes too.

mod agreement;
mod collective;
mod doing;
mod gpu;
mod launch;
mod overlap;
mod product;
mod ranks;
mod seats;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kernels::Libraries;
use kernels::cuda::{Driver, Operand};
use kernels::nccl::Nccl;

use super::host::Host;
use super::look::{Looker, Watched};
use super::timed::{Cancel, Until};
use crate::protocol::{Collected, Device, Devices, Opened, Overlapped, Reply, Request, Trouble};
use collective::Work;
use doing::{Alone, Doing, Flaw};
use gpu::{Found, Gpu};
use ranks::Ranks;

/// The engine of one node.
pub(super) struct Cuda {
    nccl: Nccl,
    ranks: Ranks<Gpu>,
    /// Rank i is GPU i.
    chosen: Arc<Vec<Found>>,
    looker: Looker,
    watched: Vec<Watched>,
}

impl Cuda {
    /// Loads the libraries and opens the GPUs that are wanted. Whatever does not come back is named at the limit.
    pub(super) fn open(wanted: &Devices, looker: Looker) -> Result<(Self, Opened), String> {
        let until = Until::after(Duration::from_millis(wanted.limit_ms), &Cancel::default());
        let libraries = Arc::new(gpu::libraries(&wanted.libraries));
        let path = libraries.nccl.clone();
        // NCCL is loaded while the contexts are made: both take a while.
        let nccl = Alone::start("nccl", "loading NCCL", move |_| Nccl::load(path.as_deref()));
        let nccl = nccl.map_err(|flaw| flaw.message)?;
        let (driver, installed) = driver(&libraries, &wanted.root, &until)?;
        let chosen = Arc::new(gpu::chosen(&wanted.gpus, &installed)?);
        if chosen.is_empty() {
            return Err("the job holds no GPU on this node".to_owned());
        }
        let version = driver.version();
        let (libraries, theirs) = (Arc::clone(&libraries), Arc::clone(&chosen));
        let make =
            move |rank: usize, doing: &Arc<Doing>| Gpu::open(&libraries, &driver, &theirs[rank], doing);
        let (ranks, said) = Ranks::<Gpu>::start::<Device>(chosen.len(), gpu::FINDING, make, &until)?;
        let nccl = nccl.wait(&until).map_err(|flaw| flaw.message)?.map_err(gpu::words)?;
        let (mut gpus, mut troubles) = (Vec::new(), Vec::new());
        for (rank, (said, found)) in said.into_iter().zip(chosen.iter()).enumerate() {
            gpus.push(said.unwrap_or_else(|flaw| {
                let message = found.named(flaw.message);
                troubles.push(Flaw { message, ..flaw }.of(rank));
                found.closed()
            }));
        }
        let watched = gpus.iter().map(|gpu| Watched { uuid: gpu.uuid.clone(), pci: gpu.pci.clone() });
        let watched = watched.collect();
        let opened = Opened { gpus, troubles, cuda: version.to_string(), nccl: nccl.version().to_string() };
        Ok((Self { nccl, ranks, chosen, looker, watched }, opened))
    }

    /// Runs one primitive to its end, its limit, or until it is cancelled; `None`: it is the host engine's.
    pub(super) fn measure(&self, host: &Host, request: &Request, cancel: &Cancel) -> Option<Reply> {
        let mut reply = self.primitive(host, request, cancel)?;
        let troubles: Vec<&mut Trouble> = match &mut reply {
            Reply::Product(products) => products.troubles.iter_mut().collect(),
            Reply::WakeUp(seen) => seen.troubles.iter_mut().collect(),
            Reply::Overlap(Overlapped::Broken(troubles)) => troubles.iter_mut().collect(),
            Reply::Collective(all) => {
                let broken = all.iter_mut().filter_map(|one| match one {
                    Collected::Broken(troubles) => Some(troubles),
                    _ => None,
                });
                broken.flatten().collect()
            }
            _ => Vec::new(),
        };
        for trouble in troubles {
            if let Some(found) = self.chosen.get(trouble.rank as usize) {
                trouble.message = found.named(std::mem::take(&mut trouble.message));
            }
        }
        Some(reply)
    }

    fn primitive(&self, host: &Host, request: &Request, cancel: &Cancel) -> Option<Reply> {
        let until = |limit_ms: u64| Until::after(Duration::from_millis(limit_ms), cancel);
        let work = |tag, collective, window_ms: u64| Work {
            host,
            nccl: self.nccl,
            tag,
            collective,
            window: Duration::from_millis(window_ms),
        };
        Some(match request {
            &Request::Product { window_ms, limit_ms, .. } => {
                self.product(Operand::Bf16, window_ms, &until(limit_ms))
            }
            &Request::Fp8Product { window_ms, limit_ms } => {
                self.product(Operand::E4m3, window_ms, &until(limit_ms))
            }
            &Request::WakeUp { window_ms, limit_ms, .. } => {
                launch::run(&self.ranks, Duration::from_millis(window_ms), &until(limit_ms))
            }
            Request::Collective { tag, collective, communicators, window_ms, limit_ms } => {
                host.begin(*tag);
                let work = work(*tag, *collective, *window_ms);
                collective::run(&self.ranks, &work, communicators, &until(*limit_ms))
            }
            Request::Overlap { tag, members, window_ms, limit_ms } => {
                host.begin(*tag);
                let work = work(*tag, crate::protocol::Collective::AllReduce, *window_ms);
                overlap::run(&self.ranks, &work, members, &until(*limit_ms))
            }
            _ => return None,
        })
    }

    /// Multiplies on all GPUs while they are watched.
    fn product(&self, operand: Operand, window_ms: u64, until: &Until) -> Reply {
        let window = Duration::from_millis(window_ms);
        let watch = self.looker.watch(&self.watched, window);
        let mut reply = product::run(&self.ranks, operand, window, until);
        if let (Reply::Product(products), Some(watch)) = (&mut reply, watch) {
            products.loads = watch.finish();
        }
        reply
    }
}

/// The driver, initialised within the limit, and the GPUs that it has.
fn driver(libraries: &Arc<Libraries>, root: &Path, until: &Until) -> Result<(Driver, Vec<Found>), String> {
    let (libraries, described) = (Arc::clone(libraries), gpu::described(root));
    let start = move |doing: &Doing| {
        let loaded = Driver::load(&libraries).map_err(gpu::words)?;
        doing.at("cuInit, which did not return,");
        let driver = loaded.init().map_err(gpu::words)?;
        doing.at("reading the driver's list of GPUs");
        Ok((driver, gpu::installed(&described)?))
    };
    let started = Alone::start("driver", "loading the driver's library", start);
    let started = started.and_then(|started| started.wait(until));
    started.unwrap_or_else(|flaw| Err(format!("NVIDIA driver: {}", flaw.message)))
}
