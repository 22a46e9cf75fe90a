//! Collectives over NCCL: several message sizes, and a verified result. All ranks of a
//! communicator take the same decisions, because each is taken on numbers that all of them have.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kernels::collective::enqueue;
use kernels::cuda::{self, Event};
use kernels::nccl::{Comm, Nccl, NcclError, Place};

use super::super::host::Host;
use super::super::timed::{Cancel, Until};
use super::agreement::Agreed;
use super::doing::Flaw;
use super::gpu::{Gpu, Held, limit, nccl_limit, words};
use super::ranks::Ranks;
use super::seats::{INIT_SHARE, Seat, Seats, seats, stop_with};
use crate::protocol::{Busbw, Collected, Collective, Member, Reply, Tag, TroubleKind, Unreachable};

/// Sizes of messages: where latency rules, where bandwidth begins, and where NVLink's is reached. One of which a single
/// collective would take a window is left out, and so are those that the memory is too small for.
const SIZES: [usize; 3] = [4 << 20, 64 << 20, 1 << 30];

/// Times that a fast size is measured in a row; their median counts, since one slow moment is long beside all of one.
const BATCHES: usize = 5;

/// Untimed collectives of a size, so that buffers are registered and rings are warm.
const WARM_UP: usize = 2;

/// Timed collectives of a size: at least so many, so that one slow moment is not all, and at most so many.
const TIMED: std::ops::RangeInclusive<usize> = 3..=100;

/// What this node has to do.
pub(super) struct Work<'w> {
    pub host: &'w Host,
    pub nccl: Nccl,
    pub tag: Tag,
    pub collective: Collective,
    pub window: Duration,
}

/// Why a rank has no number.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// Its communicator did not come up.
    Init(String),
    /// What was under way did not end, or broke off.
    Died(String),
    /// Its own trouble.
    Own(Flaw),
}

/// In a collective a GPU works on the others' memory too, so whose it is that the driver calls broken is not known.
pub(super) fn in_a_collective(flaw: Flaw) -> Flaw {
    let kind = if flaw.kind == TroubleKind::Broken { TroubleKind::Failed } else { flaw.kind };
    Flaw { kind, ..flaw }
}

impl Failure {
    fn own(flaw: Flaw) -> Self {
        Self::Own(in_a_collective(flaw))
    }
}

impl From<cuda::CudaError> for Failure {
    fn from(error: cuda::CudaError) -> Self {
        match error {
            // Because of another rank, or of nobody.
            cuda::CudaError::Cancelled { .. } => Self::Died(words(error)),
            error => Self::own(error.into()),
        }
    }
}

/// What one rank measured.
#[derive(Debug, Clone, Default)]
pub(super) struct Measured {
    /// Bytes and GB/s, from small to large.
    pub sizes: Vec<(u64, f64)>,
    pub iterations: u64,
    pub right: bool,
    pub seconds: f64,
}

/// What came of a rank of this node.
type Came = (usize, Result<Measured, Failure>);

/// Runs this node's ranks of every communicator, all at the same time.
pub(super) fn run(
    ranks: &Ranks<Gpu>,
    work: &Work<'_>,
    communicators: &[Vec<Member>],
    until: &Until,
) -> Reply {
    let begun = std::time::Instant::now();
    let Seats { seats, mut missing } = match seats(ranks, work, communicators, until) {
        Ok(seats) => seats,
        Err(message) => return Reply::Failed { message },
    };
    let seats = Arc::new(seats);
    let (nccl, collective, window) = (work.nccl, work.collective, work.window);
    let mine = Arc::clone(&seats);
    let done = ranks.each(until, move |rank, gpu, until| {
        let (_, seat) = mine.get(&rank)?;
        let work = |gpu: &mut Gpu, until: &Until| measure(gpu, seat, collective, window, until);
        Some(seated(gpu, nccl, seat, until, work))
    });
    stop_with(until, &seats);
    let mut results: BTreeMap<usize, Vec<Came>> = BTreeMap::new();
    for (rank, one) in done.into_iter().enumerate() {
        let Some((at, _)) = seats.get(&rank) else { continue };
        let result = one.map_err(Failure::own).and_then(|result| {
            result.unwrap_or_else(|| Err(Failure::own(Flaw::failed("it has no seat in a communicator"))))
        });
        results.entry(*at).or_default().push((rank, result));
    }
    let mut collected = Vec::new();
    for (at, members) in communicators.iter().enumerate() {
        if let Some(why) = missing.remove(&at) {
            collected.push(why);
            continue;
        }
        let results = results.remove(&at).unwrap_or_default();
        match sum_up(work, members, results, begun.elapsed().as_secs_f64()) {
            Ok(one) => collected.push(one),
            Err(message) => return Reply::Failed { message },
        }
    }
    Reply::Collective(collected)
}

/// Has a rank take its seat and do its work there. A communicator that failed can't serve again; where it failed for this
/// rank's own sake the others of the node need not wait for it.
pub(super) fn seated<T>(
    gpu: &mut Gpu,
    nccl: Nccl,
    seat: &Seat,
    until: &Until,
    work: impl FnOnce(&mut Gpu, &Until) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let until = Until { deadline: until.deadline, cancel: Cancel::clone(&seat.stop) };
    gpu.doing.at("joining a communicator (ncclCommInitRankConfig)");
    let result = join(gpu, nccl, seat, &until).and_then(|()| work(gpu, &until));
    if matches!(result, Err(Failure::Own(_))) {
        seat.stop.store(true, Ordering::Relaxed);
    }
    if result.is_err() {
        gpu.doing.at("ending a communicator that failed (ncclCommAbort)");
        gpu.comms.remove(&seat.members);
    }
    result
}

/// Has a rank hold the communicator that was agreed on.
fn join(gpu: &mut Gpu, nccl: Nccl, seat: &Seat, until: &Until) -> Result<(), Failure> {
    let Agreed::New(id) = seat.agreed else { return Ok(()) };
    gpu.comms.remove(&seat.members);
    gpu.context.bind()?;
    let patience = until.at_most(until.left().mul_f64(INIT_SHARE));
    let comm =
        Comm::init(&nccl, &id, seat.place, nccl_limit(&patience)).map_err(|error| not_joined(&error))?;
    gpu.comms.insert(seat.members.clone(), Held { id, comm });
    Ok(())
}

/// Results of NCCL that are about the way to the others: `ncclSystemError` (sockets among it) and `ncclRemoteError`.
const ABOUT_THE_WAY: [i32; 2] = [2, 6];

/// Why a rank could not join: the way to the others, or its own trouble, such as too little memory.
fn not_joined(error: &NcclError) -> Failure {
    match error {
        NcclError::Deadline { .. } | NcclError::Cancelled { .. } => Failure::Init(words(error)),
        NcclError::Failed { code, .. } if ABOUT_THE_WAY.contains(code) => Failure::Init(words(error)),
        _ => Failure::Own(Flaw::failed(words(error))),
    }
}

/// Verifies and times the sizes that fit.
pub(super) fn measure(
    gpu: &mut Gpu,
    seat: &Seat,
    collective: Collective,
    window: Duration,
    until: &Until,
) -> Result<Measured, Failure> {
    gpu.memory()?;
    gpu.doing.at("a collective");
    let (Some(memory), Some(held)) = (gpu.memory.as_mut(), gpu.comms.get_mut(&seat.members)) else {
        return Err(Failure::own(Flaw::failed("the communicator or its memory is gone")));
    };
    let mut rank = Rank {
        place: seat.place,
        expected: expected(collective, seat.place),
        comm: &mut held.comm,
        memory,
        kernels: &gpu.kernels,
        stream: &gpu.stream,
        until,
    };
    rank.kernels.fill_rank(rank.stream, &mut rank.memory.send, rank.place.rank)?;
    let mut measured = Measured { right: true, ..Measured::default() };
    let most = -rank.greatest(-(rank.memory.bytes() as f64))?;
    let share = window.as_secs_f64() / SIZES.len() as f64;
    let mut last: Option<(usize, f64)> = None;
    for bytes in SIZES.into_iter().filter(|bytes| *bytes as f64 <= most) {
        // What the last size took tells what this one will.
        let guess = last.map_or(0.0, |(before, seconds)| seconds * bytes as f64 / before as f64);
        if guess > window.as_secs_f64() {
            break;
        }
        measured.right &= rank.verify(bytes)?;
        let warm_up = if guess * WARM_UP as f64 > share { 1 } else { WARM_UP };
        let trial = rank.timed(bytes, warm_up)?;
        let trial = rank.greatest(trial)?;
        let fit = if trial > 0.0 { share / trial } else { 0.0 };
        let times = (fit as usize).clamp(*TIMED.start(), *TIMED.end());
        let batches = if times == *TIMED.end() { BATCHES } else { 1 };
        // One that is so slow was timed well enough.
        let (times, seconds) = if trial > share {
            (0, trial)
        } else {
            let mine = (0..batches).map(|_| rank.timed(bytes, times)).collect::<Result<Vec<f64>, _>>()?;
            (times * batches, rank.greatest(median(mine))?)
        };
        let factor = collective.bus_factor(seat.place.ranks as usize);
        measured.sizes.push((bytes as u64, factor * bytes as f64 / seconds / 1e9));
        measured.iterations += (times + warm_up + 1) as u64;
        measured.seconds += seconds * (times + warm_up + 1) as f64;
        last = Some((bytes, seconds));
    }
    Ok(measured)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// The same collective as the kernels that verify it know it.
pub(super) fn expected(collective: Collective, place: Place) -> cuda::Collective {
    let Place { ranks, rank } = place;
    match collective {
        Collective::AllReduce => cuda::Collective::AllReduce { ranks },
        Collective::AllGather => cuda::Collective::AllGather { ranks },
        Collective::AllToAll => cuda::Collective::AllToAll { ranks, rank },
    }
}

/// A rank at work.
struct Rank<'r> {
    place: Place,
    expected: cuda::Collective,
    comm: &'r mut Comm,
    memory: &'r mut kernels::collective::Memory,
    kernels: &'r cuda::Kernels,
    stream: &'r cuda::Stream,
    until: &'r Until,
}

impl Rank<'_> {
    /// Whether every element of one collective is right.
    fn verify(&mut self, bytes: usize) -> Result<bool, Failure> {
        // All chunks are of the same size, and the whole result is looked at.
        let chunk = bytes / size_of::<f32>() / self.place.ranks as usize;
        let elements = chunk.max(1) * self.place.ranks as usize;
        // What an earlier one left must not pass for this one's.
        self.memory.receive.zero(self.stream)?;
        let bytes = elements * size_of::<f32>();
        enqueue(self.comm, self.expected, self.memory, bytes, self.stream, nccl_limit(self.until))
            .map_err(|error| died(&error))?;
        self.wait()?;
        let received = &self.memory.receive;
        let wrong =
            self.kernels.count_wrong_in(self.stream, received, elements, self.expected, limit(self.until))?;
        Ok(wrong == 0)
    }

    /// Seconds of one of several collectives, by the GPU's clock.
    fn timed(&mut self, bytes: usize, times: usize) -> Result<f64, Failure> {
        let (begin, end) = (Event::new(self.kernels.context())?, Event::new(self.kernels.context())?);
        begin.record(self.stream)?;
        for _ in 0..times {
            enqueue(self.comm, self.expected, self.memory, bytes, self.stream, nccl_limit(self.until))
                .map_err(|error| died(&error))?;
        }
        end.record(self.stream)?;
        self.wait()?;
        Ok(begin.ms_until(&end)? / 1e3 / times.max(1) as f64)
    }

    fn wait(&mut self) -> Result<(), Failure> {
        finish(self.comm, &[self.stream], self.until)
    }

    /// The greatest of a number that each rank has, to the precision of a float: what all of them decide by.
    fn greatest(&mut self, mine: f64) -> Result<f64, Failure> {
        let ranks = self.place.ranks as usize;
        let gather = cuda::Collective::AllGather { ranks: self.place.ranks };
        let mut small = kernels::collective::Memory::new(self.kernels.context(), ranks * size_of::<f32>())?;
        let mut values = vec![0.0_f32; ranks];
        values[0] = mine as f32;
        small.send.write(self.stream, &values, limit(self.until))?;
        let bytes = small.bytes();
        enqueue(self.comm, gather, &mut small, bytes, self.stream, nccl_limit(self.until))
            .map_err(|error| died(&error))?;
        self.wait()?;
        let all = small.receive.read(self.stream, limit(self.until))?;
        Ok(all.into_iter().map(f64::from).fold(f64::NEG_INFINITY, f64::max))
    }
}

/// Waits until everything on these streams is done, with an eye on the communicator.
pub(super) fn finish(comm: &mut Comm, streams: &[&cuda::Stream], until: &Until) -> Result<(), Failure> {
    let mut trouble = None;
    let done = || {
        streams.iter().all(|stream| {
            stream.is_done().unwrap_or_else(|error| {
                trouble.get_or_insert(error);
                true
            })
        })
    };
    let finished = comm.wait("a collective", nccl_limit(until), done);
    match (finished, trouble) {
        (_, Some(error)) => Err(error.into()),
        (Ok(()), None) => Ok(()),
        (Err(error), None) => Err(died(&error)),
    }
}

/// `ncclUnhandledCudaError`: a call of the driver failed, on this rank's GPU.
const OF_THE_DRIVER: i32 = 1;

/// Why a collective gave out: the rank's own GPU, or anything between the ranks.
pub(super) fn died(error: &NcclError) -> Failure {
    match error {
        NcclError::Failed { code: OF_THE_DRIVER, .. } => Failure::Own(Flaw::failed(words(error))),
        _ => Failure::Died(words(error)),
    }
}

/// The slowest of this node's ranks speaks for all.
fn sum_up(
    work: &Work<'_>,
    members: &[Member],
    results: Vec<Came>,
    seconds: f64,
) -> Result<Collected, String> {
    let (mut measured, mut troubles) = (Vec::new(), Vec::new());
    let (mut init, mut died) = (None, None);
    for (rank, result) in results {
        match result {
            Ok(one) => measured.push(one),
            Err(Failure::Own(flaw)) => troubles.push(flaw.of(rank)),
            Err(Failure::Init(why)) => init = Some(why),
            Err(Failure::Died(why)) => died = Some(why),
        }
    }
    if !troubles.is_empty() {
        // What a broken rank keeps the others from is not theirs.
        return Ok(Collected::Broken(troubles));
    }
    let me = work.host.node();
    let elsewhere = members.iter().find(|member| member.node != me);
    match (init, died, elsewhere) {
        (Some(why), _, Some(other)) => Ok(Collected::Unreachable(vec![Unreachable {
            from: me,
            to: other.node,
            address: other.address,
            port: other.port,
            why,
        }])),
        (Some(why), _, None) => Err(why),
        // It worked at first: a device or a way that gives out under load, not a setting.
        (None, Some(_), _) => Ok(Collected::Measured(nothing(seconds))),
        (None, None, _) => slowest(&measured, seconds)
            .map(Collected::Measured)
            .ok_or_else(|| "no rank of this node came to a result".to_owned()),
    }
}

/// A collective that gave out.
fn nothing(seconds: f64) -> Busbw {
    Busbw {
        gb_per_s: 0.0,
        bytes: 0,
        samples: Vec::new(),
        smaller: Vec::new(),
        iterations: 0,
        right: None,
        limited: true,
        moved_bytes: 0,
        seconds,
    }
}

/// The number at the largest size, and those at smaller ones; the lowest of all ranks.
pub(super) fn slowest(measured: &[Measured], seconds: f64) -> Option<Busbw> {
    let mut sizes: BTreeMap<u64, f64> = BTreeMap::new();
    for (bytes, rate) in measured.iter().flat_map(|one| &one.sizes) {
        sizes.entry(*bytes).and_modify(|kept| *kept = kept.min(*rate)).or_insert(*rate);
    }
    let (bytes, gb_per_s) = sizes.pop_last()?;
    let right = measured.iter().filter(|one| one.right).count();
    let iterations = measured.iter().map(|one| one.iterations).min().unwrap_or(0);
    Some(Busbw {
        gb_per_s,
        bytes,
        samples: Vec::new(),
        smaller: sizes.into_iter().collect(),
        iterations,
        right: Some(right as f64 / measured.len().max(1) as f64),
        limited: false,
        moved_bytes: bytes.saturating_mul(iterations),
        seconds,
    })
}
