//! The cores that both sides of a turn share. How long a launch takes depends on the core that calls, by a quarter on
//! machines of several sockets: a side that stays on a good one would win by that alone.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that this program may use, a few of them at a time.
pub struct Cores {
    allowed: Vec<usize>,
    at_once: usize,
}

impl Cores {
    /// Those of this process, `at_once` of them a turn.
    pub fn of_this_process(at_once: usize) -> Result<Self, String> {
        let set = sched_getaffinity(None).map_err(|error| format!("the cores of this process: {error}"))?;
        let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect();
        Ok(Self { at_once: at_once.clamp(1, allowed.len().max(1)), allowed })
    }

    /// Puts all threads of these processes on the cores of a turn: the next ones each time.
    pub fn share(&self, turn: usize, processes: &[u32]) -> Result<(), String> {
        let first = turn * self.at_once;
        self.put((first..first + self.at_once).map(|at| self.allowed[at % self.allowed.len()]), processes)
    }

    /// Gives them all cores back.
    pub fn give_back(&self, processes: &[u32]) -> Result<(), String> {
        self.put(self.allowed.iter().copied(), processes)
    }

    fn put(&self, cores: impl Iterator<Item = usize>, processes: &[u32]) -> Result<(), String> {
        let mut set = CpuSet::new();
        cores.for_each(|core| set.set(core));
        for process in processes {
            let folder = format!("/proc/{process}/task");
            let threads = std::fs::read_dir(&folder).map_err(|error| format!("{folder}: {error}"))?;
            for thread in threads.flatten() {
                let id =
                    thread.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
                // One that ended meanwhile needs no core.
                match sched_setaffinity(id, &set) {
                    Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                    Err(error) => return Err(format!("the cores of process {process}: {error}")),
                }
            }
        }
        Ok(())
    }
}
