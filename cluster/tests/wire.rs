//! Frames against whatever may come out of a socket.

use cluster::wire::{Direction, FrameReader, FrameWriter, MAX_GREETING, Seal, WireError};
use proptest::prelude::*;

const KEY: [u8; 32] = [3; 32];

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
}

fn sealed(bodies: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    block_on(async {
        let mut writer = FrameWriter::greeting(&mut bytes).sealed(Seal::new(&KEY, Direction::FromDialer));
        for body in bodies {
            writer.send(body).await.unwrap();
        }
    });
    bytes
}

/// Bodies up to the first error, and the error.
fn read(bytes: &[u8], direction: Direction, limit: usize) -> (Vec<Vec<u8>>, WireError) {
    block_on(async {
        let mut reader = FrameReader::greeting(bytes).sealed(Seal::new(&KEY, direction), limit);
        let mut bodies = Vec::new();
        loop {
            match reader.next().await {
                Ok(body) => bodies.push(body.to_vec()),
                Err(error) => return (bodies, error),
            }
        }
    })
}

#[test]
fn repeated_reordered_and_reflected_frames_are_refused() {
    let frames: Vec<Vec<u8>> = (0..3_u8).map(|i| vec![i; 10]).collect();
    let bytes = sealed(&frames);
    let one = bytes.len() / 3;
    let (first, second) = (&bytes[..one], &bytes[one..2 * one]);
    let twice = read(&[first, first].concat(), Direction::FromDialer, 100);
    assert!(twice.0.len() == 1 && matches!(twice.1, WireError::Sequence { wanted: 1, found: 0 }));
    let late = read(second, Direction::FromDialer, 100);
    assert!(matches!(late.1, WireError::Sequence { wanted: 0, found: 1 }));
    assert!(matches!(read(first, Direction::FromListener, 100).1, WireError::Hash { sequence: 0 }));
}

#[test]
fn a_frame_past_the_limit_is_refused_before_it_is_read() {
    assert!(matches!(
        read(&sealed(&[vec![0; 101]]), Direction::FromDialer, 100).1,
        WireError::TooLong { .. }
    ));
    assert_eq!(read(&sealed(&[vec![0; 100]]), Direction::FromDialer, 100).0.len(), 1);
    block_on(async {
        let huge = [&u32::MAX.to_be_bytes()[..], &[0; 10]].concat();
        assert!(matches!(
            FrameReader::greeting(&huge[..]).next().await,
            Err(WireError::TooLong { limit: MAX_GREETING })
        ));
    });
}

proptest! {
    #[test]
    fn what_is_sent_arrives(bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20_000), 0..4)) {
        let (read, end) = read(&sealed(&bodies), Direction::FromDialer, 20_000);
        prop_assert_eq!(read, bodies);
        prop_assert!(matches!(end, WireError::Closed));
    }

    #[test]
    fn a_changed_bit_never_yields_another_body(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 1..4),
        at in any::<prop::sample::Index>(), bit in 0_u8..8,
    ) {
        let mut bytes = sealed(&bodies);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let (read, _) = read(&bytes, Direction::FromDialer, 1000);
        prop_assert!(read.len() < bodies.len() && read[..] == bodies[..read.len()]);
    }

    #[test]
    fn garbage_ends_in_an_error(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        prop_assert!(read(&bytes, Direction::FromDialer, 1000).0.is_empty());
    }
}
