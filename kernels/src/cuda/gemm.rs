//! The matrix product that is measured and proved: operands that are the same on every GPU, the library's fastest
//! algorithm for the speed, its first choice for the proof, and a sample of elements computed once more on the
//! processor. Numbers only; what is slow or wrong enough is the check's to say.

use std::collections::VecDeque;
use std::time::Duration;

use super::blas::{Algorithm, Places, Product};
use super::pattern::{Exact, exact, splitmix};
use super::{Context, CublasLt, CudaError, DeviceBuffer, Event, Kernels, Limit, Operand, Stream, Version};

/// Workspace of the product: what cuBLAS's own handles use on Hopper, and enough for any algorithm.
const WORKSPACE: usize = 32 << 20;

/// How many of the library's suggestions are timed. They come by estimated speed; the best is among the first.
const CANDIDATES: usize = 6;

/// Products timed for each suggestion, after one that loads it.
const TRIAL_RUNS: u32 = 3;

/// Products that are queued at once: below the thousand or so launches after which the driver's launch call waits.
const MOST_QUEUED: u32 = 256;

/// Largest n: three matrices of a product of floats and bf16 then take 8 GiB.
const LARGEST: u32 = 32_768;

/// fp8 products want dimensions that are multiples of 16 bytes, and n² elements must make whole words.
const STEP: u32 = 16;

/// Seeds of the operands, the same everywhere, so that the same bits must come out everywhere.
const SEEDS: [u64; 2] = [1, 2];

/// Seed of the sampled places.
const SAMPLE_SEED: u64 = 3;

/// The first compute capability with fp8 tensor cores: Ada.
const FP8: Version = Version { major: 8, minor: 9 };

/// What the result is written as. Sums are floats in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// bf16, as a training step does.
    Bf16,
    /// float.
    F32,
}

impl Output {
    fn bytes(self) -> usize {
        match self {
            Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }

    /// The value of an element's bytes.
    fn value(self, bytes: &[u8]) -> f64 {
        match (self, bytes) {
            // bf16 is the upper half of a float.
            (Self::Bf16, &[low, high]) => f32::from_le_bytes([0, 0, low, high]).into(),
            (Self::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).into(),
            _ => f64::NAN,
        }
    }

    /// How much an element may be off when it is written: one unit in the last place, twice what rounding to the
    /// nearest needs.
    fn rounding(self) -> f64 {
        match self {
            Self::Bf16 => 2.0_f64.powi(-8),
            Self::F32 => 2.0_f64.powi(-23),
        }
    }
}

/// How much a sum of products may be off, as a share of the sum of their magnitudes.
///
/// The operands are chosen so that floats hold every partial sum exactly (see [`Operand`]), so a bf16 product that
/// adds in floats is exact; 2^-17 leaves room for tensor cores that drop bits below the largest of the numbers that
/// they add at once. For fp8 the tensor cores of Ada and Hopper keep some 14 bits of the sum, cut off after each
/// step of 32 products: steps of at most 2^-13 of the sum, which is itself a small part of the magnitudes, hence
/// 2^-9. Both are far below what a wrong product is off by, which is as much as the values themselves; smaller faults
/// are what the checksum is for.
fn accumulation(operand: Operand) -> f64 {
    match operand {
        Operand::Bf16 => 2.0_f64.powi(-17),
        Operand::E4m3 => 2.0_f64.powi(-9),
    }
}

/// What is multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Rows and columns of all matrices: a multiple of 16, up to 32768.
    pub n: u32,
    /// What the operands are.
    pub operand: Operand,
    /// What the result is.
    pub output: Output,
}

/// Which of the library's suggestions was the fastest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// Its place among the suggestions; 0 is the library's own first choice.
    pub index: usize,
    /// How many suggestions worked.
    pub of: usize,
    /// Its time for a product in the trial.
    pub ms: f64,
}

/// An element that is not what it must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wrong {
    /// Its row.
    pub row: u64,
    /// Its column.
    pub column: u64,
    /// What is there.
    pub found: f64,
    /// What must be there.
    pub right: f64,
    /// How far off it may be.
    pub tolerance: f64,
}

/// A sample of elements against the reference.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// How many were looked at.
    pub looked_at: usize,
    /// The largest distance from the right value; NaN once an element is none.
    pub worst: f64,
    /// Those that are off.
    pub wrong: Vec<Wrong>,
}

/// A product that is ready to run.
pub struct Gemm {
    product: Product,
    shape: Shape,
    a: DeviceBuffer<u8>,
    b: DeviceBuffer<u8>,
    d: DeviceBuffer<u8>,
    workspace: DeviceBuffer<u8>,
    /// The library's first choice that works.
    first: Algorithm,
    fastest: Algorithm,
    choice: Choice,
}

impl Gemm {
    /// Takes the memory, fills the operands, and times the library's suggestions.
    ///
    /// # Errors
    /// A size that can't be, a GPU that lacks the type or the memory, no algorithm, or the wait's.
    pub fn new(
        lt: &CublasLt,
        kernels: &Kernels,
        stream: &Stream,
        shape: Shape,
        limit: Limit<'_>,
    ) -> Result<Self, CudaError> {
        let context = lt.context();
        let elements = supported(context, shape)?;
        let operand_bytes = elements * shape.operand.bytes();
        let mut a = DeviceBuffer::new(context, operand_bytes)?;
        let mut b = DeviceBuffer::new(context, operand_bytes)?;
        let d = DeviceBuffer::new(context, elements * shape.output.bytes())?;
        let workspace = DeviceBuffer::new(context, WORKSPACE)?;
        kernels.fill_operand(stream, &mut a, shape.operand, SEEDS[0])?;
        kernels.fill_operand(stream, &mut b, shape.operand, SEEDS[1])?;
        let product = Product::new(lt, shape.n, shape.operand, shape.output)?;
        let places = places(&a, &b, &d, &workspace);
        let trials = trials(&product, &places, stream, limit)?;
        let first = trials.first;
        let of = 1 + trials.others.len();
        let mut best = (first.algorithm, Choice { index: 0, of, ms: first.ms });
        for (index, Trial { algorithm, ms }) in (1..).zip(trials.others) {
            if ms < best.1.ms {
                best = (algorithm, Choice { index, of, ms });
            }
        }
        let (fastest, choice) = best;
        Ok(Self { product, shape, a, b, d, workspace, first: first.algorithm, fastest, choice })
    }

    /// Which algorithm [`Self::run`] uses.
    #[must_use]
    pub fn choice(&self) -> Choice {
        self.choice
    }

    /// Queues one product by the fastest algorithm. After some hundred that nobody waited for, the driver would wait.
    ///
    /// # Errors
    /// The stream is of another GPU, or the library refuses.
    pub fn run(&self, stream: &Stream) -> Result<(), CudaError> {
        self.queue(stream, &self.fastest)
    }

    /// Multiplies for about a window and waits: milliseconds a product, by the GPU's clock.
    ///
    /// At most 256 products are queued, so that a small product's window may be shorter.
    ///
    /// # Errors
    /// The library refuses, or the wait's.
    pub fn window(&self, stream: &Stream, window: Duration, limit: Limit<'_>) -> Result<f64, CudaError> {
        let wanted = window.as_secs_f64() * 1e3 / self.choice.ms;
        // Saturates; NaN gives 0.
        let runs = (wanted.ceil() as u32).clamp(1, MOST_QUEUED);
        timed(self.product.lt().context(), stream, runs, limit, || self.run(stream))
    }

    /// Multiplies once by the library's first choice, which is the same on all GPUs of a model with the same library,
    /// whatever is fastest on each, and returns the checksum of the result.
    ///
    /// # Errors
    /// The library refuses, or the wait's.
    pub fn checksum(
        &mut self,
        kernels: &Kernels,
        stream: &Stream,
        limit: Limit<'_>,
    ) -> Result<u64, CudaError> {
        // What an earlier product left must not pass for this one's.
        self.d.zero(stream)?;
        self.queue(stream, &self.first)?;
        kernels.checksum(stream, &self.d, limit)
    }

    /// Compares elements of the last product, at places that are the same everywhere, with the exact values.
    ///
    /// # Errors
    /// No sample or a million, or the wait's.
    pub fn sample(&self, stream: &Stream, samples: usize, limit: Limit<'_>) -> Result<Sampled, CudaError> {
        let n = self.product.n();
        let bytes = self.shape.output.bytes();
        let elements: Vec<[u64; 2]> = (0..samples as u64)
            .map(|index| [2 * index, 2 * index + 1].map(|index| splitmix(SAMPLE_SEED, index) % n))
            .collect();
        let at = |[row, column]: &[u64; 2]| (column * n + row) as usize * bytes;
        let starts: Vec<usize> = elements.iter().map(at).collect();
        let read = self.d.read_places(stream, &starts, bytes, limit)?;
        let mut sampled = Sampled { looked_at: samples, worst: 0.0, wrong: Vec::new() };
        for ([row, column], found) in elements.into_iter().zip(read.chunks_exact(bytes)) {
            let found = self.shape.output.value(found);
            let right = exact(self.shape.operand, n, SEEDS, [row, column]);
            let tolerance = tolerance(self.shape, right);
            let off = (found - right.value).abs();
            if off.is_nan() || off > sampled.worst {
                sampled.worst = off;
            }
            if off.is_nan() || off > tolerance {
                sampled.wrong.push(Wrong { row, column, found, right: right.value, tolerance });
            }
        }
        Ok(sampled)
    }

    fn queue(&self, stream: &Stream, algorithm: &Algorithm) -> Result<(), CudaError> {
        let places = places(&self.a, &self.b, &self.d, &self.workspace);
        // SAFETY: the buffers have the sizes of the description, and are freed only once the stream has run dry.
        unsafe { self.product.queue(stream, algorithm, &places) }
    }
}

/// TFLOP/s of a product of n × n matrices that takes so long: 2 n³ operations.
#[must_use]
pub fn tflops(n: u32, ms: f64) -> f64 {
    2.0 * f64::from(n).powi(3) / (ms * 1e-3) / 1e12
}

fn tolerance(shape: Shape, right: Exact) -> f64 {
    right.value.abs() * shape.output.rounding() + right.magnitude * accumulation(shape.operand)
}

/// Elements of a matrix, where the product is possible.
fn supported(context: &Context, shape: Shape) -> Result<usize, CudaError> {
    let n = shape.n;
    if n == 0 || n > LARGEST || !n.is_multiple_of(STEP) {
        let what = format!("a product of n = {n}; multiples of {STEP} up to {LARGEST} are possible");
        return Err(context.size_error(what));
    }
    let found = context.info().capability;
    if shape.operand == Operand::E4m3 && found < FP8 {
        return Err(CudaError::Unsupported {
            gpu: context.gpu().to_owned(),
            what: "an fp8 product",
            needed: FP8.to_string(),
            found: found.to_string(),
        });
    }
    Ok(n as usize * n as usize)
}

fn places(
    a: &DeviceBuffer<u8>,
    b: &DeviceBuffer<u8>,
    d: &DeviceBuffer<u8>,
    workspace: &DeviceBuffer<u8>,
) -> Places {
    Places {
        a: a.address(),
        b: b.address(),
        d: d.address(),
        workspace: workspace.address(),
        workspace_bytes: workspace.len(),
    }
}

/// A suggestion of the library that works, with the milliseconds of a product.
#[derive(Clone, Copy)]
struct Trial {
    algorithm: Algorithm,
    ms: f64,
}

/// Those that work, in the library's order.
struct Trials {
    first: Trial,
    others: Vec<Trial>,
}

fn trials(
    product: &Product,
    places: &Places,
    stream: &Stream,
    limit: Limit<'_>,
) -> Result<Trials, CudaError> {
    let context = product.lt().context();
    let mut working = VecDeque::new();
    let mut reason = "it suggests none".to_owned();
    for algorithm in product.algorithms(places.workspace_bytes, CANDIDATES)? {
        // SAFETY: the places are those of buffers of the described sizes, freed only once the stream has run dry.
        let run = || unsafe { product.queue(stream, &algorithm, places) };
        // The library may refuse its own suggestion; a wait that fails is the GPU's and ends it all.
        match run() {
            Ok(()) => {
                let ms = timed(context, stream, TRIAL_RUNS, limit, run)?;
                working.push_back(Trial { algorithm, ms });
            }
            Err(error @ CudaError::Blas { .. }) => reason = error.to_string(),
            Err(error) => return Err(error),
        }
    }
    let version = || product.lt().version().to_owned();
    working
        .pop_front()
        .map(|first| Trials { first, others: working.into() })
        .ok_or_else(|| CudaError::NoAlgorithm { gpu: context.gpu().to_owned(), version: version(), reason })
}

/// Queues something several times between two events, waits, and returns the milliseconds of one.
fn timed(
    context: &Context,
    stream: &Stream,
    runs: u32,
    limit: Limit<'_>,
    run: impl Fn() -> Result<(), CudaError>,
) -> Result<f64, CudaError> {
    let (start, end) = (Event::new(context)?, Event::new(context)?);
    start.record(stream)?;
    (0..runs).try_for_each(|_| run())?;
    end.record(stream)?;
    stream.wait(limit)?;
    Ok(start.ms_until(&end)? / f64::from(runs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_of_8192_in_1_43_ms_is_769_tflops() {
        assert!((tflops(8192, 1.43) - 768.9).abs() < 0.1, "{}", tflops(8192, 1.43));
    }

    #[test]
    fn bytes_are_read_as_the_outputs_type() {
        assert_eq!(Output::Bf16.value(&0x3FC0_u16.to_le_bytes()), 1.5);
        assert_eq!(Output::F32.value(&(-0.25_f32).to_le_bytes()), -0.25);
        assert!(Output::F32.value(&[0, 0]).is_nan());
    }

    #[test]
    fn the_tolerance_lets_no_other_element_pass() {
        // An element in place of its neighbour is off by about the values themselves.
        for (operand, output) in [(Operand::Bf16, Output::Bf16), (Operand::E4m3, Output::Bf16)] {
            let shape = Shape { n: 8192, operand, output };
            let caught = (0..16).filter(|index| {
                let right = exact(operand, 8192, SEEDS, [*index, 7]);
                let other = exact(operand, 8192, SEEDS, [*index + 1, 7]);
                (right.value - other.value).abs() > tolerance(shape, right)
            });
            assert!(caught.count() >= 14, "{operand:?}");
        }
    }

    #[test]
    fn sums_stay_exact_in_a_float() {
        // Every partial sum of the bf16 product is a multiple of 2^-16; 24 bits hold it below 2^8.
        let most = (0..64).map(|index| exact(Operand::Bf16, 8192, SEEDS, [index, index]).value.abs());
        assert!(most.fold(0.0, f64::max) < 256.0);
    }
}
