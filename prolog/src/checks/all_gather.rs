//! `all_gather`: all-gather over the ranks of all nodes; after a miss the same over pairs.

use diag::check::CheckName;

use super::collective::CollectiveCheck;
use crate::protocol::Collective;

/// The check.
pub(super) const CHECK: CollectiveCheck =
    CollectiveCheck { name: CheckName::AllGather, collective: Collective::AllGather, by_rail: false };
