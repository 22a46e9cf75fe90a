//! The CUDA engine: cuBLASLt, the driver and NCCL on this node's GPUs, one thread each. What is about TCP is measured by
//! the host engine on such nodes too.

mod agreement;
mod collective;
mod gpu;
mod launch;
mod overlap;
mod product;
mod ranks;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kernels::cuda::{Driver, Operand};
use kernels::nccl::Nccl;

use super::host::Host;
use super::look::{Looker, Watched};
use super::timed::{Cancel, Until};
use crate::protocol::{Device, Devices, Opened, Reply, Request};
use collective::Work;
use gpu::Gpu;
use ranks::Ranks;

/// The engine of one node.
pub(super) struct Cuda {
    nccl: Nccl,
    ranks: Ranks<Gpu>,
    looker: Looker,
    watched: Vec<Watched>,
}

impl Cuda {
    /// Loads the libraries and opens the GPUs that are wanted.
    pub(super) fn open(wanted: &Devices, looker: Looker) -> Result<(Self, Opened), String> {
        let until = Until::after(Duration::from_millis(wanted.limit_ms), &Cancel::default());
        let libraries = Arc::new(gpu::libraries(&wanted.libraries));
        let driver = Arc::new(Driver::open(&libraries).map_err(gpu::words)?);
        let chosen = Arc::new(gpu::chosen(&wanted.gpus, &gpu::installed(Path::new(gpu::PROC))?)?);
        if chosen.is_empty() {
            return Err("the job holds no GPU on this node".to_owned());
        }
        let version = driver.version();
        let (theirs, gpus, opening) = (Arc::clone(&libraries), Arc::clone(&chosen), until.clone());
        let make = move |rank: usize| Gpu::open(&theirs, &driver, &gpus[rank], &opening);
        let (nccl, opened) = std::thread::scope(|scope| {
            // NCCL is loaded while the contexts are made: both take a while.
            let nccl = scope.spawn(|| Nccl::load(libraries.nccl.as_deref()));
            let opened = Ranks::<Gpu>::start::<Device>(chosen.len(), make, &until);
            (nccl.join(), opened)
        });
        let (ranks, gpus) = opened?;
        let nccl = nccl.map_err(|_| "loading NCCL hit a bug (panic)".to_owned())?.map_err(gpu::words)?;
        let watched = gpus.iter().map(|gpu| Watched { uuid: gpu.uuid.clone(), pci: gpu.pci.clone() });
        let watched = watched.collect();
        let opened = Opened { gpus, cuda: version.to_string(), nccl: nccl.version().to_string() };
        Ok((Self { nccl, ranks, looker, watched }, opened))
    }

    /// Runs one primitive to its end, its limit, or until it is cancelled; `None`: it is the host engine's.
    pub(super) fn measure(&self, host: &Host, request: &Request, cancel: &Cancel) -> Option<Reply> {
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
