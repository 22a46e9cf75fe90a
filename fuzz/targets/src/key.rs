//! The key that the nodes of a step have in common, as the line of digits that `aimaster check` hands to each.

use cluster::auth::{Authenticator, MOST_KEY_BYTES, SiteKey, hex};
use zeroize::Zeroizing;

use crate::holds;

/// Fewest bytes of a key.
const LEAST_BYTES: usize = 32;

/// A text is a key if it is two digits a byte, of enough bytes and not too many; another spelling of it is the same key.
pub fn run(data: &[u8]) {
    let text = holds::text(data);
    let digits = text.trim();
    let bytes = digits.len() / 2;
    let is_key = digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        && digits.len() == 2 * bytes
        && bytes >= LEAST_BYTES
        && bytes as u64 <= MOST_KEY_BYTES;
    let key = SiteKey::from_hex(&text);
    assert_eq!(key.is_some(), is_key, "{digits:?}");
    let Some(key) = key else { return };
    let again = SiteKey::from_hex(&format!(" {}\n", digits.to_ascii_uppercase())).unwrap();
    let more = SiteKey::from_hex(&format!("{digits}{}", hex(&[0])));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let sealed = Authenticator::Key(key).seal(Zeroizing::new(b"word".to_vec())).await.unwrap();
        let opened = Authenticator::Key(again).open(sealed.clone()).await.unwrap();
        assert_eq!(opened.as_slice(), b"word");
        if let Some(more) = more {
            assert!(Authenticator::Key(more).open(sealed).await.is_err());
        }
    });
}
