//! How a request travels: canonical JSON in base64url, small enough for an environment variable. What comes
//! back is a stranger's word: bounded, checked again, and accepted only in the one form that encoding gives.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::request::{Ask, FailAction, Request};

/// Longest encoded request. A full request needs about 400 bytes; the rest is room for later fields, and small
/// beside what Slurm allows for a job's environment.
pub const MAX_ENCODED_BYTES: usize = 4096;

/// Why a request can't be sent.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// A rule of [`Request`] is broken.
    #[error("the request breaks a rule: {0}")]
    Broken(#[from] Broken),
    /// Too long.
    #[error("the request has {bytes} bytes, at most {MAX_ENCODED_BYTES} can be sent")]
    TooLong {
        /// Its encoded length.
        bytes: usize,
    },
    /// JSON could not be written.
    #[error("the request can't be written as JSON")]
    Json(#[source] serde_json::Error),
}

/// Why a text is not a request.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Too long.
    #[error("AIMASTER_REQUEST has {bytes} bytes, at most {MAX_ENCODED_BYTES} are read")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Not base64url.
    #[error("AIMASTER_REQUEST is not base64url without padding")]
    Base64(#[source] base64::DecodeError),
    /// Not the JSON of a request.
    #[error("AIMASTER_REQUEST holds no request that this version knows")]
    Json(#[source] serde_json::Error),
    /// A rule of [`Request`] is broken.
    #[error("AIMASTER_REQUEST breaks a rule: {0}")]
    Broken(#[from] Broken),
    /// The same request is written in another way.
    #[error("AIMASTER_REQUEST is not in canonical form: it was not written by this software's plugin")]
    NotCanonical,
}

/// A rule of [`Request`] that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// `sanity.checks` is empty.
    #[error("the list of checks is empty")]
    NoChecks,
    /// `sanity.checks` is out of order or repeats one.
    #[error("the checks are not in registry order, or one is repeated")]
    Order,
    /// A timeout is 0.
    #[error("the timeout is 0 minutes")]
    NoTime,
    /// A lone action or timeout next to checks that have their own.
    #[error("a lone action or timeout stands next to checks that were asked for")]
    NotLone,
    /// `runtime.fail_action` is `fail`.
    #[error("the runtime check takes retain, drain or requeue, not fail")]
    RuntimeFail,
}

impl Request {
    /// Whether nothing was asked for, allowed or forbidden: then there is nothing to send.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        *self == Self::default()
    }

    /// The rules that the types don't hold by themselves.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check_rules(&self) -> Result<(), Broken> {
        let mut timeout_min = self.lone_timeout_min;
        if let Ask::On(sanity) = &self.sanity {
            if sanity.checks.is_empty() {
                return Err(Broken::NoChecks);
            }
            if !sanity.checks.is_sorted_by(|a, b| a < b) {
                return Err(Broken::Order);
            }
            if self.lone_fail_action.is_some() || self.lone_timeout_min.is_some() {
                return Err(Broken::NotLone);
            }
            timeout_min = sanity.timeout_min;
        }
        if timeout_min == Some(0) {
            return Err(Broken::NoTime);
        }
        if let Ask::On(runtime) = &self.runtime
            && runtime.fail_action == Some(FailAction::Fail)
        {
            return Err(Broken::RuntimeFail);
        }
        Ok(())
    }

    /// The canonical JSON: what is sent, and what a digest of the request is made of.
    ///
    /// # Errors
    /// If a rule of the request is broken.
    pub fn digest_input(&self) -> Result<Vec<u8>, EncodeError> {
        self.check_rules()?;
        serde_json::to_vec(self).map_err(EncodeError::Json)
    }

    /// The request as `AIMASTER_REQUEST` carries it.
    ///
    /// # Errors
    /// If a rule of the request is broken, or it is longer than [`MAX_ENCODED_BYTES`].
    pub fn encode(&self) -> Result<String, EncodeError> {
        let text = URL_SAFE_NO_PAD.encode(self.digest_input()?);
        if text.len() > MAX_ENCODED_BYTES {
            return Err(EncodeError::TooLong { bytes: text.len() });
        }
        Ok(text)
    }

    /// Reads what [`Request::encode`] wrote; anything else is refused.
    ///
    /// # Errors
    /// If it is longer than [`MAX_ENCODED_BYTES`], not base64url, not JSON of a request, breaks a rule, or is
    /// not the canonical form.
    pub fn decode(text: &str) -> Result<Self, DecodeError> {
        if text.len() > MAX_ENCODED_BYTES {
            return Err(DecodeError::TooLong { bytes: text.len() });
        }
        let json = URL_SAFE_NO_PAD.decode(text).map_err(DecodeError::Base64)?;
        let request: Self = serde_json::from_slice(&json).map_err(DecodeError::Json)?;
        request.check_rules()?;
        let canonical = serde_json::to_vec(&request).map_err(DecodeError::Json)?;
        if canonical != json {
            return Err(DecodeError::NotCanonical);
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{ALL, CheckName};
    use crate::request::{RuntimeRequest, SanityRequest};
    use proptest::prelude::*;

    fn send(json: &str) -> Result<Request, DecodeError> {
        Request::decode(&URL_SAFE_NO_PAD.encode(json))
    }

    fn action() -> impl Strategy<Value = Option<FailAction>> {
        use FailAction::{Drain, Fail, Requeue, Retain};
        prop::option::of(prop::sample::select(vec![Retain, Drain, Fail, Requeue]))
    }

    fn sanity() -> impl Strategy<Value = Ask<SanityRequest>> {
        let names: Vec<CheckName> = ALL.iter().map(|spec| spec.name).collect();
        let on = (prop::sample::subsequence(names, 1..=ALL.len()), action(), prop::option::of(1u32..));
        prop_oneof![
            Just(Ask::Site),
            Just(Ask::Off),
            on.prop_map(|(checks, fail_action, timeout_min)| {
                Ask::On(SanityRequest { checks, fail_action, timeout_min })
            })
        ]
    }

    fn runtime() -> impl Strategy<Value = Ask<RuntimeRequest>> {
        let fits = |action: &Option<FailAction>| *action != Some(FailAction::Fail);
        let on = action().prop_filter("the runtime check never fails a start", fits);
        prop_oneof![
            Just(Ask::Site),
            Just(Ask::Off),
            on.prop_map(|fail_action| Ask::On(RuntimeRequest { fail_action }))
        ]
    }

    proptest! {
        #[test]
        fn what_is_sent_comes_back(
            sanity in sanity(), runtime in runtime(), action in action(), minutes in prop::option::of(1u32..)
        ) {
            let alone = !matches!(sanity, Ask::On(_));
            let request = Request {
                sanity,
                runtime,
                lone_fail_action: action.filter(|_| alone),
                lone_timeout_min: minutes.filter(|_| alone),
            };
            let text = request.encode().unwrap();
            prop_assert!(text.len() <= MAX_ENCODED_BYTES / 4);
            prop_assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'));
            prop_assert_eq!(Request::decode(&text).unwrap(), request);
        }

        #[test]
        fn any_text_is_refused_or_is_a_sound_request(text in "[A-Za-z0-9_=-]{0,80}|.{0,40}") {
            if let Ok(request) = Request::decode(&text) {
                prop_assert_eq!(request.encode().unwrap(), text);
            }
        }

        #[test]
        fn a_changed_byte_is_refused_or_gives_another_sound_request(
            sanity in sanity(), at in any::<prop::sample::Index>(), to in any::<u8>()
        ) {
            let request = Request { sanity, ..Request::default() };
            let mut json = request.digest_input().unwrap();
            let at = at.index(json.len());
            json[at] = to;
            if let Ok(other) = Request::decode(&URL_SAFE_NO_PAD.encode(&json)) {
                prop_assert_eq!(other.digest_input().unwrap(), json);
            }
        }
    }

    #[test]
    fn the_canonical_form_does_not_drift() {
        let request = Request {
            sanity: Ask::On(SanityRequest {
                checks: vec![CheckName::GemmFlops, CheckName::AllReduce1],
                fail_action: Some(FailAction::Requeue),
                timeout_min: None,
            }),
            ..Request::default()
        };
        let json = r#"{"sanity":{"on":{"checks":["gemm_flops","all_reduce_1"],"fail_action":"requeue"}},"runtime":"site"}"#;
        assert_eq!(String::from_utf8(request.digest_input().unwrap()).unwrap(), json);
        assert_eq!(send(json).unwrap(), request);
        assert!(Request::default().is_silent() && !request.is_silent());
    }

    #[test]
    fn hostile_texts_are_refused() {
        use DecodeError as E;
        let on = |rest: &str| send(&format!(r#"{{"sanity":{{"on":{{{rest}}}}},"runtime":"site"}}"#));
        assert!(matches!(on(r#""checks":[]"#), Err(E::Broken(Broken::NoChecks))));
        assert!(matches!(on(r#""checks":["all_reduce_1","gemm_flops"]"#), Err(E::Broken(Broken::Order))));
        assert!(matches!(on(r#""checks":["gemm_flops","gemm_flops"]"#), Err(E::Broken(Broken::Order))));
        assert!(matches!(on(r#""checks":["gemm_flops"],"timeout_min":0"#), Err(E::Broken(Broken::NoTime))));
        assert!(matches!(on(r#""checks":["gemm_flops"],"timeout_min":-1"#), Err(E::Json(_))));
        assert!(matches!(on(r#""checks":["gemm_flops"],"shell":"x""#), Err(E::Json(_))));
        assert!(matches!(on(r#""checks":["gemm_flops"],"checks":["gemm_flops"]"#), Err(E::Json(_))));
        assert!(matches!(on(r#""checks": ["gemm_flops"]"#), Err(E::NotCanonical)));
        assert!(matches!(on(r#""checks":["rm -rf"]"#), Err(E::Json(_))));
        assert!(matches!(send(r#"{"sanity":"site","runtime":"site"} x"#), Err(E::Json(_))));
        assert!(matches!(
            send(r#"{"sanity":"site","runtime":"site","lone_timeout_min":0}"#),
            Err(E::Broken(Broken::NoTime))
        ));
        assert!(matches!(
            send(r#"{"sanity":{"on":{"checks":["gemm_flops"]}},"runtime":"site","lone_timeout_min":1}"#),
            Err(E::Broken(Broken::NotLone))
        ));
        assert!(matches!(
            send(r#"{"sanity":"site","runtime":{"on":{"fail_action":"fail"}}}"#),
            Err(E::Broken(Broken::RuntimeFail))
        ));
        assert!(matches!(Request::decode(""), Err(E::Json(_))));
        assert!(matches!(Request::decode("e30="), Err(E::Base64(_))));
        assert!(matches!(Request::decode("e3\n0"), Err(E::Base64(_))));
        assert!(matches!(Request::decode(&"A".repeat(MAX_ENCODED_BYTES + 1)), Err(E::TooLong { .. })));
        assert!(matches!(send(&"[".repeat(3000)), Err(E::Json(_))));
    }

    #[test]
    fn a_broken_request_is_not_sent() {
        let broken = Request { lone_timeout_min: Some(0), ..Request::default() };
        assert!(matches!(broken.encode(), Err(EncodeError::Broken(Broken::NoTime))));
    }
}
