//! A rank's process as the kernel shows it. Text of `/proc` is the user's word where the process can write it (its name,
//! its environment), so numbers are taken and nothing else is believed.

use std::fs::File;
use std::io::Read;

use diag::c4d::digest::{Process, ProcessState, clean};

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

    /// Its rank in the whole job, as Slurm told it.
    #[must_use]
    pub fn task(&self) -> Option<u32> {
        let environment = read(self.pid, "environ")?;
        let value =
            environment.split(|byte| *byte == 0).find_map(|one| one.strip_prefix(b"SLURM_PROCID="))?;
        std::str::from_utf8(value).ok()?.parse().ok()
    }

    /// What it does now.
    pub fn look(&mut self) -> Process {
        let state = match stat(self.pid) {
            Some((letter, began)) if Some(began) == self.began => ProcessState::of_letter(letter),
            _ => ProcessState::Gone,
        };
        let stuck = state == ProcessState::Blocked;
        let wchan = if stuck { read(self.pid, "wchan").unwrap_or_default() } else { Vec::new() };
        let total = if state.ended() { None } else { io(self.pid) };
        let io_bytes = total.zip(self.io_bytes).map(|(now, before)| now.saturating_sub(before));
        self.io_bytes = total;
        Process { state, wchan: clean(&String::from_utf8_lossy(&wchan)), io_bytes }
    }
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

/// Bytes that it read and wrote by system calls.
fn io(pid: u32) -> Option<u64> {
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
    fn a_process_is_seen_until_it_is_gone() {
        let mut child = Command::new("sleep").arg("60").env("SLURM_PROCID", "3").spawn().unwrap();
        let mut followed = Followed::new(child.id());
        // Between fork and exec it has our environment.
        while followed.task().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(followed.task(), Some(3));
        assert!(!followed.look().state.ended());
        assert!(followed.look().io_bytes.is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(followed.look().state, ProcessState::Gone);
        // Another process's number.
        let mut other = Followed { pid: std::process::id(), began: Some(1), io_bytes: None };
        assert_eq!(other.look().state, ProcessState::Gone);
    }
}
