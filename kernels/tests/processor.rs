//! `checks.cu` compiled by the C compiler and run on the processor, thread by thread, against `pattern.rs`: the two
//! say the same. What only a GPU can show, that the driver compiles and runs it, is in `gpu.rs`.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::ffi::c_int;
use std::path::Path;
use std::process::Command;

use kernels::cuda::pattern::{self, Collective, Operand};
use libloading::os::unix::Library;

/// What CUDA brings, for one thread at a time.
const SHIM: &str = r"
#define KERNEL
#define INLINE static inline
struct size { unsigned x, y, z; };
static struct size blockIdx, threadIdx, blockDim, gridDim;
static unsigned __float_as_uint(float value) {
    union { float value; unsigned bits; } both = {value};
    return both.bits;
}
static void atomicAdd(unsigned long long *to, unsigned long long value) { *to += value; }
void at(unsigned block, unsigned thread, unsigned blocks, unsigned threads) {
    blockIdx.x = block; threadIdx.x = thread; gridDim.x = blocks; blockDim.x = threads;
}
";

/// Grids that a buffer is covered by: one thread, more threads than elements, and neither.
const GRIDS: &[(u32, u32)] = &[(1, 1), (3, 64), (40, 128)];

/// No multiple of any grid's threads.
const COUNT: usize = 1003;

struct Compiled(Library);

impl Compiled {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("checks.cu");
        let shim = folder.path().join("shim.h");
        let library = folder.path().join("libchecks.so");
        std::fs::write(&shim, SHIM).unwrap();
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-std=gnu11", "-Wall", "-Werror", "-include"])
            .arg(shim)
            .args(["-x", "c"])
            .arg(source)
            .arg("-o")
            .arg(&library)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // SAFETY: compiled above; it has no initialisers.
        Self(unsafe { Library::new(library) }.unwrap())
    }

    /// Calls a kernel once for each thread of a grid.
    fn run<F: Copy>(&self, name: &[u8], (blocks, threads): (u32, u32), call: impl Fn(F)) {
        // SAFETY: the callers give the kernel's type; `at` is the shim's.
        let (kernel, at) = unsafe {
            (
                *self.0.get::<F>(name).unwrap(),
                *self.0.get::<unsafe extern "C" fn(u32, u32, u32, u32) -> c_int>(b"at\0").unwrap(),
            )
        };
        for block in 0..blocks {
            for thread in 0..threads {
                // SAFETY: it sets four numbers.
                unsafe { at(block, thread, blocks, threads) };
                call(kernel);
            }
        }
    }
}

#[test]
fn operands_are_the_patterns() {
    let compiled = Compiled::new();
    for grid in GRIDS {
        let mut bf16 = vec![0xAAAA_u16; COUNT];
        let to = bf16.as_mut_ptr();
        compiled.run(b"aimaster_fill_bf16\0", *grid, |fill: unsafe extern "C" fn(*mut u16, u64, u64)| {
            // SAFETY: the kernel writes as many elements.
            unsafe { fill(to, COUNT as u64, 7) }
        });
        let mut e4m3 = vec![0xAA_u8; COUNT];
        let to = e4m3.as_mut_ptr();
        compiled.run(b"aimaster_fill_e4m3\0", *grid, |fill: unsafe extern "C" fn(*mut u8, u64, u64)| {
            // SAFETY: as above.
            unsafe { fill(to, COUNT as u64, 7) }
        });
        for (index, (wide, narrow)) in (0..).zip(bf16.drain(..).zip(e4m3.drain(..))) {
            let right =
                |operand: Operand| operand.integer(7, index) as f64 * 2.0_f64.powi(operand.exponent());
            assert_eq!(f64::from(f32::from_bits(u32::from(wide) << 16)), right(Operand::Bf16), "{index}");
            assert_eq!(from_e4m3(narrow), right(Operand::E4m3), "{index}");
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
fn the_checksum_does_not_depend_on_the_grid() {
    type Checksum = unsafe extern "C" fn(*const u32, u64, *mut u64);
    let compiled = Compiled::new();
    let sum = |words: &[u32], grid| {
        let sum = std::cell::Cell::new(0);
        compiled.run(b"aimaster_checksum\0", grid, |checksum: Checksum| {
            // SAFETY: the kernel reads as many words and adds to the number.
            unsafe { checksum(words.as_ptr(), words.len() as u64, sum.as_ptr()) }
        });
        sum.get()
    };
    let words: Vec<u32> = (0..COUNT as u64).map(|index| pattern::splitmix(5, index) as u32).collect();
    let right = pattern::checksum(words.iter().copied());
    for grid in GRIDS {
        assert_eq!(sum(&words, *grid), right);
    }
    let mut swapped = words.clone();
    swapped.swap(10, 11);
    assert_ne!(sum(&swapped, (1, 1)), right, "places count");
    let mut flipped = words;
    flipped[COUNT - 1] ^= 1;
    assert_ne!(sum(&flipped, (1, 1)), right, "every bit counts");
}

#[test]
fn what_ranks_bring_and_what_must_arrive() {
    type Fill = unsafe extern "C" fn(*mut f32, u64, u32);
    type Wrong = unsafe extern "C" fn(*const f32, u64, u64, u64, u32, u32, u32, *mut u64);
    const RANKS: u32 = 5;
    /// Elements of a chunk.
    const CHUNK: usize = 37;
    let compiled = Compiled::new();
    let filled = |rank: u32| {
        let mut data = vec![-1.0_f32; CHUNK * RANKS as usize];
        let (to, count) = (data.as_mut_ptr(), data.len() as u64);
        compiled.run(b"aimaster_fill_rank\0", (3, 64), |fill: Fill| {
            // SAFETY: the kernel writes as many elements.
            unsafe { fill(to, count, rank) }
        });
        data
    };
    let wrong = |data: &[f32], collective: Collective| {
        let form = collective.expected(data.len() as u64).unwrap();
        let wrong = std::cell::Cell::new(0);
        compiled.run(b"aimaster_count_wrong\0", (3, 64), |count: Wrong| {
            // SAFETY: the kernel reads as many elements and adds to the number.
            unsafe {
                count(
                    data.as_ptr(),
                    data.len() as u64,
                    form.chunk,
                    form.origin,
                    form.factor,
                    form.offset,
                    form.step,
                    wrong.as_ptr(),
                );
            }
        });
        wrong.get()
    };
    let all: Vec<Vec<f32>> = (0..RANKS).map(filled).collect();
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
        assert_eq!(wrong(&data, collective), 0, "{collective:?}");
        data[0] += 1.0;
        data[CHUNK] = f32::NAN;
        assert_eq!(wrong(&data, collective), 2, "{collective:?}");
        let other = vec![0.0; data.len()];
        assert!(wrong(&other, collective) > data.len() as u64 * 9 / 10, "{collective:?}");
    }
}
