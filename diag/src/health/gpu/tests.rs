//! What is found of a GPU that changes while a job runs, and of one that does not.

use proptest::prelude::*;

use super::*;
use crate::gpu_facts::reading::{Clocks, Device, Pcie, RemappedRows, SramEcc, Temperature};
use crate::health::Board;

fn healthy() -> GpuReading {
    GpuReading {
        device: Device {
            minor: Some(3),
            uuid: Some("GPU-3".to_owned()),
            pci: Some("0000:81:00.0".to_owned()),
            name: Some("NVIDIA H200".to_owned()),
            ..Device::default()
        },
        ecc: Ecc {
            enabled: Some(true),
            volatile_uncorrected: Some(2),
            volatile_corrected: Some(10),
            sram: Some(SramEcc {
                volatile_uncorrected: 1,
                aggregate_uncorrected: 1,
                threshold_exceeded: false,
            }),
            ..Ecc::default()
        },
        rows: Some(RemappedRows { corrected: 0, uncorrected: 1, pending: false, failed: false }),
        recovery: Some(Recovery::None),
        links: (0..18)
            .map(|link| NvLink {
                link,
                active: Some(link < 12),
                crc_errors: Some(5),
                replays: Some(7),
                recoveries: Some(1),
            })
            .collect(),
        pcie: Pcie { width: Some(16), width_max: Some(16), replays: Some(3), ..Pcie::default() },
        ..GpuReading::default()
    }
}

fn sample(reasons: u64) -> GpuSample {
    GpuSample {
        clocks: Clocks {
            sm_mhz: Some(1200),
            sm_max_mhz: Some(1980),
            reasons: Some(reasons),
            ..Clocks::default()
        },
        temperature: Temperature { gpu_c: Some(91), slowdown_c: Some(92), ..Temperature::default() },
        pcie: Pcie { generation: Some(5), generation_max: Some(5), ..Pcie::default() },
        ecc: healthy().ecc,
        ..GpuSample::default()
    }
}

fn found(gpu: &Gpu, now_ms: u64) -> Vec<(String, Class, Action)> {
    gpu.conditions(now_ms).into_iter().map(|one| (one.what, one.class, one.action)).collect()
}

/// After one change, with a whole reading before and one behind it.
fn after(change: impl FnOnce(&mut GpuReading)) -> Vec<(String, Class, Action)> {
    let mut gpu = Gpu::new(0, healthy());
    gpu.whole(5000, healthy());
    let mut now = healthy();
    change(&mut now);
    gpu.whole(45_000, now);
    found(&gpu, 45_000)
}

fn one(what: &str, class: Class, action: Action) -> Vec<(String, Class, Action)> {
    vec![(what.to_owned(), class, action)]
}

#[test]
fn what_hardware_says_of_itself_drains() {
    let drains = |what, class, change: fn(&mut GpuReading)| {
        assert_eq!(after(change), one(what, class, Action::Drain));
    };
    drains("lost", Class::Gpu, |it| it.lost = Some("GPU is lost".to_owned()));
    drains("uncorrected", Class::Memory, |it| it.ecc.volatile_uncorrected = Some(3));
    drains("row not replaced", Class::Memory, |it| {
        it.rows = it.rows.map(|rows| RemappedRows { failed: true, ..rows });
    });
    drains("row waits", Class::Memory, |it| {
        it.rows = it.rows.map(|rows| RemappedRows { pending: true, ..rows })
    });
    drains("pages wait", Class::Memory, |it| it.pages.pending = Some(true));
    drains("recovery", Class::Gpu, |it| it.recovery = Some(Recovery::Reset));
    drains("nvlink down", Class::Nvlink, |it| it.links[4].active = Some(false));
    drains("nvlink errors", Class::Nvlink, |it| it.links[4].crc_errors = Some(100_000));
    drains("pcie width", Class::Pcie, |it| it.pcie.width = Some(8));
    drains("corrected storm", Class::Memory, |it| it.ecc.volatile_corrected = Some(10_000_000));
    drains("uncorrected", Class::Memory, |it| {
        it.ecc.sram = it.ecc.sram.map(|sram| SramEcc { volatile_uncorrected: 2, ..sram });
    });
}

#[test]
fn what_repairs_itself_or_has_no_name_is_told() {
    let told = |what, class, change: fn(&mut GpuReading)| {
        assert_eq!(after(change), one(what, class, Action::Report));
    };
    told("nvlink trained again", Class::Nvlink, |it| it.links[4].recoveries = Some(2));
    told("pcie replays", Class::Pcie, |it| it.pcie.replays = Some(100_000));
    told("recovery", Class::Gpu, |it| it.recovery = Some(Recovery::Other(9)));
}

// K02: what was down at the start; and counters that were set to zero.
#[test]
fn what_was_so_at_the_start_is_not_found_again() {
    assert_eq!(after(|it| it.links[15].recoveries = Some(9)), []);
    assert_eq!(after(|it| it.links[15].active = Some(false)), []);
    assert_eq!(after(|it| it.links[4].crc_errors = Some(0)), []);
    let mut bad = healthy();
    bad.rows = bad.rows.map(|rows| RemappedRows { pending: true, ..rows });
    bad.recovery = Some(Recovery::Reset);
    bad.lost = Some("GPU is lost".to_owned());
    let mut gpu = Gpu::new(0, bad.clone());
    gpu.whole(5000, bad);
    assert_eq!(found(&gpu, 5000), []);
}

#[test]
fn nvml_s_event_counts_where_the_counter_does_not_move() {
    let mut gpu = Gpu::new(0, healthy());
    gpu.event(GpuEvent::Xid(79));
    assert_eq!(found(&gpu, 0), []);
    gpu.event(GpuEvent::DoubleBit);
    assert_eq!(found(&gpu, 0), one("uncorrected", Class::Memory, Action::Drain));
}

fn with_samples(reasons: u64, busy_percent: Option<u32>) -> Gpu {
    let mut gpu = Gpu::new(0, healthy());
    for second in 1..=8 {
        gpu.sample(second * 1000, GpuSample { busy_percent, ..sample(reasons) });
    }
    gpu
}

// H01, H03, H05, H06.
#[test]
fn clocks_count_only_while_it_works_and_drain_nobody() {
    assert_eq!(found(&with_samples(0x80, Some(97)), 8000), one("power brake", Class::Power, Action::Report));
    assert_eq!(found(&with_samples(0x40, Some(97)), 8000), one("heat", Class::Heat, Action::Report));
    assert_eq!(found(&with_samples(0x8, None), 8000), one("hardware slowdown", Class::Power, Action::Report));
    // At its power limit, idle, or idle by its own word where the load is not known.
    for (reasons, busy) in [(0x4, Some(100)), (0x40, Some(0)), (0x41, None)] {
        assert_eq!(found(&with_samples(reasons, busy), 8000), [], "{reasons:#x} {busy:?}");
    }
    let words = &with_samples(0x80, Some(97)).conditions(8000)[0].words;
    assert!(
        words.starts_with("GPU 3 (0000:81:00.0): slowed by the external power brake in 8 of 8"),
        "{words}"
    );
}

#[test]
fn a_slow_pcie_link_counts_only_while_it_works() {
    let slow = |busy_percent| {
        let mut gpu = Gpu::new(0, healthy());
        for second in 1..=8 {
            let mut sample = GpuSample { busy_percent: Some(busy_percent), ..sample(0x4) };
            sample.pcie.generation = Some(1);
            gpu.sample(second * 1000, sample);
        }
        found(&gpu, 8000)
    };
    assert_eq!(slow(90), one("pcie generation", Class::Pcie, Action::Drain));
    assert_eq!(slow(0), []);
}

// One burst is no rate: it takes a second window.
#[test]
fn a_single_burst_of_link_errors_is_not_told() {
    let told = |per_second: u64| {
        let (mut gpu, mut board) = (Gpu::new(0, healthy()), Board::default());
        let mut told = Vec::new();
        for second in (5..300).step_by(5) {
            let mut now = healthy();
            let burst = if second >= 100 { 50_000 } else { 0 };
            now.links[4].crc_errors = Some(5 + burst + second * per_second);
            gpu.whole(second * 1000, now);
            let events = board.step(second * 1000, gpu.conditions(second * 1000));
            told.extend(events.into_iter().map(|event| (second, event.what, event.turn)));
        }
        told
    };
    assert_eq!(told(0), []);
    let steady = told(150);
    assert_eq!(steady.len(), 1, "{steady:?}");
    assert!(steady[0].0 >= 75 && steady[0].0 <= 90 && steady[0].1 == "nvlink errors", "{steady:?}");
}

// E17.
#[test]
fn a_driver_that_does_not_answer_is_told() {
    let mut gpu = Gpu::new(0, healthy());
    gpu.silent(SILENT_MS);
    assert_eq!(found(&gpu, 0), one("silent", Class::Driver, Action::Report));
    gpu.sample(1000, sample(0));
    assert_eq!(found(&gpu, 0), []);
}

proptest! {
    // A GPU that stays as it is is silent at every moment, and what is kept is bounded.
    #[test]
    fn a_steady_gpu_is_silent(looks in proptest::collection::vec((1_u64..15_000, any::<bool>()), 1..200)) {
        let mut gpu = Gpu::new(0, healthy());
        let mut now_ms = 0;
        for (later_ms, whole) in looks {
            now_ms += later_ms;
            if whole {
                gpu.whole(now_ms, healthy());
            } else {
                gpu.sample(now_ms, GpuSample { busy_percent: Some(100), ..sample(0x4) });
            }
            prop_assert_eq!(found(&gpu, now_ms), vec![]);
            prop_assert!(gpu.samples.len() <= MOST_SAMPLES && gpu.kept.len() <= MOST_KEPT);
        }
    }
}
