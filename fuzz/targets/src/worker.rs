//! What an unprivileged worker says to the coordinator, which is root's.
//!
//! The first byte says how many bytes come at once.

use prolog::protocol::{Answer, Decoder, MAX_FRAME, encode};

use crate::holds;

/// However frames are cut, they are the same, and each reads back as it was.
pub fn run(data: &[u8]) {
    let [most, rest @ ..] = data else { return };
    let whole = answers(rest, usize::MAX);
    assert_eq!(answers(rest, usize::from(*most).max(1)), whole);
    for answer in &whole.0 {
        let frame = encode(answer).unwrap();
        assert!(frame.len() <= MAX_FRAME + 4);
        let (again, error) = answers(&frame, usize::MAX);
        assert_eq!((again.as_slice(), error), (std::slice::from_ref(answer), None));
    }
}

fn answers(bytes: &[u8], most: usize) -> (Vec<Answer>, Option<String>) {
    let (mut decoder, mut all) = (Decoder::default(), Vec::new());
    for piece in bytes.chunks(most.min(bytes.len().max(1))) {
        decoder.push(piece);
        loop {
            match decoder.message::<Answer>() {
                Ok(Some(answer)) => all.push(answer),
                Ok(None) => break,
                Err(error) => {
                    holds::line(&error.to_string(), 200);
                    return (all, Some(error.to_string()));
                }
            }
        }
    }
    (all, None)
}
