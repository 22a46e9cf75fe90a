//! Readings of healthy nodes, for tests that break one thing each.

use diag::gpu_facts::reading::{
    Clocks, Device, Ecc, Fabric, FabricState, GpuReading, GpuSample, MachineReading, Memlock, Memory,
    NodeReading, NvLink, PciDevice, Pcie, PcieNode, PciePath, PeerMemory, Power, RdmaDevice, RdmaPort,
    Recovery, RemappedRows, Shm, SpareRows, SramEcc, Temperature,
};
use diag::gpu_facts::{Fact, FactKind, Needs};
use diag::measurement::Subject;

pub const GIB: u64 = 1 << 30;

pub fn needs() -> Needs {
    Needs { gpu_free_bytes: 16 * GIB, shm_bytes: GIB, memlock_bytes: GIB }
}

pub fn address(minor: u32) -> String {
    format!("0000:{:02x}:00.0", 0x81 + minor)
}

fn ecc() -> Ecc {
    Ecc {
        enabled: Some(true),
        volatile_uncorrected: Some(0),
        // History: neither blames nor explains.
        aggregate_uncorrected: Some(4),
        volatile_corrected: Some(7),
        sram: Some(SramEcc { volatile_uncorrected: 0, aggregate_uncorrected: 1, threshold_exceeded: false }),
    }
}

/// An idle H200 as a healthy one shows itself.
pub fn gpu(minor: u32) -> GpuReading {
    GpuReading {
        device: Device {
            index: minor,
            minor: Some(minor),
            uuid: Some(format!("GPU-00000000-0000-0000-0000-{minor:012x}")),
            pci: Some(address(minor)),
            name: Some("NVIDIA H200".to_owned()),
            lost: None,
        },
        memory: Some(Memory { total_bytes: 140 * GIB, free_bytes: 139 * GIB }),
        processes: Some(vec![]),
        persistence: Some(true),
        mig: Some(false),
        clocks: Clocks {
            sm_mhz: Some(345),
            sm_max_mhz: Some(1980),
            sm_set_mhz: Some(1980),
            sm_default_mhz: Some(1980),
            memory_mhz: Some(3201),
            memory_max_mhz: Some(3201),
            memory_set_mhz: Some(3201),
            memory_default_mhz: Some(3201),
            reasons: Some(0x1),
        },
        power: Power {
            usage_mw: Some(76_000),
            limit_mw: Some(700_000),
            default_limit_mw: Some(700_000),
            max_limit_mw: Some(700_000),
            enforced_limit_mw: Some(700_000),
        },
        temperature: Temperature {
            gpu_c: Some(29),
            slowdown_c: Some(92),
            margin_c: Some(58),
            memory_c: Some(35),
            memory_max_c: Some(95),
        },
        ecc: ecc(),
        rows: Some(RemappedRows { corrected: 1, uncorrected: 2, pending: false, failed: false }),
        spare_rows: Some(SpareRows { all: 2560, high: 1, partial: 0, low: 0, none: 0 }),
        recovery: Some(Recovery::None),
        links: (0..18).map(|link| NvLink { link, active: Some(true), ..NvLink::default() }).collect(),
        // An idle GPU lowers its link.
        pcie: Pcie {
            generation: Some(1),
            generation_max: Some(5),
            card_generation_max: Some(5),
            width: Some(16),
            width_max: Some(16),
            replays: Some(0),
        },
        fabric: Some(Fabric {
            state: FabricState::Completed,
            status: (0, "Success".to_owned()),
            cluster_uuid: None,
            clique: 0,
            // All of its questions answered with no, the configuration with nothing wrong.
            health_mask: Some(0x1aa),
            health_summary: Some(1),
        }),
        ..GpuReading::default()
    }
}

/// The same under full load: hot, at its power limit.
pub fn sample() -> GpuSample {
    let idle = gpu(0);
    GpuSample {
        clocks: Clocks { sm_mhz: Some(1755), reasons: Some(0x4), ..idle.clocks },
        power: Power { usage_mw: Some(699_000), ..idle.power },
        temperature: Temperature {
            gpu_c: Some(68),
            margin_c: Some(19),
            memory_c: Some(80),
            ..idle.temperature
        },
        pcie: Pcie { generation: Some(5), ..idle.pcie },
        ecc: idle.ecc,
        busy_percent: Some(100),
        took_ms: 4,
    }
}

pub fn end(address: &str, speed: [f64; 2], width: [u32; 2]) -> PcieNode {
    PcieNode {
        address: address.to_owned(),
        speed_gt_s: Some(speed[0]),
        speed_max_gt_s: Some(speed[1]),
        width: Some(width[0]),
        width_max: Some(width[1]),
    }
}

/// A device behind a switch: its link, then the link of the switch.
pub fn path(address: &str) -> PciePath {
    let fine = |address: &str| end(address, [32.0, 32.0], [16, 16]);
    PciePath {
        address: address.to_owned(),
        nodes: vec![
            fine(address),
            fine("0000:70:04.0"),
            fine("0000:6f:00.0"),
            end("0000:6e:01.0", [32.0, 64.0], [16, 16]),
        ],
    }
}

pub fn nic(number: u32) -> RdmaDevice {
    RdmaDevice {
        name: format!("mlx5_{number}"),
        pci: Some(format!("0000:{:02x}:00.0", 0x11 + number)),
        verbs: true,
        net_devices: vec![],
        firmware: Some("28.39.1002".to_owned()),
        ports: vec![RdmaPort {
            number: 1,
            state: Some("ACTIVE".to_owned()),
            physical_state: Some("LinkUp".to_owned()),
            link_layer: Some("InfiniBand".to_owned()),
            rate_gbit_s: Some(400.0),
            downs: Some(0),
        }],
    }
}

/// A node with GPUs 0 to 3, four NICs that are used and one that never was.
pub fn node(name: &str) -> NodeReading {
    let gpus: Vec<GpuReading> = (0..4).map(gpu).collect();
    let mut unused = nic(4);
    unused.ports[0].state = Some("DOWN".to_owned());
    unused.ports[0].physical_state = Some("Polling".to_owned());
    let controller = |address: String, vendor, class| PciDevice {
        address,
        vendor,
        device: 0x2335,
        class,
        driver: Some("bound".to_owned()),
    };
    let pci = gpus
        .iter()
        .map(|gpu| controller(gpu.device.pci.clone().unwrap(), 0x10de, 0x03_02_00))
        .chain((0..5).map(|number| controller(nic(number).pci.unwrap(), 0x15b3, 0x02_07_00)))
        .collect();
    let mut paths: Vec<PciePath> = gpus.iter().map(|gpu| path(gpu.device.pci.as_ref().unwrap())).collect();
    for resting in &mut paths {
        resting.nodes[0].speed_gt_s = Some(2.5);
        resting.nodes[1].speed_gt_s = Some(2.5);
    }
    paths.extend((0..5).map(|number| path(nic(number).pci.as_ref().unwrap())));
    NodeReading {
        name: name.to_owned(),
        driver_version: Some("580.159.03".to_owned()),
        cuda_version: Some(13_000),
        present: gpus.iter().map(|gpu| gpu.device.clone()).collect(),
        gpus,
        absent: vec![],
        shared: None,
        trouble: vec![],
        machine: MachineReading {
            uptime_s: Some(86_400),
            shm: Some(Shm { total_bytes: 64 * GIB, free_bytes: 64 * GIB }),
            memlock: Some(Memlock { soft_bytes: None, hard_bytes: None }),
            modules: Some(["nvidia", "nvidia_uvm", "nvidia_peermem"].map(ToOwned::to_owned).to_vec()),
            peer_memory: Some(PeerMemory { loaded: true, registered: Some(true) }),
            imex: None,
            rdma: (0..4).map(nic).chain([unused]).collect(),
            net: vec![],
            pci,
            paths,
        },
    }
}

/// What a test expects of one fact: kind, subject as `gpu 2` or `nic mlx5_1`, and words that must be in it.
pub type Expected = (FactKind, &'static str, &'static [&'static str]);

fn short(subject: &Subject) -> String {
    match subject {
        Subject::Gpu { node, index } => format!("{node} gpu {index}"),
        Subject::Nic { node, name } => format!("{node} nic {name}"),
        Subject::Node { node } => format!("{node} node"),
        other => other.kind().to_owned(),
    }
}

/// Exactly these facts, in this order.
pub fn assert_facts(id: &str, facts: &[Fact], expected: &[Expected]) {
    let seen: Vec<(FactKind, String)> = facts.iter().map(|one| (one.kind, short(&one.subject))).collect();
    let wanted: Vec<(FactKind, String)> =
        expected.iter().map(|(kind, subject, _)| (*kind, (*subject).to_owned())).collect();
    assert_eq!(seen, wanted, "{id}: {facts:#?}");
    for (fact, (_, _, words)) in facts.iter().zip(expected) {
        for word in *words {
            assert!(fact.words.contains(word), "{id}: '{word}' is not in: {}", fact.words);
        }
        assert!(!fact.words.contains('\n') && fact.words.chars().count() < 300, "{id}: {}", fact.words);
    }
}
