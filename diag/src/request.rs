//! What the user asked for: the request's types. How it is read, checked against the policy, sent and applied
//! is in the files of this folder; what a check measures is not known here.

pub mod canonical;
pub mod document;
pub mod effective;
pub mod mistake;
pub mod submission;
pub mod values;

use serde::{Deserialize, Serialize};

use crate::check::CheckName;

/// The checks that PAI's documentation has, which its users' documents name; the registry may have more.
#[cfg(test)]
const PAI_CHECKS: &[CheckName] = &[
    CheckName::GemmFlops,
    CheckName::KernelLaunch,
    CheckName::AllReduce1,
    CheckName::CompCommOverlap,
    CheckName::NetworkConnectivity,
    CheckName::PytorchGloo2,
    CheckName::AllReduce2,
    CheckName::AllGather2,
    CheckName::AllToAll2,
    CheckName::MultiAllReduce2,
    CheckName::AllReduce,
    CheckName::AllGather,
    CheckName::MultiAllReduce,
];

/// What happens to the job on a FAIL of the checks before start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailAction {
    /// Start, touch nothing.
    Retain,
    /// Start; nodes at fault leave service when this job ends.
    Drain,
    /// End before the user's program starts.
    Fail,
    /// Back to the queue, without the bad nodes.
    Requeue,
}

/// The checks before start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SanityRequest {
    /// Which, in registry order, no repeats, not empty.
    pub checks: Vec<CheckName>,
    /// What happens on a FAIL; `None`: nobody said, the site's or the built-in default holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail_action: Option<FailAction>,
    /// Minutes, 1 or more; `None`: the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_min: Option<u32>,
}

/// The check while the job runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuntimeRequest {
    /// What happens on a fault; `None`: the default, retain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail_action: Option<FailAction>,
}

/// Something asked for, switched off, or left to the site.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask<T> {
    /// Nobody said anything: the site's default holds.
    #[default]
    Site,
    /// `off`.
    Off,
    /// Asked for.
    On(T),
}

/// The request as it travels in `AIMASTER_REQUEST`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Before start.
    pub sanity: Ask<SanityRequest>,
    /// While the job runs.
    pub runtime: Ask<RuntimeRequest>,
    /// A lone `--sanity-fail-action`, applied if the site runs checks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lone_fail_action: Option<FailAction>,
    /// A lone `--sanity-timeout`, applied if the site runs checks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lone_timeout_min: Option<u32>,
}
