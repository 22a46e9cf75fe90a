//! The health of the job's GPUs and of the node's network devices, as this agent watches it beside the ranks, and which GPU is
//! a rank's. What is watched and how is [`crate::health`]'s.

use std::collections::BTreeMap;
use std::time::Instant;

use cluster::order::Order;
use diag::c4d::digest::{Gpu, clean};
use diag::gpu_facts::ids::GpuId;
use diag::health::{HealthEvent, Part};
use diag::policy::Policy;

use crate::c4d::ranks::Ranks;
use crate::c4d::report::{MOST_ENTRIES, RuntimeReport};
use crate::health::{GpuNow, Hired, Settings, Watch, Watcher};

/// The program that asks NVML, beside this one.
const WATCHER: &str = "aimaster-watcher";

/// Hires those who ask NVML, where the job has GPUs: as another user, so before the agent gives up the right to.
#[must_use]
pub fn hire(order: &Order, policy: &Policy) -> Hired {
    if order.gpus.is_empty() {
        return Hired::none();
    }
    // A program that can't be started is said like a driver that can't be asked.
    let program = std::env::current_exe().unwrap_or_default().with_file_name(WATCHER);
    Hired::new(&Watcher { program, user: policy.paths.worker_user.clone() })
}

/// The watch of one node, and what it said so far.
#[derive(Debug)]
pub struct Health {
    watch: Watch,
    /// The newest word of each fault.
    said: BTreeMap<(Part, String), HealthEvent>,
}

impl Health {
    /// Begins to watch.
    #[must_use]
    pub fn start(order: &Order, policy: &Policy, hired: Hired) -> Self {
        let mut settings = Settings::new(order.gpus.clone());
        settings.nvml.clone_from(&policy.cuda.nvml);
        settings.table = policy.runtime.xid.clone();
        Self::with(settings, hired)
    }

    /// The same with other places to look at.
    #[must_use]
    pub fn with(settings: Settings, hired: Hired) -> Self {
        Self { watch: Watch::start(settings, hired), said: BTreeMap::new() }
    }

    /// What is news; the report gets what holds and what was, and what can't be watched, the ranks how busy their GPUs are. Once
    /// a second.
    pub fn look(&mut self, ranks: &mut Ranks, report: &mut RuntimeReport, now: Instant) -> Vec<HealthEvent> {
        let news = self.watch.poll(now);
        for event in &news {
            let key = (event.part.clone(), event.what.clone());
            if self.said.len() < MOST_ENTRIES || self.said.contains_key(&key) {
                self.said.insert(key, event.clone());
            }
        }
        if !news.is_empty() {
            report.hardware = self.said.values().cloned().collect();
        }
        let mut blind: Vec<String> = self.watch.blind(now).iter().map(|line| clean(line)).collect();
        blind.truncate(MOST_ENTRIES);
        // What only counts on is no reason to write the report anew.
        if !blind.iter().map(|line| words(line)).eq(report.blind.iter().map(|line| words(line))) {
            report.blind = blind;
        }
        ranks.loads(self.watch.loads());
        news
    }
}

/// A line without its numbers.
fn words(line: &str) -> String {
    line.chars().filter(|letter| !letter.is_ascii_digit()).collect()
}

/// The GPU of a process: the one that NVML finds it on; where NVML does not know it, the one that its environment
/// leaves it (`named`). `None`: several, or not known.
#[must_use]
pub fn gpu_of(pid: u32, named: Option<&GpuId>, loads: &[GpuNow]) -> Option<Gpu> {
    let mut found = loads.iter().filter(|load| load.pids.contains(&pid));
    let load = match (found.next(), found.next()) {
        (Some(_), Some(_)) => return None,
        (Some(only), None) => Some(only),
        (None, _) => loads.iter().find(|load| match named {
            Some(GpuId::Minor(minor)) => load.index == *minor,
            Some(GpuId::Gpu(uuid)) => load.uuid.eq_ignore_ascii_case(uuid),
            _ => false,
        }),
    };
    match (load, named) {
        (Some(load), _) => {
            // Where others use it too, how busy it is says nothing of this one.
            let alone = load.pids.iter().all(|one| *one == pid);
            let busy = load.busy_percent.filter(|_| alone).and_then(|busy| u8::try_from(busy.min(100)).ok());
            Some(Gpu { index: load.index, uuid: clean(&load.uuid), busy_percent: busy })
        }
        (None, Some(GpuId::Minor(index))) => {
            Some(Gpu { index: *index, uuid: String::new(), busy_percent: None })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(index: u32, pids: &[u32]) -> GpuNow {
        GpuNow { index, uuid: format!("GPU-{index}"), busy_percent: Some(70 + index), pids: pids.to_vec() }
    }

    #[test]
    fn a_process_has_the_gpu_that_nvml_finds_it_on_or_that_is_left_to_it() {
        let loads = [load(0, &[7]), load(3, &[8, 9]), load(4, &[10]), load(5, &[10])];
        let told = |pid, named: Option<GpuId>| {
            gpu_of(pid, named.as_ref(), &loads).map(|gpu| (gpu.index, gpu.uuid, gpu.busy_percent))
        };
        let minor = |minor| Some(GpuId::Minor(minor));
        assert_eq!(told(7, None), Some((0, "GPU-0".into(), Some(70))));
        // NVML knows better than the environment, which the user's process can write.
        assert_eq!(told(7, minor(3)), Some((0, "GPU-0".into(), Some(70))));
        assert_eq!(told(8, None), Some((3, "GPU-3".into(), None)), "another one uses it too");
        assert_eq!(told(10, minor(4)), None, "it uses two");
        assert_eq!(told(11, None), None);
        // In a container NVML may not know its number.
        assert_eq!(told(11, minor(3)), Some((3, "GPU-3".into(), None)));
        assert_eq!(told(11, Some(GpuId::Gpu("gpu-4".into()))), Some((4, "GPU-4".into(), None)));
        assert_eq!(told(11, minor(9)), Some((9, String::new(), None)), "without NVML");
        assert_eq!(told(11, Some(GpuId::Gpu("gpu-9".into()))), None);
    }
}
