//! What the kernels of `checks.cu` write and expect, said once more in Rust: the reference for products and the
//! closed forms for collectives. Pure arithmetic; no device.

/// Output number `index` of `SplitMix64` that was started with `seed`.
#[must_use]
pub fn splitmix(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The checksum of 32-bit words.
#[must_use]
pub fn checksum(words: impl IntoIterator<Item = u32>) -> u64 {
    (0..).zip(words).fold(0, |sum, (index, word)| sum.wrapping_add(splitmix(word.into(), index)))
}

/// Operands of the matrix product: random integers of a few bits, over a power of two.
///
/// Zeros would be faster than anything that a job multiplies, and equal numbers take less power than random ones.
/// Few bits make the right answer known to the last bit: a sum of n products of bf16 operands is a multiple of
/// 2^-16, and with a standard deviation of a third of the root of n (30 for 8192) it stays far below 2^8, so it and
/// all partial sums fit the 24 bits of a float's mantissa, whatever the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    /// k / 256 with k from -256 to 255, as bf16.
    Bf16,
    /// k / 16 with k from -16 to 15, as e4m3.
    E4m3,
}

impl Operand {
    /// Bits of the integer, its sign included.
    fn bits(self) -> u32 {
        match self {
            Self::Bf16 => 9,
            Self::E4m3 => 5,
        }
    }

    /// What an integer of one stands for, as a power of two.
    #[must_use]
    pub fn exponent(self) -> i32 {
        1 - self.bits().cast_signed()
    }

    /// The integer at a place.
    #[must_use]
    pub fn integer(self, seed: u64, index: u64) -> i64 {
        let bits = self.bits();
        (splitmix(seed, index) >> (u64::BITS - bits)).cast_signed() - (1 << (bits - 1))
    }

    /// Bytes of an element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Bf16 => 2,
            Self::E4m3 => 1,
        }
    }
}

/// The right value of one element of a product.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exact {
    /// The sum of the products.
    pub value: f64,
    /// The sum of their magnitudes: what the error of a sum in floating point grows with.
    pub magnitude: f64,
}

/// Column `left` of one matrix of `n` rows times column `right` of another, both in column order.
#[must_use]
pub fn exact(operand: Operand, n: u64, seeds: [u64; 2], [left, right]: [u64; 2]) -> Exact {
    let (mut sum, mut magnitude) = (0_i64, 0_i64);
    for k in 0..n {
        let a = operand.integer(seeds[0], left.wrapping_mul(n).wrapping_add(k));
        let b = operand.integer(seeds[1], right.wrapping_mul(n).wrapping_add(k));
        // At most 2^16 a product: 2^47 of them fit.
        sum += a * b;
        magnitude += (a * b).abs();
    }
    let unit = 2.0_f64.powi(2 * operand.exponent());
    #[expect(clippy::cast_precision_loss, reason = "a sum of n products has 16 + log2(n) bits, below 53")]
    let scaled = |integer: i64| integer as f64 * unit;
    Exact { value: scaled(sum), magnitude: scaled(magnitude) }
}

/// The most ranks whose values a collective can add without rounding: 63 · 65536 + 256 · 32640 is below 2^24, from
/// which on a float can't hold every integer.
pub const MAX_RANKS: u32 = 65_536;

/// What a rank adds to the value of a place: it repeats after 256 ranks, which keeps sums small.
fn rank_part(rank: u32) -> u32 {
    rank & 255
}

/// The sum of the parts of ranks 0 to `ranks` - 1.
fn rank_parts(ranks: u32) -> u32 {
    /// 0 + 1 + … + 255.
    const ROUND: u32 = 255 * 256 / 2;
    let rest = ranks % 256;
    ranks / 256 * ROUND + rest * rest.saturating_sub(1) / 2
}

/// A collective whose result is looked at. Every rank filled the whole of its send buffer with
/// [`fill_rank`](super::Kernels::fill_rank).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collective {
    /// The sum of all ranks' buffers.
    AllReduce {
        /// How many ranks.
        ranks: u32,
    },
    /// All ranks' buffers one after the other.
    AllGather {
        /// How many ranks.
        ranks: u32,
    },
    /// From each rank the chunk that is meant for this one.
    AllToAll {
        /// How many ranks.
        ranks: u32,
        /// This rank.
        rank: u32,
    },
    /// One rank's buffer.
    Received {
        /// Whose.
        from: u32,
    },
}

/// The form in which the kernel takes what it must find: see `aimaster_count_wrong` in `checks.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// Elements of a chunk.
    pub chunk: u64,
    /// The place that a chunk's first element had in its sender's buffer.
    pub origin: u64,
    /// How often the place's part is in a value.
    pub factor: u32,
    /// What every value has on top.
    pub offset: u32,
    /// What a value has on top for each chunk before its own, up to 255.
    pub step: u32,
}

impl Collective {
    /// What must be in a receive buffer of `count` elements. None where that can't be: no rank, too many, a rank
    /// outside, or a buffer that does not split into one chunk a rank.
    #[must_use]
    pub fn expected(self, count: u64) -> Option<Expected> {
        let ranks = match self {
            Self::AllReduce { ranks } | Self::AllGather { ranks } | Self::AllToAll { ranks, .. } => ranks,
            Self::Received { .. } => 1,
        };
        if ranks == 0 || ranks > MAX_RANKS || count == 0 {
            return None;
        }
        let whole = Expected { chunk: count, origin: 0, factor: 1, offset: 0, step: 0 };
        let chunk = count / u64::from(ranks);
        let splits = chunk * u64::from(ranks) == count;
        match self {
            Self::AllReduce { .. } => Some(Expected { factor: ranks, offset: rank_parts(ranks), ..whole }),
            Self::Received { from } => Some(Expected { offset: rank_part(from), ..whole }),
            Self::AllGather { .. } => splits.then_some(Expected { chunk, step: 1, ..whole }),
            Self::AllToAll { rank, .. } => (splits && rank < ranks).then_some(Expected {
                chunk,
                origin: u64::from(rank) * chunk,
                step: 1,
                ..whole
            }),
        }
    }
}

/// The part of a value that depends on the place: 0 to 63.
#[must_use]
pub fn place(index: u64) -> u32 {
    // Six bits fit.
    (splitmix(0, index) >> 58) as u32
}

/// What a rank brings to a collective at a place.
#[must_use]
pub fn rank_value(rank: u32, index: u64) -> u32 {
    place(index) + rank_part(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_is_the_published_generator() {
        // The first outputs of Vigna's splitmix64.c with seed 1234567.
        let published = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423_u64];
        assert_eq!([0, 1, 2].map(|index| splitmix(1_234_567, index)), published);
    }

    #[test]
    fn operands_cover_their_range() {
        for (operand, low, high) in [(Operand::Bf16, -256, 255), (Operand::E4m3, -16, 15)] {
            let values: Vec<i64> = (0..10_000).map(|index| operand.integer(7, index)).collect();
            assert_eq!(values.iter().min(), Some(&low));
            assert_eq!(values.iter().max(), Some(&high));
        }
    }

    #[test]
    fn a_small_product_by_hand() {
        let at = |seed, index| Operand::E4m3.integer(seed, index) as f64 / 16.0;
        let by_hand = at(1, 4) * at(2, 2) + at(1, 5) * at(2, 3);
        let found = exact(Operand::E4m3, 2, [1, 2], [2, 1]);
        assert!((found.value - by_hand).abs() < 1e-12, "{found:?} {by_hand}");
        assert!(found.magnitude >= found.value.abs());
    }

    /// Runs the collective on the processor, by its definition.
    fn result(collective: Collective, count: u64) -> Vec<u32> {
        let places = 0..count;
        match collective {
            Collective::AllReduce { ranks } => {
                places.map(|i| (0..ranks).map(|rank| rank_value(rank, i)).sum()).collect()
            }
            Collective::Received { from } => places.map(|i| rank_value(from, i)).collect(),
            Collective::AllGather { ranks } => {
                let chunk = count / u64::from(ranks);
                (0..ranks).flat_map(|rank| (0..chunk).map(move |j| rank_value(rank, j))).collect()
            }
            Collective::AllToAll { ranks, rank } => {
                let chunk = count / u64::from(ranks);
                let mine = u64::from(rank) * chunk;
                (0..ranks).flat_map(|from| (0..chunk).map(move |j| rank_value(from, mine + j))).collect()
            }
        }
    }

    #[test]
    fn closed_forms_are_the_collectives() {
        for ranks in [1, 2, 3, 8, 255, 256, 257, 700] {
            for collective in [
                Collective::AllReduce { ranks },
                Collective::AllGather { ranks },
                Collective::AllToAll { ranks, rank: ranks - 1 },
                Collective::Received { from: ranks },
            ] {
                let count = 3 * u64::from(ranks);
                let form = collective.expected(count).unwrap();
                for (i, right) in (0..count).zip(result(collective, count)) {
                    let q = i / form.chunk;
                    let q_part = u32::try_from(q % 256).unwrap();
                    let value =
                        form.factor * place(form.origin + i % form.chunk) + form.offset + form.step * q_part;
                    assert_eq!(value, right, "{collective:?} {i}");
                }
            }
        }
    }

    #[test]
    fn the_largest_sum_is_exact_in_a_float() {
        assert!(63 * MAX_RANKS + rank_parts(MAX_RANKS) < 1 << 24);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert_eq!(Collective::AllReduce { ranks: 0 }.expected(8), None);
        assert_eq!(Collective::AllReduce { ranks: MAX_RANKS + 1 }.expected(8), None);
        assert_eq!(Collective::AllGather { ranks: 3 }.expected(8), None);
        assert_eq!(Collective::AllToAll { ranks: 4, rank: 4 }.expected(8), None);
        assert_eq!(Collective::AllReduce { ranks: 4 }.expected(0), None);
    }
}
