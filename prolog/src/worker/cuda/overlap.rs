//! Products and an all-reduce inside the node on the same GPUs: each rank queues both and lets the GPU share itself out.
//! How much each slows the other down is for the reader of the numbers.

use std::sync::Arc;
use std::time::Duration;

use kernels::collective::enqueue;
use kernels::cuda::{CudaError, Event, tflops};

use super::super::timed::Until;
use super::collective::{self, Failure, Measured, Seat, Work, died, expected, finish, join, slowest};
use super::gpu::{Gpu, SIZE, limit, nccl_limit, words};
use super::ranks::Ranks;
use crate::protocol::{Busbw, Collective, Member, Overlap, Overlapped, Products, Reply};

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
    let seats = match collective::seats(ranks, work, &[members.to_vec()], until) {
        Ok((seats, troubles)) if troubles.is_empty() => Arc::new(seats),
        Ok((_, troubles)) => {
            return Reply::Overlap(Overlapped::Unreachable(troubles.into_values().flatten().collect()));
        }
        Err(message) => return Reply::Failed { message },
    };
    let (nccl, window, their) = (work.nccl, work.window, until.clone());
    let done = ranks.each(until, move |rank, gpu| {
        let (_, seat) = seats.get(&rank)?;
        let result = join(gpu, nccl, seat, &their).and_then(|()| beside(gpu, seat, window, &their));
        if result.is_err() {
            gpu.comms.remove(&seat.members);
        }
        Some(result)
    });
    let mut all = Vec::new();
    for (rank, one) in (0_u32..).zip(done) {
        match one {
            Some(Some(Ok(one))) => all.push(one),
            Some(Some(Err(Failure::Own(message) | Failure::Init(message) | Failure::Died(message)))) => {
                return Reply::Failed { message };
            }
            Some(None) => {}
            None => return Reply::Failed { message: format!("rank {rank} did not come to an end") },
        }
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
        fingerprints: Vec::new(),
        library: String::new(),
        wrong: Vec::new(),
        loads: Vec::new(),
    };
    Some(Overlap { busbw_alone: rates(|one| &one.alone)?, products, busbw: rates(|one| &one.at_once)? })
}

fn beside(gpu: &mut Gpu, seat: &Seat, window: Duration, until: &Until) -> Result<Beside, Failure> {
    let own = Failure::Own;
    let alone = collective::measure(gpu, seat, Collective::AllReduce, window, until)?;
    gpu.product(limit(until)).map_err(own)?;
    // Of the sizes that all ranks agreed on.
    let agreed = alone.sizes.last().map_or(0, |(bytes, _)| usize::try_from(*bytes).unwrap_or(usize::MAX));
    let bytes = BYTES.min(agreed);
    let Gpu { stream, beside, gemm: Some(gemm), memory: Some(memory), comms, context, .. } = gpu else {
        return Err(own("the product or the memory is gone".to_owned()));
    };
    let Some(held) = comms.get_mut(&seat.members) else {
        return Err(own("the communicator is gone".to_owned()));
    };
    let product_ms = gemm.window(beside, window / 4, limit(until)).map_err(cuda)?;
    let factor = Collective::AllReduce.bus_factor(seat.place.ranks as usize);
    let reduce_s = alone.sizes.last().map_or(0.0, |(_, rate)| factor * bytes as f64 / rate / 1e9);
    let fit = |one: f64| {
        let times = if one > 0.0 { window.as_secs_f64() / one } else { 0.0 };
        (times as usize).clamp(*QUEUED.start(), *QUEUED.end())
    };
    let (products, reduces) = (fit(product_ms / 1e3), fit(reduce_s));
    let event = || Event::new(context).map_err(cuda);
    let (multiply, multiplied, reduce, reduced) = (event()?, event()?, event()?, event()?);
    // The all-reduce first: it takes few multiprocessors, and would wait for a whole product otherwise.
    reduce.record(stream).map_err(cuda)?;
    let kind = expected(Collective::AllReduce, seat.place);
    multiply.record(beside).map_err(cuda)?;
    for step in 0..products.max(reduces) {
        if step < reduces {
            enqueue(&mut held.comm, kind, memory, bytes, stream, nccl_limit(until))
                .map_err(|error| died(&error))?;
        }
        if step < products {
            gemm.run(beside).map_err(cuda)?;
        }
    }
    reduced.record(stream).map_err(cuda)?;
    multiplied.record(beside).map_err(cuda)?;
    finish(&mut held.comm, &[stream, beside], until)?;
    let multiplying = multiply.ms_until(&multiplied).map_err(cuda)? / products as f64;
    let reducing = reduce.ms_until(&reduced).map_err(cuda)? / 1e3;
    let rate = factor * bytes as f64 * reduces as f64 / reducing / 1e9;
    let at_once = Measured {
        sizes: vec![(bytes as u64, rate)],
        iterations: reduces as u64,
        right: alone.right,
        seconds: reducing,
    };
    Ok(Beside { alone, at_once, tflop_per_s: tflops(SIZE, multiplying), products })
}

fn cuda(error: CudaError) -> Failure {
    Failure::Own(words(error))
}
