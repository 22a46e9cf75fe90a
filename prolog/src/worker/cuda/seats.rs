//! Which rank of this node sits in which communicator, once its nodes have agreed on it; and what keeps a communicator from
//! being made. Who sits where is the coordinator's word.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use kernels::nccl::Place;

use super::super::timed::{Cancel, Until};
use super::agreement::{self, Agreed, Mine, UniqueId};
use super::collective::{Work, in_a_collective};
use super::doing::Flaw;
use super::gpu::{Gpu, Members, words};
use super::ranks::Ranks;
use crate::protocol::{Collected, Member, Trouble};

/// Share of the limit in which a communicator must stand.
pub(super) const INIT_SHARE: f64 = 0.5;

/// The longest wait for a GPU to say whether its work is done, which takes microseconds: the rest of the limit is the
/// collective's. At most a quarter of the limit.
const ASK: Duration = Duration::from_secs(5);

/// Where a rank of this node stands in which communicator.
#[derive(Debug, Clone)]
pub(super) struct Seat {
    pub members: Members,
    pub place: Place,
    pub agreed: Agreed,
    /// Ends the waits of this node's ranks in this communicator: one of them can't go on.
    pub stop: Cancel,
}

/// Ends the waits of all ranks that have a seat, where the request itself is cancelled.
pub(super) fn stop_with(until: &Until, seats: &BTreeMap<usize, (usize, Seat)>) {
    if until.cancelled() {
        seats.values().for_each(|(_, seat)| seat.stop.store(true, Ordering::Relaxed));
    }
}

/// Which rank of this node sits where.
pub(super) struct Seats {
    /// By rank: the communicator and the seat in it.
    pub seats: BTreeMap<usize, (usize, Seat)>,
    /// What became of the communicators that were not agreed on.
    pub missing: BTreeMap<usize, Collected>,
}

/// Agrees with the other nodes on all communicators at once. The ranks join them at once too, each on its GPU's thread.
pub(super) fn seats(
    ranks: &Ranks<Gpu>,
    work: &Work<'_>,
    communicators: &[Vec<Member>],
    until: &Until,
) -> Result<Seats, String> {
    let me = work.host.node();
    let own = |members: &[Member]| -> Vec<(usize, usize)> {
        let places = members.iter().enumerate().filter(|(_, member)| member.node == me);
        places.map(|(place, member)| (place, member.rank as usize)).collect()
    };
    let mut taken = BTreeSet::new();
    for members in communicators {
        let own = own(members);
        if own.is_empty() || members.len() < 2 {
            return Err("a communicator needs two ranks, one of them of this node".to_owned());
        }
        if !own.into_iter().all(|(_, rank)| taken.insert(rank)) {
            return Err("a rank can't be in two communicators at a time".to_owned());
        }
    }
    // A GPU that has failed for good says so now, so that nobody waits for it in a collective.
    let asked = ranks.each(&until.at_most(ASK.min(until.left() / 4)), |_, gpu, _| {
        gpu.doing.at("asking whether its stream is done (cuStreamQuery)");
        gpu.stream.is_done()?;
        Ok(gpu.comms.iter().map(|(members, held)| (members.clone(), held.id)).collect())
    });
    let held: Vec<HeldBy> = asked.into_iter().map(|one| one.and_then(|one| one)).collect();
    let mut missing = BTreeMap::new();
    let mut wanted: Vec<(&[Member], Mine)> = Vec::new();
    for (at, members) in communicators.iter().enumerate() {
        let flaw = |rank: usize| match held.get(rank) {
            Some(Ok(_)) => None,
            Some(Err(flaw)) => Some(flaw.clone()),
            None => Some(Flaw::failed(format!("rank {rank} is none of the {} of this node", held.len()))),
        };
        let troubles: Vec<Trouble> = own(members)
            .iter()
            .filter_map(|(_, rank)| Some(in_a_collective(flaw(*rank)?).of(*rank)))
            .collect();
        let mine = if troubles.is_empty() {
            Mine::Holds(same(&names(members), own(members).iter().map(|(_, rank)| held.get(*rank))))
        } else {
            missing.insert(at, Collected::Broken(troubles));
            Mine::Broken
        };
        wanted.push((members.as_slice(), mine));
    }
    let half = until.at_most(until.left().mul_f64(INIT_SHARE));
    let name = || work.nccl.unique_id(half.left()).map_err(words);
    let agreed = agreement::agree_on_all(work.host, work.tag, &wanted, name, &half);
    let mut seats = BTreeMap::new();
    for (at, (members, agreed)) in communicators.iter().zip(agreed).enumerate() {
        let why = match agreed {
            Ok(agreed) => {
                let stop = Cancel::default();
                for (place, rank) in own(members) {
                    let place = Place { ranks: count(members.len()), rank: count(place) };
                    let (agreed, stop) = (agreed.clone(), Cancel::clone(&stop));
                    let seat = Seat { members: names(members), place, agreed, stop };
                    seats.insert(rank, (at, seat));
                }
                continue;
            }
            Err(agreement::Trouble::Unreachable(way)) => Collected::Unreachable(vec![way]),
            Err(agreement::Trouble::ElsewhereBroken) => Collected::PeerBroken,
            Err(agreement::Trouble::Own(message)) => return Err(message),
        };
        // What is wrong with an own rank comes first.
        missing.entry(at).or_insert(why);
    }
    Ok(Seats { seats, missing })
}

fn names(members: &[Member]) -> Members {
    members.iter().map(|member| (member.node, member.rank)).collect()
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The communicators that a rank holds, or why it can't say.
type HeldBy = Result<BTreeMap<Members, UniqueId>, Flaw>;

/// The name of the communicator that all of these ranks hold for these members, if they do.
fn same<'h>(members: &Members, ranks: impl IntoIterator<Item = Option<&'h HeldBy>>) -> Option<UniqueId> {
    let mut ids = ranks.into_iter().map(|held| held?.as_ref().ok()?.get(members).copied());
    let first = ids.next()??;
    ids.all(|id| id == Some(first)).then_some(first)
}
