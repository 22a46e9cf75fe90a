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
