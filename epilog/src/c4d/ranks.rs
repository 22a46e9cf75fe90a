//! The ranks of the job on this node, from their rings and processes to one digest a second. What is made of it is
//! [`super::judge`]'s.

use std::collections::BTreeSet;
use std::fs::File;
use std::time::Instant;

use diag::c4d::digest::{Digest, MAX_RANKS, ProcessState, Rank, Telemetry, clean};
use diag::facts::NodeId;
use diag::gpu_facts::ids::GpuId;

use crate::c4d::aside::{Aside, Told};
use crate::c4d::health::gpu_of;
use crate::c4d::orders::{Orders, Pen, Wish};
use crate::c4d::process::Followed;
use crate::c4d::rings::{Look, Ring};
use crate::c4d::socket::Arrival;
use crate::health::GpuNow;

/// All that came, at most [`MAX_RANKS`].
#[derive(Debug)]
pub struct Ranks {
    node: NodeId,
    known: Vec<Known>,
    next: u64,
    /// Communicators whose ranks are to tell of the network's steps.
    steps: BTreeSet<u64>,
    trouble: bool,
    ending: bool,
    /// How the job's GPUs on this node are.
    loads: Vec<GpuNow>,
    /// Of which each rank's is another.
    pen: Pen,
    aside: Aside,
}

#[derive(Debug)]
struct Known {
    process: Followed,
    ring: Result<Ring<File>, String>,
    gone: bool,
    orders: Orders,
    pen: Pen,
}

impl Ranks {
    /// Of this node's part of a job, with these GPUs.
    #[must_use]
    pub fn new(me: NodeId, gpus: &[GpuId]) -> Self {
        Self {
            node: me,
            known: Vec::new(),
            next: 0,
            steps: BTreeSet::new(),
            trouble: false,
            ending: false,
            loads: Vec::new(),
            pen: Pen::default(),
            aside: Aside::new(gpus),
        }
    }

    /// How the job's GPUs are now.
    pub fn loads(&mut self, loads: Vec<GpuNow>) {
        self.loads = loads;
    }

    /// The job is being ended on this node: from now on nothing that stops is a fault.
    pub fn expects_end(&mut self, ends: bool) {
        self.ending |= ends;
    }

    /// Lets a rank in. A process that comes again has a new ring; where there is no room, one that has ended goes. False:
    /// there is none.
    pub fn admit(&mut self, arrival: Arrival) -> bool {
        let Arrival { pid, hello, ring } = arrival;
        self.known.retain(|known| known.process.pid() != pid);
        if self.known.len() >= MAX_RANKS {
            let Some(ended) = self.known.iter().position(|known| known.gone) else { return false };
            self.known.remove(ended);
        }
        let process = Followed::new(pid);
        self.aside.forget(pid);
        let ring = match ring {
            Some(file) => Ring::open(file).map_err(|error| clean(&error.to_string())),
            None => Err(clean(hello.status.why())),
        };
        let (orders, pen) = (Orders::default(), self.pen.another());
        self.known.push(Known { process, ring, gone: false, orders, pen });
        true
    }

    /// Ranks of these communicators tell of the network's steps for the next seconds, all others do not. Once a second.
    pub fn wants_steps(&mut self, comms: &BTreeSet<u64>) {
        self.steps.clone_from(comms);
    }

    /// Whether a finding about the job stands: all ranks tell begin and end of kernels as long as one does.
    pub fn expects_trouble(&mut self, trouble: bool) {
        self.trouble = trouble;
    }

    /// This second's digest. Writes the ranks' orders.
    pub fn look(&mut self, now: Instant) -> Digest {
        let (steps, trouble) = (&self.steps, self.trouble);
        let loads = &self.loads;
        let mut told = self.aside.look(self.known.iter().map(|known| known.process.pid()));
        let mut told = |known: &Known| told.remove(&known.process.pid()).unwrap_or_default();
        let ranks = self.known.iter_mut().map(|known| known.look(told(known), steps, trouble, loads, now));
        let ranks = ranks.collect();
        let digest = Digest { node: self.node, number: self.next, ending: self.ending, ranks };
        self.next += 1;
        digest
    }
}

impl Known {
    fn look(
        &mut self,
        told: Told,
        steps: &BTreeSet<u64>,
        trouble: bool,
        loads: &[GpuNow],
        now: Instant,
    ) -> Rank {
        let Told { task, gpu, io_bytes } = told;
        let process = self.process.look(io_bytes);
        self.gone = process.state == ProcessState::Gone;
        let look = match &mut self.ring {
            Ok(ring) => ring.look(now),
            Err(why) => unavailable(why.clone()),
        };
        let Look { comms, telemetry, kernels } = look;
        if let Ok(ring) = &self.ring
            && !process.state.ended()
        {
            let wish = Wish { steps: comms.iter().any(|comm| steps.contains(&comm.id)), trouble };
            if let Some(order) = self.orders.choose(ring.pace(), wish, now)
                && self.pen.write(ring.file(), order)
            {
                self.orders.wrote(order, now);
            }
        }
        let pid = self.process.pid();
        let gpu = gpu_of(pid, gpu.as_ref(), loads);
        let rank = Rank { pid, task, gpu, process, telemetry, kernels, comms };
        // One rank that contradicts itself must not silence the others of its node.
        let alone = Digest { node: 0, number: 0, ending: false, ranks: vec![rank.clone()] };
        let Err(mistakes) = alone.check() else { return rank };
        let why = mistakes.into_iter().next().unwrap_or_default();
        let Look { comms, telemetry, kernels } = unavailable(clean(&why));
        Rank { telemetry, kernels, comms, ..rank }
    }
}

fn unavailable(why: String) -> Look {
    Look { comms: Vec::new(), telemetry: Telemetry::Unavailable { why }, kernels: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::c4d::judge::Judge;
    use crate::c4d::link::Telling;
    use diag::c4d::finding::{Class, Finding, State};
    use diag::c4d::settings::Settings;
    use nccl_profiler::handover::{Hello, Status};
    use nccl_profiler::ring::{
        COMMUNICATORS_AT, FILE_BYTES, Function, Header, LAYOUT_VERSION, ORDER_AT, Op, Order, RECORD_BYTES,
        RECORDS_AT, Record,
    };
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::os::unix::fs::FileExt;
    use std::process::{Child, Command};
    use std::time::Duration;

    struct Program {
        child: Child,
        ring: File,
    }

    impl Drop for Program {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    impl Program {
        /// One of two ranks.
        fn start(rank: u64) -> Self {
            let ring = File::from(memfd_create("ring", MemfdFlags::CLOEXEC).unwrap());
            ring.set_len(FILE_BYTES).unwrap();
            let child = Command::new("sleep").arg("60").spawn().unwrap();
            let program = Self { child, ring };
            let counters = [0; nccl_profiler::ring::COUNTERS];
            let header =
                Header { pid: 1, nccl_version: 1, api: 5, created_ns: 1, mask: 1 << 6, written: 0, counters };
            program.put(0, &header.encode());
            program.put(COMMUNICATORS_AT, &[2 | 1 << 2, 0xab, 2 | 1 << 32, rank, 1, 0, 0, 0]);
            program
        }

        fn put(&self, at: u64, words: &[u64]) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            self.ring.write_all_at(&bytes, at).unwrap();
        }

        fn progress(&self, enqueued: u64, started: u64, finished: u64) {
            let at = COMMUNICATORS_AT + 16 * 8 + Function::AllReduce as u64 * 64;
            self.put(at, &[enqueued, started, finished, 0, 0, 0, 4096, started - finished]);
        }

        /// The next record: an operation that would have run for a second before it was called.
        fn ended_impossibly(&self, count: u64, sequence: u64) {
            let op = Op { communicator: 0, generation: 1, function: Function::AllReduce, sequence, peer: -1 };
            let (gpu_start_ns, gpu_stop_ns) = (1_000, 1_000_001_000);
            let mut words = Record::Done {
                op,
                time_ns: 1,
                bytes: 4096,
                gpu_start_ns,
                gpu_stop_ns,
                wait_us: 9,
                run_us: 9,
            }
            .encode();
            words[0] = count;
            self.put(RECORDS_AT + (count - 1) * RECORD_BYTES as u64, &words);
            self.put(64, &[count]);
        }

        fn arrival(&self) -> Arrival {
            let hello = Hello {
                layout_version: LAYOUT_VERSION,
                pid: 1,
                file_bytes: FILE_BYTES,
                nccl_version: 1,
                api: 5,
                status: Status::Ring,
            };
            Arrival { pid: self.child.id(), hello, ring: Some(self.ring.try_clone().unwrap()) }
        }
    }

    #[test]
    fn a_rank_that_does_not_come_is_named_and_cleared_when_it_comes() {
        let programs = [0, 1].map(Program::start);
        let begun = Instant::now();
        let mut ranks = Ranks::new(0, &[]);
        let mut judge = Judge::new(&["n1".into()], Settings::default(), begun);
        assert!(programs.iter().all(|program| ranks.admit(program.arrival())));
        let at = |second: u64| begun + Duration::from_secs(second);
        let look = |ranks: &mut Ranks, judge: &mut Judge, second: u64| -> Vec<Finding> {
            let telling = Telling { digest: ranks.look(at(second)), health: Vec::new() };
            judge.judge(&[telling], at(second))
        };
        for second in 1..=20 {
            programs.iter().for_each(|program| program.progress(second, second, second));
            assert!(look(&mut ranks, &mut judge, second).is_empty());
        }
        programs[0].progress(21, 21, 20);
        let found = (21..=40).find_map(|second| {
            look(&mut ranks, &mut judge, second).into_iter().next().map(|finding| (second, finding))
        });
        let (second, finding) = found.unwrap();
        assert!(second <= 20 + 15, "{second}");
        assert_eq!(finding.class, Class::NonCommunicationHang, "{finding:#?}");
        let suspects: Vec<u32> = finding.suspects.iter().map(|who| who.pid).collect();
        assert_eq!(suspects, [programs[1].child.id()], "{finding:#?}");
        assert_eq!(judge.standing().count(), 1);
        programs.iter().for_each(|program| program.progress(22, 22, 22));
        let withdrawn =
            (41..=60).find_map(|second| look(&mut ranks, &mut judge, second).into_iter().next()).unwrap();
        assert!(matches!(withdrawn.state, State::Withdrawn { .. }), "{withdrawn:#?}");
        assert_eq!(judge.standing().count(), 0);
    }

    #[test]
    fn a_process_has_one_place_and_a_full_table_takes_no_more() {
        let programs = [Program::start(0)];
        let mut ranks = Ranks::new(1, &[]);
        assert!(ranks.admit(programs[0].arrival()) && ranks.admit(programs[0].arrival()));
        let digest = ranks.look(Instant::now());
        assert_eq!((digest.node, digest.number, digest.ranks.len()), (1, 0, 1));
        digest.check().unwrap();
        // Numbers that no process has: they are gone at once, and make room.
        let stranger = |pid| Arrival { pid, ..programs[0].arrival() };
        for index in 1..MAX_RANKS {
            assert!(ranks.admit(stranger(u32::MAX - index as u32)));
        }
        assert!(!ranks.admit(stranger(u32::MAX - 1000)));
        ranks.look(Instant::now());
        assert!(ranks.admit(stranger(u32::MAX - 1000)));
        assert_eq!(ranks.look(Instant::now()).ranks.len(), MAX_RANKS);
    }

    /// Two ranks, of which the second stops after 20 s: it is named within 15 more, and nobody else. `tell` is what they tell
    /// in a second.
    fn assert_second_is_named(programs: &[Program; 2], tell: impl Fn(u64)) {
        let begun = Instant::now();
        let mut ranks = Ranks::new(0, &[]);
        let mut judge = Judge::new(&["n1".into()], Settings::default(), begun);
        assert!(programs.iter().all(|program| ranks.admit(program.arrival())));
        let mut found = Vec::new();
        for second in 1..=40 {
            tell(second);
            let now = begun + Duration::from_secs(second);
            let telling = Telling { digest: ranks.look(now), health: Vec::new() };
            found.extend(judge.judge(&[telling], now).into_iter().map(|one| (second, one)));
        }
        let [(second, finding)] = found.as_slice() else { panic!("{found:#?}") };
        assert!(*second <= 20 + 15, "{second}");
        let suspects: Vec<u32> = finding.suspects.iter().map(|who| who.pid).collect();
        assert_eq!((finding.class, suspects), (Class::NonCommunicationHang, vec![programs[1].child.id()]));
    }

    // Many operations a second, of which only calls are told: the windows are over when it stops.
    #[test]
    fn a_rank_that_stops_while_its_kernels_are_not_told_is_named_in_time() {
        let programs = [0, 1].map(Program::start);
        programs.iter().for_each(|program| program.put(56, &[6]));
        assert_second_is_named(&programs, |second| {
            let calls = 4000 * second.min(20);
            programs[0].progress(calls + 1, 90, 90);
            programs[1].progress(calls, 70, 70);
        });
    }

    // Replays of a graph whose kernels NCCL tells to have ended when they were called.
    #[test]
    fn a_rank_that_stops_while_what_is_told_of_kernels_can_t_be_is_named_in_time() {
        let programs = [0, 1].map(Program::start);
        assert_second_is_named(&programs, |second| {
            let calls = 10 * second.min(20);
            for (program, made) in programs.iter().zip([calls + 1, calls]) {
                program.progress(made, made, made);
                program.ended_impossibly(second, made - 1);
            }
        });
    }

    #[test]
    fn orders_reach_the_rings_of_those_who_are_meant() {
        let programs = [0, 1].map(Program::start);
        let begun = Instant::now();
        let mut ranks = Ranks::new(0, &[]);
        assert!(programs.iter().all(|program| ranks.admit(program.arrival())));
        programs[0].progress(5, 5, 5);
        programs[1].put(COMMUNICATORS_AT + 8, &[0xcd]);
        programs[1].progress(5, 5, 5);
        let order = |program: &Program| {
            let mut bytes = [0; 8];
            program.ring.read_exact_at(&mut bytes, ORDER_AT).unwrap();
            Order::of(u64::from_le_bytes(bytes))
        };
        let wait = |is: &dyn Fn() -> bool| {
            let until = Instant::now() + Duration::from_secs(30);
            while !is() {
                assert!(Instant::now() < until, "{:?} {:?}", order(&programs[0]), order(&programs[1]));
                std::thread::yield_now();
            }
        };
        ranks.look(begun);
        wait(&|| programs.iter().all(|program| order(program).is_some_and(|one| one.steps_ms == 0)));
        ranks.wants_steps(&[0xcd].into());
        // Each ring has one order at a time.
        for second in 1..=5 {
            ranks.look(begun + Duration::from_secs(second));
            std::thread::sleep(Duration::from_millis(20));
        }
        wait(&|| order(&programs[1]).is_some_and(|one| one.steps_ms > 0));
        assert_eq!(order(&programs[0]).unwrap().steps_ms, 0);
    }
}
