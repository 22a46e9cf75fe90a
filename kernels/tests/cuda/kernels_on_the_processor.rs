//! `checks.cu` compiled by the C compiler and run by the fake driver, thread by thread, through the same calls as on a
//! GPU, against `pattern.rs`: the two say the same, and the arguments arrive. What only a GPU can show, that the
//! driver compiles and runs it, is in `gpu.rs`.

use kernels::cuda::pattern::{self, Collective, Operand};
use kernels::cuda::{Context, CudaError, DeviceBuffer, Kernels, Stream, launch};

use crate::fake::{Fake, LONG, error, within};

/// Multiprocessors: fewer threads than elements, and more.
const SIZES: [i32; 3] = [1, 3, 132];

/// No multiple of a block's threads; more than one multiprocessor's 2048.
const COUNT: usize = 10_003;

struct Gpu {
    context: Context,
    stream: Stream,
    kernels: Kernels,
}

fn gpu(multiprocessors: i32) -> (Fake, Gpu) {
    let fake = Fake::new();
    fake.set("fake_multiprocessors", multiprocessors);
    let context = fake.context();
    let (stream, kernels) = (Stream::new(&context).unwrap(), Kernels::load(&context).unwrap());
    (fake, Gpu { context, stream, kernels })
}

impl Gpu {
    fn filled(&self, operand: Operand, seed: u64) -> Vec<u8> {
        let mut buffer = DeviceBuffer::new(&self.context, COUNT * operand.bytes()).unwrap();
        self.kernels.fill_operand(&self.stream, &mut buffer, operand, seed).unwrap();
        buffer.read(&self.stream, within(LONG)).unwrap()
    }

    fn checksum(&self, words: &[u32]) -> u64 {
        let mut buffer = DeviceBuffer::new(&self.context, words.len()).unwrap();
        buffer.write(&self.stream, words, within(LONG)).unwrap();
        self.kernels.checksum(&self.stream, &buffer, within(LONG)).unwrap()
    }

    fn brings(&self, rank: u32, count: usize) -> Vec<f32> {
        let mut buffer = DeviceBuffer::new(&self.context, count).unwrap();
        self.kernels.fill_rank(&self.stream, &mut buffer, rank).unwrap();
        buffer.read(&self.stream, within(LONG)).unwrap()
    }

    fn wrong(&self, data: &[f32], collective: Collective) -> Result<u64, CudaError> {
        let mut buffer = DeviceBuffer::new(&self.context, data.len()).unwrap();
        buffer.write(&self.stream, data, within(LONG)).unwrap();
        self.kernels.count_wrong(&self.stream, &buffer, collective, within(LONG))
    }
}

#[test]
fn operands_are_the_patterns() {
    for size in SIZES {
        let (_fake, gpu) = gpu(size);
        let right =
            |operand: Operand, index| operand.integer(7, index) as f64 * 2.0_f64.powi(operand.exponent());
        for (index, pair) in (0..).zip(gpu.filled(Operand::Bf16, 7).chunks_exact(2)) {
            let value = f32::from_le_bytes([0, 0, pair[0], pair[1]]);
            assert_eq!(f64::from(value), right(Operand::Bf16, index), "{index}");
        }
        for (index, bits) in (0..).zip(gpu.filled(Operand::E4m3, 7)) {
            assert_eq!(from_e4m3(bits), right(Operand::E4m3, index), "{index}");
        }
    }
}

/// Sign, four bits of exponent with bias 7, three of mantissa; no subnormals here but zero.
fn from_e4m3(bits: u8) -> f64 {
    let sign = if bits >> 7 == 1 { -1.0 } else { 1.0 };
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f64::from(bits & 7));
    if exponent == 0 {
        assert_eq!(bits, 0, "a subnormal");
        return 0.0;
    }
    sign * (1.0 + mantissa / 8.0) * 2.0_f64.powi(exponent - 7)
}

#[test]
fn the_checksum_depends_on_bits_and_places_only() {
    let words: Vec<u32> = (0..COUNT as u64).map(|index| pattern::splitmix(5, index) as u32).collect();
    let right = pattern::checksum(words.iter().copied());
    for size in SIZES {
        let (_fake, gpu) = gpu(size);
        assert_eq!(gpu.checksum(&words), right);
        let mut swapped = words.clone();
        swapped.swap(10, 11);
        assert_ne!(gpu.checksum(&swapped), right, "places count");
        let mut flipped = words.clone();
        flipped[COUNT - 1] ^= 1;
        assert_ne!(gpu.checksum(&flipped), right, "every bit counts");
    }
}

#[test]
fn what_ranks_bring_and_what_must_arrive() {
    const RANKS: u32 = 5;
    const CHUNK: usize = 1037;
    let (_fake, gpu) = gpu(3);
    let all: Vec<Vec<f32>> = (0..RANKS).map(|rank| gpu.brings(rank, 5 * CHUNK)).collect();
    assert_eq!(all[4][17], pattern::rank_value(4, 17) as f32);
    let reduced: Vec<f32> = (0..CHUNK * 5).map(|i| all.iter().map(|one| one[i]).sum()).collect();
    let gathered: Vec<f32> = all.iter().flat_map(|one| one[..CHUNK].to_vec()).collect();
    let exchanged: Vec<f32> = all.iter().flat_map(|one| one[2 * CHUNK..3 * CHUNK].to_vec()).collect();
    let cases = [
        (reduced, Collective::AllReduce { ranks: RANKS }),
        (gathered, Collective::AllGather { ranks: RANKS }),
        (exchanged, Collective::AllToAll { ranks: RANKS, rank: 2 }),
        (all[3].clone(), Collective::Received { from: 3 }),
    ];
    for (mut data, collective) in cases {
        assert_eq!(gpu.wrong(&data, collective).unwrap(), 0, "{collective:?}");
        data[0] += 1.0;
        data[CHUNK] = f32::NAN;
        assert_eq!(gpu.wrong(&data, collective).unwrap(), 2, "{collective:?}");
        let zeros = vec![0.0; data.len()];
        assert!(gpu.wrong(&zeros, collective).unwrap() > data.len() as u64 * 9 / 10, "{collective:?}");
    }
    let uneven = error(gpu.wrong(&[0.0; 7], Collective::AllGather { ranks: 2 }));
    assert!(matches!(uneven, CudaError::Size { .. }), "{uneven}");
}

#[test]
fn launches_are_sampled_and_sorted() {
    let (_fake, gpu) = gpu(1);
    let times = launch::measure(&gpu.kernels, &gpu.stream, 500, within(LONG)).unwrap();
    for sorted in [&times.call_us, &times.done_us] {
        assert_eq!(sorted.len(), 500);
        assert!(sorted.is_sorted() && sorted[0] >= 0.0);
    }
    for samples in [0, 1_000_000] {
        let refused = error(launch::measure(&gpu.kernels, &gpu.stream, samples, within(LONG)));
        assert!(matches!(refused, CudaError::Size { .. }), "{refused}");
    }
}
