//! `multi_all_reduce_2`: rank i of both nodes of a pair forms communicator i, and all communicators reduce
//! at the same time: every byte crosses the network, one rail each.

use diag::check::CheckName;

use super::collective::CollectiveCheck;
use crate::protocol::Collective;

/// The check.
pub(super) const CHECK: CollectiveCheck =
    CollectiveCheck { name: CheckName::MultiAllReduce2, collective: Collective::AllReduce, by_rail: true };
