//! The site's policy.

use diag::policy::Policy;

use crate::holds;

/// What is read can be shown as a file, which reads as the same policy.
pub fn run(data: &[u8]) {
    let text = holds::text(data);
    let read = Policy::parse(&text);
    let policy = match read {
        Ok(policy) => policy,
        Err(list) => {
            assert_eq!(Policy::parse(&text).unwrap_err(), list);
            return holds::mistakes(&list);
        }
    };
    let shown = policy.to_toml().unwrap();
    let again = Policy::parse(&shown).unwrap_or_else(|list| panic!("{list:?} in\n{shown}"));
    assert_eq!(again, policy);
    assert_eq!(again.to_toml().unwrap(), shown);
    policy.c4d.check().unwrap();
    for device in policy.named_rdma() {
        assert!(!device.is_empty());
    }
}
