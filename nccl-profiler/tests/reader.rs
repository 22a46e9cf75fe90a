//! The reader against bytes that no honest writer leaves: torn, overwritten, cut, counting backwards, random.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a step that fails is the test's failure")]

use std::cell::{Cell, RefCell};
use std::io;

use nccl_profiler::ring::{
    CAPACITY, COMMUNICATORS, COMMUNICATORS_AT, Counter, FILE_BYTES, Function, LAYOUT_VERSION, LIVE_STEPS,
    LIVE_STEPS_AT, MAGIC, Op, RECORD_BYTES, RECORDS_AT, Reader, Record, RingError, Source,
};

/// A file in memory. What a writer does between two readings is played by `between`.
struct Memory {
    bytes: RefCell<Vec<u8>>,
    reads: Cell<usize>,
    between: RefCell<Option<Change>>,
}

type Change = (usize, Box<dyn Fn(&mut [u8])>);

impl Source for Memory {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.reads.set(self.reads.get() + 1);
        if let Some((at, change)) = &*self.between.borrow()
            && *at == self.reads.get()
        {
            change(&mut self.bytes.borrow_mut());
        }
        let bytes = self.bytes.borrow();
        let from = (offset as usize).min(bytes.len());
        let read = into.len().min(bytes.len() - from);
        into[..read].copy_from_slice(&bytes[from..from + read]);
        Ok(read)
    }
}

impl Memory {
    fn ring() -> Self {
        let mut bytes = vec![0; FILE_BYTES as usize];
        put(&mut bytes, 0, MAGIC);
        put(&mut bytes, 8, u64::from(LAYOUT_VERSION) | (RECORD_BYTES as u64) << 32);
        put(&mut bytes, 16, CAPACITY);
        put(&mut bytes, 24, FILE_BYTES);
        put(&mut bytes, 32, 4711);
        put(&mut bytes, 40, 22809 | 5 << 32);
        Self { bytes: RefCell::new(bytes), reads: Cell::new(0), between: RefCell::new(None) }
    }

    /// From the `later`th read on from now, `change` has happened.
    fn between(&self, later: usize, change: impl Fn(&mut [u8]) + 'static) {
        *self.between.borrow_mut() = Some((self.reads.get() + later, Box::new(change)));
    }

    fn change(&self, change: impl FnOnce(&mut [u8])) {
        change(&mut self.bytes.borrow_mut());
    }
}

fn put(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

fn written(bytes: &mut [u8], count: u64) {
    put(bytes, 64, count);
}

fn record(index: u64) -> Record {
    let op = Op { communicator: 1, generation: 2, function: Function::AllReduce, sequence: index, peer: -1 };
    Record::Started { op, time_ns: index * 3, bytes: 8, gpu_start_ns: index }
}

fn write(bytes: &mut [u8], index: u64) {
    let at = RECORDS_AT as usize + (index % CAPACITY) as usize * RECORD_BYTES;
    for (place, word) in record(index).encode().into_iter().enumerate() {
        put(bytes, at + place * 8, if place == 0 { index + 1 } else { word });
    }
}

fn indices(reader: &mut Reader<&Memory>, most: u64) -> (Vec<u64>, u64) {
    let mut entries = Vec::new();
    let polled = reader.poll(most, &mut entries).unwrap();
    assert_eq!(polled.read as usize, entries.len());
    for entry in &entries {
        assert_eq!(entry.record, record(entry.index), "a record that is believed is a whole one");
    }
    (entries.iter().map(|entry| entry.index).collect(), polled.lost)
}

#[test]
fn records_come_once_in_their_order_and_in_portions() {
    let memory = Memory::ring();
    let mut reader = Reader::open(&memory).unwrap();
    assert_eq!(indices(&mut reader, 100), (vec![], 0));
    memory.change(|bytes| {
        (0..1300).for_each(|index| write(bytes, index));
        written(bytes, 1300);
    });
    assert_eq!(indices(&mut reader, 1000), ((0..1000).collect(), 0));
    assert_eq!(indices(&mut reader, 1000), ((1000..1300).collect(), 0));
    assert_eq!(indices(&mut reader, 1000), (vec![], 0));
}

#[test]
fn what_was_overwritten_is_counted_and_the_rest_is_right_across_the_end() {
    let memory = Memory::ring();
    let mut reader = Reader::open(&memory).unwrap();
    let total = CAPACITY * 2 + 77;
    memory.change(|bytes| {
        (0..total).for_each(|index| write(bytes, index));
        written(bytes, total);
    });
    let (found, lost) = indices(&mut reader, u64::MAX);
    assert_eq!(lost, total - CAPACITY);
    assert_eq!(found, (total - CAPACITY..total).collect::<Vec<_>>());
}

#[test]
fn a_record_in_the_making_is_waited_for_once_and_then_given_up() {
    let memory = Memory::ring();
    let mut reader = Reader::open(&memory).unwrap();
    memory.change(|bytes| {
        [0, 2, 3].iter().for_each(|index| write(bytes, *index));
        written(bytes, 4);
    });
    assert_eq!(indices(&mut reader, 100), (vec![0], 0));
    // It came.
    memory.change(|bytes| write(bytes, 1));
    assert_eq!(indices(&mut reader, 100), (vec![1, 2, 3], 0));
    // The next one never does.
    memory.change(|bytes| {
        write(bytes, 5);
        written(bytes, 6);
    });
    assert_eq!(indices(&mut reader, 100), (vec![], 0));
    assert_eq!(indices(&mut reader, 100), (vec![5], 1));
}

#[test]
fn a_record_that_changes_under_the_reader_is_never_believed() {
    // Reads of a poll: count, run, run again, count. A writer a round ahead comes in before each of them.
    for later in 1..=4 {
        for torn in [false, true] {
            let memory = Memory::ring();
            let mut reader = Reader::open(&memory).unwrap();
            memory.change(|bytes| {
                (0..4).for_each(|index| write(bytes, index));
                written(bytes, 4);
            });
            memory.between(later, move |bytes| {
                written(bytes, CAPACITY + 2);
                if torn {
                    // Index and half of the payload of the next round, the stamp still the old one.
                    let at = RECORDS_AT as usize + RECORD_BYTES;
                    put(bytes, at + 24, u64::MAX);
                } else {
                    write(bytes, CAPACITY + 1);
                }
                write(bytes, CAPACITY);
            });
            let (found, lost) = indices(&mut reader, 4);
            assert!(!found.contains(&1) && !found.contains(&0), "before read {later}: {found:?}");
            assert_eq!(lost, 2, "before read {later}");
            assert!(found.contains(&2));
        }
    }
    // One that is half written when it is read first and whole when it is read again.
    let memory = Memory::ring();
    let mut reader = Reader::open(&memory).unwrap();
    memory.change(|bytes| written(bytes, 1));
    memory.between(3, |bytes| write(bytes, 0));
    assert_eq!(indices(&mut reader, 4), (vec![], 0));
    assert_eq!(indices(&mut reader, 4), (vec![0], 0));
}

#[test]
fn what_is_no_ring_is_refused() {
    for (at, what) in [(0, "magic"), (8, "version"), (12, "record size"), (16, "capacity"), (24, "file size")]
    {
        let memory = Memory::ring();
        memory.change(|bytes| bytes[at] ^= 1);
        assert!(matches!(Reader::open(&memory), Err(RingError::Layout(_))), "{what}");
    }
    for bytes in [0, 100, FILE_BYTES as usize - 1] {
        let memory = Memory::ring();
        memory.bytes.borrow_mut().truncate(bytes);
        assert!(matches!(Reader::open(&memory), Err(RingError::Short)), "{bytes}");
    }
    let memory = Memory::ring();
    assert_eq!(Reader::open(&memory).unwrap().header().unwrap().pid, 4711);
}

#[test]
fn a_count_that_goes_back_or_beyond_reason_is_an_error() {
    let memory = Memory::ring();
    memory.change(|bytes| {
        (0..3).for_each(|index| write(bytes, index));
        written(bytes, 3);
    });
    let mut reader = Reader::open(&memory).unwrap();
    assert_eq!(indices(&mut reader, 9).0.len(), 3);
    for count in [2, 1 << 63, u64::MAX] {
        memory.change(|bytes| written(bytes, count));
        assert!(matches!(reader.poll(9, &mut Vec::new()), Err(RingError::Backwards)), "{count}");
    }
    memory.change(|bytes| written(bytes, (1 << 63) - 1));
    let polled = reader.poll(9, &mut Vec::new()).unwrap();
    assert_eq!((polled.read, polled.lost > 1 << 60), (0, true));
}

#[test]
fn random_bytes_cost_a_bounded_answer() {
    let memory = Memory::ring();
    let mut seed = 88_172_645_463_325_252_u64;
    memory.change(|bytes| {
        for byte in &mut bytes[64..] {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            *byte = seed as u8;
        }
        written(bytes, CAPACITY * 9);
    });
    let mut reader = Reader::open(&memory).unwrap();
    assert!(reader.communicators().unwrap().len() <= COMMUNICATORS);
    assert!(reader.live_steps().unwrap().len() <= LIVE_STEPS);
    let mut entries = Vec::new();
    for _ in 0..2 * CAPACITY {
        reader.poll(u64::MAX, &mut entries).unwrap();
    }
    let polled = reader.poll(u64::MAX, &mut entries).unwrap();
    assert_eq!((polled.read, polled.more, entries.len()), (0, false, 0));
}

#[test]
fn the_tables_say_what_stands_in_them() {
    let memory = Memory::ring();
    let reader = Reader::open(&memory).unwrap();
    assert!(reader.communicators().unwrap().is_empty() && reader.live_steps().unwrap().is_empty());
    memory.change(|bytes| {
        put(bytes, 128 + 8 * Counter::Foreign as usize, 12);
        let at = COMMUNICATORS_AT as usize + 3 * 1024;
        put(bytes, at, 5 << 2 | 2);
        put(bytes, at + 8, 0xfeed);
        put(bytes, at + 16, 16 | 2 << 32);
        put(bytes, at + 24, 7);
        bytes[at + 64..at + 69].copy_from_slice(b"tp\x1b0\xff");
        put(bytes, at + 128 + 64 * Function::AllGather as usize, 41);
        let at = LIVE_STEPS_AT as usize + 64;
        put(bytes, at, 1 << 24 | 1 << 16 | 9 << 8 | 20);
        put(bytes, at + 16, 3 | 8 << 8 | 5 << 16 | 11 << 32);
    });
    assert_eq!(reader.header().unwrap().counter(Counter::Foreign), 12);
    let found = reader.communicators().unwrap();
    let [one] = &found[..] else { panic!("{found:?}") };
    assert_eq!((one.slot, one.generation, one.ended, one.id), (3, 5, false, 0xfeed));
    assert_eq!((one.ranks, one.nodes, one.rank), (16, 2, 7));
    assert_eq!(one.name(), "tp?0\u{fffd}");
    assert_eq!(one.progress(Function::AllGather).enqueued, 41);
    let steps = reader.live_steps().unwrap();
    let [step] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!((step.state, step.channel, step.send, step.peer), (20, 9, true, 11));
    assert_eq!((step.communicator, step.function, step.generation), (3, Function::Recv, 5));
    // A slot that changes hands under the reader is told the next time.
    memory.between(6, |bytes| put(bytes, COMMUNICATORS_AT as usize + 3 * 1024, 6 << 2 | 2));
    assert!(reader.communicators().unwrap().is_empty());
    assert_eq!(reader.communicators().unwrap()[0].generation, 6);
}
