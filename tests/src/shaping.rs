//! The texts of network faults: what `tc` and `iptables-restore` are to read for a node's faults.
//! Pure; `fault` decides when they are applied.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

/// A rate that limits nothing here.
const UNLIMITED: &str = "100gbit";
/// What a class may send in one turn; htb's own guess is out of its bounds for both ends.
const QUANTUM: u32 = 60_000;
/// The buffer of a slow port of the switch: large enough for a window, small enough not to hide
/// the slowness for seconds.
const SWITCH_BUFFER: &str = "512kb";

/// A rate for what goes to the ports whose bits under `mask` are `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortRate {
    pub(crate) value: u16,
    pub(crate) mask: u16,
    pub(crate) kbit: u64,
}

/// How a blocked port answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deny {
    /// At once, with a reset ("connection refused").
    Reject,
    /// Not at all.
    Drop,
}

/// A range of ports that a node does not accept packets on (TCP and UDP).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub(crate) ports: RangeInclusive<u16>,
    pub(crate) deny: Deny,
    pub(crate) from: Option<String>,
}

impl Block {
    /// Blocks these ports towards every other node, with a rejection.
    pub fn ports(ports: RangeInclusive<u16>) -> Self {
        Self { ports, deny: Deny::Reject, from: None }
    }

    /// How packets are denied.
    #[must_use]
    pub fn deny(mut self, deny: Deny) -> Self {
        self.deny = deny;
        self
    }

    /// Only what comes from this node: one direction of one pair.
    #[must_use]
    pub fn from(mut self, node: &str) -> Self {
        self.from = Some(node.to_owned());
        self
    }
}

/// `tc -batch` for a node's own interface: its own rate, a slower class per bad peer, and one for slow ports.
pub(crate) fn node_classes(
    rate_kbit: Option<u64>,
    peers: &BTreeMap<Ipv4Addr, u64>,
    ports: Option<PortRate>,
) -> String {
    let whole = rate_kbit.map_or(UNLIMITED.to_owned(), |rate| format!("{rate}kbit"));
    let mut text = format!(
        "qdisc add dev eth0 root handle 1: htb default 2\n\
         class add dev eth0 parent 1: classid 1:1 htb rate {whole} quantum {QUANTUM}\n\
         class add dev eth0 parent 1:1 classid 1:2 htb rate {whole} quantum {QUANTUM}\n"
    );
    for (index, (peer, rate)) in peers.iter().enumerate() {
        let class = 0x10 + index;
        let rate = rate_kbit.map_or(*rate, |whole| whole.min(*rate));
        text += &format!(
            "class add dev eth0 parent 1:1 classid 1:{class:x} htb rate {rate}kbit quantum {QUANTUM}\n\
             filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst {peer}/32 flowid 1:{class:x}\n"
        );
    }
    text + &ports.map_or_else(String::new, |ports| port_class("eth0", ports))
}

/// The class of the slow ports below a device's discipline `1:`.
fn port_class(device: &str, PortRate { value, mask, kbit }: PortRate) -> String {
    format!(
        "class add dev {device} parent 1: classid 1:3 htb rate {kbit}kbit quantum {QUANTUM}\n\
         qdisc add dev {device} parent 1:3 handle 3: bfifo limit {SWITCH_BUFFER}\n\
         filter add dev {device} parent 1: protocol ip prio 2 u32 match ip dport {value} {mask:#06x} flowid 1:3\n"
    )
}

/// `tc -batch` for the switch's port to a node: its rate, and one for slow ports.
pub(crate) fn switch_port(link: &str, rate_kbit: Option<u64>, ports: Option<PortRate>) -> String {
    let whole = rate_kbit.map_or(UNLIMITED.to_owned(), |rate| format!("{rate}kbit"));
    let text = format!(
        "qdisc add dev {link} root handle 1: htb default 2\n\
         class add dev {link} parent 1: classid 1:2 htb rate {whole} quantum {QUANTUM}\n"
    );
    let buffer = format!("qdisc add dev {link} parent 1:2 handle 2: bfifo limit {SWITCH_BUFFER}\n");
    text + rate_kbit.map_or("", |_| &buffer)
        + &ports.map_or_else(String::new, |ports| port_class(link, ports))
}

/// `iptables-restore` for a node: losses first, then blocks (with the address they come from).
pub(crate) fn firewall(loss_permille: Option<u32>, blocks: &[(&Block, Option<String>)]) -> String {
    let mut text = String::from("*filter\n:INPUT ACCEPT [0:0]\n");
    if let Some(permille) = loss_permille {
        let share = f64::from(permille) / 1000.0;
        text += &format!("-A INPUT -i eth0 -m statistic --mode random --probability {share:.6} -j DROP\n");
    }
    for (block, source) in blocks {
        let source = source.as_ref().map_or(String::new(), |s| format!(" -s {s}/32"));
        let (first, last) = (block.ports.start(), block.ports.end());
        for protocol in ["tcp", "udp"] {
            let target = match (block.deny, protocol) {
                (Deny::Drop, _) => "DROP",
                (Deny::Reject, "tcp") => "REJECT --reject-with tcp-reset",
                (Deny::Reject, _) => "REJECT",
            };
            text += &format!(
                "-A INPUT -i eth0{source} -p {protocol} -m {protocol} --dport {first}:{last} -j {target}\n"
            );
        }
    }
    text + "COMMIT\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_never_faster_than_its_node() {
        let peers = BTreeMap::from([(Ipv4Addr::new(10, 77, 0, 12), 20_000)]);
        let text = node_classes(Some(5_000), &peers, None);
        assert!(text.contains("classid 1:10 htb rate 5000kbit"), "{text}");
        assert!(text.contains("match ip dst 10.77.0.12/32 flowid 1:10"), "{text}");
        assert!(node_classes(None, &peers, None).contains("classid 1:10 htb rate 20000kbit"));
    }

    #[test]
    fn slow_ports_are_slow_both_ways_and_the_others_are_not() {
        let odd = PortRate { value: 1, mask: 1, kbit: 5_000 };
        for text in [node_classes(None, &BTreeMap::new(), Some(odd)), switch_port("v1", None, Some(odd))] {
            assert!(text.contains("classid 1:2 htb rate 100gbit"), "{text}");
            assert!(text.contains("classid 1:3 htb rate 5000kbit"), "{text}");
            assert!(text.contains("match ip dport 1 0x0001 flowid 1:3"), "{text}");
        }
    }

    #[test]
    fn rules_of_the_firewall() {
        let block = Block::ports(40_000..=40_100).deny(Deny::Drop).from("n1");
        let text = firewall(Some(50), &[(&block, Some("10.77.0.11".into()))]);
        assert!(text.contains("--probability 0.050000 -j DROP"));
        assert!(text.contains("-i eth0 -s 10.77.0.11/32 -p tcp -m tcp --dport 40000:40100 -j DROP"));
        let refused = Block::ports(1..=2);
        assert!(firewall(None, &[(&refused, None)]).contains("REJECT --reject-with tcp-reset"));
        assert!(!firewall(None, &[]).contains("-A"));
    }
}
