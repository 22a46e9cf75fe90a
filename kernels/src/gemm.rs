//! The host engine's matrix product: a safe face on `matrixmultiply`. What is multiplied, how often and what
//! counts as right is the worker's part.

/// `c = a × b` for square matrices of `n` × `n` in row order. False, and `c` untouched, where a slice has
/// another length.
#[must_use]
pub fn product(n: usize, a: &[f32], b: &[f32], c: &mut [f32]) -> bool {
    let (Some(elements), Ok(row)) = (n.checked_mul(n), isize::try_from(n)) else { return false };
    if n == 0 || [a.len(), b.len(), c.len()] != [elements; 3] {
        return false;
    }
    // SAFETY: with the strides (n, 1) and n × n elements every access of the three matrices lies within its
    // slice, whose length was compared above; `c` is borrowed mutably, so it does not overlap `a` or `b`.
    unsafe {
        matrixmultiply::sgemm(
            n,
            n,
            n,
            1.0,
            a.as_ptr(),
            row,
            1,
            b.as_ptr(),
            row,
            1,
            0.0,
            c.as_mut_ptr(),
            row,
            1,
        );
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_multiplies() {
        let mut c = [9.0; 4];
        assert!(product(2, &[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0], &mut c));
        assert_eq!(c, [19.0, 22.0, 43.0, 50.0]);
    }

    #[test]
    fn slices_of_another_length_are_refused() {
        let mut c = [9.0; 4];
        assert!(!product(2, &[0.0; 3], &[0.0; 4], &mut c));
        assert!(!product(3, &[0.0; 4], &[0.0; 4], &mut c));
        assert!(!product(0, &[], &[], &mut []));
        assert_eq!(c, [9.0; 4]);
    }
}
