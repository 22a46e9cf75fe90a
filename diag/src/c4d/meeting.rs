//! One operation that some ranks are inside of: who waits in it, who has not come, who tells nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::c4d::digest::{Func, MAX_P2P};
use crate::c4d::picture::{Comm, Count, Member, Peer, Picture};

/// Which operation. The latest one that somebody waits in; earlier ones of the same kind end before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    /// The communicator's place.
    pub comm: usize,
    pub what: What,
}

/// What kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum What {
    /// A collective.
    Collective(Func),
    /// Sends of one rank that another one receives.
    Pair { from: u32, to: u32 },
}

/// Who is where. Ranks by their places in the picture.
#[derive(Debug, Clone, Default)]
pub(super) struct Meeting {
    /// Sequence number of the operation.
    pub seq: u64,
    /// Inside.
    pub waiting: Vec<usize>,
    /// Not there, and known to be not there.
    pub missing: Vec<usize>,
    /// Not known.
    pub unknown: Vec<usize>,
    /// Ranks that nobody told of.
    pub unheard: usize,
    /// When anything moved in it.
    pub moved_ms: u64,
}

/// What decides whether a rank is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    pub now_ms: u64,
    pub silent_ms: u64,
}

/// The least that a member of a communicator has called of a function: asked for again and again.
pub(super) type Least = BTreeMap<(usize, Func), u64>;

impl Picture {
    /// The operations that a rank is inside of. One whose kernels are not told is inside of what somebody else, whom it
    /// needs, has not called.
    pub(super) fn inside(&self, who: usize, least: &mut Least) -> Vec<Key> {
        let mut keys = Vec::new();
        let Some(rank) = self.rank(who) else { return keys };
        for seat in &rank.seats {
            let Some(comm) = self.comm(seat.comm).filter(|comm| !comm.ended) else { continue };
            let Some(member) = comm.members[seat.member].as_ref() else { continue };
            let mut behind = |func: Func| {
                let called =
                    || comm.known().map(|(_, member)| member.count(func).enqueued).min().unwrap_or(0);
                *least.entry((seat.comm, func)).or_insert_with(called)
            };
            let collectives = member.funcs.iter().filter(|(func, count)| {
                count.is_open() || !rank.kernels && func.synchronises() && count.enqueued > behind(*func)
            });
            keys.extend(collectives.map(|(func, _)| Key { comm: seat.comm, what: What::Collective(*func) }));
            keys.extend(self.open_pairs(comm, member).map(|what| Key { comm: seat.comm, what }));
        }
        keys
    }

    /// The sends and receives that a member is inside of.
    fn open_pairs<'a>(&'a self, comm: &'a Comm, member: &'a Member) -> impl Iterator<Item = What> + 'a {
        let kernels = self.rank(member.who).is_some_and(|rank| rank.kernels);
        let waits = move |peer: &Peer, count: &Count| {
            let other = || {
                let place = comm.by_rank.get(&peer.rank)?;
                comm.members[*place].as_ref()?.peer(Peer { rank: member.rank, send: !peer.send })
            };
            count.is_open() || !kernels && other().is_some_and(|other| count.enqueued > other.enqueued)
        };
        let open =
            member.peers.iter().filter(move |(peer, count)| peer.rank != member.rank && waits(peer, count));
        open.map(|(peer, _)| {
            let (from, to) = if peer.send { (member.rank, peer.rank) } else { (peer.rank, member.rank) };
            What::Pair { from, to }
        })
    }

    /// The operations of a communicator that somebody is inside of. What those that fell silent told last may be over.
    pub(super) fn open_in(&self, place: usize, at: At) -> Vec<Key> {
        let Some(comm) = self.comm(place).filter(|comm| !comm.ended) else { return Vec::new() };
        let mut keys = BTreeSet::new();
        let telling: Vec<&Member> = comm
            .known()
            .map(|(_, member)| member)
            .filter(|member| self.knows(comm, member.who, at))
            .collect();
        let funcs: BTreeSet<Func> =
            telling.iter().flat_map(|member| member.funcs.iter().map(|(func, _)| *func)).collect();
        for func in funcs {
            let counts = telling.iter().map(|member| (member, member.count(func)));
            let counts = counts.filter_map(|(member, count)| Some((self.rank(member.who)?.kernels, count)));
            if self.somebody_waits(func, counts) {
                keys.insert(Key { comm: place, what: What::Collective(func) });
            }
        }
        for member in telling {
            keys.extend(self.open_pairs(comm, member).map(|what| Key { comm: place, what }));
        }
        keys.into_iter().collect()
    }

    /// Whether any rank is inside. Without records of kernels that is told only by ranks that are ahead of others in
    /// what all must come to.
    fn somebody_waits(&self, func: Func, counts: impl Iterator<Item = (bool, Count)>) -> bool {
        let (mut open, mut least, mut most, mut blind) = (false, u64::MAX, 0, false);
        for (kernels, count) in counts {
            open |= count.is_open();
            blind |= !kernels;
            least = least.min(count.enqueued);
            most = most.max(count.enqueued);
        }
        open || (blind && func.synchronises() && most > least)
    }

    /// Whether a rank told that it is inside of this kind of operation.
    pub(super) fn is_open(&self, who: usize, key: Key) -> bool {
        let member = || {
            let comm = self.comm(key.comm)?;
            let seat = self.rank(who)?.seats.iter().find(|seat| seat.comm == key.comm)?;
            comm.members[seat.member].as_ref()
        };
        member().is_some_and(|member| match key.what {
            What::Collective(func) => member.count(func).is_open(),
            What::Pair { from, to } => {
                let send = member.rank == from;
                let peer = Peer { rank: if send { to } else { from }, send };
                member.peer(peer).is_some_and(|count| count.is_open())
            }
        })
    }

    /// Who is where in an operation.
    pub(super) fn meeting(&self, key: Key, at: At) -> Meeting {
        match (self.comm(key.comm), key.what) {
            (None, _) => Meeting::default(),
            (Some(comm), What::Collective(func)) => self.collective(comm, func, at),
            (Some(comm), What::Pair { from, to }) => self.pair(comm, from, to, at),
        }
    }

    /// Whether it is known how far a rank is in what stands still: it tells of itself, or told late enough after everything
    /// stopped, or has ended and will never come.
    pub(super) fn knows(&self, comm: &Comm, who: usize, at: At) -> bool {
        let Some(rank) = self.rank(who) else { return false };
        let told = rank.heard_ms >= comm.moved_ms.saturating_add(at.silent_ms) && rank.unavailable.is_none();
        rank.state.ended() || told || self.tells(rank, at.now_ms, at.silent_ms)
    }

    fn collective(&self, comm: &Comm, func: Func, at: At) -> Meeting {
        let kernels = |member: &Member| self.rank(member.who).is_some_and(|rank| rank.kernels);
        let members = || comm.known().map(|(_, member)| (member, member.count(func)));
        // The count that whoever waits needs everybody to have come to.
        let seeing = members().filter(|(member, count)| count.is_open() && self.knows(comm, member.who, at));
        let needed = seeing.map(|(_, count)| count.finished + 1).max().or_else(|| {
            let known = members().filter(|(member, _)| self.knows(comm, member.who, at));
            known.map(|(_, count)| count.enqueued + 1).min()
        });
        let needed = needed.unwrap_or(1);
        let mut meeting = Meeting { seq: needed - 1, ..Meeting::default() };
        for (member, count) in members() {
            let come = if kernels(member) { count.started } else { count.enqueued };
            meeting.moved_ms = meeting.moved_ms.max(count.moved_ms);
            if count.finished >= needed {
                continue;
            }
            // One that is inside an earlier one waits too: it needs the same ranks.
            let inside = come >= needed || count.is_open();
            match (self.knows(comm, member.who, at), inside) {
                (false, _) => meeting.unknown.push(member.who),
                (true, true) => meeting.waiting.push(member.who),
                (true, false) => meeting.missing.push(member.who),
            }
        }
        meeting.unheard = comm.nranks as usize - comm.by_rank.len();
        meeting
    }

    fn pair(&self, comm: &Comm, from: u32, to: u32, at: At) -> Meeting {
        let end = |rank: u32, peer: Peer| {
            let member = comm.members[*comm.by_rank.get(&rank)?].as_ref()?;
            // Of one that talks to more peers than it tells of, silence says nothing.
            let told = member.peer(peer).or_else(|| (member.peers.len() < MAX_P2P).then(Count::default));
            Some((member, told))
        };
        let ends = [end(from, Peer { rank: to, send: true }), end(to, Peer { rank: from, send: false })];
        let known = ends.iter().flatten().filter(|(member, _)| self.knows(comm, member.who, at));
        let known: Vec<Count> = known.filter_map(|(_, count)| *count).collect();
        let open = known.iter().filter(|count| count.is_open());
        let needed = open.map(|count| count.finished + 1).max();
        // Where nobody tells of kernels, it is what one end has called and the other has not.
        let needed =
            needed.or_else(|| Some(known.iter().map(|count| count.enqueued).min()? + 1)).unwrap_or(1);
        let mut meeting = Meeting { seq: needed - 1, ..Meeting::default() };
        // Both ends count by themselves. One that missed records counts less ever after: then only who is inside says
        // something.
        let counts_agree = ends
            .iter()
            .flatten()
            .all(|(member, _)| self.rank(member.who).is_some_and(|rank| rank.lost_ms.is_none()));
        for end in ends {
            let Some((member, count)) = end else {
                meeting.unheard += 1;
                continue;
            };
            meeting.moved_ms = meeting.moved_ms.max(count.unwrap_or_default().moved_ms);
            match count {
                // One that is through waits for nobody here.
                Some(count) if counts_agree && count.finished >= needed => {}
                Some(count) if self.knows(comm, member.who, at) => {
                    let kernels = self.rank(member.who).is_some_and(|rank| rank.kernels);
                    let come = if kernels { count.started } else { count.enqueued };
                    let inside = count.is_open() || (counts_agree && come >= needed);
                    if inside { meeting.waiting.push(member.who) } else { meeting.missing.push(member.who) }
                }
                _ => meeting.unknown.push(member.who),
            }
        }
        meeting
    }
}
