//! Sends one message and receives another at the same time, so that a ring of ranks that all send first can't
//! block itself on full socket buffers.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::PollFlags;

use super::super::timed::{Until, wait_for, words};

/// Bytes of a message's head.
pub(super) const HEAD_BYTES: usize = 16;

/// Longest wait for either socket before the deadline is looked at again.
const POLL: Duration = Duration::from_millis(20);

/// How far sending may run ahead of receiving. All ranks send as much as they receive, so this only bounds what
/// lies in socket buffers: what fits into a processor's cache moves over loopback two to three times as fast as
/// megabytes that don't. It must stay above bandwidth × delay: 40 Gbit/s at 0.1 ms is 500 kB.
const AHEAD: usize = 512 << 10;

/// Why an exchange did not come to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cut {
    /// The deadline, or the request was cancelled.
    Over,
    /// The next rank does not take what is sent to it.
    Next(String),
    /// The previous rank does not send what is due.
    Previous(String),
}

/// The two neighbours of a rank.
pub(super) struct Duplex {
    next: TcpStream,
    previous: TcpStream,
    /// Bytes that came from the previous rank.
    pub received: u64,
}

impl Duplex {
    pub(super) fn new(next: TcpStream, previous: TcpStream) -> std::io::Result<Self> {
        next.set_nonblocking(true)?;
        previous.set_nonblocking(true)?;
        Ok(Self { next, previous, received: 0 })
    }

    /// Sends `head` and `body`; receives the previous rank's head and a body that fills `into`.
    pub(super) fn swap(
        &mut self,
        head: [u8; HEAD_BYTES],
        body: &[u8],
        into: &mut [u8],
        until: &Until,
    ) -> Result<[u8; HEAD_BYTES], Cut> {
        let (mut sent, mut got) = (0, 0);
        let mut their_head = [0; HEAD_BYTES];
        let (to_send, to_get) = (HEAD_BYTES + body.len(), HEAD_BYTES + into.len());
        loop {
            let mut moved = false;
            let ahead = to_send.min(got + AHEAD);
            if sent < ahead {
                let count = self.send(&head, &body[..ahead - HEAD_BYTES], sent)?;
                moved |= count > 0;
                sent += count;
            }
            if got < to_get {
                let place = match got.checked_sub(HEAD_BYTES) {
                    Some(offset) => &mut into[offset..],
                    None => &mut their_head[got..],
                };
                let count = receive(&mut self.previous, place)?;
                moved |= count > 0;
                got += count;
                self.received += count as u64;
            }
            if sent == to_send && got == to_get {
                return Ok(their_head);
            }
            if until.over() {
                return Err(Cut::Over);
            }
            if !moved {
                self.wait(sent < ahead, got < to_get)?;
            }
        }
    }

    fn send(&mut self, head: &[u8], body: &[u8], sent: usize) -> Result<usize, Cut> {
        let parts = match sent.checked_sub(HEAD_BYTES) {
            Some(offset) => [IoSlice::new(&[]), IoSlice::new(&body[offset..])],
            None => [IoSlice::new(&head[sent..]), IoSlice::new(body)],
        };
        match self.next.write_vectored(&parts) {
            Ok(0) => Err(Cut::Next("the peer takes nothing any more".to_owned())),
            Ok(count) => Ok(count),
            Err(error) if is_not_yet(&error) => Ok(0),
            Err(error) => Err(Cut::Next(words(&error))),
        }
    }

    fn wait(&self, sending: bool, receiving: bool) -> Result<(), Cut> {
        let mut fds = Vec::with_capacity(2);
        if sending {
            fds.push((self.next.as_fd(), PollFlags::OUT));
        }
        if receiving {
            fds.push((self.previous.as_fd(), PollFlags::IN));
        }
        wait_for(&fds, POLL).map_err(|error| Cut::Previous(words(&error)))
    }
}

fn receive(stream: &mut TcpStream, place: &mut [u8]) -> Result<usize, Cut> {
    match stream.read(place) {
        Ok(0) => Err(Cut::Previous("the peer closed the connection".to_owned())),
        Ok(count) => Ok(count),
        Err(error) if is_not_yet(&error) => Ok(0),
        Err(error) => Err(Cut::Previous(words(&error))),
    }
}

fn is_not_yet(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
