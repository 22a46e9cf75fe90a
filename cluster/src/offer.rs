//! What leader and deputy offer to whoever dials them: a key of their own, in a credential that only the trusted user of this
//! site opens. Who knows the key has opened it; both sides prove that to each other by claims that it seals. Not what the
//! claims say.
//!
//! So a listener asks its munged once for all that dial within five seconds, not twice for each, and a stranger's hello asks it for nothing. Where the nodes
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
/// From then on a new key is offered: soon, since a site may let credentials of MUNGE live shortly, and a clock may be set.
const FRESH: Duration = Duration::from_secs(5);
/// So long an older offer serves where munged makes no new one; MUNGE's own credentials live five minutes where the site says
/// nothing else.
const KEPT: Duration = Duration::from_secs(60);
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

impl Terms {
    /// What this node offers as a listener, with a new key.
    fn of(id: &Identity) -> Result<Self, HandshakeError> {
        Ok(Self {
            purpose: OFFER.to_owned(),
            cluster: id.job.cluster.clone(),
            job_id: id.job.job_id,
            restart: id.job.restart,
            nodes: id.count(),
            role: role(id.me).to_owned(),
            from: id.name(id.me).to_owned(),
            key: random()?,
        })
    }
}

impl Drop for Terms {
    fn drop(&mut self) {
        wipe(&mut self.key);
    }
}

type Made = Result<(Offer, SiteKey), String>;

/// The offer of this node, if it listens.
#[derive(Default)]
pub(crate) struct Offers(Arc<Mutex<Held>>);

#[derive(Default)]
struct Held {
    /// The last one that munged made, and when.
    good: Option<(Instant, Arc<Made>)>,
    /// Why there was none since, and when it was asked for.
    failed: Option<(Instant, Arc<Made>)>,
}

impl Held {
    fn now(&self) -> Option<Arc<Made>> {
        let younger = |held: &Option<(Instant, Arc<Made>)>, than| {
            held.as_ref().filter(|(at, _)| at.elapsed() < than).map(|(_, made)| Arc::clone(made))
        };
        younger(&self.good, FRESH).or_else(|| {
            let failed = younger(&self.failed, PAUSE)?;
            Some(younger(&self.good, KEPT).unwrap_or(failed))
        })
    }

    fn put(&mut self, made: Made) {
        let held = if made.is_ok() { &mut self.good } else { &mut self.failed };
        *held = Some((Instant::now(), Arc::new(made)));
    }
}

impl Offers {
    /// What this node offers now. All that dial at once wait for the one that is made, by a task of its own: a dialer that is
    /// turned away meanwhile takes nothing along.
    pub(crate) async fn current(&self, id: &Identity) -> Arc<Made> {
        if let Some(made) = self.0.lock().await.now() {
            return made;
        }
        let (held, auth, terms) = (Arc::clone(&self.0), id.auth.clone(), Terms::of(id));
        let made = tokio::spawn(async move {
            let mut held = held.lock().await;
            if let Some(made) = held.now() {
                return made;
            }
            let made = make(&auth, terms).await;
            held.put(made.map_err(|error| crate::chain(&error)));
            // Where it failed an older one may serve.
            held.now().unwrap_or_else(|| Arc::new(Err("its offer took too long".to_owned())))
        });
        made.await.unwrap_or_else(|error| Arc::new(Err(error.to_string())))
    }
}

async fn make(
    auth: &Authenticator,
    terms: Result<Terms, HandshakeError>,
) -> Result<(Offer, SiteKey), HandshakeError> {
    if let Authenticator::Key(key) = auth {
        return Ok((Offer::Nothing, key.clone()));
    }
    let terms = terms?;
    let text = secret::to_json(&terms).map_err(|_| HandshakeError::Unreadable { what: "own offer" })?;
    let credential = auth.seal(text).await?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn good(age_s: u64) -> Option<(Instant, Arc<Made>)> {
        let at = Instant::now().checked_sub(Duration::from_secs(age_s)).unwrap();
        Some((at, Arc::new(Ok((Offer::Nothing, SiteKey::from_secret(&[1; 32]))))))
    }

    #[test]
    fn an_older_offer_serves_where_munged_makes_no_new_one() {
        let mut held = Held { good: good(0), failed: None };
        assert!(held.now().unwrap().is_ok());
        held.good = good(FRESH.as_secs());
        assert!(held.now().is_none(), "a new one is to be made");
        held.put(Err("munged is away".to_owned()));
        assert!(held.now().unwrap().is_ok(), "the older one is still good");
        held.good = good(KEPT.as_secs());
        assert!(held.now().unwrap().is_err(), "too old, and munged was just asked");
        held.failed = Some((Instant::now().checked_sub(PAUSE).unwrap(), Arc::new(Err(String::new()))));
        assert!(held.now().is_none(), "it is asked again");
    }
}
