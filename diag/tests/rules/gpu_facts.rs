//! Facts of one node, by field case: one thing is changed in a healthy reading and exactly these facts come of it.

use crate::readings::{Expected, GIB, assert_facts, needs, node};
use diag::gpu_facts::FactKind::{Cause, Error, Fault, Note, Skip};
use diag::gpu_facts::reading::{
    ComputeMode, FabricState, Imex, Memlock, Memory, NodeReading, PciDevice, PeerMemory, Process,
    ProcessOwner, Recovery, Sharing, Shm,
};
use diag::gpu_facts::{Needs, of_node};

/// Field case, what is changed, what is expected.
type Case = (&'static str, fn(&mut NodeReading), &'static [Expected]);

fn check(cases: &[Case]) {
    for (id, change, expected) in cases {
        let mut reading = node("n1");
        change(&mut reading);
        assert_facts(id, &of_node(1, &reading, &needs()), expected);
    }
}

fn process(pid: u32, owner: Option<(&str, Option<char>)>) -> Process {
    let owner = owner.map(|(command, state)| ProcessOwner {
        command: command.to_owned(),
        uid: 1000,
        user: Some("alice".to_owned()),
        state,
    });
    Process { pid, memory_bytes: Some(5 * GIB), mps: false, owner }
}

#[test]
fn a_healthy_node_gives_no_fact() {
    assert_facts("healthy", &of_node(1, &node("n1"), &needs()), &[]);
    // Nor does one that tells nothing at all.
    assert_facts("silent", &of_node(1, &NodeReading::default(), &Needs::default()), &[]);
}

#[test]
fn a_process_that_can_t_be_seen_is_told_by_its_memory_and_its_load() {
    check(&[
        (
            "A10, E13, in a container",
            |it| (it.gpus[1].hidden_bytes, it.gpus[1].busy_percent) = (Some(5 * GIB), Some(98)),
            &[(Cause, "1 gpu 1", &["another process that can't be seen", "5.0 GiB", "98 % busy"])],
        ),
        // The memory of an idle one, or of a system that uses the GPU's as its own (GH200), slows nothing.
        ("idle", |it| (it.gpus[1].hidden_bytes, it.gpus[1].busy_percent) = (Some(5 * GIB), Some(2)), &[]),
        ("empty", |it| (it.gpus[1].hidden_bytes, it.gpus[1].busy_percent) = (Some(0), Some(98)), &[]),
        (
            "seen",
            |it| {
                it.gpus[1].processes = Some(vec![process(9, None)]);
                (it.gpus[1].hidden_bytes, it.gpus[1].busy_percent) = (Some(5 * GIB), Some(98));
            },
            &[(Cause, "1 gpu 1", &["process 9"])],
        ),
    ]);
}

#[test]
fn who_else_uses_a_gpu_is_named_and_blames_no_part() {
    check(&[
        (
            "A10, E13",
            |it| it.gpus[2].processes = Some(vec![process(4711, Some(("python", Some('S'))))]),
            &[(Cause, "1 gpu 2", &["n1 GPU 2 (0000:83:00.0)", "4711", "python", "alice", "5.0 GiB"])],
        ),
        (
            "E01",
            |it| it.gpus[0].processes = Some(vec![process(7, Some(("python", Some('D'))))]),
            &[(Cause, "1 gpu 0", &["stuck in the kernel"])],
        ),
        (
            "L07",
            |it| it.gpus[0].processes = Some(vec![process(7, None)]),
            &[(Cause, "1 gpu 0", &["process 7", "ended meanwhile"])],
        ),
        (
            "E13 left-over process",
            |it| {
                it.gpus[1].processes = Some(vec![process(9, Some(("ollama", None)))]);
                it.gpus[1].memory = Some(Memory { total_bytes: 140 * GIB, free_bytes: 3 * GIB });
            },
            &[
                (Cause, "1 gpu 1", &["ollama"]),
                (Error, "1 gpu 1", &["3.0 GiB of 140.0 GiB", "16.0 GiB", "process 9"]),
            ],
        ),
        (
            "E13 memory without a process",
            |it| it.gpus[1].memory = Some(Memory { total_bytes: 140 * GIB, free_bytes: 0 }),
            &[(Error, "1 gpu 1", &["0.0 GiB", "no process that can be seen"])],
        ),
        (
            "L05 MIG; what NVML says is told all the same",
            |it| {
                it.gpus[3].mig = Some(true);
                it.gpus[3].ecc.volatile_uncorrected = Some(1);
            },
            &[(Skip, "1 gpu 3", &["MIG"]), (Fault, "1 gpu 3", &["1 uncorrected"])],
        ),
        (
            "MPS server",
            |it| it.gpus[0].processes = Some(vec![process(5, Some(("nvidia-cuda-mps", None)))]),
            &[(Skip, "1 gpu 0", &["MPS"])],
        ),
        (
            "MPS client",
            |it| it.gpus[0].processes = Some(vec![Process { mps: true, ..process(5, None) }]),
            &[(Skip, "1 gpu 0", &["MPS"])],
        ),
        ("gres/mps", |it| it.shared = Some(Sharing::Mps), &[(Skip, "1 node", &["MPS"])]),
        ("gres/shard", |it| it.shared = Some(Sharing::Shard), &[(Skip, "1 node", &["shards"])]),
        (
            "compute mode",
            |it| it.gpus[0].compute_mode = Some(ComputeMode::Prohibited),
            &[(Error, "1 gpu 0", &["PROHIBITED", "nvidia-smi -c DEFAULT"])],
        ),
        ("compute mode", |it| it.gpus[0].compute_mode = Some(ComputeMode::Exclusive), &[]),
    ]);
}

#[test]
fn what_somebody_set_is_a_cause_and_no_fault() {
    check(&[
        ("E11", |it| it.gpus[0].persistence = Some(false), &[(Note, "1 gpu 0", &["persistence"])]),
        (
            "G10 application clocks",
            |it| it.gpus[0].clocks.sm_set_mhz = Some(1200),
            &[(Cause, "1 gpu 0", &["1200 MHz", "usual 1980", "nvidia-smi -rac"])],
        ),
        (
            "G10 memory clock",
            |it| it.gpus[0].clocks.memory_set_mhz = Some(1600),
            &[(Cause, "1 gpu 0", &["memory clock", "1600"])],
        ),
        (
            "G10 locked clocks",
            |it| (it.gpus[0].clocks.reasons, it.gpus[0].clocks.sm_mhz) = (Some(0x2), Some(1200)),
            &[(Cause, "1 gpu 0", &["locked at 1200 of 1980", "nvidia-smi -rgc"])],
        ),
        ("H03 idle", |it| it.gpus[0].clocks.reasons = Some(0x3), &[]),
        (
            "a factory clock below the highest",
            |it| {
                let clocks = &mut it.gpus[0].clocks;
                (clocks.reasons, clocks.sm_mhz) = (Some(0x2), Some(1189));
                (clocks.sm_set_mhz, clocks.sm_default_mhz) = (Some(1189), Some(1189));
            },
            &[],
        ),
        (
            "G10 power limit",
            |it| it.gpus[0].power.limit_mw = Some(450_000),
            &[(Cause, "1 gpu 0", &["450 W", "usual 700 W", "nvidia-smi -pl 700"])],
        ),
        (
            "a limit of the chassis",
            |it| it.gpus[0].power.enforced_limit_mw = Some(600_000),
            &[(Cause, "1 gpu 0", &["600 W are enforced"])],
        ),
        ("a raised limit", |it| it.gpus[0].power.default_limit_mw = Some(650_000), &[]),
    ]);
}

#[test]
fn broken_memory_is_a_fault_of_its_gpu_only() {
    check(&[
        (
            "uncorrected",
            |it| it.gpus[1].ecc.volatile_uncorrected = Some(2),
            &[(Fault, "1 gpu 1", &["2 uncorrected memory errors", "limit 0", "reset"])],
        ),
        (
            "SRAM, counted by itself",
            |it| it.gpus[1].ecc.sram.as_mut().unwrap().volatile_uncorrected = 3,
            &[(Fault, "1 gpu 1", &["3 uncorrected errors of the memory inside the chip"])],
        ),
        (
            "SRAM threshold",
            |it| it.gpus[1].ecc.sram.as_mut().unwrap().threshold_exceeded = true,
            &[(Fault, "1 gpu 1", &["threshold", "replace"])],
        ),
        (
            "row to be replaced",
            |it| it.gpus[1].rows.as_mut().unwrap().pending = true,
            &[(Fault, "1 gpu 1", &["waits to be replaced", "reset"])],
        ),
        (
            "row that could not be replaced",
            |it| {
                it.gpus[1].rows.as_mut().unwrap().failed = true;
                it.gpus[1].spare_rows.as_mut().unwrap().none = 1;
            },
            &[(Fault, "1 gpu 1", &["1 of 2560 banks have no spare row left", "replace the GPU"])],
        ),
        (
            "pages, before Ampere",
            |it| it.gpus[1].pages.pending = Some(true),
            &[(Fault, "1 gpu 1", &["pages", "reset"])],
        ),
        (
            "recovery action",
            |it| it.gpus[1].recovery = Some(Recovery::Reboot),
            &[(Fault, "1 gpu 1", &["a restart of the node"])],
        ),
        (
            "I09 an action without a name",
            |it| it.gpus[1].recovery = Some(Recovery::Other(9)),
            &[(Note, "1 gpu 1", &["9"])],
        ),
    ]);
}

#[test]
fn a_gpu_that_is_gone_is_a_fault_and_the_others_are_judged_without_it() {
    check(&[
        (
            "E18, L10",
            |it| {
                it.gpus[1].lost = Some("memory: device fell off the bus".to_owned());
                it.gpus[1].memory = None;
                it.gpus[2].persistence = Some(false);
            },
            &[(Fault, "1 gpu 1", &["fell off the bus", "Xid"]), (Note, "1 gpu 2", &["persistence"])],
        ),
        (
            "F13, E18: on the bus, not in NVML",
            |it| {
                it.absent = vec!["3".to_owned()];
                it.gpus.pop();
                it.present.pop();
                it.machine.pci[3].driver = None;
            },
            &[(Fault, "1 node", &["GPU 3 is missing", "shows 3 of the 4", "0000:84:00.0 (no driver)"])],
        ),
        (
            "L01: a number that this node never had",
            |it| it.absent = vec!["8".to_owned()],
            &[(Error, "1 node", &["GPU 8 is not there", "gres.conf"])],
        ),
        (
            "E18, F05: the driver's own words",
            |it| it.gpus[0].unreadable = vec!["power: an internal driver error occurred".to_owned()],
            &[(Error, "1 gpu 0", &["NVML fails", "internal driver error"])],
        ),
    ]);
}

fn fabric(it: &mut NodeReading, at: usize) -> &mut diag::gpu_facts::reading::Fabric {
    it.gpus[at].fabric.as_mut().unwrap()
}

#[test]
fn the_fabric_is_named_where_it_is_at_fault() {
    check(&[
        (
            "K05",
            |it| fabric(it, 2).status = (23, "Insufficient Resources".to_owned()),
            &[(Fault, "1 gpu 2", &["failed: Insufficient Resources (NVML 23)"])],
        ),
        (
            "K06, K07: the fabric manager is the node's",
            |it| (0..4).for_each(|at| fabric(it, at).state = FabricState::InProgress),
            &[(Error, "1 node", &["0 in progress, 1 in progress", "nvidia-fabricmanager"])],
        ),
        (
            "one that others have finished",
            |it| fabric(it, 3).state = FabricState::NotStarted,
            &[(Fault, "1 gpu 3", &["not started", "other GPUs"])],
        ),
        (
            "K01: just started",
            |it| {
                fabric(it, 3).state = FabricState::InProgress;
                it.machine.uptime_s = Some(60);
            },
            &[(Error, "1 node", &["3 in progress"])],
        ),
        ("no fabric", |it| (0..4).for_each(|at| fabric(it, at).state = FabricState::NotSupported), &[]),
        (
            "degraded",
            |it| fabric(it, 0).health_mask = Some(0x1a9),
            &[(Fault, "1 gpu 0", &["less bandwidth"])],
        ),
        (
            "routes",
            |it| fabric(it, 0).health_mask = Some(0x19a),
            &[(Fault, "1 gpu 0", &["routes", "healthy"])],
        ),
        ("recovering", |it| fabric(it, 0).health_mask = Some(0x1a6), &[(Error, "1 gpu 0", &["recovered"])]),
        ("links", |it| fabric(it, 0).health_mask = Some(0x5aa), &[(Fault, "1 gpu 0", &["too few NVLinks"])]),
        ("partition", |it| fabric(it, 0).health_mask = Some(0x4aa), &[(Error, "1 gpu 0", &["no partition"])]),
        (
            "unknown mistake",
            |it| fabric(it, 0).health_mask = Some(0xcaa),
            &[(Error, "1 gpu 0", &["mistake 12"])],
        ),
        ("summary", |it| fabric(it, 0).health_summary = Some(2), &[(Fault, "1 gpu 0", &["not healthy"])]),
        ("limited", |it| fabric(it, 0).health_summary = Some(3), &[(Cause, "1 gpu 0", &["limited"])]),
    ]);
}

#[test]
fn without_imex_nvlink_between_nodes_is_a_cause_and_no_fault() {
    check(&[
        (
            "K03",
            |it| {
                fabric(it, 0).cluster_uuid = Some("ab".repeat(16));
                it.machine.imex = Some(Imex { channels: 1, daemon: false });
            },
            &[(Cause, "1 node", &["nvidia-imex does not run", "NVLink between nodes"])],
        ),
        (
            "K03, running",
            |it| {
                fabric(it, 0).cluster_uuid = Some("ab".repeat(16));
                it.machine.imex = Some(Imex { channels: 1, daemon: true });
            },
            &[],
        ),
        (
            "K09: set up for jobs with whole nodes only",
            |it| {
                fabric(it, 0).cluster_uuid = Some("ab".repeat(16));
                it.machine.imex = Some(Imex { channels: 0, daemon: false });
            },
            &[(Cause, "1 node", &["nvidia-imex does not run and there is no IMEX channel"])],
        ),
        (
            "K09: nothing to set up, no NVLink leads to another node",
            |it| it.machine.imex = Some(Imex { channels: 0, daemon: false }),
            &[],
        ),
    ]);
}

#[test]
fn settings_of_a_node_never_blame_it() {
    check(&[
        (
            "J10",
            |it| it.machine.memlock = Some(Memlock { soft_bytes: Some(65_536), hard_bytes: None }),
            &[(Error, "1 node", &["may lock 64 KiB", "needs 1024 MiB", "LimitMEMLOCK"])],
        ),
        (
            "J10 without RDMA",
            |it| {
                it.machine.memlock = Some(Memlock { soft_bytes: Some(65_536), hard_bytes: None });
                it.machine.rdma.retain(|device| device.name == "mlx5_4");
            },
            &[],
        ),
        (
            "J11 registered",
            |it| it.machine.peer_memory = Some(PeerMemory { loaded: true, registered: Some(false) }),
            &[(Cause, "1 node", &["not registered", "GPUDirect RDMA is off"])],
        ),
        (
            "J11 loaded",
            |it| it.machine.peer_memory = Some(PeerMemory { loaded: false, registered: None }),
            &[(Cause, "1 node", &["nvidia_peermem is not loaded"])],
        ),
        (
            "J13",
            |it| it.machine.shm = Some(Shm { total_bytes: 64 << 20, free_bytes: 64 << 20 }),
            &[(Error, "1 node", &["/dev/shm has 64 MiB", "need 1024 MiB"])],
        ),
        (
            "K10",
            |it| it.machine.modules = Some(vec!["nvidia".to_owned()]),
            &[(Note, "1 node", &["nvidia_uvm", "nvidia-modprobe -u"])],
        ),
        ("P02: nothing is known", |it| it.machine = diag::gpu_facts::reading::MachineReading::default(), &[]),
    ]);
}

#[test]
fn a_pcie_link_counts_by_what_both_of_its_ends_can() {
    fn ends(it: &mut NodeReading, address: &str) -> usize {
        it.machine.paths.iter().position(|path| path.address == address).unwrap()
    }
    check(&[
        (
            "J14: a new card in an old slot",
            |it| {
                let at = ends(it, "0000:11:00.0");
                let nodes = &mut it.machine.paths[at].nodes;
                (nodes[0].speed_gt_s, nodes[1].speed_gt_s) = (Some(16.0), Some(16.0));
                nodes[1].speed_max_gt_s = Some(16.0);
            },
            &[],
        ),
        (
            "J14: a link in the middle",
            |it| {
                let at = ends(it, "0000:81:00.0");
                let nodes = &mut it.machine.paths[at].nodes;
                (nodes[2].speed_gt_s, nodes[3].speed_gt_s) = (Some(8.0), Some(8.0));
            },
            &[(Fault, "1 gpu 0", &["link above it (0000:6e:01.0 to 0000:6f:00.0)", "8 GT/s", "can do 32"])],
        ),
        (
            "lanes, at rest too",
            |it| {
                let at = ends(it, "0000:82:00.0");
                (it.machine.paths[at].nodes[0].width, it.machine.paths[at].nodes[1].width) =
                    (Some(8), Some(8));
            },
            &[(Fault, "1 gpu 1", &["8 lanes", "can do 16"])],
        ),
        (
            "a NIC's own link",
            |it| {
                let at = ends(it, "0000:12:00.0");
                it.machine.paths[at].nodes[0].speed_gt_s = Some(16.0);
            },
            &[(Fault, "1 nic mlx5_1", &["mlx5_1", "16 GT/s"])],
        ),
        (
            "J01: of a NIC that is not in use",
            |it| {
                let at = ends(it, "0000:15:00.0");
                it.machine.paths[at].nodes[0].width = Some(1);
            },
            &[],
        ),
        (
            "P02, and a device without a port above it",
            |it| {
                let at = ends(it, "0000:11:00.0");
                it.machine.paths[at].nodes.truncate(1);
                let at = ends(it, "0000:12:00.0");
                it.machine.paths[at].nodes.iter_mut().for_each(|node| {
                    (node.speed_gt_s, node.speed_max_gt_s, node.width, node.width_max) =
                        (None, None, None, None);
                });
                it.machine.pci = vec![PciDevice {
                    address: "0000:01:00.0".to_owned(),
                    vendor: 0x10de,
                    device: 0,
                    class: 0x03_00_00,
                    driver: None,
                }];
            },
            &[],
        ),
    ]);
}
