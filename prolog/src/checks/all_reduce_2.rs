//! `all_reduce_2`: all-reduce over the ranks of two nodes, all pairs of a round at the same time.

use diag::check::CheckName;

use super::collective::CollectiveCheck;
use crate::protocol::Collective;

/// The check.
pub(super) const CHECK: CollectiveCheck =
    CollectiveCheck { name: CheckName::AllReduce2, collective: Collective::AllReduce, by_rail: false };
