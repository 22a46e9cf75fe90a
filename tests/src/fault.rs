//! Faults that a test injects. All are undone when the guard goes, by `Cluster::clear`, or with
//! the cluster. Faults are kept as a list and a node's state is always rendered from the whole
//! list, so they combine and survive a restart of the node. The texts are `shaping`'s.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, kill_process};

use crate::cluster::Cluster;
use crate::process::pid_of;
use crate::procs::Process;
use crate::shaping::{self, Block, PortRate};
use crate::switch;
use crate::wait;

/// A signal takes effect in microseconds, on a busy machine in milliseconds.
const STOPPED: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
enum Kind {
    LinkDown,
    Rate(u64),
    Pair(String, u64),
    Ports(PortRate),
    Loss(u32),
    Block(Block),
    Cpu(u32),
}

/// What of a node has to be rendered again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layer {
    Link,
    Shape,
    Firewall,
    Cpu,
}

impl Kind {
    fn layer(&self) -> Layer {
        match self {
            Self::LinkDown => Layer::Link,
            Self::Rate(_) | Self::Pair(..) | Self::Ports(_) => Layer::Shape,
            Self::Loss(_) | Self::Block(_) => Layer::Firewall,
            Self::Cpu(_) => Layer::Cpu,
        }
    }
}

#[derive(Clone, Debug)]
struct Active {
    id: u64,
    node: String,
    kind: Kind,
}

/// The faults of a cluster.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    table: Mutex<(u64, Vec<Active>)>,
}

impl Faults {
    fn lock(&self) -> MutexGuard<'_, (u64, Vec<Active>)> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, node: &str) -> Vec<Kind> {
        self.lock().1.iter().filter(|a| a.node == node).map(|a| a.kind.clone()).collect()
    }
}

enum Undo {
    Listed(u64),
    Folder(String, String),
    Stopped(Vec<Process>),
    Nothing,
}

/// A fault; dropping the guard mends it.
#[must_use = "the fault is mended as soon as this guard is dropped: bind it, or call keep()"]
pub struct Fault<'c> {
    cluster: &'c Cluster,
    undo: Undo,
}

impl<'c> Fault<'c> {
    /// Mends it and says whether that worked.
    pub fn undo(mut self) -> Result<()> {
        self.mend()
    }

    /// Leaves it in place until [`Cluster::clear`] or the end of the cluster.
    pub fn keep(mut self) {
        self.undo = Undo::Nothing;
    }

    fn mend(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.undo, Undo::Nothing) {
            Undo::Listed(id) => self.cluster.remove_faults(|active| active.id == id),
            Undo::Folder(node, path) => self.cluster.restore_folder(&node, &path),
            Undo::Stopped(processes) => {
                for process in processes {
                    let _ = kill_process(pid_of(process.host_pid)?, Signal::CONT);
                }
                Ok(())
            }
            Undo::Nothing => Ok(()),
        }
    }

    pub(crate) fn folder(cluster: &'c Cluster, node: &str, path: &str) -> Self {
        Self { cluster, undo: Undo::Folder(node.to_owned(), path.to_owned()) }
    }
}

impl Drop for Fault<'_> {
    fn drop(&mut self) {
        // A cluster that is going down has nothing left to mend.
        let _ = self.mend();
    }
}

impl Cluster {
    /// Pulls a node's cable.
    pub fn link_down(&self, node: &str) -> Result<Fault<'_>> {
        self.add_fault(&[(node, Kind::LinkDown)])
    }

    /// Limits a node's traffic with everybody, each direction to this rate.
    pub fn rate(&self, node: &str, kbit: u64) -> Result<Fault<'_>> {
        self.add_fault(&[(node, Kind::Rate(kbit))])
    }

    /// Limits the traffic between two nodes, each direction to this rate; other pairs keep theirs.
    pub fn rate_pair(&self, one: &str, other: &str, kbit: u64) -> Result<Fault<'_>> {
        if one == other {
            bail!("a pair needs two nodes, not {one} twice");
        }
        let pairs = [(one, Kind::Pair(other.to_owned(), kbit)), (other, Kind::Pair(one.to_owned(), kbit))];
        self.add_fault(&pairs)
    }

    /// Limits what crosses a node's network on its way to the ports whose bits under `mask` are `value`, with
    /// everybody and in each direction: a rail, where each rail has ports of its own.
    pub fn rate_ports(&self, node: &str, value: u16, mask: u16, kbit: u64) -> Result<Fault<'_>> {
        self.add_fault(&[(node, Kind::Ports(PortRate { value, mask, kbit }))])
    }

    /// Loses this share of the packets that arrive at a node.
    pub fn loss(&self, node: &str, permille: u32) -> Result<Fault<'_>> {
        if permille > 1000 {
            bail!("{permille} permille is more than all packets");
        }
        self.add_fault(&[(node, Kind::Loss(permille))])
    }

    /// Blocks ports of a node for what arrives there. A range that holds ports which the node uses
    /// for connections of its own blocks the answers too.
    pub fn block(&self, node: &str, block: Block) -> Result<Fault<'_>> {
        self.add_fault(&[(node, Kind::Block(block))])
    }

    /// Limits all processes of a node, also future ones, to a share of one core.
    ///
    /// # Errors
    /// This machine has no usable control groups (of version 1 or 2).
    pub fn limit_cpu(&self, node: &str, percent: u32) -> Result<Fault<'_>> {
        self.add_fault(&[(node, Kind::Cpu(percent))])
    }

    /// Stops (`SIGSTOP`) every process of a node whose command line contains `pattern`; they go on
    /// when the fault is mended.
    pub fn stop_processes(&self, node: &str, pattern: &str) -> Result<Fault<'_>> {
        let stopped = self.signal_processes(node, pattern, Signal::STOP)?;
        if stopped.is_empty() {
            bail!("{node} runs no process that matches {pattern:?}");
        }
        // The signal is on its way: a process stops when it is next scheduled.
        wait::until(STOPPED, format!("processes of {node} stop"), || {
            Ok(stopped.iter().all(Process::is_stopped).then_some(()))
        })?;
        Ok(Fault { cluster: self, undo: Undo::Stopped(stopped) })
    }

    /// Mends all listed faults of a node: link, rates (also of pairs with it), loss, blocked
    /// ports, processor limit; and brings back folders that were changed on it alone.
    pub fn clear(&self, node: &str) -> Result<()> {
        self.remove_faults(|active| {
            active.node == node || matches!(&active.kind, Kind::Pair(peer, _) if peer == node)
        })?;
        self.restore_folders(node)
    }

    fn add_fault(&self, kinds: &[(&str, Kind)]) -> Result<Fault<'_>> {
        for (node, _) in kinds {
            self.find(node)?;
        }
        let id = {
            let mut table = self.faults.lock();
            table.0 += 1;
            let id = table.0;
            let new = kinds.iter().map(|(node, kind)| (id, (*node).to_owned(), kind.clone()));
            table.1.extend(new.map(|(id, node, kind)| Active { id, node, kind }));
            id
        };
        let fault = Fault { cluster: self, undo: Undo::Listed(id) };
        for (node, kind) in kinds {
            self.render(node, kind.layer()).with_context(|| format!("fault {kind:?} on {node}"))?;
        }
        Ok(fault)
    }

    fn remove_faults(&self, which: impl Fn(&Active) -> bool) -> Result<()> {
        let gone: Vec<Active> = {
            let mut table = self.faults.lock();
            let (gone, left) = table.1.drain(..).partition(which);
            table.1 = left;
            gone
        };
        for active in gone {
            self.render(&active.node, active.kind.layer())
                .with_context(|| format!("cannot mend {:?} on {}", active.kind, active.node))?;
        }
        Ok(())
    }

    /// Applies the faults of a node that was started anew. (Its control group is the old one.)
    pub(crate) fn render_faults(&self, node: &str) -> Result<()> {
        for layer in [Layer::Link, Layer::Shape, Layer::Firewall] {
            if self.faults.of(node).iter().any(|kind| kind.layer() == layer) {
                self.render(node, layer)?;
            }
        }
        Ok(())
    }

    fn render(&self, node: &str, layer: Layer) -> Result<()> {
        let kinds = self.faults.of(node);
        if layer != Layer::Cpu && !self.find(node)?.is_up() {
            return Ok(());
        }
        match layer {
            Layer::Link => {
                let down = kinds.iter().any(|k| matches!(k, Kind::LinkDown));
                self.switch.set_link(node, !down)
            }
            Layer::Shape => self.render_shape(node, &kinds),
            Layer::Firewall => {
                let loss = kinds.iter().rev().find_map(|k| match k {
                    Kind::Loss(permille) => Some(*permille),
                    _ => None,
                });
                let mut blocks = Vec::new();
                for kind in &kinds {
                    let Kind::Block(block) = kind else { continue };
                    let source = block.from.as_deref().map(|n| self.address(n)).transpose()?;
                    blocks.push((block, source));
                }
                let rules = shaping::firewall(loss, &blocks);
                self.command(node, ["iptables-restore"]).stdin(rules).ok().map(drop)
            }
            Layer::Cpu => {
                let percent = kinds.iter().rev().find_map(|k| match k {
                    Kind::Cpu(percent) => Some(*percent),
                    _ => None,
                });
                self.limit_node(node, percent)
            }
        }
    }

    fn render_shape(&self, node: &str, kinds: &[Kind]) -> Result<()> {
        let rate = kinds.iter().rev().find_map(|k| match k {
            Kind::Rate(kbit) => Some(*kbit),
            _ => None,
        });
        let ports = kinds.iter().rev().find_map(|k| match k {
            Kind::Ports(ports) => Some(*ports),
            _ => None,
        });
        let mut peers = BTreeMap::new();
        for kind in kinds {
            if let Kind::Pair(peer, kbit) = kind {
                let address: Ipv4Addr = self.address(peer)?.parse().context("address of a node")?;
                peers.insert(address, *kbit);
            }
        }
        // Nothing to delete is fine: the interface may never have had a discipline.
        self.command(node, ["tc", "qdisc", "del", "dev", "eth0", "root"]).run()?;
        if rate.is_some() || ports.is_some() || !peers.is_empty() {
            let classes = shaping::node_classes(rate, &peers, ports);
            self.command(node, ["tc", "-batch", "-"]).stdin(classes).ok()?;
        }
        let link = switch::link(node);
        let _ = self.switch.run(&["tc", "qdisc", "del", "dev", &link, "root"], None);
        if rate.is_some() || ports.is_some() {
            self.switch.run(&["tc", "-batch", "-"], Some(shaping::switch_port(&link, rate, ports)))?;
        }
        Ok(())
    }
}
