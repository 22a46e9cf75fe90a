//! Credentials: what a stranger shows, and what stands inside of one that was made by the trusted user.
//!
//! The first byte says which: `s` a text in place of a credential sealed with the site's key, `c` a claim inside of a good
//! one. libmunge and munged themselves are not tried here.

use cluster::auth::{Authenticator, SiteKey};
use cluster::hostile;
use zeroize::Zeroizing;

use crate::holds;

/// Nothing is opened but what was sealed, and nobody is let in but another node of this job that answers this challenge.
pub fn run(data: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    match data {
        [b's', bytes @ ..] => runtime.block_on(sealed(bytes)),
        [b'c', bytes @ ..] => match hostile::claim(bytes) {
            Ok(peer) => assert!(peer == hostile::NODES[1] || peer == hostile::NODES[2], "{peer}"),
            Err(error) => holds::line(&error, 1024),
        },
        _ => {}
    }
}

async fn sealed(bytes: &[u8]) {
    let site = Authenticator::Key(SiteKey::from_secret(&[7; 64]));
    let other = Authenticator::Key(SiteKey::from_secret(&[8; 64]));
    // A text that nobody sealed.
    let forged = site.open(holds::text(bytes).into_owned()).await;
    holds::line(&forged.unwrap_err().to_string(), 200);
    let good = site.seal(Zeroizing::new(bytes.to_vec())).await.unwrap();
    assert_eq!(site.open(good.clone()).await.unwrap().as_slice(), bytes);
    assert!(other.open(good.clone()).await.is_err());
    // One digit is another one.
    let at = bytes.first().map_or(0, |byte| usize::from(*byte) * 7) % good.len();
    let digit = if good.as_bytes()[at] == b'0' { "1" } else { "0" };
    assert!(site.open(format!("{}{digit}{}", &good[..at], &good[at + 1..])).await.is_err());
    assert!(site.open(good[..at].to_owned()).await.is_err());
}
