//! The numbers that are sent and added up: every rank can work out each contribution, and so knows exactly what
//! it must hold at the end. They are u32 with wrapping addition: exact in any order, and as cheap as f32.

/// Bytes of one element.
pub(super) const ELEMENT: usize = 4;

/// An odd number whose multiples spread over all 32 bits (2^32 divided by the golden ratio).
const SPREAD: u32 = 0x9E37_79B1;

/// What all contributions to element `index` of collective number `iteration` have in common.
fn base(index: u32, iteration: u32) -> u32 {
    (index ^ iteration.rotate_left(16)).wrapping_mul(SPREAD)
}

fn elements(buffer: &mut [u8]) -> impl Iterator<Item = (u32, &mut [u8; ELEMENT])> {
    (0..).zip(buffer.as_chunks_mut::<ELEMENT>().0)
}

/// What the rank at `position` contributes as element `index`.
fn contribution(index: u32, position: u32, iteration: u32) -> u32 {
    base(index, iteration).wrapping_mul(position + 1).wrapping_add(position)
}

/// Fills `buffer` with the contribution of the rank at `position`.
pub(super) fn fill(buffer: &mut [u8], position: u32, iteration: u32) {
    for (index, element) in elements(buffer) {
        *element = contribution(index, position, iteration).to_le_bytes();
    }
}

/// Whether `buffer` holds what the rank at `position` contributed from element `first` on.
pub(super) fn is_part(buffer: &[u8], first: u32, position: u32, iteration: u32) -> bool {
    let wrong = (first..).zip(buffer.as_chunks::<ELEMENT>().0).fold(0, |wrong, (index, element)| {
        wrong | (contribution(index, position, iteration) ^ u32::from_le_bytes(*element))
    });
    wrong == 0
}

/// Adds `other` to `sum`, element by element.
pub(super) fn add(sum: &mut [u8], other: &[u8]) {
    for (sum, other) in sum.as_chunks_mut::<ELEMENT>().0.iter_mut().zip(other.as_chunks::<ELEMENT>().0) {
        *sum = u32::from_le_bytes(*sum).wrapping_add(u32::from_le_bytes(*other)).to_le_bytes();
    }
}

/// Whether `buffer` holds the sum of the contributions of `ranks` ranks.
pub(super) fn is_sum(buffer: &[u8], ranks: u32, iteration: u32) -> bool {
    // Σ (p + 1) and Σ p over all positions p; they wrap like the sums themselves.
    let factors = (0..ranks).fold(0_u32, |sum, position| sum.wrapping_add(position + 1));
    let constants = factors.wrapping_sub(ranks);
    let wrong = (0..).zip(buffer.as_chunks::<ELEMENT>().0).fold(0, |wrong, (index, element)| {
        let expected = base(index, iteration).wrapping_mul(factors).wrapping_add(constants);
        wrong | (expected ^ u32::from_le_bytes(*element))
    });
    wrong == 0
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn contributions_add_up_and_one_flipped_bit_shows() {
        for ranks in 1..=8 {
            let mut sum = vec![0; 4096];
            for position in 0..ranks {
                let mut part = vec![0; 4096];
                fill(&mut part, position, 9);
                add(&mut sum, &part);
            }
            assert!(is_sum(&sum, ranks, 9));
            assert!(!is_sum(&sum, ranks, 10), "another all-reduce's sum must not pass");
            sum[1234] ^= 4;
            assert!(!is_sum(&sum, ranks, 9));
        }
    }

    // M05: what is left of another turn counts for none.
    #[test]
    fn a_part_is_known_by_its_place_its_rank_and_its_turn() {
        let mut whole = vec![0; 4096];
        fill(&mut whole, 3, 9);
        let part = &mut whole[1024..2048];
        assert!(is_part(part, 256, 3, 9));
        assert!(!is_part(part, 0, 3, 9) && !is_part(part, 256, 2, 9) && !is_part(part, 256, 3, 8));
        part[77] ^= 1;
        assert!(!is_part(part, 256, 3, 9));
    }
}
