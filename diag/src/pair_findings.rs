//! The findings of checks of pairs: nodes, rails, links, ways and switches at fault, what can't be told apart, and pairs that are
//! fine.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::CheckName;
use crate::doubt::where_links_meet;
use crate::facts::{NodeId, Roster};
use crate::findings::from_looks;
use crate::localise::{Pair, PairState};
use crate::look::{Evidence, Shows, View};
use crate::measurement::{Metric, Subject};
use crate::plan::{Channel, CheckState};
use crate::topology::LeafId;
use crate::verdict::{FaultClass, Finding, Status};
use crate::wording;

/// What pairs showed, channel by channel.
pub(crate) fn of_channels(
    roster: &Roster,
    state: &CheckState,
    channels: &[(Channel, PairState)],
) -> Vec<Finding> {
    // A node that is at fault by one way of measuring explains what the other ways show of its pairs; one that is
    // at fault on each of its rails is at fault as a whole.
    let mut failed = state.failed();
    failed.extend(channels.iter().flat_map(|(_, pairs)| pairs.alone.keys().copied()));
    let rails = channels.iter().filter(|(channel, _)| channel.rail.is_some()).count();
    let blamed =
        |pairs: &PairState, node: &NodeId| pairs.bad.contains_key(node) || pairs.alone.contains_key(node);
    let on_every_rail = |node: &NodeId| rails > 1 && channels.iter().all(|(_, pairs)| blamed(pairs, node));
    let mut named: BTreeSet<NodeId> = BTreeSet::new();
    let mut findings = of_switches(roster, state, channels);
    let ways = shared_ways(channels, &failed);
    findings.extend(of_ways(roster, state, channels, &ways));
    for (channel, pairs) in channels {
        let looks = channel.looks(&state.looks);
        for (&node, partners) in pairs.bad.iter().chain(&pairs.alone) {
            // By several ways of measuring, or on all its rails, it is named once; bad rails one by one.
            let whole = channel.rail.is_none() || on_every_rail(&node);
            if whole && !named.insert(node) {
                continue;
            }
            let subject = match channel.rail {
                Some(index) if !whole => Subject::Rail { node, index },
                _ => Subject::Node { node },
            };
            let alone = pairs.alone.contains_key(&node).then(|| roster.leaves.get(node)).flatten();
            findings.push(bad_node(roster, state.check, (subject, node), partners, &looks, alone));
        }
        for (&node, partners) in pairs.unsure.iter().filter(|(node, _)| !failed.contains(node)) {
            let subject = channel.rail.map_or(Subject::Node { node }, |index| Subject::Rail { node, index });
            findings.push(unsure_node(roster, state.check, (subject, node), partners, &looks));
        }
        findings.extend(of_pairs(roster, state, *channel, &looks, pairs, (&failed, &ways)));
    }
    findings
}

/// Bad links that share a node which is not at fault: they are not so many broken cables, but ways through something that
/// they share.
fn shared_ways(channels: &[(Channel, PairState)], failed: &BTreeSet<NodeId>) -> BTreeSet<Pair> {
    let mut ways = BTreeSet::new();
    for (_, pairs) in channels {
        let links = pairs.links.iter().filter(|(a, b)| !failed.contains(a) && !failed.contains(b));
        let links: BTreeSet<Pair> = links.copied().collect();
        let meet = where_links_meet(&links);
        ways.extend(links.into_iter().filter(|(a, b)| meet.contains_key(a) || meet.contains_key(b)));
    }
    ways
}

/// Ways that share something, all together, whichever rails show it.
fn of_ways(
    roster: &Roster,
    state: &CheckState,
    channels: &[(Channel, PairState)],
    ways: &BTreeSet<Pair>,
) -> Option<Finding> {
    let shown: Vec<&(Channel, PairState)> =
        channels.iter().filter(|(_, pairs)| pairs.links.iter().any(|link| ways.contains(link))).collect();
    let looks = |(channel, pairs): &(Channel, PairState)| -> Vec<View<'_>> {
        let bad = |look: &View<'_>| matches!(*look.group, [a, b] if pairs.links.contains(&(a, b)) && ways.contains(&(a, b)));
        channel.looks(&state.looks).into_iter().filter(bad).collect()
    };
    let looks: Vec<View<'_>> = shown.iter().flat_map(|one| looks(one)).collect();
    let called: Vec<String> =
        ways.iter().map(|&(a, b)| wording::subject(roster, &Subject::Link { a, b })).collect();
    let subject = match shown[..] {
        [] => return None,
        [(Channel { rail: Some(rail), .. }, _)] => Subject::FabricRail { rail: *rail },
        _ => Subject::Fabric,
    };
    let views: Vec<&View<'_>> = looks.iter().collect();
    let words = |one: &Evidence| wording::ways_failed(&called, state.check, one);
    Some(from_looks(state.check, Status::Fail, Some(FaultClass::Fabric), subject, &views, words))
}

/// Leaf switches, once each, whichever rails show it.
fn of_switches(roster: &Roster, state: &CheckState, channels: &[(Channel, PairState)]) -> Vec<Finding> {
    let mut by_leaves: BTreeMap<&[LeafId], Vec<&(Channel, PairState)>> = BTreeMap::new();
    for one in channels {
        for leaves in &one.1.switches {
            by_leaves.entry(leaves).or_default().push(one);
        }
    }
    let finding = |(leaves, shown): (&[LeafId], Vec<&(Channel, PairState)>)| {
        let below = |node: &NodeId| roster.leaves.get(*node).is_some_and(|leaf| leaves.contains(&leaf));
        let explained = |pairs: &PairState, look: &View<'_>| {
            let [a, b] = *look.group else { return false };
            pairs.explained.contains(&(a, b)) && (below(&a) || below(&b))
        };
        let of_channel = |(channel, pairs): &&(Channel, PairState)| -> Vec<View<'_>> {
            channel.looks(&state.looks).into_iter().filter(|look| explained(pairs, look)).collect()
        };
        let looks: Vec<View<'_>> = shown.iter().flat_map(of_channel).collect();
        let rails: Vec<u32> = shown.iter().filter_map(|(channel, _)| channel.rail).collect();
        let rails = if shown.len() == channels.len() { Vec::new() } else { rails };
        let called: Vec<String> = leaves.iter().map(|leaf| roster.leaves.called(*leaf)).collect();
        let nodes = state.nodes.iter().filter(|node| below(node)).count();
        let subject = match leaves {
            [leaf] => Subject::Switch { name: roster.leaves.name(*leaf).to_owned() },
            _ => Subject::Fabric,
        };
        let words = |one: &Evidence| wording::switch_failed(&called, &rails, state.check, one, nodes);
        let views: Vec<&View<'_>> = looks.iter().collect();
        from_looks(state.check, Status::Fail, Some(FaultClass::Fabric), subject, &views, words)
    };
    by_leaves.into_iter().map(finding).collect()
}

/// A node or a rail that missed with several good partners. Where every miss is a port that can't be reached, the
/// finding is about a way to that node, or from it: a setting, no part. Where the node is `alone` below its leaf, leaf and
/// node can't be told apart.
fn bad_node(
    roster: &Roster,
    check: CheckName,
    (subject, node): (Subject, NodeId),
    partners: &[NodeId],
    looks: &[View<'_>],
    alone: Option<LeafId>,
) -> Finding {
    let missed: Vec<&View<'_>> =
        looks.iter().filter(|look| look.group.contains(&node) && look.shows == Shows::Miss).collect();
    let names: Vec<&str> = partners.iter().map(|other| roster.name(*other)).collect();
    let class = class_of(&missed, FaultClass::Part);
    let mut finding = match blocked_way(&missed, node).filter(|_| class == FaultClass::Config) {
        Some(look) => {
            let way = look.evidence[0].subject.clone();
            let words = |one: &Evidence| wording::node_blocked(roster.name(node), check, one, &names);
            from_looks(check, Status::Fail, Some(class), way, &[&look], words)
        }
        None => {
            let name = wording::subject(roster, &subject);
            let leaf = alone.map(|leaf| roster.leaves.called(leaf));
            let words = |one: &Evidence| match &leaf {
                Some(leaf) => wording::node_alone(&name, check, one, &names, leaf),
                None => wording::node_failed_with(&name, check, one, &names, &subject),
            };
            let (status, class) =
                if leaf.is_some() { (Status::Suspect, None) } else { (Status::Fail, Some(class)) };
            from_looks(check, status, class, subject.clone(), &missed, words)
        }
    };
    finding.peers = partners.to_vec();
    finding
}

/// A node that missed with several good partners, where it is not known whether the way to them is slow.
fn unsure_node(
    roster: &Roster,
    check: CheckName,
    (subject, node): (Subject, NodeId),
    partners: &[NodeId],
    looks: &[View<'_>],
) -> Finding {
    let missed: Vec<&View<'_>> =
        looks.iter().filter(|look| look.group.contains(&node) && look.shows == Shows::Miss).collect();
    let names: Vec<&str> = partners.iter().map(|other| roster.name(*other)).collect();
    let name = wording::subject(roster, &subject);
    let words = |one: &Evidence| wording::node_unsure(&name, check, one, &names);
    let finding = from_looks(check, Status::Suspect, Some(FaultClass::Part), subject, &missed, words);
    Finding { peers: partners.to_vec(), ..finding }
}

/// Two nodes that are fine with others and not with each other. Where every miss is a port that can't be reached, the
/// finding is about the way: a setting, no link.
fn bad_link(check: CheckName, (a, b): Pair, names: (&str, &str), looks: &[&View<'_>]) -> Finding {
    let class = class_of(looks, FaultClass::Link);
    match blocked_way(looks, b).filter(|_| class == FaultClass::Config) {
        Some(look) => {
            let way = look.evidence[0].subject.clone();
            let words = |one: &Evidence| wording::path_blocked(check, one);
            from_looks(check, Status::Fail, Some(class), way, &[&look], words)
        }
        None => {
            let words = |one: &Evidence| wording::link_failed(names, check, one, looks.len());
            from_looks(check, Status::Fail, Some(class), Subject::Link { a, b }, looks, words)
        }
    }
}

/// The miss that shows best which ports of `node` are closed: on the way to it, else on the way from it.
fn blocked_way<'l>(missed: &[&View<'l>], node: NodeId) -> Option<View<'l>> {
    let ways = || missed.iter().flat_map(|look| look.misses().map(move |one| (*look, one)));
    let inward = |one: &Evidence| matches!(one.subject, Subject::Path { to, .. } if to == node);
    let (look, one) = ways().find(|(_, one)| inward(one)).or_else(|| ways().next())?;
    Some(look.of_one(one))
}

fn of_pairs(
    roster: &Roster,
    state: &CheckState,
    channel: Channel,
    looks: &[View<'_>],
    pairs: &PairState,
    (failed, ways): (&BTreeSet<NodeId>, &BTreeSet<Pair>),
) -> Vec<Finding> {
    let check = state.check;
    let blamed = |node: &NodeId| failed.contains(node) || pairs.unsure.contains_key(node);
    let mut findings = Vec::new();
    let mut by_pair: BTreeMap<Pair, Vec<&View<'_>>> = BTreeMap::new();
    for look in looks {
        if let [a, b] = *look.group {
            by_pair.entry((a, b)).or_default().push(look);
        }
    }
    for ((a, b), looks) in by_pair {
        let missed = looks.iter().any(|look| look.shows == Shows::Miss);
        let fine = looks.iter().any(|look| look.shows == Shows::Fine);
        let names = (roster.name(a), roster.name(b));
        let explained = blamed(&a) || blamed(&b) || (pairs.explained.contains(&(a, b)) && !fine);
        if ways.contains(&(a, b)) && pairs.links.contains(&(a, b)) {
            continue;
        }
        if pairs.links.contains(&(a, b)) && !explained {
            findings.push(bad_link(check, (a, b), names, &looks));
        } else if missed && !fine && !explained {
            findings.push(undecided(state, pairs, (a, b), names, &looks));
        } else if fine {
            let words = |one: &Evidence| wording::pair_fine(names, check, one, missed);
            let subject = match channel.rail {
                Some(rail) => Subject::PairRail { a, b, rail },
                None => Subject::Pair { a, b },
            };
            findings.push(from_looks(check, Status::Pass, None, subject, &looks, words));
        }
    }
    findings
}

/// Several bad links and nothing else: what they share is at fault, not each of them. They are taken away, and named.
pub(crate) fn shared_links(roster: &Roster, culprits: &mut Vec<Finding>) -> Vec<String> {
    let at_fault = |one: &&Finding| matches!(one.status, Status::Fail | Status::Suspect);
    let links: BTreeSet<Pair> = culprits
        .iter()
        .filter(at_fault)
        .filter(|one| one.class == Some(FaultClass::Link))
        .filter_map(|one| if let Subject::Link { a, b } = one.subject { Some((a, b)) } else { None })
        .collect();
    let others = culprits.iter().filter(at_fault).any(|one| one.class != Some(FaultClass::Link));
    if links.len() < 2 || others {
        return Vec::new();
    }
    culprits.retain(|one| !at_fault(&one));
    links.iter().map(|&(a, b)| wording::subject(roster, &Subject::Link { a, b })).collect()
}

/// A pair that missed and that nothing explains: a path that is known to be blocked, two suspects, or a pair that
/// there was no time to look at again.
fn undecided(
    state: &CheckState,
    pairs: &PairState,
    (a, b): (NodeId, NodeId),
    names: (&str, &str),
    looks: &[&View<'_>],
) -> Finding {
    let check = state.check;
    let blocked = class_of(looks, FaultClass::Part) == FaultClass::Config;
    if blocked && looks.len() > 1 {
        let words = |one: &Evidence| wording::path_blocked(check, one);
        let subject = Subject::Link { a, b };
        return from_looks(check, Status::Fail, Some(FaultClass::Config), subject, looks, words);
    }
    if state.next.is_some() && !pairs.suspects.is_empty() && looks.len() < 2 {
        let name = format!("{} and {}", names.0, names.1);
        let words = |one: &Evidence| wording::not_confirmed(&name, check, one);
        return from_looks(check, Status::Error, None, Subject::Pair { a, b }, looks, words);
    }
    let words = |one: &Evidence| wording::suspect(names, check, one);
    from_looks(check, Status::Suspect, None, Subject::Pair { a, b }, looks, words)
}

/// `Config` where every miss is a port that could not be reached, else `other`.
fn class_of(looks: &[&View<'_>], other: FaultClass) -> FaultClass {
    let mut misses = looks.iter().flat_map(|look| look.misses()).peekable();
    let blocked = misses.peek().is_some() && misses.all(|one| one.metric == Metric::Reachable);
    if blocked { FaultClass::Config } else { other }
}
