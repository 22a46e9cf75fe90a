//! A record: one event in eight words. The first is the stamp (see [`super::Reader`]), which belongs to the ring.
//!
//! Word 1: kind 8 bits, function 8, communicator's slot 8, flags 8, peer 32. Word 2: the host's CLOCK_MONOTONIC in ns.
//! Word 3: sequence number 48 bits, the slot's generation 16. The others are the kind's own.

use super::{Function, RECORD_WORDS, halves, joined};

/// Which operation, in every record that is about one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// Slot of its communicator in the table.
    pub communicator: u8,
    /// The slot's generation, its low 16 bits: a slot is used again after a communicator's end.
    pub generation: u16,
    /// What it is.
    pub function: Function,
    /// NCCL's number of a collective, per communicator and function; the plugin's own count of sends and of receives.
    pub sequence: u64,
    /// The peer of a send or receive, the root of a collective.
    pub peer: i32,
}

/// The time that a network transfer spent waiting, added over its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    /// The operation that it belongs to. `sequence` is [`Steps::NO_SEQUENCE`] if that is not known.
    pub op: Op,
    /// Channel.
    pub channel: u8,
    /// Sending, else receiving.
    pub send: bool,
    /// Steps that ended, at most 65,535.
    pub count: u16,
    /// Data, rounded down to KiB.
    pub kib: u32,
    /// Sending: SendGPUWait, waiting for the own GPU's data. Receiving: RecvWait, waiting for the network, so for the sender.
    pub first_ns: u64,
    /// Sending: SendPeerWait, waiting for the receiver's credit. Receiving: RecvFlushWait.
    pub second_ns: u64,
    /// Sending: SendWait, waiting for the network card. Receiving: RecvGPUWait, waiting for the own GPU to take the data.
    pub third_ns: u64,
}

impl Steps {
    /// The transfer belongs to an operation that is not known: another process's, or one that ended.
    pub const NO_SEQUENCE: u64 = SEQUENCE;
}

/// What happened. Times are the host's CLOCK_MONOTONIC; `gpu_` times are the GPU's own clock: differences only, on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// A communicator began; what is known of it stands in the table.
    CommInit {
        /// Slot.
        communicator: u8,
        /// The slot's generation.
        generation: u16,
        /// NCCL's id of the communicator, 0 if the interface does not carry it.
        id: u64,
        /// When.
        time_ns: u64,
    },
    /// A communicator ended.
    CommEnd {
        /// Slot.
        communicator: u8,
        /// The slot's generation.
        generation: u16,
        /// NCCL's id of the communicator.
        id: u64,
        /// When.
        time_ns: u64,
    },
    /// The process handed a send or receive to NCCL. That of a collective stands in the communicator's progress only: most jobs
    /// make little else, and the fewer words two threads write, the less a call costs.
    Enqueued {
        /// Which.
        op: Op,
        /// When.
        time_ns: u64,
        /// Count × size of an element, as NCCL says the count.
        bytes: u64,
        /// Channels that its kernel uses.
        channels: u8,
    },
    /// The first channel's kernel of a send or receive began. That of a collective stands in the communicator's progress only.
    Started {
        /// Which.
        op: Op,
        /// When the host heard of it: NCCL's proxy thread polls.
        time_ns: u64,
        /// Its size.
        bytes: u64,
        /// When it began.
        gpu_start_ns: u64,
    },
    /// The last channel's kernel ended.
    Done {
        /// Which.
        op: Op,
        /// When the host heard of it.
        time_ns: u64,
        /// Its size.
        bytes: u64,
        /// The first channel's start; 0 if the interface does not carry the GPU's time.
        gpu_start_ns: u64,
        /// The last channel's stop; 0 if the interface does not carry the GPU's time.
        gpu_stop_ns: u64,
        /// From enqueueing to the start, as the host heard of it.
        wait_us: u32,
        /// From the start to the end, as the host heard of it.
        run_us: u32,
    },
    /// A network transfer ended.
    Steps {
        /// Where the time went.
        steps: Steps,
        /// When.
        time_ns: u64,
    },
}

const COMM_INIT: u8 = 1;
const COMM_END: u8 = 2;
const ENQUEUED: u8 = 3;
const STARTED: u8 = 4;
const DONE: u8 = 5;
const STEPS: u8 = 6;

/// Mask of a sequence number.
const SEQUENCE: u64 = (1 << 48) - 1;

impl Record {
    /// The words, with an empty stamp.
    #[must_use]
    #[inline]
    pub const fn encode(&self) -> [u64; RECORD_WORDS] {
        match *self {
            Self::CommInit { communicator, generation, id, time_ns } => [
                0,
                head(COMM_INIT, Function::Other, communicator, 0, 0),
                time_ns,
                sequence(0, generation),
                id,
                0,
                0,
                0,
            ],
            Self::CommEnd { communicator, generation, id, time_ns } => [
                0,
                head(COMM_END, Function::Other, communicator, 0, 0),
                time_ns,
                sequence(0, generation),
                id,
                0,
                0,
                0,
            ],
            Self::Enqueued { op, time_ns, bytes, channels } => {
                let [head, sequence] = op_words(ENQUEUED, op, 0);
                [0, head, time_ns, sequence, bytes, 0, channels as u64, 0]
            }
            Self::Started { op, time_ns, bytes, gpu_start_ns } => {
                let [head, sequence] = op_words(STARTED, op, 0);
                [0, head, time_ns, sequence, bytes, gpu_start_ns, 0, 0]
            }
            Self::Done { op, time_ns, bytes, gpu_start_ns, gpu_stop_ns, wait_us, run_us } => {
                let [head, sequence] = op_words(DONE, op, 0);
                [0, head, time_ns, sequence, bytes, gpu_start_ns, gpu_stop_ns, joined(wait_us, run_us)]
            }
            Self::Steps { steps, time_ns } => {
                let [head, sequence] = op_words(STEPS, steps.op, steps.send as u8);
                let size = steps.channel as u64 | (steps.count as u64) << 16 | (steps.kib as u64) << 32;
                [0, head, time_ns, sequence, size, steps.first_ns, steps.second_ns, steps.third_ns]
            }
        }
    }

    /// The record of the words; none if the kind is not known.
    #[must_use]
    pub const fn decode(words: &[u64; RECORD_WORDS]) -> Option<Self> {
        let [_, head, time_ns, sequence, fourth, fifth, sixth, seventh] = *words;
        let communicator = (head >> 16) as u8;
        let generation = (sequence >> 48) as u16;
        let flags = (head >> 24) as u8;
        let op = Op {
            communicator,
            generation,
            function: function((head >> 8) as u8),
            sequence: sequence & SEQUENCE,
            peer: (head >> 32) as i32,
        };
        Some(match head as u8 {
            COMM_INIT => Self::CommInit { communicator, generation, id: fourth, time_ns },
            COMM_END => Self::CommEnd { communicator, generation, id: fourth, time_ns },
            ENQUEUED => Self::Enqueued { op, time_ns, bytes: fourth, channels: sixth as u8 },
            STARTED => Self::Started { op, time_ns, bytes: fourth, gpu_start_ns: fifth },
            DONE => {
                let (wait_us, run_us) = halves(seventh);
                Self::Done {
                    op,
                    time_ns,
                    bytes: fourth,
                    gpu_start_ns: fifth,
                    gpu_stop_ns: sixth,
                    wait_us,
                    run_us,
                }
            }
            STEPS => Self::Steps {
                steps: Steps {
                    op,
                    channel: fourth as u8,
                    send: flags & 1 != 0,
                    count: (fourth >> 16) as u16,
                    kib: (fourth >> 32) as u32,
                    first_ns: fifth,
                    second_ns: sixth,
                    third_ns: seventh,
                },
                time_ns,
            },
            _ => return None,
        })
    }
}

const fn function(number: u8) -> Function {
    if (number as usize) < Function::ALL.len() { Function::ALL[number as usize] } else { Function::Other }
}

const fn head(kind: u8, function: Function, communicator: u8, flags: u8, peer: i32) -> u64 {
    let low = kind as u32 | (function as u32) << 8 | (communicator as u32) << 16 | (flags as u32) << 24;
    joined(low, peer as u32)
}

const fn sequence(sequence: u64, generation: u16) -> u64 {
    sequence & SEQUENCE | (generation as u64) << 48
}

const fn op_words(kind: u8, op: Op, flags: u8) -> [u64; 2] {
    [head(kind, op.function, op.communicator, flags, op.peer), sequence(op.sequence, op.generation)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op() -> Op {
        Op {
            communicator: 63,
            generation: 0xfedc,
            function: Function::Gather,
            sequence: SEQUENCE - 1,
            peer: -2,
        }
    }

    #[test]
    fn every_kind_comes_back() {
        let steps = Steps {
            op: op(),
            channel: 200,
            send: true,
            count: u16::MAX,
            kib: u32::MAX,
            first_ns: 1,
            second_ns: u64::MAX,
            third_ns: 3,
        };
        for record in [
            Record::CommInit { communicator: 3, generation: 9, id: u64::MAX, time_ns: 1 },
            Record::CommEnd { communicator: 4, generation: 8, id: 5, time_ns: 2 },
            Record::Enqueued { op: op(), time_ns: 3, bytes: 1 << 40, channels: 255 },
            Record::Started { op: op(), time_ns: 4, bytes: 7, gpu_start_ns: u64::MAX },
            Record::Done {
                op: op(),
                time_ns: 5,
                bytes: 8,
                gpu_start_ns: 1,
                gpu_stop_ns: 2,
                wait_us: u32::MAX,
                run_us: 1,
            },
            Record::Steps { steps, time_ns: 6 },
            Record::Steps { steps: Steps { send: false, ..steps }, time_ns: 6 },
        ] {
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
    }

    #[test]
    fn foreign_words_are_no_record_or_one_within_bounds() {
        assert_eq!(Record::decode(&[0; RECORD_WORDS]), None);
        assert_eq!(Record::decode(&[u64::MAX; RECORD_WORDS]), None);
        let mut words = [u64::MAX; RECORD_WORDS];
        words[1] = u64::MAX << 8 | u64::from(DONE);
        let Some(Record::Done { op, .. }) = Record::decode(&words) else { panic!("a known kind") };
        assert_eq!((op.function, op.sequence), (Function::Other, SEQUENCE));
    }
}
