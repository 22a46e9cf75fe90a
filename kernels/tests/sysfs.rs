//! What is read of a node below `/sys`, `/proc` and `/dev`, from trees that have the kernel's shape.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;

use diag::gpu_facts::reading::{Imex, MachineReading, Memlock, PcieNode, PeerMemory, RdmaPort};
use diag::health::nic::COUNTERS;
use kernels::sysfs::{self, Root};
use tempfile::TempDir;

/// A root folder that a test fills.
struct Tree {
    folder: TempDir,
}

impl Tree {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn root(&self) -> Root {
        Root::new(self.folder.path())
    }

    fn file(&self, path: &str, text: &str) -> &Self {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// A relative link, as sysfs has them; both paths are below the root.
    fn link(&self, from: &str, to: &str) -> &Self {
        let up = "../".repeat(Path::new(from).components().count() - 1);
        let path = self.folder.path().join(from);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(format!("{up}{to}"), path).unwrap();
        self
    }

    /// A PCI function at a place below sys/devices, with its link: now and at most.
    fn pci(&self, place: &str, class: &str, vendor: &str, link: [&str; 4]) -> &Self {
        let folder = format!("sys/devices/{place}");
        self.file(&format!("{folder}/class"), class);
        self.file(&format!("{folder}/vendor"), vendor);
        self.file(&format!("{folder}/device"), "0x2335\n");
        for (file, text) in
            ["current_link_speed", "current_link_width", "max_link_speed", "max_link_width"].iter().zip(link)
        {
            self.file(&format!("{folder}/{file}"), text);
        }
        let address = place.rsplit('/').next().unwrap();
        self.link(&format!("sys/bus/pci/devices/{address}"), &folder)
    }
}

/// An RDMA device with one port.
fn rdma(tree: &Tree, name: &str, place: &str, state: &str, verbs: Option<u32>) {
    let folder = format!("sys/devices/{place}/infiniband/{name}");
    tree.file(&format!("{folder}/fw_ver"), "28.39.1002\n")
        .file(&format!("{folder}/ports/1/state"), state)
        .file(&format!("{folder}/ports/1/phys_state"), "5: LinkUp\n")
        .file(&format!("{folder}/ports/1/link_layer"), "InfiniBand\n")
        .file(&format!("{folder}/ports/1/rate"), "400 Gb/sec (4X NDR)\n")
        .file(&format!("{folder}/ports/1/counters/link_downed"), "2\n")
        .link(&format!("{folder}/device"), &format!("sys/devices/{place}"))
        .link(&format!("sys/class/infiniband/{name}"), &folder);
    if let Some(number) = verbs {
        tree.file(&format!("sys/class/infiniband_verbs/uverbs{number}/ibdev"), &format!("{name}\n"));
    }
}

const NIC: &str = "pci0000:80/0000:80:01.0/0000:81:00.0";

// J01, J02, J03: state and whether programs can open it; issm and IPoIB are not asked.
#[test]
fn rdma_ports_are_read_with_their_state() {
    let tree = Tree::new();
    rdma(&tree, "mlx5_0", NIC, "4: ACTIVE\n", Some(0));
    rdma(&tree, "mlx5_1", "pci0000:a0/0000:a1:00.0", "1: DOWN\n", None);
    tree.file(&format!("sys/devices/{NIC}/net/ibp129s0/operstate"), "down\n");
    let devices = sysfs::rdma_devices(&tree.root());
    assert_eq!(devices.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["mlx5_0", "mlx5_1"]);
    assert_eq!(devices[0].pci.as_deref(), Some("0000:81:00.0"));
    assert_eq!((devices[0].verbs, devices[1].verbs), (true, false));
    assert_eq!(devices[0].net_devices, ["ibp129s0"]);
    assert_eq!(devices[0].firmware.as_deref(), Some("28.39.1002"));
    let port = RdmaPort {
        number: 1,
        state: Some("ACTIVE".to_owned()),
        physical_state: Some("LinkUp".to_owned()),
        link_layer: Some("InfiniBand".to_owned()),
        rate_gbit_s: Some(400.0),
        downs: Some(2),
    };
    assert_eq!(devices[0].ports, [port]);
    assert_eq!(devices[1].ports[0].state.as_deref(), Some("DOWN"));
}

// J01, J07: what a watch compares; the port's own counters, its interface's, and what it moved.
#[test]
fn the_counters_of_a_port_are_read() {
    let tree = Tree::new();
    rdma(&tree, "mlx5_0", NIC, "4: ACTIVE\n", Some(0));
    let port = format!("sys/devices/{NIC}/infiniband/mlx5_0/ports/1");
    tree.file(&format!("{port}/counters/port_xmit_data"), "1000\n")
        .file(&format!("{port}/counters/port_rcv_data"), "24\n")
        .file(&format!("{port}/counters/symbol_error"), "17\n")
        .file(&format!("{port}/hw_counters/local_ack_timeout_err"), "4\n")
        .file(&format!("sys/devices/{NIC}/net/ens1np0/operstate"), "up\n")
        .file("sys/class/net/ens1np0/carrier_down_count", "3\n");
    let [seen] = &sysfs::nics(&tree.root())[..] else { panic!("one port") };
    assert_eq!((seen.device.as_str(), seen.port, seen.pci.as_deref()), ("mlx5_0", 1, Some("0000:81:00.0")));
    assert_eq!((seen.state.as_deref(), seen.physical_state.as_deref()), (Some("ACTIVE"), Some("LinkUp")));
    assert_eq!((seen.downs, seen.carrier_downs, seen.moved_bytes), (Some(2), Some(3), Some(4096)));
    let counts: Vec<(&str, u64)> =
        COUNTERS.iter().zip(seen.counts).filter_map(|(one, count)| Some((one.file, count?))).collect();
    assert_eq!(counts, [("counters/symbol_error", 17), ("hw_counters/local_ack_timeout_err", 4)]);
    let [moved] = &sysfs::moved(&tree.root())[..] else { panic!("one port") };
    assert_eq!((moved.device.as_str(), moved.port, moved.bytes), ("mlx5_0", 1, 4096));
    let nothing = Tree::new().root();
    assert!(sysfs::nics(&nothing).is_empty() && sysfs::moved(&nothing).is_empty());
}

// L02: the number of the device file, not the order on the bus.
#[test]
fn the_driver_s_own_list_of_gpus_is_read() {
    let tree = Tree::new();
    let text = |minor: &str, uuid: &str| {
        format!(
            "Model: \t\t NVIDIA H200\nIRQ:   \t\t 1\nGPU UUID: \t {uuid}\nBus Location: \t 0000:81:00.0\nDevice Minor: \t {minor}\n"
        )
    };
    tree.file("proc/driver/nvidia/gpus/0000:81:00.0/information", &text("5", "GPU-1"))
        // Before its first use the driver doesn't know it.
        .file("proc/driver/nvidia/gpus/0000:a1:00.0/information", &text("0", "GPU-????????-????"))
        .file("proc/driver/nvidia/gpus/other/information", "");
    let seen: Vec<_> = sysfs::gpus(&tree.root())
        .into_iter()
        .map(|gpu| (gpu.pci.unwrap(), gpu.minor, gpu.uuid, gpu.name.unwrap()))
        .collect();
    let name = || "NVIDIA H200".to_owned();
    assert_eq!(
        seen,
        [
            ("0000:81:00.0".to_owned(), Some(5), Some("GPU-1".to_owned()), name()),
            ("0000:a1:00.0".to_owned(), Some(0), None, name()),
        ]
    );
}

#[test]
fn network_interfaces_are_read_whatever_they_are_called() {
    let tree = Tree::new();
    for (name, state, carrier, speed) in
        [("lo", "unknown", "1", "-1"), ("eth7", "up", "1", "25000"), ("docker0", "down", "0", "-1")]
    {
        let folder = format!("sys/class/net/{name}");
        tree.file(&format!("{folder}/operstate"), state)
            .file(&format!("{folder}/carrier"), carrier)
            .file(&format!("{folder}/speed"), speed)
            .file(&format!("{folder}/mtu"), "9000\n");
    }
    tree.link("sys/class/net/eth7/device", &format!("sys/devices/{NIC}"));
    let devices = sysfs::net_devices(&tree.root());
    assert_eq!(devices.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["docker0", "eth7"]);
    assert_eq!(devices[0].speed_mbit_s, None);
    assert_eq!((devices[0].carrier, devices[0].pci.as_deref()), (Some(false), None));
    assert_eq!((devices[1].carrier, devices[1].pci.as_deref()), (Some(true), Some("0000:81:00.0")));
    assert_eq!((devices[1].state.as_deref(), devices[1].speed_mbit_s), (Some("up"), Some(25_000)));
    assert_eq!(devices[1].mtu, Some(9000));
}

// J14: every link of the way, both of its ends.
#[test]
fn the_way_of_a_device_goes_up_to_the_root_port() {
    let tree = Tree::new();
    let gen5 = ["32.0 GT/s PCIe\n", "16\n", "32.0 GT/s PCIe\n", "16\n"];
    let slow = ["8.0 GT/s PCIe\n", "8\n", "16.0 GT/s PCIe\n", "16\n"];
    let root_port = "pci0000:80/0000:80:01.0";
    let up = &format!("{root_port}/0000:81:00.0");
    let down = &format!("{up}/0000:82:04.0");
    let gpu = &format!("{down}/0000:83:00.0");
    tree.pci(root_port, "0x060400\n", "0x8086\n", slow)
        .pci(up, "0x060400\n", "0x1000\n", slow)
        .pci(down, "0x060400\n", "0x1000\n", gen5)
        .pci(gpu, "0x030200\n", "0x10de\n", ["2.5 GT/s PCIe\n", "255\n", "32.0 GT/s PCIe\n", "16\n"]);
    let path = sysfs::pcie_path(&tree.root(), "00000000:83:00.0");
    let addresses: Vec<&str> = path.iter().map(|node| node.address.as_str()).collect();
    assert_eq!(addresses, ["0000:83:00.0", "0000:82:04.0", "0000:81:00.0", "0000:80:01.0"]);
    assert_eq!((path[0].speed_gt_s, path[0].width, path[0].width_max), (Some(2.5), None, Some(16)));
    let expected = PcieNode {
        address: "0000:81:00.0".to_owned(),
        speed_gt_s: Some(8.0),
        width: Some(8),
        speed_max_gt_s: Some(16.0),
        width_max: Some(16),
    };
    assert_eq!(path[2], expected);
    assert_eq!(sysfs::pcie_path(&tree.root(), "0000:99:00.0"), []);
    assert_eq!(sysfs::pcie_path(&tree.root(), "../../../etc"), []);
}

// J06, E18, P02.
#[test]
fn devices_without_a_driver_are_seen_and_missing_files_are_no_error() {
    let tree = Tree::new();
    let none = ["Unknown\n", "0\n", "\n", ""];
    tree.pci("pci0000:80/0000:81:00.0", "0x020700\n", "0x15b3\n", none)
        .pci("pci0000:80/0000:82:00.0", "0x030200\n", "0x10de\n", none)
        .pci("pci0000:80/0000:83:00.0", "0x010802\n", "0x144d\n", none)
        .link("sys/devices/pci0000:80/0000:82:00.0/driver", "sys/bus/pci/drivers/nvidia");
    let devices = sysfs::pci_devices(&tree.root());
    let seen: Vec<_> =
        devices.iter().map(|one| (one.address.as_str(), one.vendor, one.driver.as_deref())).collect();
    assert_eq!(seen, [("0000:81:00.0", 0x15b3, None), ("0000:82:00.0", 0x10de, Some("nvidia"))]);
    let path = sysfs::pcie_path(&tree.root(), "0000:81:00.0");
    assert_eq!((path[0].speed_gt_s, path[0].width, path[0].speed_max_gt_s), (None, None, None));
}

// J10, J11, J13, K03, K10.
#[test]
fn settings_of_the_node_are_read() {
    let tree = Tree::new();
    tree.file(
        "proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n\
         Max cpu time              unlimited            unlimited            seconds   \n\
         Max locked memory         65536                unlimited            bytes     \n",
    )
    .file("proc/modules", "nvidia_peermem 16384 0 - Live 0x0\nnvidia 56000000 99 nvidia_peermem, Live 0x0\n")
    .file("proc/uptime", "93784.25 1234.5\n")
    .file("proc/77/comm", "nvidia-imex\n")
    .file("dev/nvidia-caps-imex-channels/channel0", "")
    .file("sys/kernel/mm/memory_peers/nv_mem/version", "1.1\n")
    .file("dev/shm/.keep", "");
    let root = tree.root();
    assert_eq!(sysfs::memlock(&root), Some(Memlock { soft_bytes: Some(65_536), hard_bytes: None }));
    assert_eq!(sysfs::modules(&root), Some(vec!["nvidia_peermem".to_owned(), "nvidia".to_owned()]));
    assert_eq!(sysfs::peer_memory(&root), Some(PeerMemory { loaded: true, registered: Some(true) }));
    assert_eq!(sysfs::imex(&root), Imex { channels: 1, daemon: true });
    assert_eq!(sysfs::uptime_s(&root), Some(93_784));
    let shm = sysfs::shm(&root).unwrap();
    assert!(shm.total_bytes >= shm.free_bytes && shm.total_bytes > 0, "{shm:?}");
}

#[test]
fn a_node_that_says_nothing_is_no_error() {
    let tree = Tree::new();
    let reading = sysfs::machine(&tree.root(), &["0000:81:00.0".to_owned()], true);
    let nothing = Some(Imex { channels: 0, daemon: false });
    assert_eq!(reading, MachineReading { imex: nothing, ..MachineReading::default() });
    tree.file("proc/modules", "nvidia 1 0 - Live 0x0\n");
    fs::create_dir_all(tree.folder.path().join("sys/kernel/mm/memory_peers")).unwrap();
    let peer = sysfs::peer_memory(&tree.root());
    assert_eq!(peer, Some(PeerMemory { loaded: false, registered: Some(false) }));
}

#[test]
fn the_machine_holds_the_ways_of_gpus_and_rdma_devices_once() {
    let tree = Tree::new();
    let link = ["32.0 GT/s PCIe\n", "16\n", "32.0 GT/s PCIe\n", "16\n"];
    tree.pci(NIC, "0x020700\n", "0x15b3\n", link);
    tree.pci("pci0000:a0/0000:a1:00.0", "0x030200\n", "0x10de\n", link);
    rdma(&tree, "mlx5_0", NIC, "4: ACTIVE\n", Some(0));
    rdma(&tree, "mlx5_0v", NIC, "4: ACTIVE\n", Some(1));
    let reading = sysfs::machine(&tree.root(), &["0000:a1:00.0".to_owned()], false);
    let paths: Vec<(&str, usize)> =
        reading.paths.iter().map(|path| (path.address.as_str(), path.nodes.len())).collect();
    // The port above the NIC has no files here, and still is on its way.
    assert_eq!(paths, [("0000:81:00.0", 2), ("0000:a1:00.0", 1)]);
    assert_eq!((reading.rdma.len(), reading.pci.len(), reading.imex), (2, 2, None));
}

// E02, L07: name and user come from files that don't wait for the process.
#[test]
fn a_process_is_named_without_its_command_line() {
    let tree = Tree::new();
    let uid = fs::metadata(tree.folder.path()).unwrap().uid();
    tree.file("proc/4711/comm", "python (x) y\n")
        .file("proc/4711/stat", "4711 (python (x) y) D 1 4711 0\n")
        .file("etc/passwd", &format!("other:x:4:{uid}::/:/bin/sh\nalice:x:{uid}:4::/:/bin/sh\n"));
    let owner = sysfs::process_owner(&tree.root(), 4711).unwrap();
    assert_eq!((owner.command.as_str(), owner.state), ("python (x) y", Some('D')));
    assert_eq!((owner.uid, owner.user.as_deref()), (uid, Some("alice")));
    assert_eq!(sysfs::process_owner(&tree.root(), 4712), None);
}

#[test]
fn this_machine_can_be_read() {
    let root = Root::default();
    let reading = sysfs::machine(&root, &[], true);
    assert!(reading.uptime_s.is_some() && reading.memlock.is_some(), "{reading:?}");
    let own = sysfs::process_owner(&root, std::process::id()).unwrap();
    assert!(matches!(own.state, Some('R' | 'S' | 'D')), "{own:?}");
}
