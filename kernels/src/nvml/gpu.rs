//! Reads one GPU through NVML, value by value: what one call fails at leaves the others as they are.

use std::time::Instant;

use diag::gpu_facts::reading::{
    Clocks, ComputeMode, Device as Named, Ecc, GpuReading, GpuSample, Memory, NvLink, Pcie, Power, Process,
    Recovery, RetiredPages, Temperature,
};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{
    Clock, ComputeMode as Mode, EccCounter, MemoryError, RetirementCause, TemperatureSensor,
    TemperatureThreshold,
};
use nvml_wrapper::enum_wrappers::nv_link::ErrorCounter;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

use super::answer::Failures;
use super::raw::{self, Field};

/// Links that are asked for where the driver doesn't say how many there are, and the most that are believed: twice
/// what a Blackwell GPU has.
const MOST_LINKS: u32 = 36;

/// Everything about one GPU.
pub(super) fn read(device: &Device<'_>, named: Named, own_pids: &[u32]) -> GpuReading {
    let started = Instant::now();
    let mut failures = Failures::default();
    let take = &mut failures;
    let everybody = processes(device, take);
    let mut reading = GpuReading {
        memory: memory(device, take),
        hidden_bytes: everybody.as_deref().and_then(|everybody| hidden_bytes(device, everybody)),
        busy_percent: device.utilization_rates().map(|rates| rates.gpu).ok(),
        processes: everybody.map(|everybody| others(everybody, own_pids)),
        persistence: take.value("persistence mode", device.is_in_persistent_mode()),
        compute_mode: take.value("compute mode", device.compute_mode()).map(compute_mode),
        mig: take.value("MIG mode", device.mig_mode()).map(|mode| mode.current != 0),
        clocks: clocks(device, take),
        power: power(device, take),
        temperature: temperature(device, take),
        ecc: ecc(device, take),
        rows: take.value("remapped rows", raw::remapped_rows(device)),
        spare_rows: take.value("spare rows", raw::spare_rows(device)),
        pages: retired_pages(device, take),
        recovery: recovery(device, take),
        links: links(device, take),
        pcie: pcie(device, take),
        fabric: take.value("fabric state", raw::fabric(device)),
        ..GpuReading::default()
    };
    reading.lost = failures.lost.or_else(|| named.lost.clone());
    reading.unreadable = failures.unreadable;
    reading.device = named;
    reading.took_ms = elapsed_ms(started);
    reading
}

/// What changes while it works.
pub(super) fn sample(device: &Device<'_>, failures: &mut Failures) -> GpuSample {
    let started = Instant::now();
    let mut sample = GpuSample {
        clocks: clocks(device, failures),
        power: power(device, failures),
        temperature: temperature(device, failures),
        pcie: pcie(device, failures),
        ecc: ecc(device, failures),
        busy_percent: failures.value("utilisation", device.utilization_rates()).map(|rates| rates.gpu),
        took_ms: 0,
    };
    sample.took_ms = elapsed_ms(started);
    sample
}

fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

fn memory(device: &Device<'_>, take: &mut Failures) -> Option<Memory> {
    let memory = device
        .memory_info()
        .map(|memory| Memory { total_bytes: memory.total, free_bytes: memory.free })
        .or_else(|error| match error {
            NvmlError::FailedToLoadSymbol(_) => raw::memory(device),
            error => Err(error),
        });
    take.value("memory", memory)
}

/// What is allocated beyond what these processes have; `None` before R510, which counts the driver's own part too. Only
/// ever a hint, so that it fails without a word.
fn hidden_bytes(device: &Device<'_>, everybody: &[Process]) -> Option<u64> {
    let theirs: Option<u64> = everybody.iter().map(|process| process.memory_bytes).sum();
    Some(device.memory_info().ok()?.used.saturating_sub(theirs?))
}

/// All but ours.
pub(super) fn others(mut everybody: Vec<Process>, own_pids: &[u32]) -> Vec<Process> {
    everybody.retain(|process| !own_pids.contains(&process.pid));
    everybody
}

/// Everybody with a CUDA context that can be seen from here.
pub(super) fn processes(device: &Device<'_>, take: &mut Failures) -> Option<Vec<Process>> {
    let plain = take.value("processes", twice(|| device.running_compute_processes()));
    let mps = take.value("MPS processes", twice(|| device.mps_running_compute_processes()));
    if plain.is_none() && mps.is_none() {
        return None;
    }
    let named = |mps: bool| {
        move |process: ProcessInfo| Process {
            pid: process.pid,
            memory_bytes: match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            },
            mps,
            owner: None,
        }
    };
    let plain = plain.into_iter().flatten().map(named(false));
    let mut processes: Vec<Process> = plain.chain(mps.into_iter().flatten().map(named(true))).collect();
    processes.sort_unstable_by_key(|process| (process.pid, !process.mps));
    processes.dedup_by_key(|process| process.pid);
    Some(processes)
}

/// A list may grow between the question for its length and the question for itself: asked once more then.
fn twice(ask: impl Fn() -> Result<Vec<ProcessInfo>, NvmlError>) -> Result<Vec<ProcessInfo>, NvmlError> {
    match ask() {
        Err(NvmlError::InsufficientSize(_)) => ask(),
        answer => answer,
    }
}

fn compute_mode(mode: Mode) -> ComputeMode {
    match mode {
        Mode::Default => ComputeMode::Shared,
        Mode::ExclusiveThread | Mode::ExclusiveProcess => ComputeMode::Exclusive,
        Mode::Prohibited => ComputeMode::Prohibited,
    }
}

fn clocks(device: &Device<'_>, take: &mut Failures) -> Clocks {
    Clocks {
        sm_mhz: take.value("SM clock", device.clock_info(Clock::SM)),
        sm_max_mhz: take.value("highest SM clock", device.max_clock_info(Clock::SM)),
        sm_set_mhz: take.value("set SM clock", device.applications_clock(Clock::Graphics)),
        sm_default_mhz: take.value("default SM clock", device.default_applications_clock(Clock::Graphics)),
        memory_mhz: take.value("memory clock", device.clock_info(Clock::Memory)),
        memory_max_mhz: take.value("highest memory clock", device.max_clock_info(Clock::Memory)),
        memory_set_mhz: take.value("set memory clock", device.applications_clock(Clock::Memory)),
        memory_default_mhz: take
            .value("default memory clock", device.default_applications_clock(Clock::Memory)),
        reasons: take.value("clock reasons", raw::clock_reasons(device)),
    }
}

fn power(device: &Device<'_>, take: &mut Failures) -> Power {
    let range = take.value("power limits", device.power_management_limit_constraints());
    Power {
        usage_mw: take.value("power", device.power_usage()),
        limit_mw: take.value("power limit", device.power_management_limit()),
        default_limit_mw: take.value("default power limit", device.power_management_limit_default()),
        max_limit_mw: range.map(|range| range.max_limit),
        enforced_limit_mw: take.value("enforced power limit", device.enforced_power_limit()),
    }
}

fn temperature(device: &Device<'_>, take: &mut Failures) -> Temperature {
    let memory = take.value("memory temperature", raw::fields(device, &[Field::MEMORY_TEMPERATURE]));
    let mut threshold = |call: &str, threshold| take.value(call, device.temperature_threshold(threshold));
    Temperature {
        slowdown_c: threshold("slowdown temperature", TemperatureThreshold::Slowdown),
        memory_max_c: threshold("highest memory temperature", TemperatureThreshold::MemoryMax),
        gpu_c: take.value("temperature", device.temperature(TemperatureSensor::Gpu)),
        margin_c: take.value("temperature margin", raw::margin_c(device)),
        // GPUs whose memory has no sensor say 0.
        memory_c: first(memory).filter(|value| *value > 0).and_then(|value| u32::try_from(value).ok()),
    }
}

fn first(values: Option<Vec<Option<u64>>>) -> Option<u64> {
    values?.into_iter().next()?
}

fn ecc(device: &Device<'_>, take: &mut Failures) -> Ecc {
    let mut count = |error, counter| take.value("memory errors", device.total_ecc_errors(error, counter));
    Ecc {
        volatile_uncorrected: count(MemoryError::Uncorrected, EccCounter::Volatile),
        aggregate_uncorrected: count(MemoryError::Uncorrected, EccCounter::Aggregate),
        volatile_corrected: count(MemoryError::Corrected, EccCounter::Volatile),
        enabled: take.value("ECC mode", device.is_ecc_enabled()).map(|mode| mode.currently_enabled),
        sram: take.value("SRAM errors", raw::sram_ecc(device)),
    }
}

fn retired_pages(device: &Device<'_>, take: &mut Failures) -> RetiredPages {
    let mut count = |cause| {
        let pages = take.value("retired pages", device.retired_pages(cause))?;
        u32::try_from(pages.len()).ok()
    };
    RetiredPages {
        corrected: count(RetirementCause::MultipleSingleBitEccErrors),
        uncorrected: count(RetirementCause::DoubleBitEccError),
        pending: take.value("pages to retire", device.are_pages_pending_retired()),
    }
}

fn recovery(device: &Device<'_>, take: &mut Failures) -> Option<Recovery> {
    let action = first(take.value("recovery action", raw::fields(device, &[Field::RECOVERY])))?;
    Some(match action {
        0 => Recovery::None,
        1 => Recovery::Reset,
        2 => Recovery::Reboot,
        3 => Recovery::DrainP2p,
        4 => Recovery::DrainAndReset,
        other => Recovery::Other(other),
    })
}

fn links(device: &Device<'_>, take: &mut Failures) -> Vec<NvLink> {
    let count = first(take.value("number of NVLinks", raw::fields(device, &[Field::LINK_COUNT])));
    let count = count.and_then(|count| u32::try_from(count).ok()).unwrap_or(MOST_LINKS).min(MOST_LINKS);
    let mut links = Vec::new();
    for link in 0..count {
        // A GPU without this link says so; the links are numbered without gaps.
        let state = device.link_wrapper_for(link).is_active();
        if matches!(state, Err(NvmlError::InvalidArg | NvmlError::NotSupported)) {
            break;
        }
        links.push(NvLink { link, active: take.value("NVLink state", state), ..NvLink::default() });
    }
    let asked: Vec<Field> = links
        .iter()
        .flat_map(|one| {
            [Field::link_crc(one.link), Field::link_replay(one.link), Field::link_recovery(one.link)]
        })
        .collect();
    let counts = take.value("NVLink errors", raw::fields(device, &asked)).unwrap_or_default();
    for (one, counts) in links.iter_mut().zip(counts.chunks(3)) {
        if let [crc, replays, recoveries] = counts {
            (one.crc_errors, one.replays, one.recoveries) = (*crc, *replays, *recoveries);
        }
    }
    let mut older = |counter, field: fn(&mut NvLink) -> &mut Option<u64>| {
        for one in links.iter_mut().filter(|one| one.active == Some(true)) {
            let number = one.link;
            let value = field(one);
            if value.is_none() {
                *value = take.value("NVLink errors", device.link_wrapper_for(number).error_counter(counter));
                if value.is_none() {
                    return;
                }
            }
        }
    };
    // Before Hopper the counters have a call of their own.
    older(ErrorCounter::DlCrcFlit, |one| &mut one.crc_errors);
    older(ErrorCounter::DlReplay, |one| &mut one.replays);
    older(ErrorCounter::DlRecovery, |one| &mut one.recoveries);
    links
}

fn pcie(device: &Device<'_>, take: &mut Failures) -> Pcie {
    Pcie {
        generation: take.value("PCIe generation", device.current_pcie_link_gen()),
        generation_max: take.value("highest PCIe generation", device.max_pcie_link_gen()),
        card_generation_max: take.value("the card's PCIe generation", raw::card_pcie_generation(device)),
        width: take.value("PCIe width", device.current_pcie_link_width()),
        width_max: take.value("highest PCIe width", device.max_pcie_link_width()),
        replays: take.value("PCIe replays", device.pcie_replay_counter()),
    }
}
