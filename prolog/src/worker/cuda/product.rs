//! Matrix products on every GPU at once: the rate by the GPU's own events, the bits of the result, and a sample of it
//! against the exact values.

use std::time::Duration;

use kernels::cuda::{CudaError, Gemm, Kernels, Operand, Stream, tflops};

use super::super::timed::Until;
use super::doing::{Doing, Flaw};
use super::gpu::{Gpu, SIZE, limit};
use super::ranks::Ranks;
use crate::protocol::{MAX_SAMPLES, Products, Reply};

/// Windows whose median counts: one of them may fall into somebody else's work.
const WINDOWS: u32 = 4;

/// Elements that are compared with the exact values; each costs 8192 multiplications of the processor.
const SAMPLES: usize = 256;

/// What one GPU did.
#[derive(Debug, Clone, Default)]
struct Multiplied {
    tflop_per_s: f64,
    products: f64,
    seconds: f64,
    fingerprint: u64,
    library: String,
    wrong: Option<String>,
}

/// Multiplies on all GPUs for `window`.
pub(super) fn run(ranks: &Ranks<Gpu>, operand: Operand, window: Duration, until: &Until) -> Reply {
    let done = ranks.each(until, move |_, gpu, until| multiply(gpu, operand, window, until));
    let mut products = Products::default();
    let mut wrong = 0.0;
    for (rank, one) in done.into_iter().enumerate() {
        // Where there is no number a place is kept for the rank.
        let one = match one.and_then(|one| one) {
            Ok(one) => one.unwrap_or_default(),
            Err(flaw) => {
                products.troubles.push(flaw.of(rank));
                Multiplied::default()
            }
        };
        products.products += one.products as u64;
        products.seconds = products.seconds.max(one.seconds);
        products.tflop_per_s += one.tflop_per_s;
        products.per_rank.push(one.tflop_per_s);
        products.fingerprints.push(one.fingerprint);
        if !one.library.is_empty() {
            products.library = one.library;
        }
        if let Some(why) = one.wrong {
            wrong += 1.0;
            products.wrong.push((u32::try_from(rank).unwrap_or(u32::MAX), why));
        }
    }
    products.right = 1.0 - wrong / products.per_rank.len().max(1) as f64;
    Reply::Product(products)
}

/// `None`: the GPU or the library offers no such product.
fn multiply(
    gpu: &mut Gpu,
    operand: Operand,
    window: Duration,
    until: &Until,
) -> Result<Option<Multiplied>, Flaw> {
    let library = gpu.library();
    let multiplied = match operand {
        Operand::Bf16 => {
            gpu.product(limit(until))?;
            let Gpu { kernels, stream, gemm: Some(gemm), doing, .. } = gpu else {
                return Err(Flaw::failed("the product is gone"));
            };
            prove(gemm, (kernels, stream, doing), window, until)?
        }
        Operand::E4m3 => {
            let Some(mut gemm) = gpu.fp8_product(limit(until))? else { return Ok(None) };
            prove(&mut gemm, (&gpu.kernels, &gpu.stream, &gpu.doing), window, until)?
        }
    };
    Ok(Some(Multiplied { library, ..multiplied }))
}

/// The rate of a product, its bits, and whether it is right.
fn prove(
    gemm: &mut Gemm,
    (kernels, stream, doing): (&Kernels, &Stream, &Doing),
    window: Duration,
    until: &Until,
) -> Result<Multiplied, CudaError> {
    let limit = limit(until);
    doing.at("a product that is looked into");
    let fingerprint = gemm.checksum(kernels, stream, limit)?;
    let sampled = gemm.sample(stream, SAMPLES, limit)?;
    doing.at("products that are timed");
    let mut times = Vec::new();
    for _ in 0..WINDOWS {
        times.push(gemm.window(stream, window / WINDOWS, limit)?);
    }
    // The same inputs again: a GPU that computes wrongly now and then does not agree with itself.
    doing.at("the same product again");
    let again = gemm.checksum(kernels, stream, limit)?;
    times.sort_by(f64::total_cmp);
    let ms = times[times.len() / 2];
    let wrong = match sampled.wrong.first() {
        Some(first) => Some(format!(
            "{} of {} sampled elements of the product are wrong, such as row {} column {}: {} instead of {}",
            sampled.wrong.len(),
            sampled.looked_at,
            first.row,
            first.column,
            first.found,
            first.right
        )),
        None if again != fingerprint => {
            Some("two products of the same matrices have different bits".to_owned())
        }
        None => None,
    };
    let seconds = window.as_secs_f64();
    let products = if ms > 0.0 { seconds * 1e3 / ms } else { 0.0 };
    let (tflop_per_s, library) = (tflops(SIZE, ms), String::new());
    Ok(Multiplied { tflop_per_s, products, seconds, fingerprint, library, wrong })
}

/// How many of the samples fit into a reply.
pub(super) fn some(sorted: &[f64]) -> Vec<f64> {
    let step = sorted.len().div_ceil(MAX_SAMPLES).max(1);
    sorted.iter().step_by(step).copied().collect()
}
