//! What is read of each state of a GPU, of the driver and of the library, from a stand-in for NVML.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[path = "fakes/stage.rs"]
mod stage;

use diag::gpu_facts::ids::{self, GpuId};
use diag::gpu_facts::reading::{
    Clocks, ComputeMode, Device, Ecc, Fabric, FabricState, GpuReading, Memory, NodeReading, NvLink, Pcie,
    Power, Process, Recovery, RemappedRows, RetiredPages, SpareRows, SramEcc, Temperature,
};
use kernels::nvml::{Nvml, NvmlError};
use serde_json::{Value, json};
use stage::{Stage, h200, node, uuid};

/// Everything of the node's GPUs 0, 1, …
fn all(stage: &Stage, count: u32) -> NodeReading {
    let wanted: Vec<GpuId> = (0..count).map(GpuId::Minor).collect();
    stage.nvml().unwrap().read(&wanted, &[]).unwrap()
}

/// The only GPU of a node, with some answers changed.
fn one(changes: &Value) -> GpuReading {
    one_of("fake_nvml", changes)
}

fn one_of(library: &str, changes: &Value) -> GpuReading {
    let mut gpu = h200(0);
    for (key, value) in changes.as_object().unwrap() {
        gpu[key] = value.clone();
    }
    all(&Stage::of(library, &node(&[gpu])), 1).gpus.remove(0)
}

fn clocks() -> Clocks {
    Clocks {
        sm_mhz: Some(345),
        sm_max_mhz: Some(1980),
        sm_set_mhz: Some(1980),
        sm_default_mhz: Some(1980),
        memory_mhz: Some(3201),
        memory_max_mhz: Some(3201),
        memory_set_mhz: Some(3201),
        memory_default_mhz: Some(3201),
        reasons: Some(1),
    }
}

fn power() -> Power {
    Power {
        usage_mw: Some(76_120),
        limit_mw: Some(700_000),
        default_limit_mw: Some(700_000),
        max_limit_mw: Some(700_000),
        enforced_limit_mw: Some(700_000),
    }
}

fn temperature() -> Temperature {
    Temperature {
        gpu_c: Some(29),
        slowdown_c: Some(92),
        margin_c: Some(58),
        memory_c: Some(35),
        memory_max_c: Some(95),
    }
}

fn ecc() -> Ecc {
    Ecc {
        enabled: Some(true),
        volatile_uncorrected: Some(0),
        aggregate_uncorrected: Some(1),
        volatile_corrected: Some(3),
        sram: Some(SramEcc { volatile_uncorrected: 0, aggregate_uncorrected: 1, threshold_exceeded: false }),
    }
}

#[test]
fn every_number_of_a_healthy_gpu_is_read() {
    let reading = all(&Stage::new(&node(&[h200(0), h200(1)])), 2);
    assert_eq!(reading.driver_version.as_deref(), Some("580.159.03"));
    assert_eq!(reading.cuda_version, Some(13000));
    assert_eq!((reading.present.len(), reading.absent.len()), (2, 0));
    let link = |link| NvLink {
        link,
        active: Some(true),
        crc_errors: Some(0),
        replays: Some(7),
        recoveries: Some(0),
    };
    let expected = GpuReading {
        device: Device {
            index: 1,
            minor: Some(1),
            uuid: Some(uuid(1)),
            pci: Some("0000:82:00.0".to_owned()),
            name: Some("NVIDIA H200".to_owned()),
            lost: None,
        },
        lost: None,
        unreadable: vec![],
        memory: Some(Memory { total_bytes: 150_754_820_096, free_bytes: 150_000_000_000 }),
        processes: Some(vec![]),
        hidden_bytes: Some(754_820_096),
        busy_percent: Some(0),
        persistence: Some(true),
        compute_mode: Some(ComputeMode::Shared),
        mig: Some(false),
        clocks: clocks(),
        power: power(),
        temperature: temperature(),
        ecc: ecc(),
        rows: Some(RemappedRows { corrected: 1, uncorrected: 2, pending: false, failed: false }),
        spare_rows: Some(SpareRows { all: 2560, high: 1, partial: 0, low: 0, none: 0 }),
        pages: RetiredPages::default(),
        recovery: Some(Recovery::None),
        links: (0..18).map(link).collect(),
        pcie: Pcie {
            generation: Some(5),
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
            health_mask: Some(0x2a),
            health_summary: Some(1),
        }),
        took_ms: 0,
    };
    let read = GpuReading { took_ms: 0, ..reading.gpus[1].clone() };
    assert_eq!(read, expected);
}

// E13, A10, L07 is for who looks the process up.
#[test]
fn processes_of_others_are_listed_and_ours_are_not() {
    let gpu = json!({
        "nvmlDeviceGetComputeRunningProcesses_v3":
            [{"pid": 300, "bytes": 5_u64 << 30}, {"pid": 100, "bytes": 1}, {"pid": 200}],
        "nvmlDeviceGetMPSComputeRunningProcesses_v3": [{"pid": 200, "bytes": 9}],
        "nvmlDeviceGetMemoryInfo_v2": {"total": 100_u64 << 30, "free": 92_u64 << 30},
        "nvmlDeviceGetUtilizationRates": {"gpu": 97, "memory": 3},
    });
    let mut state = h200(0);
    for (key, value) in gpu.as_object().unwrap() {
        state[key] = value.clone();
    }
    let stage = Stage::new(&node(&[state]));
    let reading = stage.nvml().unwrap().read(&[GpuId::Minor(0)], &[100]).unwrap();
    let expected = vec![
        Process { pid: 200, memory_bytes: Some(9), mps: true, owner: None },
        Process { pid: 300, memory_bytes: Some(5 << 30), mps: false, owner: None },
    ];
    let gpu = &reading.gpus[0];
    assert_eq!(gpu.processes, Some(expected));
    // Of the 8 GiB in use, somebody whom nobody sees has what these three have not.
    assert_eq!((gpu.hidden_bytes, gpu.busy_percent), (Some((3 << 30) - 10), Some(97)));
}

// F11: bits that have no name yet are kept, in a driver's new call and in its old one.
#[test]
fn clock_reasons_keep_bits_without_a_name() {
    let bits = 0x8000_0000_0000_0444_u64;
    let gpu = one(&json!({"nvmlDeviceGetCurrentClocksEventReasons": bits}));
    assert_eq!(gpu.clocks.reasons, Some(bits));
    let gpu = one_of("fake_nvml_old", &json!({"nvmlDeviceGetCurrentClocksThrottleReasons": bits}));
    assert_eq!(gpu.clocks.reasons, Some(bits));
}

#[test]
fn an_older_driver_gives_what_it_has() {
    let mut changes = json!({
        "nvmlDeviceGetRetiredPages:0": 2,
        "nvmlDeviceGetRetiredPages:1": 1,
        "nvmlDeviceGetRetiredPagesPendingStatus": 1,
        "nvmlDeviceGetNvLinkState:1": 0,
    });
    for (counter, count) in [(0, 11), (1, 12), (2, 13)] {
        changes[format!("nvmlDeviceGetNvLinkErrorCounter:0:{counter}")] = json!(count);
    }
    let gpu = one_of("fake_nvml_old", &changes);
    assert_eq!(gpu.memory, Some(Memory { total_bytes: 150_000, free_bytes: 149_000 }));
    assert_eq!(gpu.unreadable, Vec::<String>::new());
    assert_eq!((gpu.fabric, gpu.recovery, gpu.ecc.sram, gpu.temperature.margin_c), (None, None, None, None));
    assert_eq!((gpu.temperature.memory_c, gpu.pcie.card_generation_max), (None, None));
    assert_eq!(gpu.pages, RetiredPages { corrected: Some(2), uncorrected: Some(1), pending: Some(true) });
    assert_eq!(gpu.links.len(), 18);
    let first =
        NvLink { link: 0, active: Some(true), crc_errors: Some(13), replays: Some(11), recoveries: Some(12) };
    assert_eq!(gpu.links[0], first);
    assert_eq!(gpu.links[1], NvLink { link: 1, active: Some(false), ..NvLink::default() });
}

#[test]
fn what_a_gpu_does_not_have_is_no_failure() {
    let bare = json!({"nvmlDeviceGetUUID": uuid(0), "nvmlDeviceGetMinorNumber": 0});
    let gpu = all(&Stage::new(&node(&[bare])), 1).gpus.remove(0);
    let device = Device { minor: Some(0), uuid: Some(uuid(0)), ..Device::default() };
    assert_eq!(GpuReading { took_ms: 0, ..gpu }, GpuReading { device, ..GpuReading::default() });
}

#[test]
fn a_failing_call_is_told_and_spoils_no_other() {
    let gpu = one(&json!({"nvmlDeviceGetPowerUsage": {"error": 999}, "nvmlDeviceGetMigMode": {"error": 4}}));
    assert_eq!(gpu.unreadable, ["power: an internal driver error occurred"]);
    assert_eq!((gpu.power.usage_mw, gpu.power.limit_mw, gpu.mig), (None, Some(700_000), None));
    assert_eq!(gpu.lost, None);
}

// L10, E18.
#[test]
fn a_lost_gpu_leaves_the_others_readable() {
    let mut gone = h200(1);
    gone["nvmlDeviceGetHandleByIndex_v2"] = json!({"error": 15});
    let mut dying = h200(2);
    dying["nvmlDeviceGetTemperature:0"] = json!({"error": 15});
    dying["nvmlDeviceGetFieldValues"] = json!({"error": 16});
    let reading = all(&Stage::new(&node(&[h200(0), gone, dying])), 3);
    let lost: Vec<Option<&str>> = reading.gpus.iter().map(|gpu| gpu.lost.as_deref()).collect();
    assert_eq!(lost[0], None);
    assert!(lost[1].unwrap().contains("fallen off") || lost[1].unwrap().contains("fell off"), "{lost:?}");
    assert!(lost[2].unwrap().contains("memory temperature"), "the first that failed is named: {lost:?}");
    assert_eq!(reading.gpus[2].memory.unwrap().total_bytes, 150_754_820_096);
    assert_eq!(reading.absent, Vec::<String>::new());
}

// F05: what keeps a GPU from being opened is not always its own fault.
#[test]
fn a_gpu_that_is_refused_is_not_lost() {
    for (code, words) in [
        (4, "permission"),
        (9, "not loaded"),
        (17, "blocked by the operating system"),
        (18, "version mismatch"),
        (19, "in use"),
        (20, "insufficient memory"),
        (27, "not in ready state"),
    ] {
        let mut refused = h200(1);
        refused["nvmlDeviceGetHandleByIndex_v2"] = json!({"error": code});
        let reading = all(&Stage::new(&node(&[h200(0), refused])), 2);
        assert_eq!((reading.gpus.len(), reading.absent.len()), (2, 0), "{code}: {reading:?}");
        let [told] = &reading.gpus[1].unreadable[..] else { panic!("{code}: {reading:?}") };
        assert!(told.starts_with("opening it: ") && told.contains(words), "{code}: {told}");
        assert_eq!((&reading.gpus[1].lost, &reading.gpus[1].device.lost), (&None, &None), "{code}");
        assert!(reading.gpus[0].unreadable.is_empty() && reading.gpus[0].lost.is_none());
    }
    for code in [15, 16, 999] {
        let mut broken = h200(1);
        broken["nvmlDeviceGetHandleByIndex_v2"] = json!({"error": code});
        assert!(all(&Stage::new(&node(&[h200(0), broken])), 2).gpus[1].lost.is_some(), "{code}");
    }
}

// L01, L02, L03: an allocation of GPUs 4 to 7, named in each way, on a node whose NVML counts otherwise.
#[test]
fn gpus_are_found_by_minor_number_uuid_and_pci_address() {
    let gpus: Vec<Value> = (0..8).rev().map(h200).collect();
    let stage = Stage::new(&node(&gpus));
    let wanted = [
        GpuId::Minor(4),
        GpuId::Gpu(uuid(5).to_uppercase()),
        GpuId::Pci("0000:87:00.0".to_owned()),
        GpuId::Pci("0000:88:00.0".to_owned()),
        GpuId::Minor(7),
        GpuId::Minor(8),
        GpuId::Gpu("GPU-none".to_owned()),
    ];
    let reading = stage.nvml().unwrap().read(&wanted, &[]).unwrap();
    let found: Vec<(u32, Option<u32>)> =
        reading.gpus.iter().map(|gpu| (gpu.device.index, gpu.device.minor)).collect();
    assert_eq!(found, [(0, Some(7)), (1, Some(6)), (2, Some(5)), (3, Some(4))]);
    assert_eq!(reading.absent, ["8", "GPU-none"]);
    assert_eq!(reading.present.len(), 8);
}

// L05: the parent of a MIG instance is read.
#[test]
fn a_mig_instance_leads_to_its_gpu() {
    let mut gpu = h200(1);
    gpu["nvmlDeviceGetMigMode"] = json!([1, 1]);
    let mut state = node(&[h200(0), gpu]);
    state["mig"] = json!({"MIG-00000000-0000-0000-0000-0000000000aa": 1});
    let nvml = Stage::new(&state);
    let nvml = nvml.nvml().unwrap();
    for id in ["MIG-00000000-0000-0000-0000-0000000000aa".to_owned(), format!("MIG-{}/1/0", uuid(1))] {
        let reading = nvml.read(&ids::parse(&id).unwrap(), &[]).unwrap();
        assert_eq!(reading.gpus.len(), 1, "{id}");
        assert_eq!((reading.gpus[0].device.minor, reading.gpus[0].mig), (Some(1), Some(true)), "{id}");
    }
    let unknown = "MIG-00000000-0000-0000-0000-0000000000bb";
    let reading = nvml.read(&ids::parse(unknown).unwrap(), &[]).unwrap();
    assert_eq!((reading.gpus.len(), reading.absent), (0, vec![unknown.to_owned()]));
}

// K05: the fabric's own words, from drivers that know version 3 and from those that know version 2.
#[test]
fn the_fabrics_state_is_read_in_each_version() {
    let answer =
        json!({"state": 3, "status": 23, "cluster": 0xab, "clique": 4, "health": 0x501, "summary": 2});
    let gpu = one(&json!({"nvmlDeviceGetGpuFabricInfoV": answer}));
    let fabric = Fabric {
        state: FabricState::Completed,
        status: (23, "Insufficient Resources".to_owned()),
        cluster_uuid: Some("ab".repeat(16)),
        clique: 4,
        health_mask: Some(0x501),
        health_summary: Some(2),
    };
    assert_eq!(gpu.fabric, Some(fabric.clone()));
    let mut older = answer;
    older["newest"] = json!(2);
    // A version that it does not know is a version or an argument that it refuses.
    for refusal in [25, 2] {
        older["refusal"] = json!(refusal);
        let gpu = one(&json!({"nvmlDeviceGetGpuFabricInfoV": older}));
        assert_eq!(gpu.fabric, Some(Fabric { health_summary: None, ..fabric.clone() }));
    }
    for (number, state) in [
        (0, FabricState::NotSupported),
        (1, FabricState::NotStarted),
        (2, FabricState::InProgress),
        (9, FabricState::Other(9)),
    ] {
        let gpu = one(&json!({"nvmlDeviceGetGpuFabricInfoV": {"state": number}}));
        assert_eq!(gpu.fabric.unwrap().state, state);
    }
}

#[test]
fn broken_memory_and_links_are_read() {
    let gpu = one(&json!({
        "nvmlDeviceGetTotalEccErrors:1:0": 5_000_000_000_u64,
        "nvmlDeviceGetSramEccErrorStatus":
            {"volatile_parity": 1, "volatile_secded": 2, "aggregate_parity": 10, "threshold_exceeded": 1},
        "nvmlDeviceGetRemappedRows": {"pending": 1, "failed": 1},
        "nvmlDeviceGetRowRemapperHistogram": {"max": 100, "low": 3, "none": 1},
        "nvmlDeviceGetFieldValues:230:0": 2,
        "nvmlDeviceGetNvLinkState:3": 0,
        "nvmlDeviceGetFieldValues:163:3": 6_000_000_000_u64,
        "nvmlDeviceGetComputeMode": 2,
        "nvmlDeviceGetCurrPcieLinkGeneration": 1,
    }));
    assert_eq!(gpu.ecc.volatile_uncorrected, Some(5_000_000_000));
    let sram = SramEcc { volatile_uncorrected: 3, aggregate_uncorrected: 10, threshold_exceeded: true };
    assert_eq!(gpu.ecc.sram, Some(sram));
    let rows = gpu.rows.unwrap();
    assert!(rows.pending && rows.failed);
    assert_eq!(gpu.spare_rows.unwrap(), SpareRows { all: 100, high: 0, partial: 0, low: 3, none: 1 });
    assert_eq!(gpu.recovery, Some(Recovery::Reboot));
    assert_eq!((gpu.links[3].active, gpu.links[3].crc_errors), (Some(false), Some(6_000_000_000)));
    assert_eq!(gpu.compute_mode, Some(ComputeMode::Prohibited));
    assert_eq!(gpu.pcie.generation, Some(1));
    // Memory without a sensor.
    assert_eq!(one(&json!({"nvmlDeviceGetFieldValues:82:0": 0})).temperature.memory_c, None);
}

#[test]
fn a_sample_shows_what_changed() {
    let mut gpu = h200(0);
    let stage = Stage::new(&node(&[gpu.clone()]));
    let nvml = stage.nvml().unwrap();
    let before = nvml.sample(&uuid(0)).unwrap();
    assert_eq!(
        (before.clocks.sm_mhz, before.pcie.generation, before.ecc.volatile_corrected),
        (Some(345), Some(5), Some(3))
    );
    gpu["nvmlDeviceGetClockInfo:1"] = json!(1410);
    gpu["nvmlDeviceGetCurrentClocksEventReasons"] = json!(0x48);
    gpu["nvmlDeviceGetTotalEccErrors:0:0"] = json!(17_703);
    stage.set(&node(&[gpu.clone()]));
    let during = nvml.sample(&uuid(0)).unwrap();
    assert_eq!((during.clocks.sm_mhz, during.clocks.reasons), (Some(1410), Some(0x48)));
    assert_eq!(during.ecc.volatile_corrected, Some(17_703));
    gpu["*"] = json!({"error": 15});
    gpu["nvmlDeviceGetClockInfo:1"] = json!({"error": 15});
    stage.set(&node(&[gpu]));
    let error = nvml.sample(&uuid(0)).unwrap_err();
    assert!(matches!(&error, NvmlError::Gpu { gpu, .. } if *gpu == uuid(0)), "{error}");
}

// K11, and a driver's package that is not there.
#[test]
fn a_library_that_is_no_library_is_an_error_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("libnvidia-ml.so.1");
    let error = Nvml::open(Some(&missing)).unwrap_err().to_string();
    assert!(error.contains("No such file") && error.contains("libnvidia-ml.so.1"), "{error}");
    std::fs::write(&missing, b"").unwrap();
    let error = Nvml::open(Some(&missing)).unwrap_err();
    assert!(
        matches!(&error, NvmlError::Library { loader, .. } if loader.contains("file too short")),
        "{error}"
    );
}

#[test]
fn a_library_that_does_not_start_or_has_nothing_in_it_is_an_error() {
    let stage = Stage::new(&json!({"nvmlInit_v2": {"error": 9}}));
    let error = stage.nvml().unwrap_err();
    assert!(matches!(&error, NvmlError::Start { words, .. } if words.contains("not loaded")), "{error}");
    let error = Stage::of("fake_nvml_torn", &json!({})).nvml().unwrap_err();
    assert!(matches!(&error, NvmlError::Start { words, .. } if words.contains("nvmlShutdown")), "{error}");
    let mut state = node(&[h200(0)]);
    state["nvmlDeviceGetCount_v2"] = json!({"error": 999});
    let error = Stage::new(&state).nvml().unwrap().devices().unwrap_err();
    assert!(matches!(error, NvmlError::Count { .. }), "{error}");
}

/// The name under which [`the_environment_may_name_the_state`] runs itself.
const AGAIN: &str = "KERNELS_TEST_AGAIN";

#[test]
fn the_environment_may_name_the_state() {
    let stage = Stage::new(&node(&[]));
    if std::env::var_os(AGAIN).is_some() {
        assert_eq!(stage.nvml().unwrap().devices().unwrap().len(), 3);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state.json");
    std::fs::write(&state, node(&[h200(0), h200(1), h200(2)]).to_string()).unwrap();
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_environment_may_name_the_state"])
        .env("AIMASTER_FAKE_NVML", &state)
        .env(AGAIN, "1")
        .status()
        .unwrap();
    assert!(status.success());
}
