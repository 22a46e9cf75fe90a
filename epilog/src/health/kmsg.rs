//! Reads the kernel's log record by record from a place on, as `/dev/kmsg` gives it: one record a read, an end that is
//! no end of the file, and an error where records were overwritten before they were read. What a record says is in
//! [`diag::health::kernel_log`].

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use diag::health::kernel_log::{MOST_RECORD_BYTES, Record, record};
use rustix::fs::OFlags;

/// Most records of one look; what is left waits for the next. A program that fails on eight GPUs at once makes some
/// thousand, and the kernel's ring holds not many more.
const MOST_RECORDS: usize = 8192;

/// Most reads of one look: whoever begins behind a record first passes by all that is before it, a microsecond each, and
/// the largest logs hold some hundred thousand.
const MOST_READS: usize = 1 << 18;

/// Bytes of one read: more than a record has, else the kernel refuses it.
const READ_BYTES: usize = 2 * MOST_RECORD_BYTES;

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// With what comes from now on.
    Now,
    /// Behind this record, which was read before.
    After(u64),
}

/// The log, from a place on.
#[derive(Debug)]
pub struct KernelLog<R = File> {
    reader: R,
    /// The beginning of a line whose end was not read yet.
    rest: Vec<u8>,
    /// The number of the last record that was read.
    last: Option<u64>,
    lost: u64,
}

impl KernelLog {
    /// Opens the log. Where the kernel keeps it from ordinary users only root can.
    ///
    /// # Errors
    /// If it can't be opened.
    pub fn open(path: &Path, from: Begin) -> io::Result<Self> {
        let flags = OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        if from == Begin::Now {
            match file.seek(SeekFrom::End(0)) {
                Err(error) if error.kind() != ErrorKind::NotSeekable => return Err(error),
                _ => (),
            }
        }
        Ok(Self::over(file, from))
    }
}

impl<R: Read> KernelLog<R> {
    /// Reads from something that behaves like the log.
    pub fn over(reader: R, from: Begin) -> Self {
        let last = match from {
            Begin::Now => None,
            Begin::After(seq) => Some(seq),
        };
        Self { reader, rest: Vec::new(), last, lost: 0 }
    }

    /// The number of the last record that was read, if one was.
    pub fn last(&self) -> Option<u64> {
        self.last
    }

    /// How many records were overwritten before they were read.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// What is new, without waiting; at most [`MOST_RECORDS`] and what one read gives beyond.
    ///
    /// # Errors
    /// If it can't be read any more.
    pub fn read(&mut self) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        let mut piece = [0; READ_BYTES];
        for _ in 0..MOST_READS {
            if records.len() >= MOST_RECORDS {
                break;
            }
            match self.reader.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => self.take(&piece[..count], &mut records),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // Overwritten: the next read goes on with the oldest that is there, whose number tells how many.
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(records)
    }

    fn take(&mut self, piece: &[u8], records: &mut Vec<Record>) {
        self.rest.extend_from_slice(piece);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            // No line of the kernel's is so long.
            if self.rest.len() > MOST_RECORD_BYTES {
                self.rest.clear();
            }
            return;
        };
        let lines: Vec<u8> = self.rest.drain(..=end).collect();
        for line in lines.split(|byte| *byte == b'\n') {
            let Some(record) = record(&String::from_utf8_lossy(line)) else { continue };
            if let Some(last) = self.last {
                if record.seq <= last {
                    continue;
                }
                self.lost = self.lost.saturating_add(record.seq - last - 1);
            }
            self.last = Some(record.seq);
            records.push(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io::Write as _;
    use std::os::fd::OwnedFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    /// What the log answers to each read.
    struct Script(VecDeque<Result<&'static str, ErrorKind>>);

    impl Read for Script {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            match self.0.pop_front() {
                None => Err(ErrorKind::WouldBlock.into()),
                Some(Err(kind)) => Err(kind.into()),
                Some(Ok(text)) => {
                    into[..text.len()].copy_from_slice(text.as_bytes());
                    Ok(text.len())
                }
            }
        }
    }

    fn numbers(records: &[Record]) -> Vec<u64> {
        records.iter().map(|record| record.seq).collect()
    }

    /// Sockets that keep the bounds of what is written: one record a read, and EAGAIN at the end.
    fn pair() -> (OwnedFd, KernelLog) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).unwrap();
        (theirs, KernelLog::over(File::from(ours), Begin::Now))
    }

    fn write(to: &OwnedFd, text: &str) {
        assert_eq!(rustix::io::write(to, text.as_bytes()).unwrap(), text.len());
    }

    #[test]
    fn each_record_is_read_once() {
        let (kernel, mut log) = pair();
        assert_eq!(log.read().unwrap(), []);
        write(
            &kernel,
            "4,10,1000,-;NVRM: Xid (PCI:0000:3b:00): 79, x\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n",
        );
        write(&kernel, "6,11,1000,c;second\n");
        let records = log.read().unwrap();
        assert_eq!(numbers(&records), [10, 11]);
        assert_eq!(records[1].text, "second");
        assert_eq!((log.read().unwrap(), log.last(), log.lost()), (vec![], Some(11), 0));
    }

    // I03: a log that ran over is a gap that is known, and what is behind it is read.
    #[test]
    fn overwritten_records_are_counted() {
        let script =
            [Ok("4,10,1,-;a\n"), Err(ErrorKind::BrokenPipe), Ok("4,25,1,-;b\n"), Err(ErrorKind::WouldBlock)];
        let mut log = KernelLog::over(Script(script.into()), Begin::Now);
        assert_eq!(numbers(&log.read().unwrap()), [10, 25]);
        assert_eq!(log.lost(), 14);
    }

    // I05: what was before the place is not read, and what was read before is not read again.
    #[test]
    fn reading_begins_behind_a_record() {
        let script = || Script([Ok("4,9,1,-;a\n"), Ok("4,10,1,-;b\n"), Ok("4,11,1,-;c\n")].into());
        assert_eq!(numbers(&KernelLog::over(script(), Begin::After(9)).read().unwrap()), [10, 11]);
        let mut gap = KernelLog::over(script(), Begin::After(5));
        assert_eq!((numbers(&gap.read().unwrap()), gap.lost()), (vec![9, 10, 11], 3));
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"4,1,1,-;old\n").unwrap();
        let mut log = KernelLog::open(file.path(), Begin::Now).unwrap();
        file.write_all(b"4,2,1,-;ne").unwrap();
        assert_eq!(log.read().unwrap(), []);
        file.write_all(b"w\n4,3,1,-;er\n").unwrap();
        assert_eq!(numbers(&log.read().unwrap()), [2, 3]);
    }

    #[test]
    fn a_flood_and_garbage_are_bounded() {
        let (kernel, mut log) = pair();
        let mut written = 0;
        // As many as the socket's own queue holds.
        while rustix::io::write(&kernel, format!("4,{written},1,-;x\n").as_bytes()).is_ok() {
            written += 1;
        }
        assert_eq!(log.read().unwrap().len(), written);
        let one = "4,1,1,-;x\n";
        let flood: String = (0..2 * MOST_RECORDS).map(|seq| format!("4,{seq},1,-;x\n")).collect();
        let mut log = KernelLog::over(flood.as_bytes(), Begin::Now);
        let (first, second) = (log.read().unwrap().len(), log.read().unwrap().len());
        assert!(first >= MOST_RECORDS && first <= MOST_RECORDS + READ_BYTES / one.len(), "{first}");
        assert_eq!(first + second, 2 * MOST_RECORDS);
        let (kernel, mut log) = pair();
        for _ in 0..20 {
            write(&kernel, &"x".repeat(4000));
            log.read().unwrap();
            assert!(log.rest.len() <= MOST_RECORD_BYTES + READ_BYTES);
        }
        write(&kernel, "\n");
        write(&kernel, "4,7,1,-;x\n");
        assert_eq!(numbers(&log.read().unwrap()), [7]);
    }

    #[test]
    fn what_is_passed_by_does_not_hold_up_what_is_new() {
        let text: String = (0..5000).map(|seq| format!("4,{seq},1,-;x\n")).collect();
        let mut log = KernelLog::over(text.as_bytes(), Begin::After(4998));
        assert_eq!(numbers(&log.read().unwrap()), [4999]);
    }

    #[test]
    fn an_error_that_stays_is_told() {
        let mut log = KernelLog::over(Script([Err(ErrorKind::PermissionDenied)].into()), Begin::Now);
        assert_eq!(log.read().unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert!(KernelLog::open(Path::new("/none"), Begin::Now).is_err());
    }
}
