//! Bus bandwidth inside this node, one thread a GPU: all-reduce, all-gather, all-to-all at three sizes, as nccl-tests
//! counts them, and every result of the smallest size looked at.

use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use kernels::nccl::{Comm, NcclError, Operation, Place, Until};

use super::driver::{Driver, Flow, Memory};
use super::{load, until};

const MIB: usize = 1 << 20;
const SIZES: [usize; 3] = [4 * MIB, 64 * MIB, 1024 * MIB];
/// As nccl-tests has them.
const WARM_UP: u32 = 5;
const ITERATIONS: u32 = 20;

/// More than any NVLink carries; what is above it was not measured.
const ABSURD_GB_PER_S: f64 = 2000.0;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Reduce,
    Gather,
    Exchange,
}

const KINDS: [(Kind, &str); 3] =
    [(Kind::Reduce, "all-reduce"), (Kind::Gather, "all-gather"), (Kind::Exchange, "all-to-all")];

/// One rank's communicator, memory and stream.
struct Rank {
    comm: Comm,
    send: Memory,
    receive: Memory,
    flow: Flow,
}

impl Rank {
    /// Enqueues one collective; sizes are nccl-tests': of an all-gather what is received, of an all-to-all what is sent.
    fn enqueue(&mut self, kind: Kind, bytes: usize, until: Until<'_>) -> Result<(), NcclError> {
        let (send, receive, stream) = (self.send.span(), self.receive.span(), self.flow.for_nccl());
        let share = bytes / 4 / usize::try_from(self.comm.place().ranks).unwrap();
        let mut call =
            |operation, count| self.comm.collective(operation, (send, receive), count, stream, until);
        match kind {
            Kind::Reduce => call(Operation::AllReduce, bytes / 4),
            Kind::Gather => call(Operation::AllGather, share),
            Kind::Exchange => call(Operation::AllToAll, share),
        }
    }

    fn finish(&mut self) {
        let flow = &self.flow;
        self.comm
            .wait("collective", until(), || flow.done().unwrap())
            .unwrap_or_else(|error| panic!("{error}"));
    }

    fn run(&mut self, kind: Kind, bytes: usize, times: u32) -> (Duration, Duration) {
        let began = Instant::now();
        for _ in 0..times {
            self.enqueue(kind, bytes, until()).unwrap_or_else(|error| panic!("{error}"));
        }
        let enqueued = began.elapsed();
        self.finish();
        (began.elapsed() / times, enqueued / times)
    }

    /// One collective of the smallest size, every element looked at.
    fn check(&mut self, kind: Kind) {
        let Place { ranks, rank } = self.comm.place();
        let (ranks, rank) = (usize::try_from(ranks).unwrap(), usize::try_from(rank).unwrap());
        let elements = SIZES[0] / 4;
        let share = elements / ranks;
        let value = |rank: usize, at: usize| f32::from(u16::try_from((at * (rank + 1)) % 1024).unwrap());
        let mine: Vec<f32> = (0..elements).map(|at| value(rank, at)).collect();
        self.send.write(&mine).unwrap();
        self.receive.write(&vec![-1.0; elements]).unwrap();
        self.enqueue(kind, SIZES[0], until()).unwrap_or_else(|error| panic!("{error}"));
        self.finish();
        let got = self.receive.read(elements).unwrap();
        let expected = |at: usize| match kind {
            Kind::Reduce => (0..ranks).map(|from| value(from, at)).sum::<f32>(),
            Kind::Gather => value(at / share, at % share),
            Kind::Exchange => value(at / share, rank * share + at % share),
        };
        let length = if kind == Kind::Reduce { elements } else { share * ranks };
        let wrong = (0..length).filter(|&at| (got[at] - expected(at)).abs() > 0.0).count();
        assert_eq!(wrong, 0, "{kind:?}: of {length} elements on rank {rank}");
    }
}

/// Measures and prints the table.
pub fn measure() {
    let driver = Driver::load().unwrap();
    let ranks = driver.gpus();
    let nccl = load();
    let began = Instant::now();
    let id = nccl.unique_id(super::STEP).unwrap_or_else(|error| panic!("{error}"));
    let barrier = Barrier::new(ranks);
    // Of each run the slowest rank's time, whole and until it was enqueued.
    let slowest = Mutex::new(vec![(Duration::ZERO, Duration::ZERO); KINDS.len() * SIZES.len()]);
    let inits = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            let (driver, barrier, slowest, inits) = (&driver, &barrier, &slowest, &inits);
            scope.spawn(move || {
                let gpu = driver.bind(rank).unwrap();
                let place =
                    Place { ranks: u32::try_from(ranks).unwrap(), rank: u32::try_from(rank).unwrap() };
                let comm = Comm::init(&nccl, &id, place, until()).unwrap_or_else(|error| panic!("{error}"));
                inits.lock().unwrap().push(began.elapsed());
                let most = SIZES[SIZES.len() - 1];
                let (send, receive) = (gpu.memory(most).unwrap(), gpu.memory(most).unwrap());
                let mut rank = Rank { comm, send, receive, flow: gpu.stream().unwrap() };
                for (row, (kind, _)) in KINDS.into_iter().enumerate() {
                    rank.check(kind);
                    for (column, bytes) in SIZES.into_iter().enumerate() {
                        _ = rank.run(kind, bytes, WARM_UP);
                        barrier.wait();
                        let (whole, enqueued) = rank.run(kind, bytes, ITERATIONS);
                        let mut all = slowest.lock().unwrap();
                        let kept = &mut all[row * SIZES.len() + column];
                        *kept = (kept.0.max(whole), kept.1.max(enqueued));
                    }
                }
                rank.comm.close(until()).unwrap_or_else(|error| panic!("{error}"));
            });
        }
    });
    let init = inits.lock().unwrap().iter().max().copied().unwrap();
    println!(
        "{ranks} GPUs, NCCL {}, contexts and init {init:.2?}; busbw in GB/s, µs an operation (µs to enqueue it)",
        nccl.version()
    );
    println!("{:<12}{:>24}{:>24}{:>24}", "", "4 MiB", "64 MiB", "1 GiB");
    let slowest = slowest.lock().unwrap();
    for (row, (kind, name)) in KINDS.into_iter().enumerate() {
        let cells = SIZES.into_iter().enumerate().map(|(column, bytes)| {
            let (whole, enqueued) = slowest[row * SIZES.len() + column];
            let busbw = busbw(kind, bytes, ranks, whole);
            assert!(busbw > 0.0 && busbw < ABSURD_GB_PER_S, "{kind:?} {bytes}: {busbw}");
            format!("{busbw:.1}  {:.0} ({:.0})", whole.as_secs_f64() * 1e6, enqueued.as_secs_f64() * 1e6)
        });
        let cells: String = cells.map(|cell| format!("{cell:>24}")).collect();
        println!("{name:<12}{cells}");
    }
}

/// Bus bandwidth as nccl-tests defines it.
fn busbw(kind: Kind, bytes: usize, ranks: usize, time: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "both are far below 2^53")]
    let (bytes, ranks) = (bytes as f64, ranks as f64);
    let factor = match kind {
        Kind::Reduce => 2.0 * (ranks - 1.0) / ranks,
        Kind::Gather | Kind::Exchange => (ranks - 1.0) / ranks,
    };
    factor * bytes / time.as_secs_f64() / 1e9
}
