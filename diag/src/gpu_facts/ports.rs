//! RDMA ports that are down on one node while most others have them up. What is down everywhere is not in use; how
//! many there should be is told by the other nodes, never by what is left on this one.

use std::collections::{BTreeMap, BTreeSet};

use super::compared::{Compared, Port};
use super::{Fact, FactKind, Placed};
use crate::facts::NodeId;
use crate::measurement::Subject;

/// A port as it is called on every node alike.
type Key<'a> = (&'a str, u32);

/// Other nodes that must agree before a port is a fault: one other node may as well be the odd one.
const MIN_OTHERS: usize = 2;

pub(super) fn facts(nodes: &[Placed<'_>], named: &BTreeSet<String>) -> Vec<Fact> {
    let mut up: BTreeMap<Key<'_>, (BTreeSet<NodeId>, &str)> = BTreeMap::new();
    for (node, _, seen) in nodes {
        for port in seen.ports.iter().filter(|port| port.is_up()) {
            up.entry(key(port)).or_insert((BTreeSet::new(), &port.device)).0.insert(*node);
        }
    }
    let mut facts = Vec::new();
    for one in nodes {
        let (node, name, seen) = *one;
        let others = nodes.len() - 1;
        let mut told = BTreeSet::new();
        let elsewhere = is_elsewhere(node, seen, &up);
        for (key, (with, called)) in up.iter().filter(|(_, (with, _))| !with.contains(&node)) {
            // J01, J03: in use is what most others have up.
            if 2 * with.len() > others {
                told.insert(*key);
                facts.push(missing(one, *key, called, (with.len(), others), elsewhere));
            }
        }
        for port in &seen.ports {
            if named.contains(&port.device) && !port.is_up() && !told.contains(&key(port)) {
                let words = format!("{}; the policy names it", down(name, port));
                facts.push(Fact::new(FactKind::Fault, nic(node, &port.device), words));
            }
            // J02: what counts is whether programs can open it.
            if port.is_up() && !port.verbs {
                let words = format!(
                    "{name}: {} is up and no uverbs device belongs to it, so no program can use it; modprobe ib_uverbs",
                    port.device
                );
                facts.push(Fact::new(FactKind::Error, nic(node, &port.device), words));
            }
        }
        facts.extend(named.iter().filter(|device| !has(seen, device)).map(|device| {
            let words = format!(
                "{name}: there is no RDMA device {device}, which the policy names; {}",
                driverless(seen)
            );
            Fact::new(FactKind::Error, nic(node, device), words)
        }));
    }
    facts
}

/// Whether the node has ports up where no other node has one: its board is another, and nothing is missing where the others
/// have theirs.
fn is_elsewhere(node: NodeId, seen: &Compared, up: &BTreeMap<Key<'_>, (BTreeSet<NodeId>, &str)>) -> bool {
    let alone = |port: &Port| up.get(&key(port)).is_some_and(|(with, _)| with.iter().eq([&node]));
    seen.ports.iter().any(|port| port.is_up() && alone(port))
}

fn has(seen: &Compared, device: &String) -> bool {
    seen.portless.contains(device) || seen.ports.iter().any(|port| port.device == *device)
}

fn key(port: &Port) -> Key<'_> {
    (&port.at, port.number)
}

fn nic(node: NodeId, name: &str) -> Subject {
    Subject::Nic { node, name: name.to_owned() }
}

fn down(name: &str, port: &Port) -> String {
    let known = |state: &Option<String>| state.clone().unwrap_or_else(|| "unknown".to_owned());
    let (state, physical) = (known(&port.state), known(&port.physical));
    let next = match (state.as_str(), physical.as_str()) {
        ("INIT" | "ARMED", _) => "the link stands, the subnet manager has not set it up",
        (_, "Disabled") => "the port is switched off",
        _ => "check cable and switch port",
    };
    format!("{name}: {} port {} is {state} ({physical}); {next}", port.device, port.number)
}

fn missing(
    &(node, name, seen): &Placed<'_>,
    key: Key<'_>,
    called: &str,
    (with, others): (usize, usize),
    elsewhere: bool,
) -> Fact {
    let here = seen.ports.iter().find(|port| self::key(port) == key);
    let (device, what) = match here {
        Some(port) => (port.device.as_str(), down(name, port)),
        None if elsewhere => (
            called,
            format!("{name}: no RDMA device at {} ({called}), but ports where no other node has one", key.0),
        ),
        // J06: died before anybody looked.
        None => (called, format!("{name}: no RDMA device at {} ({called}); {}", key.0, driverless(seen))),
    };
    let told_apart = here.is_some() || !elsewhere;
    let kind = if others >= MIN_OTHERS && told_apart { FactKind::Fault } else { FactKind::Cause };
    let words = format!("{what}; up on {with} of the {others} other nodes");
    Fact::new(kind, nic(node, device), words)
}

/// Network controllers that no driver is bound to: those are in no other folder.
fn driverless(seen: &Compared) -> String {
    if seen.driverless.is_empty() {
        "no network controller on the bus is without a driver".to_owned()
    } else {
        format!("without a driver: {}", seen.driverless.join(", "))
    }
}
