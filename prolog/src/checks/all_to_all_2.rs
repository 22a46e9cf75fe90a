//! `all_to_all_2`: all-to-all over the ranks of two nodes, all pairs of a round at the same time.

use diag::check::CheckName;

use super::collective::CollectiveCheck;
use crate::protocol::Collective;

/// The check.
pub(super) const CHECK: CollectiveCheck =
    CollectiveCheck { name: CheckName::AllToAll2, collective: Collective::AllToAll, by_rail: false };
