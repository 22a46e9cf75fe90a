//! Where incoming data connections go: authenticated ones to the operation that expects them, or to a small
//! service that echoes or counts; all others nowhere. It measures nothing itself.

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use diag::facts::NodeId;

use super::authenticate::{self, Intent, Purpose};
use super::timed::{Cancel, Timed, Until};
use crate::protocol::DataKey;

/// How long a stranger may take to show that it is none; a peer needs two round trips.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(2);

/// Connections that are not authenticated yet; one more drops the oldest, so that a flood can't keep peers out
/// for longer than it lasts, and peers try again.
const MAX_PENDING: usize = 256;

/// Authenticated connections that wait for their operation: in an all-to-all between two nodes each of at most
/// 64 ranks has 127.
const MAX_PARKED: usize = 64 * 127;

/// How long an echo or a count may take: no operation of a peer lasts longer.
const SERVICE_WAIT: Duration = Duration::from_secs(60);

/// Stack of the threads that serve one connection; they call nothing deep.
const STACK_BYTES: usize = 128 << 10;

/// Buffer of the services.
const SERVICE_BYTES: usize = 64 << 10;

/// Pause after an accept that failed, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// The connections of one worker.
pub(super) struct Exchange {
    node: NodeId,
    key: DataKey,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    parked: HashMap<Intent, TcpStream>,
    pending: VecDeque<Arc<TcpStream>>,
    /// Connections of earlier rounds come too late.
    round: u32,
}

impl Exchange {
    /// Serves `listeners`, rank by rank, for the rest of the process.
    pub(super) fn start(node: NodeId, key: DataKey, listeners: &[TcpListener]) -> std::io::Result<Arc<Self>> {
        let exchange = Arc::new(Self { node, key, state: Mutex::default(), arrived: Condvar::new() });
        for (rank, listener) in (0..).zip(listeners) {
            let (listener, exchange) = (listener.try_clone()?, Arc::clone(&exchange));
            thread::Builder::new().name(format!("accept {rank}")).spawn(move || {
                loop {
                    match listener.accept() {
                        Ok((stream, _)) => exchange.receive(stream, rank),
                        Err(_) => thread::sleep(ACCEPT_PAUSE),
                    }
                }
            })?;
        }
        Ok(exchange)
    }

    /// Drops what was left over from rounds before `round`.
    pub(super) fn begin(&self, round: u32) {
        let mut state = self.lock();
        state.round = round;
        state.parked.retain(|intent, _| intent.tag.round >= round);
    }

    /// The connection that a peer opened with this intent; `None`: it did not come in time.
    pub(super) fn take(
        &self,
        intent: &Intent,
        until: &Until,
        give_up: impl Fn() -> bool,
    ) -> Option<TcpStream> {
        let mut state = self.lock();
        loop {
            if let Some(stream) = state.parked.remove(intent) {
                return Some(stream);
            }
            let slice = until.slice().filter(|_| !give_up())?;
            state = self.arrived.wait_timeout(state, slice).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn receive(self: &Arc<Self>, stream: TcpStream, rank: u32) {
        let stream = Arc::new(stream);
        {
            let mut state = self.lock();
            if state.pending.len() >= MAX_PENDING
                && let Some(oldest) = state.pending.pop_front()
            {
                // Its thread sees the end and goes.
                let _ = oldest.shutdown(Shutdown::Both);
            }
            state.pending.push_back(Arc::clone(&stream));
        }
        let (exchange, served) = (Arc::clone(self), Arc::clone(&stream));
        let thread = thread::Builder::new()
            .name("connection".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || exchange.admit(&served, rank));
        if thread.is_err() {
            self.forget(&stream);
        }
    }

    fn forget(&self, stream: &Arc<TcpStream>) {
        self.lock().pending.retain(|pending| !Arc::ptr_eq(pending, stream));
    }

    fn admit(&self, stream: &Arc<TcpStream>, rank: u32) {
        // Every message of the handshake and of an echo is one small segment that somebody waits for.
        let _ = stream.set_nodelay(true);
        let until = Until::after(HANDSHAKE_WAIT, &Cancel::default());
        let mut timed = Timed { stream, until };
        let admitted = authenticate::accept(&mut timed, &self.key, |to| to == (self.node, rank));
        self.forget(stream);
        let Ok(intent) = admitted else { return };
        timed.until = Until::after(SERVICE_WAIT, &Cancel::default());
        match intent.purpose {
            Purpose::Ring | Purpose::Agree => self.park(intent, stream),
            Purpose::Echo => echo(&mut timed),
            Purpose::Sink => count(&mut timed),
        }
    }

    fn park(&self, intent: Intent, stream: &Arc<TcpStream>) {
        // The pending list may still hold the stream for a moment, so it is cloned, not taken out.
        let Ok(stream) = stream.try_clone() else { return };
        let mut state = self.lock();
        if intent.tag.round >= state.round && state.parked.len() < MAX_PARKED {
            state.parked.insert(intent, stream);
            self.arrived.notify_all();
        }
    }
}

/// Sends back what comes until the peer ends it.
fn echo(stream: &mut Timed<'_>) {
    let mut buffer = vec![0; SERVICE_BYTES];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

/// Reads as much as the peer announces, says that it came, and leaves it to the peer to close: the kernel tells
/// what a connection sent only while it stands.
fn count(stream: &mut Timed<'_>) {
    let mut announced = [0; 8];
    if stream.read_exact(&mut announced).is_err() {
        return;
    }
    let (mut buffer, mut left) = (vec![0; SERVICE_BYTES], u64::from_be_bytes(announced));
    while left > 0 {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(count) => left = left.saturating_sub(count as u64),
        }
    }
    if stream.write_all(&announced).is_ok() {
        let _ = stream.read(&mut buffer);
    }
}
