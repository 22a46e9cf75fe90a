//! Where a node is reached: the policy's map, an interface's address, slurm.conf, the resolver; in this order.

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};
use std::path::Path;

use diag::policy::Network;
use tokio::time::Instant;

use crate::beside::{Beside, BesideError};
use crate::slurm::config::SlurmConf;

/// Why no address was found.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// The resolver doesn't know it.
    #[error(
        "no address of {node}: {name} does not resolve ({because}); set NodeAddr, or network.addresses in the policy"
    )]
    Unknown {
        /// The node.
        node: String,
        /// What was looked up.
        name: String,
        /// The resolver's words.
        because: String,
    },
    /// The resolver was too slow.
    #[error(
        "no address of {node}: looking up {name} took too long; set NodeAddr, or network.addresses in the policy"
    )]
    Slow {
        /// The node.
        node: String,
        /// What was looked up.
        name: String,
    },
    /// The interface has none.
    #[error("interface {interface} of the policy's network.interface has no IPv4 address on this node")]
    Interface {
        /// Its name.
        interface: String,
    },
}

/// The address of any node of the job.
///
/// # Errors
/// It is nowhere, or not found in time.
pub async fn address_of(
    node: &str,
    network: &Network,
    conf: Option<&SlurmConf>,
    deadline: Instant,
) -> Result<IpAddr, AddressError> {
    if let Some(address) = network.addresses.get(node) {
        return Ok(*address);
    }
    let name = conf.and_then(|conf| conf.node_addr(node)).unwrap_or(node).to_owned();
    if let Ok(address) = name.trim_matches(['[', ']']).parse() {
        return Ok(address);
    }
    // The system's resolver may take half a minute.
    let asked = name.clone();
    let look = move || -> std::io::Result<Vec<IpAddr>> {
        Ok((asked.as_str(), 0).to_socket_addrs()?.map(|one| one.ip()).collect())
    };
    let unknown =
        |because: String| AddressError::Unknown { node: node.to_owned(), name: name.clone(), because };
    let found = match Beside::start("resolver", look) {
        Ok(looking) => looking.until(deadline).await,
        Err(error) => Err(error),
    };
    let found = match found {
        Ok(found) => found.map_err(|error| unknown(error.to_string()))?,
        Err(BesideError::Late) => {
            return Err(AddressError::Slow { node: node.to_owned(), name: name.clone() });
        }
        Err(error) => return Err(unknown(crate::chain(&error))),
    };
    // Loopback only if there is nothing else: several slurmd may share a host.
    let best = found.iter().min_by_key(|address| (address.is_loopback(), address.is_ipv6()));
    best.copied().ok_or_else(|| unknown("it has no address".to_owned()))
}

/// The address that this node tells the others: like [`address_of`], but the policy's interface comes second.
///
/// # Errors
/// It is nowhere, or not found in time.
pub async fn own_address(
    node: &str,
    network: &Network,
    conf: Option<&SlurmConf>,
    procfs: &Path,
    deadline: Instant,
) -> Result<IpAddr, AddressError> {
    if network.interface.is_empty() || network.addresses.contains_key(node) {
        return address_of(node, network, conf, deadline).await;
    }
    let read = |name| std::fs::read_to_string(procfs.join("self/net").join(name)).unwrap_or_default();
    interface_address(&network.interface, &read("route"), &read("fib_trie"))
        .map(IpAddr::V4)
        .ok_or_else(|| AddressError::Interface { interface: network.interface.clone() })
}

/// An interface's address from the kernel's tables: the local address inside one of its own networks.
#[must_use]
pub fn interface_address(interface: &str, route: &str, fib_trie: &str) -> Option<Ipv4Addr> {
    let number = |hex: &str| u32::from_str_radix(hex, 16).ok().map(u32::swap_bytes);
    let networks: Vec<(u32, u32)> = route
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields.len() > 7 && fields[0] == interface && fields[2] == "00000000")
        .filter_map(|fields| Some((number(fields[1])?, number(fields[7])?)))
        .filter(|(_, mask)| *mask != 0)
        .collect();
    let mut last = None;
    for line in fib_trie.lines() {
        if let Some(address) = line.trim_start().strip_prefix("|-- ") {
            last = address.trim().parse::<Ipv4Addr>().ok();
        } else if line.trim_start() == "/32 host LOCAL"
            && let Some(address) = last
            && networks.iter().any(|(network, mask)| u32::from(address) & mask == *network)
        {
            return Some(address);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn network() -> Network {
        diag::policy::Policy::default().network
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(2)
    }

    // M14, N03: an address that Slurm uses itself, never an interface that only looks right.
    #[tokio::test]
    async fn the_policy_wins_over_slurm_conf_over_the_resolver() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slurm.conf");
        std::fs::write(&path, "NodeName=a NodeAddr=10.0.0.1\nNodeName=b NodeAddr=10.0.0.2\n").unwrap();
        let conf = SlurmConf::read(&path).unwrap();
        let mut network = network();
        network.addresses.insert("a".into(), "10.9.9.9".parse().unwrap());
        let of = async |node| address_of(node, &network, Some(&conf), soon()).await.map(|a| a.to_string());
        assert_eq!(of("a").await.unwrap(), "10.9.9.9");
        assert_eq!(of("b").await.unwrap(), "10.0.0.2");
        assert_eq!(of("localhost").await.unwrap(), "127.0.0.1");
        assert!(of("no-such-node.invalid").await.is_err());
    }

    // N01.
    #[test]
    fn an_interfaces_address_is_the_local_one_in_its_network() {
        let route = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\t\n\
            eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\n\
            eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\n\
            ib0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\n";
        let trie = "Main:\n  +-- 0.0.0.0/0\n     |-- 10.0.0.5\n        /32 host LOCAL\n     |-- 192.168.1.0\n        \
            /24 link UNICAST\n     |-- 192.168.1.7\n        /32 host LOCAL\n";
        assert_eq!(interface_address("ib0", route, trie), Some(Ipv4Addr::new(192, 168, 1, 7)));
        assert_eq!(interface_address("eth1", route, trie), None);
    }
}
