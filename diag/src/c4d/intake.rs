//! Takes digests into the picture. What contradicts itself, or what other nodes told before, is left out and said.

use std::collections::BTreeMap;

use crate::c4d::digest::{self, Digest, Progress, Telemetry, clean};
use crate::c4d::gaps::Gaps;
use crate::c4d::picture::{Comm, Count, MAX_PROCESSES, Member, Peer, Picture, Rank, Seat};
use crate::c4d::settings::Settings;
use crate::c4d::timing::Timing;
use crate::facts::NodeId;

/// How far two tellings of when a communicator was made may lie apart before they are two communicators.
const SAME_BIRTH_MS: u64 = 5_000;

impl Picture {
    /// Takes one digest. One that is refused leaves its node unknown.
    pub(super) fn take(&mut self, digest: &Digest, now_ms: u64, settings: &Settings) {
        let Some(node) = self.nodes.get_mut(digest.node as usize) else { return };
        if let Err(mistakes) = digest.check() {
            node.refused = Some(clean(&mistakes.join("; ")));
            return;
        }
        let repeated = node.heard_ms.is_some() && digest.number <= node.number && digest.number != 0;
        if repeated {
            return;
        }
        node.heard_ms = Some(now_ms);
        node.number = digest.number;
        node.refused = None;
        node.ending_ms = digest.ending.then(|| node.ending_ms.unwrap_or(now_ms));
        for rank in &digest.ranks {
            self.take_rank(digest.node, rank, now_ms, settings);
        }
    }

    fn take_rank(&mut self, node: NodeId, told: &digest::Rank, now_ms: u64, settings: &Settings) {
        let Some(who) = self.place_of(node, told.pid, now_ms) else { return };
        let Some(rank) = self.ranks[who].as_mut() else { return };
        rank.task = told.task.or(rank.task);
        if let Some(gpu) = &told.gpu {
            rank.gpu = Some(gpu.index);
            rank.gpu_uuid.clone_from(&gpu.uuid);
        }
        rank.busy_percent = told.gpu.as_ref().and_then(|gpu| gpu.busy_percent);
        rank.state = told.process.state;
        rank.wchan.clone_from(&told.process.wchan);
        rank.io_bytes = told.process.io_bytes;
        rank.kernels = told.kernels;
        rank.heard_ms = now_ms;
        rank.unavailable = None;
        match &told.telemetry {
            Telemetry::Ok => {}
            Telemetry::Lost { .. } => rank.lost_ms = Some(now_ms),
            Telemetry::Unavailable { why } => rank.unavailable = Some(why.clone()),
        }
        // One without telemetry told nothing of its communicators: what was known of them stays as it was.
        if rank.unavailable.is_some() {
            return;
        }
        // One that has ended tells nothing new; others may still wait for it.
        let seats = if rank.state.ended() { Vec::new() } else { rank.seats.clone() };
        for seat in seats.iter().filter(|seat| told.comms.iter().all(|comm| comm.id != seat.id)) {
            self.leave(who, *seat);
        }
        for comm in &told.comms {
            self.take_comm(who, comm, now_ms, settings);
        }
    }

    /// Notes which of the ranks that were heard now work, once all were heard: how busy a GPU is says nothing of one of
    /// several ranks that use it. Ranks of two nodes do so where nodes share a machine.
    pub(super) fn note_work(&mut self, now_ms: u64, settings: &Settings) {
        let mut users: BTreeMap<&str, u32> = BTreeMap::new();
        for rank in self.ranks.iter().flatten().filter(|rank| rank.uses_known_gpu()) {
            *users.entry(&rank.gpu_uuid).or_default() += 1;
        }
        let is_shared = |rank: &Rank| rank.uses_known_gpu() && users.get(rank.gpu_uuid.as_str()) > Some(&1);
        let shared: Vec<bool> = self.ranks.iter().map(|rank| rank.as_ref().is_some_and(is_shared)).collect();
        for (rank, shared) in self.ranks.iter_mut().zip(shared) {
            let Some(rank) = rank.as_mut().filter(|rank| rank.heard_ms == now_ms) else { continue };
            rank.shares_gpu = shared;
            if shared {
                rank.busy_percent = None;
            }
            let busy = rank.busy_percent.is_some_and(|busy| busy >= settings.busy_percent);
            if busy || rank.io_bytes.is_some_and(|bytes| bytes >= settings.busy_io_bytes) {
                rank.worked_ms = Some(now_ms);
            }
        }
    }

    /// The place of a process; `None`: its node has too many.
    fn place_of(&mut self, node: NodeId, pid: u32, now_ms: u64) -> Option<usize> {
        if let Some(who) = self.by_pid.get(&(node, pid)) {
            return Some(*who);
        }
        let of_node = self.by_pid.range((node, 0)..=(node, u32::MAX));
        let mut count = 0;
        let oldest = of_node
            .inspect(|_| count += 1)
            .filter_map(|(_, who)| Some((self.ranks[*who].as_ref()?.heard_ms, *who)))
            .min();
        if count >= MAX_PROCESSES {
            // Those of this very digest are needed; one that was told before goes.
            let (heard_ms, who) = oldest?;
            if heard_ms == now_ms {
                return None;
            }
            self.forget_rank(who);
        }
        let rank = Rank {
            node,
            pid,
            task: None,
            gpu: None,
            gpu_uuid: String::new(),
            shares_gpu: false,
            busy_percent: None,
            state: digest::ProcessState::Sleeping,
            wchan: String::new(),
            io_bytes: None,
            unavailable: None,
            lost_ms: None,
            kernels: false,
            heard_ms: now_ms,
            moved_ms: 0,
            worked_ms: None,
            seats: Vec::new(),
            received: 0,
            p2p_us: 0,
        };
        let who = self.free_ranks.pop().unwrap_or_else(|| {
            self.ranks.push(None);
            self.ranks.len() - 1
        });
        self.ranks[who] = Some(rank);
        self.by_pid.insert((node, pid), who);
        Some(who)
    }

    fn take_comm(&mut self, who: usize, told: &digest::Comm, now_ms: u64, settings: &Settings) {
        let born_ms = now_ms.saturating_sub(told.age_ms);
        let Some(seat) = self.seat(who, told, born_ms) else { return };
        let (Some(comm), Some(rank)) = (self.comms[seat.comm].as_mut(), self.ranks[who].as_mut()) else {
            return;
        };
        comm.ended |= told.ended;
        let Some(member) = comm.members[seat.member].as_mut() else { return };
        if born_ms > member.born_ms + SAME_BIRTH_MS {
            // The id is used again: nothing of before counts.
            *member = Member { born_ms, funcs: Vec::new(), peers: Vec::new(), ..*member };
        }
        let mut moved_ms = 0;
        for one in &told.collectives {
            let place = member.funcs.iter().position(|(func, _)| *func == one.func);
            let place = place.unwrap_or_else(|| {
                member.funcs.reserve_exact(1);
                member.funcs.push((one.func, Count::default()));
                member.funcs.len() - 1
            });
            moved_ms = moved_ms.max(member.funcs[place].1.take(&one.progress, now_ms));
        }
        take_peers(member, told, now_ms, &mut moved_ms);
        for one in &told.p2p {
            // Counters are a user's: what does not fit stays at the end of its range.
            rank.p2p_us = rank.p2p_us.saturating_add(u64::from(one.kernel_us));
            rank.received = rank.received.saturating_add(if one.send { 0 } else { one.progress.bytes });
        }
        let begun = |counts: &mut dyn Iterator<Item = Count>| {
            counts.fold(0, |sum: u64, one| sum.saturating_add(one.started.max(one.enqueued)))
        };
        let sync_ops: u64 =
            begun(&mut member.funcs.iter().filter(|(func, _)| func.synchronises()).map(|one| one.1));
        let all_ops: u64 =
            begun(&mut member.funcs.iter().map(|one| one.1).chain(member.peers.iter().map(|one| one.1)));
        comm.sync_ops = comm.sync_ops.max(sync_ops);
        comm.ops = comm.ops.max(all_ops);
        rank.moved_ms = rank.moved_ms.max(moved_ms).max(born_ms);
        comm.moved_at(moved_ms);
        if comm.nranks > 1 {
            for sample in &told.samples {
                comm.timing.take(seat.member, sample, now_ms, settings);
            }
        }
        if !told.steps.is_empty() {
            self.take_steps(who, seat.comm, &told.steps, now_ms);
        }
    }

    /// Where a process sits in a communicator; `None`: what it tells contradicts what others told.
    fn seat(&mut self, who: usize, told: &digest::Comm, born_ms: u64) -> Option<Seat> {
        if let Some(seat) = self.ranks[who].as_ref()?.seats.iter().find(|seat| seat.id == told.id) {
            let comm = self.comms[seat.comm].as_ref()?;
            let same = comm.members[seat.member].as_ref()?.rank == told.rank && comm.nranks == told.nranks;
            return same.then_some(*seat);
        }
        let at = match self.by_id.get(&told.id) {
            Some(at) => *at,
            None => self.new_comm(told, born_ms),
        };
        let comm = self.comms[at].as_mut()?;
        if comm.nranks != told.nranks {
            return None;
        }
        if let Some(place) = comm.by_rank.get(&told.rank).copied() {
            // Another process has that rank: it gives way if it has ended, or was not heard since.
            let other = comm.members[place].as_ref()?.who;
            let rank = self.ranks[other].as_ref()?;
            let (old, mine) = (rank.state.ended(), self.ranks[who].as_ref()?.heard_ms);
            if !old && rank.heard_ms + SAME_BIRTH_MS >= mine {
                return None;
            }
            let seat = Seat { id: told.id, comm: at, member: place };
            self.leave(other, seat);
        }
        let at = match self.by_id.get(&told.id) {
            Some(at) => *at,
            None => self.new_comm(told, born_ms),
        };
        let comm = self.comms[at].as_mut()?;
        let member = Member { rank: told.rank, who, born_ms, funcs: Vec::new(), peers: Vec::new() };
        let free = if comm.by_rank.len() < comm.members.len() {
            comm.members.iter().position(Option::is_none)
        } else {
            None
        };
        let place = free.unwrap_or_else(|| {
            comm.members.push(None);
            comm.members.len() - 1
        });
        comm.members[place] = Some(member);
        comm.by_rank.insert(told.rank, place);
        let seat = Seat { id: told.id, comm: at, member: place };
        self.ranks[who].as_mut()?.seats.push(seat);
        Some(seat)
    }

    fn new_comm(&mut self, told: &digest::Comm, born_ms: u64) -> usize {
        let comm = Comm {
            id: told.id,
            name: told.name.clone(),
            nranks: told.nranks,
            nnodes: told.nnodes,
            members: Vec::new(),
            by_rank: BTreeMap::new(),
            ended: false,
            moved_ms: born_ms,
            ops: 0,
            sync_ops: 0,
            gaps: Gaps::default(),
            timing: Timing::default(),
        };
        let at = self.free_comms.pop().unwrap_or_else(|| {
            self.comms.push(None);
            self.comms.len() - 1
        });
        self.comms[at] = Some(comm);
        self.by_id.insert(told.id, at);
        at
    }

    /// A process is no longer in a communicator: that one is over, and with its last member it is forgotten.
    fn leave(&mut self, who: usize, seat: Seat) {
        if let Some(rank) = self.ranks[who].as_mut() {
            rank.seats.retain(|one| one.id != seat.id);
        }
        let Some(comm) = self.comms[seat.comm].as_mut() else { return };
        comm.ended = true;
        if let Some(member) = comm.members[seat.member].take() {
            comm.by_rank.remove(&member.rank);
        }
        comm.timing.forget_places();
        if comm.by_rank.is_empty() {
            self.by_id.remove(&seat.id);
            self.comms[seat.comm] = None;
            self.free_comms.push(seat.comm);
        }
    }

    /// Forgets processes that their node tells nothing of any more. Those of a silent node stay: others wait for them.
    pub(super) fn expire(&mut self, settings: &Settings) {
        let heard = |node: NodeId| self.nodes.get(node as usize).and_then(|node| node.heard_ms).unwrap_or(0);
        let old: Vec<usize> = self
            .live_ranks()
            .filter(|(_, rank)| rank.heard_ms + settings.expire_ms < heard(rank.node))
            .map(|(who, _)| who)
            .collect();
        for who in old {
            self.forget_rank(who);
        }
    }

    fn forget_rank(&mut self, who: usize) {
        let Some(rank) = self.ranks[who].as_ref() else { return };
        let (key, seats) = ((rank.node, rank.pid), rank.seats.clone());
        for seat in seats {
            self.leave(who, seat);
        }
        self.by_pid.remove(&key);
        self.ranks[who] = None;
        self.free_ranks.push(who);
    }
}

fn take_peers(member: &mut Member, told: &digest::Comm, now_ms: u64, moved_ms: &mut u64) {
    for one in &told.p2p {
        let peer = Peer { rank: one.peer, send: one.send };
        let place = member.peers.iter().position(|(known, _)| *known == peer);
        let place = place.unwrap_or_else(|| {
            if member.peers.len() == digest::MAX_P2P {
                // The one that stood still longest tells least.
                let oldest = member.peers.iter().enumerate().min_by_key(|(_, (_, count))| count.moved_ms);
                let oldest = oldest.map_or(0, |(place, _)| place);
                member.peers.swap_remove(oldest);
            }
            member.peers.reserve_exact(1);
            member.peers.push((peer, Count::default()));
            member.peers.len() - 1
        });
        *moved_ms = (*moved_ms).max(member.peers[place].1.take(&one.progress, now_ms));
    }
}

impl Rank {
    /// Whether its process lives and its GPU is known by its UUID.
    fn uses_known_gpu(&self) -> bool {
        !self.state.ended() && !self.gpu_uuid.is_empty()
    }
}

impl Count {
    /// Takes what was told; when it moved.
    fn take(&mut self, told: &Progress, now_ms: u64) -> u64 {
        let Progress { enqueued, started, finished, .. } = *told;
        if (self.enqueued, self.started, self.finished) != (enqueued, started, finished) {
            let moved_ms = now_ms.saturating_sub(told.age_ms()).max(self.moved_ms);
            *self = Self { enqueued, started, finished, moved_ms };
        }
        self.moved_ms
    }
}

impl Comm {
    /// Something moved at that time: the silence before it was one that it broke by itself.
    fn moved_at(&mut self, moved_ms: u64) {
        if moved_ms > self.moved_ms {
            self.gaps.note(moved_ms - self.moved_ms, moved_ms);
            self.moved_ms = moved_ms;
        }
    }
}
