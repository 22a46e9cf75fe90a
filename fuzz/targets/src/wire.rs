//! Frames: before two nodes have proved themselves, after it, and what stands in them, from prologs and from agents.
//!
//! The first byte says which: `g` bytes in place of a greeting, `m` a message, `t` a telling of an agent, `s` a saying; `f`
//! frames that are sealed, and then changed on the way: a list of bodies, the last of which says how.

use cluster::hostile;
use cluster::wire::{Direction, FrameReader, FrameWriter, MAX_GREETING, Seal, WireError};
use epilog::c4d::link::{MAX_HEALTH, Saying, Telling};
use tokio_util::bytes::Bytes;

use crate::holds;

/// Longest body that the sealed side takes here.
const LIMIT: usize = 4096;

/// Whatever is wrong with a frame ends the connection, and no body is delivered that was not sent in its place.
pub fn run(data: &[u8]) {
    match data {
        [b'g', bytes @ ..] => {
            for body in greeted(bytes) {
                assert!(body.len() <= MAX_GREETING);
                hostile::greeting(&body).iter().for_each(|words| holds::line(words, 1024));
            }
        }
        [b'm', bytes @ ..] => hostile::message(bytes),
        [b't', bytes @ ..] => match Telling::parse(1, bytes) {
            Ok((telling, _)) => {
                assert!(telling.digest.node == 1 && telling.health.len() <= MAX_HEALTH);
                assert!(telling.health.iter().all(diag::health::HealthEvent::is_sound));
            }
            Err(error) => holds::line(&error.to_string(), 1024),
        },
        [b's', bytes @ ..] => match Saying::parse(bytes) {
            Ok(said) => {
                let written = serde_json::to_vec(&said).unwrap();
                assert!(written.len() <= epilog::c4d::link::MAX_SAYING_BYTES);
                assert_eq!(Saying::parse(&written).unwrap(), said);
            }
            Err(error) => holds::line(&error.to_string(), 1024),
        },
        [b'f', bytes @ ..] => sealed(bytes),
        _ => {}
    }
}

fn now<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn greeted(bytes: &[u8]) -> Vec<Bytes> {
    let mut reader = FrameReader::greeting(bytes);
    let mut bodies = Vec::new();
    now(async {
        let error = loop {
            match reader.next().await {
                Ok(body) => bodies.push(body),
                Err(error) => break error,
            }
        };
        holds::line(&error.to_string(), 200);
    });
    bodies
}

/// Most steps of a change, each of which can make two of one.
const MOST_STEPS: usize = 12;

/// What is done to frames on their way: each step is a kind, and a place.
fn change(stream: &mut Vec<u8>, steps: &[u8]) -> bool {
    let before = stream.clone();
    for step in steps.chunks_exact(3).take(MOST_STEPS) {
        if stream.is_empty() {
            break;
        }
        let at = usize::from(u16::from_be_bytes([step[1], step[2]])) % stream.len();
        match step[0] % 4 {
            0 => stream[at] ^= 1 << (step[0] / 4 % 8),
            1 => stream.truncate(at),
            2 => stream.extend_from_within(at..),
            _ => drop(stream.drain(..at)),
        }
    }
    *stream != before
}

/// A key of these bytes: under one that is always the same, a body could hold a frame that is right by itself, which nobody
/// can make who does not know the key.
fn key(bytes: &[u8]) -> [u8; 32] {
    let mut key = [3; 32];
    for (at, byte) in bytes.iter().enumerate() {
        key[at % 32] = u8::rotate_left(key[at % 32], 3) ^ byte;
    }
    key
}

fn sealed(bytes: &[u8]) {
    let parts: Vec<&[u8]> = holds::parts(bytes).collect();
    let Some((steps, bodies)) = parts.split_last() else { return };
    let key = key(bytes);
    let mut stream = Vec::new();
    now(async {
        let mut writer = FrameWriter::greeting(&mut stream).sealed(Seal::new(&key, Direction::FromDialer));
        for body in bodies {
            writer.send(body).await.unwrap();
        }
    });
    let changed = change(&mut stream, steps);
    for (direction, readable) in [(Direction::FromDialer, true), (Direction::FromListener, false)] {
        let mut reader = FrameReader::greeting(&stream[..]).sealed(Seal::new(&key, direction), LIMIT);
        let (mut came, mut ended) = (0, None);
        now(async {
            while ended.is_none() {
                match reader.next().await {
                    Ok(body) => {
                        assert!(readable, "a frame went back to its sender");
                        assert_eq!(bodies.get(came), Some(&&body[..]));
                        came += 1;
                    }
                    Err(error) => ended = Some(error),
                }
            }
        });
        let error = ended.unwrap();
        holds::line(&error.to_string(), 200);
        if readable && !changed && bodies.iter().all(|body| body.len() <= LIMIT) {
            assert!(came == bodies.len() && matches!(error, WireError::Closed), "{came}: {error}");
        }
    }
}
