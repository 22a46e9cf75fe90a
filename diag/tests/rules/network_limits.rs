//! Limits for nodes with certain ports: they hold where the nodes' own ports are those.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use crate::readings::{needs, nic, node};
use crate::simulated::measure::plain;
use diag::baseline::Baselines;
use diag::check::CheckName::AllReduce2;
use diag::conclude::{Caps, verdict};
use diag::facts::{Engine, GpuName, Joined, NodeFacts, Roster, RosterEntry};
use diag::gpu_facts::Known;
use diag::gpu_facts::reading::{NodeReading, RdmaDevice};
use diag::judge::{Hardware, Suite};
use diag::measurement::{Measurement, Metric, Subject};
use diag::plan;
use diag::round::{NodeOutcome, RoundResult, Step};
use diag::topology::Leaves;
use diag::verdict::Outcome;

fn device(number: u32, rate: Option<f64>, state: &str) -> RdmaDevice {
    let mut device = nic(number);
    device.ports[0].rate_gbit_s = rate;
    device.ports[0].state = Some(state.into());
    device
}

/// Eight ports of 400 Gbit/s and one of 100.
fn eight() -> Vec<RdmaDevice> {
    let mut devices: Vec<RdmaDevice> = (0..8).map(|number| device(number, Some(400.0), "ACTIVE")).collect();
    devices.push(device(8, Some(100.0), "ACTIVE"));
    devices
}

fn with(rdma: Vec<RdmaDevice>) -> NodeReading {
    let mut reading = node("n");
    reading.machine.rdma = rdma;
    reading
}

fn roster(nodes: &[NodeReading]) -> Roster {
    let entry = |(id, reading): (u32, &NodeReading)| {
        let facts = NodeFacts {
            version: "1".into(),
            request_digest: String::new(),
            engine: Engine::Cuda,
            address: None,
            rank_ports: vec![1; 8],
            gpus: (0..8).map(|index| GpuName { index, model: "NVIDIA H200".into() }).collect(),
            libraries: String::new(),
            known: Known::of(id, reading, &needs()),
            unable: None,
        };
        let joined = Some(Joined::new(facts, IpAddr::V4(Ipv4Addr::LOCALHOST)));
        RosterEntry { name: format!("n{id}").into(), joined, absent_because: None }
    };
    Roster { nodes: (0..).zip(nodes).map(entry).collect(), leader: 0, leaves: Leaves::default() }
}

fn suite(nodes: &[NodeReading], named: &[&str]) -> (Suite, Roster) {
    let roster = roster(nodes);
    let rdma: BTreeSet<String> = named.iter().map(|name| (*name).to_owned()).collect();
    let suite = Suite {
        checks: vec![AllReduce2],
        unbuilt: Vec::new(),
        engine: Engine::Cuda,
        baselines: vec![Baselines::parse(include_str!("../../../conf/baselines/h200.toml")).unwrap()],
        hardware: Hardware { rdma, ..Hardware::default() },
    };
    (suite.on(&roster), roster)
}

fn network(nodes: &[NodeReading], named: &[&str]) -> Option<String> {
    suite(nodes, named).0.hardware.network
}

#[test]
fn the_ports_for_the_gpus_traffic_are_the_named_ones_or_the_fastest() {
    let all = |devices: Vec<RdmaDevice>| [with(devices.clone()), with(devices.clone()), with(devices)];
    assert_eq!(network(&all(eight()), &[]).as_deref(), Some("8x400"));
    assert_eq!(network(&all(eight()), &["mlx5_0", "mlx5_1"]).as_deref(), Some("2x400"));
    assert_eq!(network(&all(eight()), &["mlx5_8"]).as_deref(), Some("1x100"));
    assert_eq!(network(&all(eight()), &["mlx5_0", "mlx5_8"]), None, "rates differ");
    assert_eq!(network(&all(Vec::new()), &[]), None);
    assert_eq!(network(&all(vec![device(0, None, "ACTIVE")]), &[]), None, "a rate that nobody knows");
    assert_eq!(network(&all(vec![device(0, Some(399.6), "ACTIVE")]), &[]).as_deref(), Some("1x400"));
    for odd in [f64::NAN, -1.0, 1e30] {
        assert_eq!(network(&all(vec![device(0, Some(odd), "ACTIVE")]), &[]), None, "{odd}");
    }
}

#[test]
fn all_nodes_must_have_the_same_less_those_at_fault() {
    let slower = (0..9).map(|number| device(number, Some(200.0), "ACTIVE")).collect();
    assert_eq!(network(&[with(eight()), with(eight()), with(slower)], &[]), None);
    // A port that is down where those of the others are up: its node sits out, and the limits hold for the others.
    let mut down = eight();
    down[3] = device(3, Some(400.0), "DOWN");
    assert_eq!(
        network(&[with(eight()), with(eight()), with(eight()), with(down)], &[]).as_deref(),
        Some("8x400")
    );
}

/// What two nodes that nobody can compare with others come to.
fn outcome(rdma: &[RdmaDevice], gb_per_s: f64) -> (Outcome, Option<String>) {
    let (suite, roster) = suite(&[with(rdma.to_vec()), with(rdma.to_vec())], &[]);
    let mut results: Vec<RoundResult> = Vec::new();
    while let Step::Measure(round) = plan::next(&suite, &roster, &results) {
        let number = Measurement {
            bytes: Some(1 << 30),
            samples: Vec::new(),
            ..plain(AllReduce2, Metric::Busbw, Subject::Pair { a: 0, b: 1 }, gb_per_s)
        };
        let outcomes = [0, 1].map(|node| (node, NodeOutcome::Measured(vec![number.clone()])));
        results.push(RoundResult { round, outcomes: outcomes.into() });
    }
    let verdict =
        verdict(&suite, &roster, &results, Caps { max_drain_nodes: 4, max_drain_fraction: 0.34 }, None);
    let limit = verdict.findings.iter().find_map(|one| one.limit.as_ref());
    (verdict.outcome, limit.map(|limit| limit.source.clone()))
}

#[test]
fn a_limit_for_ports_holds_where_the_nodes_have_those() {
    let (slow, limit) = outcome(&eight(), 100.0);
    assert_eq!(slow, Outcome::Suspect);
    assert!(limit.unwrap().starts_with("baseline H200: "));
    assert_eq!(outcome(&eight(), 350.0).0, Outcome::Pass);
    // Four ports: what those carry is no fault.
    assert_eq!(outcome(&eight()[..4], 100.0), (Outcome::Pass, None));
}
