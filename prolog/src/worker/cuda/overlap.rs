//! Products and an all-reduce inside the node on the same GPUs: each rank queues both and lets the GPU share itself out.
//! How much each slows the other down is for the reader of the numbers.

use std::sync::Arc;
use std::time::Duration;

use kernels::collective::enqueue;
use kernels::cuda::{Event, tflops};

use super::super::timed::Until;
use super::collective::{self, Failure, Measured, Work, died, expected, finish, seated, slowest};
use super::doing::Flaw;
use super::gpu::{Gpu, SIZE, limit, nccl_limit};
use super::ranks::Ranks;
use super::seats::{Seat, Seats, seats, stop_with};
use crate::protocol::{Busbw, Collected, Collective, Member, Overlap, Overlapped, Products, Reply};

/// The message of the all-reduce beside products: large enough that bandwidth counts.
const BYTES: usize = 256 << 20;

/// At least so many of each are queued, and at most so many.
const QUEUED: std::ops::RangeInclusive<usize> = 3..=200;

/// What one rank measured.
#[derive(Debug, Clone)]
struct Beside {
    alone: Measured,
    at_once: Measured,
    tflop_per_s: f64,
    products: usize,
}

/// Runs the all-reduce alone, then beside products, each for about `window`.
pub(super) fn run(ranks: &Ranks<Gpu>, work: &Work<'_>, members: &[Member], until: &Until) -> Reply {
    let Seats { seats, mut missing } = match seats(ranks, work, &[members.to_vec()], until) {
        Ok(seats) => seats,
        Err(message) => return Reply::Failed { message },
    };
    match missing.pop_first() {
        None => {}
        Some((_, Collected::Broken(troubles))) => return Reply::Overlap(Overlapped::Broken(troubles)),
        Some((_, Collected::Unreachable(ways))) => return Reply::Overlap(Overlapped::Unreachable(ways)),
        Some((_, Collected::PeerBroken | Collected::Measured(_))) => {
            return Reply::Failed { message: "the ranks of this node did not agree".to_owned() };
        }
    }
    let (nccl, window, seats) = (work.nccl, work.window, Arc::new(seats));
    let mine = Arc::clone(&seats);
    let done = ranks.each(until, move |rank, gpu, until| {
        let (_, seat) = mine.get(&rank)?;
        Some(seated(gpu, nccl, seat, until, |gpu, until| beside(gpu, seat, window, until)))
    });
    stop_with(until, &seats);
    let (mut all, mut troubles, mut others) = (Vec::new(), Vec::new(), None);
    for (rank, one) in done.into_iter().enumerate() {
        match one {
            Ok(Some(Ok(one))) => all.push(one),
            Ok(Some(Err(Failure::Own(flaw)))) | Err(flaw) => troubles.push(flaw.of(rank)),
            Ok(Some(Err(Failure::Init(message) | Failure::Died(message)))) => others = Some(message),
            Ok(None) => {}
        }
    }
    // What a broken rank keeps the others from is not theirs.
    if !troubles.is_empty() {
        return Reply::Overlap(Overlapped::Broken(troubles));
    }
    if let Some(message) = others {
        return Reply::Failed { message };
    }
    sum_up(&all).map_or_else(
        || Reply::Failed { message: "no rank of this node came to a result".to_owned() },
        |overlap| Reply::Overlap(Overlapped::Measured(Box::new(overlap))),
    )
}

fn sum_up(all: &[Beside]) -> Option<Overlap> {
    let rates = |of: fn(&Beside) -> &Measured| -> Option<Busbw> {
        let measured: Vec<Measured> = all.iter().map(|one| of(one).clone()).collect();
        let seconds = measured.iter().map(|one| one.seconds).fold(0.0, f64::max);
        slowest(&measured, seconds)
    };
    let per_rank: Vec<f64> = all.iter().map(|one| one.tflop_per_s).collect();
    let products = Products {
        products: all.iter().map(|one| one.products as u64).sum(),
        seconds: all.iter().map(|one| one.at_once.seconds).fold(0.0, f64::max),
        tflop_per_s: per_rank.iter().sum(),
        per_rank,
        right: 1.0,
        ..Products::default()
    };
    Some(Overlap { busbw_alone: rates(|one| &one.alone)?, products, busbw: rates(|one| &one.at_once)? })
}

fn beside(gpu: &mut Gpu, seat: &Seat, window: Duration, until: &Until) -> Result<Beside, Failure> {
    let alone = collective::measure(gpu, seat, Collective::AllReduce, window, until)?;
    gpu.product(limit(until))?;
    gpu.doing.at("a collective beside products");
    // Of the sizes that all ranks agreed on.
    let agreed = alone.sizes.last().map_or(0, |(bytes, _)| usize::try_from(*bytes).unwrap_or(usize::MAX));
    let bytes = BYTES.min(agreed);
    let Gpu { stream, beside, gemm: Some(gemm), memory: Some(memory), comms, context, .. } = gpu else {
        return Err(gone("the product or the memory"));
    };
    let Some(held) = comms.get_mut(&seat.members) else {
        return Err(gone("the communicator"));
    };
    let product_ms = gemm.window(beside, window / 4, limit(until))?;
    let factor = Collective::AllReduce.bus_factor(seat.place.ranks as usize);
    let reduce_s = alone.sizes.last().map_or(0.0, |(_, rate)| factor * bytes as f64 / rate / 1e9);
    let fit = |one: f64| {
        let times = if one > 0.0 { window.as_secs_f64() / one } else { 0.0 };
        (times as usize).clamp(*QUEUED.start(), *QUEUED.end())
    };
    let (products, reduces) = (fit(product_ms / 1e3), fit(reduce_s));
    let event = || Event::new(context);
    let (multiply, multiplied, reduce, reduced) = (event()?, event()?, event()?, event()?);
    // The all-reduce first: it takes few multiprocessors, and would wait for a whole product otherwise.
    reduce.record(stream)?;
    let kind = expected(Collective::AllReduce, seat.place);
    multiply.record(beside)?;
    for step in 0..products.max(reduces) {
        if step < reduces {
            enqueue(&mut held.comm, kind, memory, bytes, stream, nccl_limit(until))
                .map_err(|error| died(&error))?;
        }
        if step < products {
            gemm.run(beside)?;
        }
    }
    reduced.record(stream)?;
    multiplied.record(beside)?;
    finish(&mut held.comm, &[stream, beside], until)?;
    let multiplying = multiply.ms_until(&multiplied)? / products as f64;
    let reducing = reduce.ms_until(&reduced)? / 1e3;
    let rate = factor * bytes as f64 * reduces as f64 / reducing / 1e9;
    let at_once = Measured {
        sizes: vec![(bytes as u64, rate)],
        iterations: reduces as u64,
        right: alone.right,
        seconds: reducing,
    };
    Ok(Beside { alone, at_once, tflop_per_s: tflops(SIZE, multiplying), products })
}

fn gone(what: &str) -> Failure {
    Failure::Own(Flaw::failed(format!("{what} is gone")))
}
