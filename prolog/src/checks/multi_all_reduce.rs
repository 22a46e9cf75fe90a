//! `multi_all_reduce`: rank i of every node forms communicator i, and all communicators reduce at the
//! same time; after a miss the same over pairs.

use diag::check::CheckName;

use super::collective::CollectiveCheck;
use crate::protocol::Collective;

/// The check.
pub(super) const CHECK: CollectiveCheck =
    CollectiveCheck { name: CheckName::MultiAllReduce, collective: Collective::AllReduce, by_rail: true };
