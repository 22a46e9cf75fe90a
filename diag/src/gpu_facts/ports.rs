//! RDMA ports that are down on one node while most others have them up. What is down everywhere is not in use; how
//! many there should be is told by the other nodes, never by what is left on this one.

use std::collections::{BTreeMap, BTreeSet};

use super::reading::{NodeReading, PciDevice, RdmaDevice, RdmaPort};
use super::{Fact, FactKind, Needs};
use crate::facts::NodeId;
use crate::measurement::Subject;

/// A port as it is called on every node alike: by where its device sits on the bus, since names differ between nodes
/// (field case J09), and by its name only where there is no bus.
type Key = (String, u32);

/// Other nodes that must agree before a port is a fault: one other node may as well be the odd one.
const MIN_OTHERS: usize = 2;

/// PCI class of network controllers, third byte.
const CLASS_NETWORK: u32 = 0x02;

pub(super) fn facts(nodes: &[(NodeId, &NodeReading)], needs: &Needs) -> Vec<Fact> {
    let mut up: BTreeMap<Key, (BTreeSet<NodeId>, &str)> = BTreeMap::new();
    for (node, reading) in nodes {
        for (device, port) in ports(reading).filter(|(_, port)| is_up(port)) {
            up.entry(key(device, port)).or_insert((BTreeSet::new(), &device.name)).0.insert(*node);
        }
    }
    let mut facts = Vec::new();
    for (node, reading) in nodes {
        let others = nodes.len() - 1;
        let mut told = BTreeSet::new();
        for (key, (with, called)) in up.iter().filter(|(_, (with, _))| !with.contains(node)) {
            // J01, J03: in use is what most others have up.
            if 2 * with.len() > others {
                told.insert(key.clone());
                facts.push(missing((*node, reading), key, called, (with.len(), others)));
            }
        }
        for (device, port) in ports(reading) {
            let named =
                needs.rdma.contains(&device.name) && !is_up(port) && !told.contains(&key(device, port));
            if named {
                let words = format!("{}; the policy names it", down(&reading.name, device, port));
                facts.push(Fact::new(FactKind::Fault, nic(*node, &device.name), words));
            }
            // J02: what counts is whether programs can open it.
            if is_up(port) && !device.verbs {
                let words = format!(
                    "{}: {} is up and no uverbs device belongs to it, so no program can use it; modprobe ib_uverbs",
                    reading.name, device.name
                );
                facts.push(Fact::new(FactKind::Error, nic(*node, &device.name), words));
            }
        }
        facts.extend(needs.rdma.iter().filter(|name| !has(reading, name)).map(|name| {
            let words = format!(
                "{}: there is no RDMA device {name}, which the policy names; {}",
                reading.name,
                driverless(reading)
            );
            Fact::new(FactKind::Error, nic(*node, name), words)
        }));
    }
    facts
}

fn ports(reading: &NodeReading) -> impl Iterator<Item = (&RdmaDevice, &RdmaPort)> {
    reading.machine.rdma.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)))
}

fn has(reading: &NodeReading, name: &str) -> bool {
    reading.machine.rdma.iter().any(|device| device.name == name)
}

fn is_up(port: &RdmaPort) -> bool {
    port.state.as_deref() == Some("ACTIVE")
}

fn key(device: &RdmaDevice, port: &RdmaPort) -> Key {
    (device.pci.clone().unwrap_or_else(|| device.name.clone()), port.number)
}

fn nic(node: NodeId, name: &str) -> Subject {
    Subject::Nic { node, name: name.to_owned() }
}

fn down(name: &str, device: &RdmaDevice, port: &RdmaPort) -> String {
    let known = |state: &Option<String>| state.clone().unwrap_or_else(|| "unknown".to_owned());
    let (state, physical) = (known(&port.state), known(&port.physical_state));
    let next = match (state.as_str(), physical.as_str()) {
        ("INIT" | "ARMED", _) => "the link stands, the subnet manager has not set it up",
        (_, "Disabled") => "the port is switched off",
        _ => "check cable and switch port",
    };
    format!("{name}: {} port {} is {state} ({physical}); {next}", device.name, port.number)
}

fn missing(
    (node, reading): (NodeId, &NodeReading),
    key: &Key,
    called: &str,
    (with, others): (usize, usize),
) -> Fact {
    let here = ports(reading).find(|(device, port)| self::key(device, port) == *key);
    let (name, what) = match here {
        Some((device, port)) => (device.name.as_str(), down(&reading.name, device, port)),
        // J06: died before anybody looked.
        None => (
            called,
            format!("{}: no RDMA device at {} ({called}); {}", reading.name, key.0, driverless(reading)),
        ),
    };
    let kind = if others >= MIN_OTHERS { FactKind::Fault } else { FactKind::Cause };
    let words = format!("{what}; up on {with} of the {others} other nodes");
    Fact::new(kind, nic(node, name), words)
}

/// Network controllers that no driver is bound to: those are in no other folder.
fn driverless(reading: &NodeReading) -> String {
    let alone = |one: &&PciDevice| one.class >> 16 == CLASS_NETWORK && one.driver.is_none();
    let addresses: Vec<&str> =
        reading.machine.pci.iter().filter(alone).map(|one| one.address.as_str()).collect();
    if addresses.is_empty() {
        "no network controller on the bus is without a driver".to_owned()
    } else {
        format!("without a driver: {}", addresses.join(", "))
    }
}
