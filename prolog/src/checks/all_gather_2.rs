//! `all_gather_2`: all-gather over the ranks of two nodes, all pairs of a round at the same time.

use diag::check::CheckName;

use super::collective::CollectiveCheck;
use crate::protocol::Collective;

/// The check.
pub(super) const CHECK: CollectiveCheck =
    CollectiveCheck { name: CheckName::AllGather2, collective: Collective::AllGather, by_rail: false };
