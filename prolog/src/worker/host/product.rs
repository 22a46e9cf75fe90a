//! Matrix products on all ranks at once, each compared with the exact result.

use std::sync::{Arc, Barrier, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::Until;
use crate::protocol::{MAX_RANKS, MAX_SAMPLES, Products, Reply};

/// Rows and columns. A product is 0.11 GFLOP, about 2 ms on a core of today: short against a window, long
/// against reading a clock and comparing the result.
const SIZE: usize = 384;

/// Operations of one product.
const FLOP: f64 = 2.0 * (SIZE * SIZE * SIZE) as f64;

/// Inputs are whole numbers of this magnitude at most, so sums stay below 384 × 64 = 24 576 < 2^24: exact in
/// f32, whatever the order in which a processor adds them.
const MAGNITUDE: i32 = 8;

/// Products before the window, so that pages are mapped and clocks are up.
const WARM_UP: u32 = 3;

/// Both inputs and the exact product, made once a worker.
#[derive(Default)]
pub(super) struct Inputs(OnceLock<Arc<Matrices>>);

struct Matrices {
    a: Vec<f32>,
    b: Vec<f32>,
    exact: Vec<f32>,
}

impl Matrices {
    fn new() -> Self {
        let (a, b) = (integers(1), integers(2));
        let mut exact = vec![0_i32; SIZE * SIZE];
        for (row, sums) in a.chunks_exact(SIZE).zip(exact.chunks_exact_mut(SIZE)) {
            for (factor, column) in row.iter().zip(b.chunks_exact(SIZE)) {
                for (sum, element) in sums.iter_mut().zip(column) {
                    *sum += factor * element;
                }
            }
        }
        let floats = |whole: Vec<i32>| whole.into_iter().map(|element| element as f32).collect();
        Self { a: floats(a), b: floats(b), exact: floats(exact) }
    }
}

/// Whole numbers that look random and are the same everywhere (a linear congruential generator).
fn integers(seed: u32) -> Vec<i32> {
    let mut state = seed;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16).cast_signed() % (2 * MAGNITUDE + 1) - MAGNITUDE
    })
    .take(SIZE * SIZE)
    .collect()
}

/// What one rank did.
#[derive(Debug, Default, Clone, Copy)]
struct Counted {
    products: u64,
    right: u64,
    seconds: f64,
}

/// Multiplies on `ranks` threads for `window`; a rank that has nothing finished by then goes on until it has,
/// or until the limit.
pub(super) fn run(inputs: &Inputs, window: Duration, ranks: u32, until: &Until) -> Reply {
    if ranks == 0 || ranks > MAX_RANKS {
        return Reply::Failed {
            message: format!("host.ranks_per_node = {ranks}: 1 to {MAX_RANKS} are possible"),
        };
    }
    let matrices = inputs.0.get_or_init(|| Arc::new(Matrices::new()));
    let start = Arc::new(Barrier::new(ranks as usize));
    let (sender, results) = mpsc::channel();
    for rank in 0..ranks {
        let (matrices, start) = (Arc::clone(matrices), Arc::clone(&start));
        let (sender, until) = (sender.clone(), until.clone());
        let spawned = thread::Builder::new().name(format!("product {rank}")).spawn(move || {
            let counted = multiply(&matrices, &start, window, &until);
            // Nobody listens any more if the limit ran out first.
            let _ = sender.send((rank as usize, counted));
        });
        if let Err(error) = spawned {
            // The ranks that did start wait at the barrier for ever; a worker that can't start threads is of
            // no use, and the coordinator replaces it.
            return Reply::Failed { message: format!("rank {rank} can't start: {error}") };
        }
    }
    drop(sender);
    let mut counted = vec![Counted::default(); ranks as usize];
    // A rank that a frozen processor group holds inside a product is not waited for; it counts as nothing.
    while let Some(slice) = until.slice() {
        match results.recv_timeout(slice) {
            Ok((rank, result)) => counted[rank] = result,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    Reply::Product(sum_up(&counted))
}

fn multiply(matrices: &Matrices, start: &Barrier, window: Duration, until: &Until) -> Counted {
    let mut result = vec![0.0; SIZE * SIZE];
    for _ in 0..WARM_UP {
        let _ = kernels::gemm::product(SIZE, &matrices.a, &matrices.b, &mut result);
    }
    start.wait();
    let (began, mut counted) = (Instant::now(), Counted::default());
    while !until.over() {
        // What an earlier product left must not pass for this one's result.
        result.fill(f32::NAN);
        let done = kernels::gemm::product(SIZE, &matrices.a, &matrices.b, &mut result);
        let elapsed = began.elapsed();
        // One that ended after the window counts only if it is the first.
        if elapsed > window && counted.products > 0 {
            break;
        }
        counted.products += 1;
        counted.seconds = elapsed.as_secs_f64();
        counted.right += u64::from(done && result == matrices.exact);
    }
    counted
}

fn sum_up(counted: &[Counted]) -> Products {
    let rate = |rank: &Counted| {
        if rank.seconds > 0.0 { rank.products as f64 * FLOP / rank.seconds / 1e12 } else { 0.0 }
    };
    let products: u64 = counted.iter().map(|rank| rank.products).sum();
    let right: u64 = counted.iter().map(|rank| rank.right).sum();
    Products {
        products,
        seconds: counted.iter().map(|rank| rank.seconds).fold(0.0, f64::max),
        tflop_per_s: counted.iter().map(rate).sum(),
        per_rank: counted.iter().map(rate).take(MAX_SAMPLES).collect(),
        right: right as f64 / products.max(1) as f64,
        ..Products::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Cancel;
    use super::*;

    #[test]
    fn products_are_counted_and_right() {
        let until = Until::after(Duration::from_secs(20), &Cancel::default());
        let reply = run(&Inputs::default(), Duration::from_millis(300), 2, &until);
        let Reply::Product(products) = reply else { panic!("{reply:?}") };
        println!("{products:?}");
        assert!(products.products >= 2 && products.tflop_per_s > 0.0);
        assert_eq!(products.right, 1.0);
        assert_eq!(products.per_rank.len(), 2);
    }

    #[test]
    fn one_wrong_element_is_noticed() {
        let mut matrices = Matrices::new();
        matrices.exact[SIZE * 7 + 3] += 1.0;
        let until = Until::after(Duration::from_secs(20), &Cancel::default());
        let counted = multiply(&matrices, &Barrier::new(1), Duration::from_millis(20), &until);
        assert!(counted.products >= 1);
        assert_eq!(counted.right, 0);
    }

    #[test]
    fn the_limit_and_a_cancel_end_it() {
        let began = Instant::now();
        let until = Until::after(Duration::from_millis(200), &Cancel::default());
        run(&Inputs::default(), Duration::from_secs(60), 2, &until);
        assert!(began.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn no_rank_and_too_many_are_refused() {
        let until = Until::after(Duration::from_secs(1), &Cancel::default());
        for ranks in [0, MAX_RANKS + 1] {
            let reply = run(&Inputs::default(), Duration::from_millis(1), ranks, &until);
            assert!(matches!(reply, Reply::Failed { .. }));
        }
    }
}
