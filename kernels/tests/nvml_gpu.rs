//! Reads the GPUs and the network devices of the machine that it runs on and prints them as a table. Only with
//! `AIMASTER_GPU_TESTS=1`, on a machine with an NVIDIA driver.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::fmt::Debug;

use diag::gpu_facts::ids::GpuId;
use diag::gpu_facts::reading::GpuReading;
use kernels::nvml::Nvml;
use kernels::sysfs::{self, Root};

fn shown<T: Debug>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:?}"))
}

fn print(gpu: &GpuReading) {
    let (clocks, power, heat) = (&gpu.clocks, &gpu.power, &gpu.temperature);
    let up = gpu.links.iter().filter(|link| link.active == Some(true)).count();
    let row = |name: &str, text: String| println!("  {name:<12} {text}");
    println!("GPU {} {}", shown(gpu.device.minor), gpu.device.name.as_deref().unwrap_or("-"));
    row(
        "names",
        format!(
            "{} {} index {}",
            shown(gpu.device.uuid.as_ref()),
            shown(gpu.device.pci.as_ref()),
            gpu.device.index
        ),
    );
    row("memory", shown(gpu.memory));
    row("processes", shown(gpu.processes.as_ref()));
    row(
        "modes",
        format!(
            "persistence {} compute {} MIG {}",
            shown(gpu.persistence),
            shown(gpu.compute_mode),
            shown(gpu.mig)
        ),
    );
    row(
        "SM MHz",
        format!(
            "{} of {}, set {} usual {}, reasons {:#x}",
            shown(clocks.sm_mhz),
            shown(clocks.sm_max_mhz),
            shown(clocks.sm_set_mhz),
            shown(clocks.sm_default_mhz),
            clocks.reasons.unwrap_or_default()
        ),
    );
    row("memory MHz", format!("{} of {}", shown(clocks.memory_mhz), shown(clocks.memory_max_mhz)));
    row(
        "power mW",
        format!(
            "{} limit {} usual {} most {} enforced {}",
            shown(power.usage_mw),
            shown(power.limit_mw),
            shown(power.default_limit_mw),
            shown(power.max_limit_mw),
            shown(power.enforced_limit_mw)
        ),
    );
    row(
        "heat °C",
        format!(
            "{} slows at {} margin {} memory {} of {}",
            shown(heat.gpu_c),
            shown(heat.slowdown_c),
            shown(heat.margin_c),
            shown(heat.memory_c),
            shown(heat.memory_max_c)
        ),
    );
    row("ECC", format!("{:?}", gpu.ecc));
    row("rows", format!("{} {}", shown(gpu.rows), shown(gpu.spare_rows)));
    row("pages", format!("{:?} recovery {}", gpu.pages, shown(gpu.recovery)));
    row("NVLink", format!("{up} of {} up, first {}", gpu.links.len(), shown(gpu.links.first())));
    row("PCIe", format!("{:?}", gpu.pcie));
    row("fabric", shown(gpu.fabric.as_ref()));
    row("trouble", format!("lost {} unreadable {:?}", shown(gpu.lost.as_ref()), gpu.unreadable));
    row("took", format!("{} ms", gpu.took_ms));
}

#[test]
fn the_gpus_of_this_machine_are_read() {
    if std::env::var_os("AIMASTER_GPU_TESTS").is_none_or(|value| value != "1") {
        println!("skipped: AIMASTER_GPU_TESTS=1 is not set");
        return;
    }
    let nvml = Nvml::open(None).unwrap();
    let devices = nvml.devices().unwrap();
    assert!(!devices.is_empty(), "no GPU");
    let wanted: Vec<GpuId> = devices.iter().filter_map(|one| one.uuid.clone()).map(GpuId::Gpu).collect();
    let reading = nvml.read(&wanted, &[std::process::id()]).unwrap();
    println!("driver {} CUDA {}", shown(reading.driver_version.as_ref()), shown(reading.cuda_version));
    reading.gpus.iter().for_each(print);
    let addresses: Vec<String> = reading.gpus.iter().filter_map(|gpu| gpu.device.pci.clone()).collect();
    let machine = sysfs::machine(&Root::default(), &addresses, true);
    println!(
        "shm {} memlock {} peer memory {} imex {} up {} s",
        shown(machine.shm),
        shown(machine.memlock),
        shown(machine.peer_memory),
        shown(machine.imex),
        shown(machine.uptime_s)
    );
    for (what, lines) in [
        ("rdma", machine.rdma.iter().map(|one| format!("{one:?}")).collect::<Vec<_>>()),
        ("net", machine.net.iter().map(|one| format!("{one:?}")).collect()),
        ("pci", machine.pci.iter().map(|one| format!("{one:?}")).collect()),
        ("path", machine.paths.iter().map(|one| format!("{one:?}")).collect()),
    ] {
        lines.iter().for_each(|line| println!("{what} {line}"));
    }
    assert_eq!((reading.gpus.len(), reading.absent.len()), (devices.len(), 0));
    assert!(reading.driver_version.is_some());
    for gpu in &reading.gpus {
        let who = gpu.device.uuid.as_deref().unwrap();
        assert!(gpu.lost.is_none(), "{who}: {:?}", gpu.lost);
        let memory = gpu.memory.unwrap();
        assert!(memory.free_bytes <= memory.total_bytes && memory.total_bytes > 0, "{who}: {memory:?}");
        assert!(
            gpu.clocks.sm_max_mhz.unwrap() > 0 && gpu.clocks.reasons.is_some(),
            "{who}: {:?}",
            gpu.clocks
        );
        assert!(gpu.pcie.generation <= gpu.pcie.generation_max, "{who}: {:?}", gpu.pcie);
        // By PCI address and by the number of the device file it is the same GPU.
        let by_others = [gpu.device.pci.clone().map(GpuId::Pci), gpu.device.minor.map(GpuId::Minor)];
        for id in by_others.into_iter().flatten() {
            let again = nvml.read(std::slice::from_ref(&id), &[]).unwrap();
            assert_eq!(again.gpus.len(), 1, "{id}");
            assert_eq!(again.gpus[0].device, gpu.device, "{id}");
        }
        let sample = nvml.sample(who).unwrap();
        assert_eq!(sample.clocks.sm_max_mhz, gpu.clocks.sm_max_mhz);
    }
}
