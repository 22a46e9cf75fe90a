//! The kernel's log: what processes may write into it, and what the driver writes of users' words.
//!
//! The first byte says how many bytes a read gives, and the second which records were read before.

use diag::gpu_facts::ids::pci_address;
use diag::health::kernel_log::{MOST_RECORD_BYTES, Said, said};
use diag::health::{Board, Part};
use diag::xid::ledger::{Event, Ledger, Place, Watched};
use diag::xid::{Generation, MOST_CODE, XidTable};
use epilog::health::{Begin, KernelLog};

/// A log that gives so many bytes at once.
struct Pieces<'a> {
    rest: &'a [u8],
    most: usize,
}

impl std::io::Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.most.min(into.len()).min(self.rest.len());
        into[..count].copy_from_slice(&self.rest[..count]);
        self.rest = &self.rest[count..];
        Ok(count)
    }
}

/// Records come in order, only the kernel's own words count, and what follows from them keeps the bounds of an event.
pub fn run(data: &[u8]) {
    let [most, from, rest @ ..] = data else { return };
    let begin = if *from == 0 { Begin::Now } else { Begin::After(u64::from(*from)) };
    let most = if *most == 0 { usize::MAX } else { usize::from(*most) * 16 };
    let mut log = KernelLog::over(Pieces { rest, most }, begin);
    let (mut ledger, mut parts, mut last) = (Ledger::new(0), Vec::new(), None);
    loop {
        let records = log.read().unwrap();
        if records.is_empty() {
            break;
        }
        for record in records {
            assert!(last.is_none_or(|last| record.seq > last), "{} after {last:?}", record.seq);
            assert!(record.text.len() <= MOST_RECORD_BYTES);
            last = Some(record.seq);
            let Some(told) = said(&record) else { continue };
            assert!(record.of_kernel, "a process's words count");
            match told {
                Said::NicFailed { pci, words } => {
                    assert_eq!(pci_address(&pci).as_deref(), Some(&*pci));
                    assert!(words.len() <= record.text.len());
                }
                Said::Xid { family, pci, code, severity, words } => {
                    assert_eq!(pci_address(&pci).as_deref(), Some(&*pci));
                    assert!((1..=MOST_CODE).contains(&code));
                    let place = Some(Place { boot: "b".into(), seq: record.seq });
                    let part = Part::Gpu { index: 0, pci: Some(pci.clone()) };
                    parts.push(Watched { pci: pci.clone(), part, generation: Some(Generation::Hopper) });
                    let at_ms = record.at_us / 1000;
                    ledger.add(Event { place, at_ms, pci, family, code, severity, words });
                }
            }
        }
    }
    let (mut board, table) = (Board::default(), XidTable::default());
    for now_ms in [1_000, 2_000, 600_000, u64::MAX] {
        let conditions = ledger.conditions(&table, &parts, now_ms);
        for event in board.step(now_ms, conditions) {
            assert!(event.is_sound(), "{event:?}");
        }
    }
}
