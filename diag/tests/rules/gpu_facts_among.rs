//! Facts that only a look at all nodes of a job gives, by field case.

use std::collections::BTreeSet;

use crate::readings::{Expected, assert_facts, node};
use diag::gpu_facts::FactKind::{Cause, Error, Fault};
use diag::gpu_facts::reading::{NodeReading, PciDevice};
use diag::gpu_facts::{Compared, Fact, Known, Placed, among};
use proptest::prelude::*;

/// Field case, nodes of the job, what is changed, what is expected.
type Case = (&'static str, u32, fn(&mut [NodeReading]), &'static [Expected]);

fn job(size: u32) -> Vec<NodeReading> {
    (0..size).map(|number| node(&format!("n{number}"))).collect()
}

fn facts(nodes: &[NodeReading], rdma: &[&str]) -> Vec<Fact> {
    let seen: Vec<Compared> = nodes.iter().map(Compared::from).collect();
    let placed: Vec<Placed<'_>> =
        (0..).zip(nodes).zip(&seen).map(|((node, of), seen)| (node, of.name.as_str(), seen)).collect();
    among(&placed, &rdma.iter().map(|name| (*name).to_owned()).collect())
}

fn check(cases: &[Case]) {
    for (id, size, change, expected) in cases {
        let mut nodes = job(*size);
        change(&mut nodes);
        assert_facts(id, &facts(&nodes, &[]), expected);
    }
}

#[test]
fn healthy_jobs_of_every_size_give_no_fact() {
    for size in 1..10 {
        assert_facts("healthy", &facts(&job(size), &[]), &[]);
    }
    assert_facts("nobody", &among(&[], &BTreeSet::new()), &[]);
}

#[test]
fn versions_that_differ_are_an_error_that_names_both() {
    check(&[
        (
            "N07: one of four",
            4,
            |it| it[2].driver_version = Some("570.86.15".to_owned()),
            &[(Error, "2 node", &["n2 has GPU driver 570.86.15", "580.159.03 on n0, n1, n3"])],
        ),
        (
            "N07: one of two, nobody is the odd one",
            2,
            |it| it[1].driver_version = Some("570.86.15".to_owned()),
            &[(Error, "run", &["GPU driver", "570.86.15 on n1", "580.159.03 on n0"])],
        ),
        (
            "N07: one of many",
            9,
            |it| it[0].driver_version = Some("570.86.15".to_owned()),
            &[(Error, "0 node", &["n0 has GPU driver 570.86.15", "and 4 more"])],
        ),
        ("one that does not say", 3, |it| it[1].driver_version = None, &[]),
    ]);
}

#[test]
fn a_link_that_is_down_where_those_of_the_others_are_up_is_a_fault() {
    check(&[
        (
            "one GPU of one node",
            1,
            |it| it[0].gpus[2].links[5].active = Some(false),
            &[(Fault, "0 gpu 2", &["NVLink 5 down", "17 of 18 up"])],
        ),
        (
            "all of an SXM GPU",
            2,
            |it| it[1].gpus[0].links.iter_mut().for_each(|link| link.active = Some(false)),
            &[(Fault, "1 gpu 0", &["NVLink 0,1,2", "0 of 18 up"])],
        ),
        (
            "K01: just started",
            2,
            |it| {
                it[1].machine.uptime_s = Some(120);
                it[1].gpus[0].links[3].active = Some(false);
            },
            &[(Error, "1 gpu 0", &["just started"])],
        ),
        (
            "K02: cards of which some have a bridge",
            2,
            |it| {
                for node in it.iter_mut() {
                    for (at, gpu) in node.gpus.iter_mut().enumerate() {
                        gpu.device.name = Some("NVIDIA A100-PCIE-40GB".to_owned());
                        gpu.links.truncate(12);
                        gpu.links.iter_mut().for_each(|link| link.active = Some(at < 3));
                    }
                }
            },
            &[],
        ),
        (
            "K02: cards without any bridge",
            2,
            |it| {
                let all = it.iter_mut().flat_map(|node| &mut node.gpus);
                all.flat_map(|gpu| &mut gpu.links).for_each(|link| link.active = Some(false));
            },
            &[],
        ),
        (
            "a lost GPU tells nothing of the others' links",
            1,
            |it| {
                it[0].gpus[1].lost = Some("gone".to_owned());
                it[0].gpus[1].links.clear();
            },
            &[],
        ),
        (
            "GPUs of another kind are no peers",
            1,
            |it| {
                it[0].gpus[0].device.name = Some("NVIDIA L40S".to_owned());
                it[0].gpus[0].links.iter_mut().for_each(|link| link.active = Some(false));
            },
            &[],
        ),
    ]);
}

fn down(node: &mut NodeReading, at: usize) {
    node.machine.rdma[at].ports[0].state = Some("DOWN".to_owned());
    node.machine.rdma[at].ports[0].physical_state = Some("Polling".to_owned());
}

#[test]
fn a_port_counts_when_most_others_have_it_up() {
    check(&[
        (
            "a cable",
            4,
            |it| down(&mut it[3], 1),
            &[(Fault, "3 nic mlx5_1", &["n3: mlx5_1 port 1 is DOWN (Polling)", "cable", "3 of the 3 other"])],
        ),
        (
            "two nodes can't tell which is odd",
            2,
            |it| down(&mut it[0], 1),
            &[(Cause, "0 nic mlx5_1", &["up on 1 of the 1 other"])],
        ),
        (
            "another board: its ports are elsewhere, none is missing",
            4,
            |it| {
                for (at, device) in it[1].machine.rdma.iter_mut().enumerate() {
                    if at != 0 {
                        device.pci = Some(format!("0000:e{at}:00.0"));
                    }
                }
            },
            &[
                (Cause, "1 nic mlx5_1", &["ports where no other node has one", "3 of the 3 other"]),
                (Cause, "1 nic mlx5_2", &["ports where no other node has one"]),
                (Cause, "1 nic mlx5_3", &["ports where no other node has one"]),
            ],
        ),
        ("J01: up on one node only", 4, |it| it[0].machine.rdma[4] = crate::readings::nic(4), &[]),
        ("half is no majority", 3, |it| (0..2).for_each(|at| down(&mut it[at], 2)), &[]),
        (
            "J05: the subnet manager's part",
            3,
            |it| {
                it[0].machine.rdma[0].ports[0].state = Some("INIT".to_owned());
            },
            &[(Fault, "0 nic mlx5_0", &["INIT (LinkUp)", "subnet manager"])],
        ),
        (
            "J02: what counts is uverbs",
            3,
            |it| it[1].machine.rdma[0].verbs = false,
            &[(Error, "1 nic mlx5_0", &["no uverbs device", "ib_uverbs"])],
        ),
    ]);
}

#[test]
fn a_device_is_known_by_its_place_and_missed_when_it_is_gone() {
    check(&[
        (
            "J06: seven of eight, the driver never bound",
            3,
            |it| {
                it[2].machine.rdma.remove(3);
                it[2]
                    .machine
                    .pci
                    .iter_mut()
                    .filter(|one| one.address == "0000:14:00.0")
                    .for_each(|one| one.driver = None);
            },
            &[(Fault, "2 nic mlx5_3", &["no RDMA device at 0000:14:00.0", "without a driver: 0000:14:00.0"])],
        ),
        (
            "J06: gone from the bus",
            3,
            |it| {
                it[2].machine.rdma.remove(3);
                it[2].machine.pci.retain(|one: &PciDevice| one.address != "0000:14:00.0");
            },
            &[(Fault, "2 nic mlx5_3", &["no network controller on the bus is without a driver"])],
        ),
        (
            "J09: other names, same places",
            3,
            |it| it[1].machine.rdma.iter_mut().for_each(|one| one.name = one.name.replace("mlx5_", "ibp")),
            &[],
        ),
        (
            "J09: its own name is told",
            3,
            |it| {
                it[1].machine.rdma.iter_mut().for_each(|one| one.name = one.name.replace("mlx5_", "ibp"));
                down(&mut it[1], 2);
            },
            &[(Fault, "1 nic ibp2", &["ibp2 port 1 is DOWN"])],
        ),
    ]);
}

#[test]
fn a_device_that_the_policy_names_is_in_use() {
    let expected: &[Expected] = &[
        (Fault, "0 nic mlx5_4", &["the policy names it"]),
        (Error, "0 nic mlx5_9", &["no RDMA device mlx5_9"]),
    ];
    assert_facts("policy", &facts(&job(1), &["mlx5_4", "mlx5_9"]), expected);
}

proptest! {
    // M13: a node is blamed only for what is missing on itself, wherever it stands.
    #[test]
    fn one_port_that_is_down_is_named_at_every_place(size in 3_u32..40, node in 0_u32..40, port in 0_usize..4) {
        let node = node % size;
        let mut nodes = job(size);
        nodes[node as usize].machine.rdma[port].ports[0].state = Some("DOWN".to_owned());
        let facts = facts(&nodes, &[]);
        prop_assert_eq!(facts.len(), 1);
        prop_assert_eq!(facts[0].kind, Fault);
        prop_assert_eq!(facts[0].subject.nodes(), vec![node]);
    }

    #[test]
    fn one_link_that_is_down_is_named_at_every_place(size in 1_u32..20, node in 0_u32..20, gpu in 0_u32..4, link in 0_usize..18) {
        let node = node % size;
        let mut nodes = job(size);
        nodes[node as usize].gpus[gpu as usize].links[link].active = Some(false);
        let facts = facts(&nodes, &[]);
        prop_assert_eq!(facts.len(), 1);
        prop_assert_eq!(&facts[0].subject, &diag::measurement::Subject::Gpu { node, index: gpu });
    }
}

// A thousand nodes hear of each other: what each tells stays small, whatever is wrong with it.
#[test]
fn what_a_node_tells_the_others_is_small() {
    let size = |known: &Known| serde_json::to_string(known).unwrap().len();
    assert!(size(&Known::of(0, &node("n0"), &crate::readings::needs())) < 1500);
    let mut worst = node("n0");
    worst.trouble = vec!["x".repeat(5000); 100];
    worst.machine.rdma = (0..200).map(|_| crate::readings::nic(1)).collect();
    worst.machine.pci.iter_mut().for_each(|one| one.driver = None);
    worst.gpus = (0..200).map(crate::readings::gpu).collect();
    assert!(size(&Known::of(0, &worst, &crate::readings::needs())) < 14_000, "a hello has 16 KiB");
}
