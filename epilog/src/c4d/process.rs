//! A rank's process as the kernel shows it. Text of `/proc` is the user's word where the process can write it (its name,
//! its environment), so numbers are taken and nothing else is believed.

use std::fs::File;
use std::io::Read;

use diag::c4d::digest::{Process, ProcessState, clean};
use diag::gpu_facts::ids::{self, GpuId};

/// Most bytes read of one file: an environment may be larger, and its end is not looked at.
const MOST_BYTES: u64 = 256 * 1024;

/// A process that is followed.
#[derive(Debug)]
pub struct Followed {
    pid: u32,
    /// When it began, in ticks since boot: another process with its number began later.
    began: Option<u64>,
    io_bytes: Option<u64>,
}

impl Followed {
    /// Follows a process from now on.
    #[must_use]
    pub fn new(pid: u32) -> Self {
        Self { pid, began: stat(pid).map(|(_, began)| began), io_bytes: None }
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What it does now, with the newest count of what it read and wrote. It reads nothing that a process can hold back.
    pub fn look(&mut self, io_bytes: Option<u64>) -> Process {
        let state = match stat(self.pid) {
            Some((letter, began)) if Some(began) == self.began => ProcessState::of_letter(letter),
            _ => ProcessState::Gone,
        };
        let stuck = state == ProcessState::Blocked;
        let wchan = if stuck { read(self.pid, "wchan").unwrap_or_default() } else { Vec::new() };
        let total = if state.ended() { None } else { io_bytes };
        let io_bytes = total.zip(self.io_bytes).map(|(now, before)| now.saturating_sub(before));
        self.io_bytes = total;
        Process { state, wchan: clean(&String::from_utf8_lossy(&wchan)), io_bytes }
    }
}

/// The environment that a process began with, or has written since.
pub(super) struct Environment(Vec<u8>);

impl Environment {
    /// Of this process; empty where it can't be read. The process may keep its reader waiting.
    pub fn of(pid: u32) -> Self {
        Self(read(pid, "environ").unwrap_or_default())
    }

    /// Its rank in the whole job, as Slurm told it.
    pub fn task(&self) -> Option<u32> {
        variable(&self.0, "SLURM_PROCID=")?.parse().ok()
    }

    /// The one GPU of the job's that CUDA shows it, as far as that can be told: always one of `job`, whatever the process
    /// wrote there.
    pub fn gpu(&self, job: &[GpuId]) -> Option<GpuId> {
        match job {
            [only] => Some(only.clone()),
            _ => shown(variable(&self.0, "CUDA_VISIBLE_DEVICES=")?, job),
        }
    }
}

/// The GPU that a value of `CUDA_VISIBLE_DEVICES` leaves of the job's; `None`: several, none, or it can't be told. A number
/// counts among those that the job may open, or, where the site does not hide the others, among all of the node.
fn shown(value: &str, job: &[GpuId]) -> Option<GpuId> {
    let [only] = ids::parse(value).ok()?.try_into().ok()?;
    let GpuId::Minor(number) = only else {
        let same = |one: &&GpuId| matches!(one, GpuId::Gpu(_)) && **one == only;
        let by_number = job.iter().all(|one| matches!(one, GpuId::Minor(_)));
        // Slurm names numbers, CUDA a UUID: NVML tells later which that is.
        return job
            .iter()
            .find(same)
            .cloned()
            .or_else(|| (by_number && matches!(only, GpuId::Gpu(_))).then_some(only));
    };
    let mut minors: Vec<u32> = job
        .iter()
        .map(|one| match one {
            GpuId::Minor(minor) => Some(*minor),
            _ => None,
        })
        .collect::<Option<_>>()?;
    minors.sort_unstable();
    let among = minors.get(usize::try_from(number).ok()?).copied();
    let of_node = minors.contains(&number).then_some(number);
    match (among, of_node) {
        (Some(one), Some(other)) if one != other => None,
        (one, other) => one.or(other).map(GpuId::Minor),
    }
}

/// A variable of an environment.
fn variable<'a>(environment: &'a [u8], name: &str) -> Option<&'a str> {
    let value = environment.split(|byte| *byte == 0).find_map(|one| one.strip_prefix(name.as_bytes()))?;
    std::str::from_utf8(value).ok()
}

fn read(pid: u32, name: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(format!("/proc/{pid}/{name}")).ok()?.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// State and begin.
fn stat(pid: u32) -> Option<(char, u64)> {
    let bytes = read(pid, "stat")?;
    let text = String::from_utf8_lossy(&bytes);
    // The name stands in parentheses and may hold anything.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    // The 22nd field of the line; the state is the third.
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// Bytes that it read and wrote by system calls. The process may keep its reader waiting.
pub(super) fn io(pid: u32) -> Option<u64> {
    let bytes = read(pid, "io")?;
    let text = String::from_utf8_lossy(&bytes);
    let number = |key: &str| text.lines().find_map(|line| line.strip_prefix(key))?.trim().parse::<u64>().ok();
    Some(number("rchar:")?.saturating_add(number("wchar:")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_gpu_that_is_left_to_a_process_is_one_of_the_job_s_or_not_known() {
        let minors = |all: &[u32]| all.iter().copied().map(GpuId::Minor).collect::<Vec<_>>();
        let minor = |one| Some(GpuId::Minor(one));
        // All of the node, and the upper half of it: there a number counts among them, or is hidden from none.
        let (all, upper) = (minors(&[0, 1, 2, 3]), minors(&[7, 6, 5, 4]));
        for (value, job, expected) in [
            ("2", &all, minor(2)),
            ("2", &upper, minor(6)),
            ("6", &upper, minor(6)),
            ("8", &upper, None),
            ("0,1", &upper, None),
            ("0-1", &upper, None),
            ("", &upper, None),
            ("NoDevFiles", &upper, None),
            ("4294967296", &upper, None),
            // Among them it is the third, by itself the second.
            ("2", &minors(&[1, 2, 3]), None),
            (
                "GPU-0000000a-0000-0000-0000-000000000001",
                &all,
                Some(GpuId::Gpu("GPU-0000000a-0000-0000-0000-000000000001".into())),
            ),
            ("MIG-0000000a-0000-0000-0000-000000000001", &all, None),
        ] {
            assert_eq!(shown(value, job), expected, "{value} of {job:?}");
        }
        let uuid = |end| GpuId::Gpu(format!("GPU-0000000a-0000-0000-0000-00000000000{end}"));
        let named = [uuid(1), uuid(2)];
        assert_eq!(shown(&uuid(2).to_string(), &named), Some(uuid(2)));
        assert_eq!(shown(&uuid(3).to_string(), &named), None);
        assert_eq!(shown("0", &named), None);
        let own = Environment(Vec::new());
        assert_eq!(own.gpu(&named[..1]), Some(uuid(1)), "the job has one");
    }

    #[test]
    fn a_process_is_seen_until_it_is_gone() {
        let mut child = Command::new("sleep").arg("60").env("SLURM_PROCID", "3").spawn().unwrap();
        let mut followed = Followed::new(child.id());
        // Between fork and exec it has our environment.
        while Environment::of(child.id()).task().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(Environment::of(child.id()).task(), Some(3));
        assert!(!followed.look(io(child.id())).state.ended());
        assert!(followed.look(io(child.id())).io_bytes.is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(followed.look(None).state, ProcessState::Gone);
        // Another process's number.
        let mut other = Followed { pid: std::process::id(), began: Some(1), io_bytes: None };
        assert_eq!(other.look(None).state, ProcessState::Gone);
    }
}
