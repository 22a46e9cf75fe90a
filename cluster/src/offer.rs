//! What leader and deputy offer to whoever dials them: a key of their own, in a credential that only the trusted user of this
//! site opens. Who knows the key has opened it; both sides prove that to each other by claims that it seals. Not what the
//! claims say.
//!
//! So a listener asks its munged once for all nodes, not twice for each, and a stranger's hello asks it for nothing. Where the nodes
//! have a key in common that key seals, and nothing is offered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use crate::auth::{Authenticator, SiteKey, random, wipe};
use crate::handshake::{HandshakeError, Identity, elsewhere, parse, role};
use crate::secret;

/// What the credential begins with; none of a claim is one of an offer.
const OFFER: &str = "aimaster offer";
/// A credential of MUNGE is good for five minutes where the site does not say less; from then on a new key is offered.
const FRESH: Duration = Duration::from_secs(30);
/// munged is asked again so long after it made none.
const PAUSE: Duration = Duration::from_millis(500);

/// An offer on its way.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Offer {
    /// The nodes have a key in common.
    #[default]
    Nothing,
    /// A credential with a key.
    Sealed(String),
    /// There is none, and why.
    Refused(String),
}

/// What the credential seals.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Terms {
    purpose: String,
    cluster: String,
    job_id: u32,
    restart: u32,
    nodes: u32,
    role: String,
    from: String,
    key: [u8; 32],
}

impl Drop for Terms {
    fn drop(&mut self) {
        wipe(&mut self.key);
    }
}

type Made = Result<(Offer, SiteKey), String>;

/// The offer of this node, if it listens, and when it was made.
#[derive(Default)]
pub(crate) struct Offers(Mutex<Option<(Instant, Arc<Made>)>>);

impl Offers {
    /// What this node offers now. All that dial at once wait for the one that has it made.
    pub(crate) async fn current(&self, id: &Identity) -> Arc<Made> {
        let mut held = self.0.lock().await;
        if let Some((at, made)) = &*held
            && at.elapsed() < if made.is_ok() { FRESH } else { PAUSE }
        {
            return Arc::clone(made);
        }
        let made = Arc::new(make(id).await.map_err(|error| crate::chain(&error)));
        *held = Some((Instant::now(), Arc::clone(&made)));
        made
    }
}

async fn make(id: &Identity) -> Result<(Offer, SiteKey), HandshakeError> {
    if let Authenticator::Key(key) = &id.auth {
        return Ok((Offer::Nothing, key.clone()));
    }
    let terms = Terms {
        purpose: OFFER.to_owned(),
        cluster: id.job.cluster.clone(),
        job_id: id.job.job_id,
        restart: id.job.restart,
        nodes: id.count(),
        role: role(id.me).to_owned(),
        from: id.name(id.me).to_owned(),
        key: random()?,
    };
    let text = secret::to_json(&terms).map_err(|_| HandshakeError::Unreadable { what: "own offer" })?;
    let credential = id.auth.seal(text).await?;
    Ok((Offer::Sealed(credential), SiteKey::from_secret(&terms.key)))
}

/// The key that `listener` offers to this node.
pub(crate) async fn take(offer: Offer, listener: u32, id: &Identity) -> Result<SiteKey, HandshakeError> {
    let credential = match (offer, &id.auth) {
        (Offer::Nothing, Authenticator::Key(key)) => return Ok(key.clone()),
        (Offer::Sealed(credential), Authenticator::Munge { .. }) => credential,
        (Offer::Refused(why), _) => return Err(HandshakeError::refused(&why)),
        _ => return Err(HandshakeError::Otherwise),
    };
    let terms: Terms = parse("offer", &id.auth.open(credential).await?)?;
    elsewhere("purpose", &*terms.purpose, OFFER)?;
    elsewhere("cluster", &terms.cluster, &id.job.cluster)?;
    elsewhere("job", &terms.job_id, &id.job.job_id)?;
    elsewhere("restart", &terms.restart, &id.job.restart)?;
    elsewhere("number of nodes", &terms.nodes, &id.count())?;
    elsewhere("role", &*terms.role, role(listener))?;
    elsewhere("node", &*terms.from, id.name(listener))?;
    Ok(SiteKey::from_secret(&terms.key))
}
