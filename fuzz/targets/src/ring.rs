//! The ring that a rank shares with the agent: every byte is the user's, also between two readings.
//!
//! A file is a list of steps, each a kind and what it takes: words of the header, of a communicator, of a transfer, of a
//! record; a record that looks right; time and a look; words that change while they are read.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use diag::c4d::digest::{Digest, MAX_COMMS, MAX_DIGEST_BYTES, Process, ProcessState, Rank, Telemetry};
use diag::c4d::picture::Picture;
use diag::c4d::settings::Settings;
use epilog::c4d::rings::Ring;
use nccl_profiler::handover::Hello;
use nccl_profiler::ring::{
    CAPACITY, COMMUNICATOR_BYTES, COMMUNICATORS, COMMUNICATORS_AT, Entry, FILE_BYTES, Header, LIVE_STEPS,
    LIVE_STEPS_AT, Order, RECORD_BYTES, RECORDS_AT, Reader, Record, Source,
};

use crate::holds;

/// Most looks of one file.
const MOST_LOOKS: usize = 16;
/// Where the header counts records.
const WRITTEN_AT: u64 = 64;
/// Bits of the header's mask that tell of transfers and of kernels.
const MASK: u64 = 1 << 4 | 1 << 6;

/// A ring's file: zeros, but for these words.
#[derive(Default)]
struct Memory {
    words: BTreeMap<u64, u64>,
    /// A word that is another one at every `often`th reading.
    turning: Option<(u64, u64, u8)>,
    readings: Cell<u64>,
}

impl Memory {
    fn put(&mut self, at: u64, words: &[u64]) {
        for (place, word) in (at / 8..).zip(words) {
            if place < FILE_BYTES / 8 {
                self.words.insert(place, *word);
            }
        }
    }

    fn word(&self, at: u64) -> u64 {
        self.words.get(&(at / 8)).copied().unwrap_or_default()
    }
}

impl Source for Memory {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let readings = self.readings.get() + 1;
        self.readings.set(readings);
        let count = bytes.len().min(usize::try_from(FILE_BYTES.saturating_sub(offset)).unwrap_or(0));
        let bytes = &mut bytes[..count];
        bytes.fill(0);
        let end = offset + count as u64;
        let turned = self.turning.filter(|(.., often)| readings.is_multiple_of(u64::from(*often).max(1)));
        let turned = turned.map(|(place, word, _)| (place, word));
        let first = offset / 8;
        let words = self.words.range(first..end.div_ceil(8)).map(|(place, word)| (*place, *word));
        for (place, word) in words.chain(turned) {
            for (at, byte) in (place * 8..).zip(word.to_le_bytes()) {
                if (offset..end).contains(&at) {
                    bytes[(at - offset) as usize] = byte;
                }
            }
        }
        Ok(count)
    }
}

struct Steps<'a>(&'a [u8]);

impl Steps<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn short(&mut self) -> Option<u64> {
        self.take().map(|bytes| u64::from(u16::from_le_bytes(bytes)))
    }

    fn word(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

/// What a look at the ring says fits into a digest that keeps its bounds, whatever the process wrote.
pub fn run(data: &[u8]) {
    small(data);
    let mut memory = Memory::default();
    let header = Header {
        pid: 1,
        nccl_version: 22_809,
        api: 5,
        created_ns: 1,
        mask: MASK,
        written: 0,
        counters: [0; 8],
    };
    memory.put(0, &header.encode());
    // A communicator of four ranks on two nodes.
    memory.put(COMMUNICATORS_AT, &[2 | 1 << 2, 0xab, 4 | 2 << 32, 1, 1]);
    let mut judged = Judged::new();
    let mut steps = Steps(data);
    let mut looks: Vec<(Memory, u64)> = Vec::new();
    let mut ms = 0;
    while looks.len() < MOST_LOOKS
        && let Some(kind) = steps.byte()
    {
        if kind % 8 == 6 {
            ms += steps.short().unwrap_or(1000) * 10;
            let words = memory.words.clone();
            looks.push((Memory { words, turning: memory.turning, readings: Cell::new(0) }, ms));
        } else if change(&mut memory, kind, &mut steps).is_none() {
            break;
        }
    }
    looks.push((memory, ms + 1000));
    judged.look(&looks);
}

/// One step; none: the file is over.
fn change(memory: &mut Memory, kind: u8, steps: &mut Steps<'_>) -> Option<()> {
    let record = RECORD_BYTES as u64;
    match kind % 8 {
        0 => memory.put(u64::from(steps.byte()? % 24) * 8, &[steps.word()?]),
        1 => {
            let slot = u64::from(steps.byte()?) % COMMUNICATORS as u64;
            let at = COMMUNICATORS_AT + slot * COMMUNICATOR_BYTES as u64 + u64::from(steps.byte()? % 128) * 8;
            memory.put(at, &[steps.word()?]);
        }
        2 => {
            let slot = steps.short()? % LIVE_STEPS as u64;
            memory.put(LIVE_STEPS_AT + slot * record + u64::from(steps.byte()? % 8) * 8, &[steps.word()?]);
        }
        3 => {
            let place = steps.short()? % CAPACITY;
            memory.put(RECORDS_AT + place * record + u64::from(steps.byte()? % 8) * 8, &[steps.word()?]);
        }
        // The next record, of the first communicator unless it says another.
        4 | 5 => {
            let index = memory.word(WRITTEN_AT);
            let [number, function, slot, flags] = steps.take()?;
            let peer = steps.short()?;
            let head = u64::from(number % 7)
                | u64::from(function) << 8
                | u64::from(slot) << 16
                | u64::from(flags) << 24
                | peer << 32;
            let mut words = [index.wrapping_add(1), head, 1, 1 << 48 | steps.short()?, 0, 0, 0, 0];
            for word in &mut words[4..] {
                *word = if kind % 8 == 4 { steps.short()? } else { steps.word()? };
            }
            memory.put(RECORDS_AT + index % CAPACITY * record, &words);
            memory.put(WRITTEN_AT, &[index.wrapping_add(1)]);
        }
        _ => memory.turning = Some((steps.short()? * 2, steps.word()?, steps.byte()?)),
    }
    Some(())
}

/// The agent's side, which lives on while the ring changes.
struct Judged {
    picture: Picture,
    settings: Settings,
}

/// A file whose content is another one at each look.
struct Film<'a> {
    looks: &'a [(Memory, u64)],
    at: Cell<usize>,
}

impl Source for Film<'_> {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.looks[self.at.get()].0.read_at(bytes, offset)
    }
}

impl Judged {
    fn new() -> Self {
        Self { picture: Picture::new(vec!["n0".into(), "n1".into()]), settings: Settings::default() }
    }

    fn look(&mut self, looks: &[(Memory, u64)]) {
        let film = Film { looks, at: Cell::new(0) };
        entries(&film);
        film.at.set(0);
        let start = Instant::now();
        let mut ring = match Ring::open(&film) {
            Ok(ring) => ring,
            Err(error) => return holds::line(&error.to_string(), 200),
        };
        for (at, (_, ms)) in looks.iter().enumerate() {
            film.at.set(at);
            let look = ring.look(start + Duration::from_millis(*ms));
            assert!(look.comms.len() <= MAX_COMMS);
            if let Telemetry::Unavailable { why } = &look.telemetry {
                assert!(look.comms.is_empty());
                holds::line(why, 512);
            }
            let process = Process { state: ProcessState::Sleeping, wchan: String::new(), io_bytes: None };
            let (telemetry, kernels, comms) = (look.telemetry, look.kernels, look.comms);
            let rank = Rank { pid: 7, task: None, gpu: None, process, telemetry, kernels, comms };
            let digest = Digest { node: 0, number: at as u64, ending: false, ranks: vec![rank] };
            digest.check().unwrap();
            let sent = serde_json::to_vec(&digest).unwrap();
            assert!(sent.len() <= MAX_DIGEST_BYTES / 4, "{} bytes of one rank", sent.len());
            assert_eq!(Digest::parse(&sent).unwrap(), digest);
            for one in diag::c4d::step(&mut self.picture, &[digest], *ms, &self.settings) {
                holds::line(&one.message, 8192);
            }
        }
    }
}

/// The reader by itself: in order, no more than the ring holds, and nothing twice.
fn entries(film: &Film<'_>) {
    let Ok(mut reader) = Reader::open(film) else { return };
    let mut entries: Vec<Entry> = Vec::new();
    for at in 0..film.looks.len() {
        film.at.set(at);
        let before = entries.len();
        let Ok(polled) = reader.poll(CAPACITY, &mut entries) else { break };
        assert!(polled.read as usize == entries.len() - before && polled.read <= CAPACITY);
        assert!(reader.communicators().unwrap().len() <= COMMUNICATORS);
        assert!(reader.live_steps().unwrap().len() <= LIVE_STEPS);
    }
    assert!(entries.is_sorted_by(|a, b| a.index < b.index));
    for Entry { record, .. } in entries {
        assert_eq!(Record::decode(&record.encode()), Some(record));
    }
}

/// The hand-over's message, and the one word of an order.
fn small(data: &[u8]) {
    match Hello::decode(data) {
        Ok(hello) => assert_eq!(&hello.encode()[..], data),
        Err(why) => holds::line(why, 200),
    }
    if let Some(word) = data.first_chunk() {
        let word = u64::from_le_bytes(*word);
        if let Some(order) = Order::of(word) {
            assert_eq!(Order::of(u64::from_le_bytes(order.to_bytes())), Some(order));
        }
    }
}
