//! Foreign bytes handed to the code that reads them off a connection, for tests that try bytes of every kind. Nothing of
//! the product calls this.
//!
//! Where what is read has no other way out, it comes back in words.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use diag::facts::{Engine, NodeFacts};
use diag::gpu_facts::Known;
use tokio_util::bytes::Bytes;

use crate::auth::{Authenticator, SiteKey};
use crate::handshake::{Identity, Tally, heard, let_in};
use crate::log::LogSink;
use crate::message::{check_facts, decode, encode};
use crate::offer::Offers;
use crate::rendezvous::JobKey;

/// The nodes of the job that is talked to; the first of them listens.
pub const NODES: [&str; 3] = ["n0", "n1", "n2"];
/// What each listener's challenge holds.
pub const NONCE: [u8; 32] = [9; 32];

fn job() -> JobKey {
    JobKey { cluster: "c".to_owned(), job_id: 7, restart: 0 }
}

fn key() -> SiteKey {
    SiteKey::from_secret(&[7; 64])
}

/// The first node of the job.
fn listener() -> Identity {
    let facts = NodeFacts {
        version: "1".to_owned(),
        request_digest: String::new(),
        engine: Engine::Host,
        address: None,
        rank_ports: Vec::new(),
        gpus: Vec::new(),
        libraries: String::new(),
        known: Known::default(),
        unable: None,
    };
    Identity {
        job: job(),
        nodes: NODES.map(Into::into).into(),
        places: (0..).zip(NODES).map(|(node, name)| (name.into(), node)).collect(),
        me: 0,
        auth: Authenticator::Key(key()),
        offers: Offers::default(),
        facts,
        began: Instant::now(),
        data_key: None,
        log: LogSink::silent(),
        tally: Tally::default(),
        unreached: Mutex::new(BTreeMap::new()),
        over: AtomicBool::new(false),
    }
}

/// A frame before its sender has proved anything, as each side of a meeting and of a link between agents reads it: what
/// each says of it.
#[must_use]
pub fn greeting(body: &[u8]) -> Vec<String> {
    heard(body).into_iter().chain(crate::agents::heard(body, job(), &NODES, NONCE)).collect()
}

/// A claim that was sealed by the trusted user, in answer to [`NONCE`]: the node that is let in.
///
/// # Errors
/// What the dialer is told.
pub fn claim(payload: &[u8]) -> Result<String, String> {
    let (id, key) = (listener(), key());
    let sealed = key.seal(payload).map_err(|error| error.to_string())?;
    let peer = let_in(&sealed, NONCE, &key, &id).map_err(|error| error.to_string())?;
    Ok(id.name(peer).to_owned())
}

/// The body of a frame of a node that has proved itself, as every node reads it.
///
/// # Panics
/// A message that was read is another one when it is sent on and read again.
pub fn message(body: &[u8]) {
    use crate::message::Message::{Facts, Follows, Orphaned, Roster};
    let Ok((message, payload)) = decode(Bytes::copy_from_slice(body)) else { return };
    if let Ok(sent) = encode(&message, &payload) {
        let read = decode(sent).ok();
        assert!(read == Some((message.clone(), payload)), "{message:?} is read as {read:?}");
    }
    let names = NODES.map(Into::into);
    match message {
        Facts { facts, .. } => _ = check_facts(&facts),
        Roster(roster) | Orphaned { roster, .. } | Follows { roster: Some(roster), .. } => {
            if let Ok(roster) = roster.open(&names, 0) {
                assert_eq!(roster.nodes.len(), names.len());
                assert!(roster.able().all(|node| (node as usize) < names.len()));
            }
        }
        _ => {}
    }
}
