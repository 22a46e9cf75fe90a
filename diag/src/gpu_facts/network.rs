//! Which ports of a node carry its GPUs' traffic, and how a baseline file calls them (`8x400`: how many, and Gbit/s of each).

use std::collections::BTreeSet;

use super::Compared;
use super::compared::Port;

/// The ports that the GPUs' traffic takes: those of the devices that the policy names; where it names none, the fastest ones that
/// are up, since those for storage and management are slower.
pub(crate) fn of_gpus<'c>(seen: &'c Compared, named: &BTreeSet<String>) -> Vec<&'c Port> {
    let usable = seen.ports.iter().filter(|port| port.is_up() && port.verbs);
    let usable = usable.filter(|port| named.is_empty() || named.contains(&port.device));
    let fastest = usable.clone().filter_map(|port| port.rate_gbit_s).max();
    usable.filter(|port| !named.is_empty() || port.rate_gbit_s == fastest).collect()
}

/// As [`crate::baseline::BaselineLimit::network`] has it; `None`: there is no port, or their rates differ or are not known.
pub(crate) fn called(seen: &Compared, named: &BTreeSet<String>) -> Option<String> {
    let ports = of_gpus(seen, named);
    let rate = ports.first()?.rate_gbit_s?;
    ports.iter().all(|port| port.rate_gbit_s == Some(rate)).then(|| format!("{}x{rate}", ports.len()))
}
