//! What healthy parts differ by: a spread that stays with a part, noise of each number, and now and then a number that is
//! far off. Every draw is a hash of the seed and of what the number is about, so that a number does not depend on the
//! order in which nodes measure, and a seed gives the same job everywhere.

/// How healthy numbers scatter.
#[derive(Debug, Clone, Copy, Default)]
pub struct Noise {
    /// Of this job.
    pub seed: u64,
    /// Width of the band in which the parts of one model lie for good, as a share: nothing that measuring again mends.
    pub spread: f64,
    /// Standard deviation of each number, as a share, anew in each window.
    pub sigma: f64,
    /// How many numbers are far off, as a share.
    pub outliers: f64,
}

/// An outlier takes at least this much longer, as a share.
const OUTLIER_LEAST: f64 = 0.05;

impl Noise {
    /// What docs/trust.md promises to hold under: 3 % of noise and 1 % of outliers with a heavy tail. The spread of 5 % is
    /// the upper end of what is published of GPUs of one model under a power cap (2 to 5 %).
    pub const fn acceptance(seed: u64) -> Self {
        Self { seed, spread: 0.05, sigma: 0.03, outliers: 0.01 }
    }

    /// What a number of a healthy part is, as a share of the usual one: `part` is the hash of the part, `number` that of
    /// the number in this window.
    pub fn share(&self, part: u64, number: u64) -> f64 {
        let own = 1.0 + self.spread * (uniform(mixed(self.seed, part)) - 0.5);
        let key = mixed(self.seed ^ 0x5eed, number);
        let window = 1.0 + self.sigma * normal(key);
        // One in a hundred takes longer by a Pareto-distributed share (its exponent 1 has no mean): half of them 10 %
        // and more, one in twenty twice as long.
        let far = if uniform(mixed(key, 3)) < self.outliers {
            1.0 + OUTLIER_LEAST / uniform(mixed(key, 4)).max(1e-6)
        } else {
            1.0
        };
        own * window.max(0.1) / far
    }

    /// Whether something happens that happens in this share of cases.
    pub fn happens(&self, share: f64, key: u64) -> bool {
        uniform(mixed(self.seed ^ 0xfa11, key)) < share
    }
}

/// SplitMix64's last step (Steele, Lea, Flood 2014): a few lines, where a crate's generator would hand out numbers in the
/// order in which they are asked for.
pub fn mixed(a: u64, b: u64) -> u64 {
    let mut z = a.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(b).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Several words as one.
pub fn key(words: &[u64]) -> u64 {
    words.iter().fold(0x243f_6a88_85a3_08d3, |kept, word| mixed(kept, *word))
}

/// From 0 to below 1.
pub fn uniform(key: u64) -> f64 {
    (key >> 11) as f64 / (1_u64 << 53) as f64
}

/// Standard normal, by Box and Muller.
fn normal(key: u64) -> f64 {
    let radius = (-2.0 * uniform(mixed(key, 1)).max(1e-300).ln()).sqrt();
    radius * (std::f64::consts::TAU * uniform(mixed(key, 2))).cos()
}
