//! The kernel's own log, where this machine lets its tests read and write it.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use diag::health::kernel_log::said;
use epilog::health::{Begin, KernelLog};

const LOG: &str = "/dev/kmsg";

/// The kernel answers at once.
const DEADLINE: Duration = Duration::from_secs(10);

// What a process writes into the log is read, and never taken for the driver's word.
#[test]
fn a_line_of_a_process_is_read_and_not_believed() {
    let path = Path::new(LOG);
    let (Ok(mut log), Ok(mut writer)) =
        (KernelLog::open(path, Begin::Now), OpenOptions::new().write(true).open(path))
    else {
        println!("skipped: {LOG} can't be opened here");
        return;
    };
    let line = format!("NVRM: Xid (PCI:ffff:ff:1f): 79, a test of process {} wrote this", std::process::id());
    // With the facility of the kernel: it is not granted.
    writer.write_all(format!("<3>{line}\n").as_bytes()).unwrap();
    let until = Instant::now() + DEADLINE;
    let record = loop {
        if let Some(record) = log.read().unwrap().into_iter().find(|record| record.text == line) {
            break record;
        }
        assert!(Instant::now() < until, "the line does not appear");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!((record.of_kernel, said(&record)), (false, None));
    // Read again from the record before it, it has the same number; from itself on it is not there.
    let mut again = KernelLog::open(path, Begin::After(record.seq - 1)).unwrap();
    let same = until_read(&mut again, &line);
    assert_eq!(same, Some(record.seq));
    let mut behind = KernelLog::open(path, Begin::After(record.seq)).unwrap();
    assert_eq!(until_read(&mut behind, &line), None);
}

/// The number of the record with this text, of all that are there.
fn until_read(log: &mut KernelLog, text: &str) -> Option<u64> {
    loop {
        let records = log.read().unwrap();
        if let Some(record) = records.iter().find(|record| record.text == text) {
            return Some(record.seq);
        }
        if records.is_empty() {
            return None;
        }
    }
}
