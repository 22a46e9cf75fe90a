//! Facts of a GPU that works, by field case: what its samples show and what comes of it.

use crate::readings::{Expected, assert_facts, gpu, path, sample};
use diag::gpu_facts::FactKind::{Cause, Fault, Note};
use diag::gpu_facts::reading::{Clocks, GpuReading, GpuSample, Load, Process};
use diag::gpu_facts::{path_under_load, under_load};
use diag::measurement::Subject;

/// Field case, what is changed of each of the 10 samples, what is expected.
type Case = (&'static str, fn(usize, &mut GpuSample), &'static [Expected]);

fn facts(before: &GpuReading, change: fn(usize, &mut GpuSample)) -> Vec<diag::gpu_facts::Fact> {
    let mut samples = vec![sample(); 10];
    samples.iter_mut().enumerate().for_each(|(at, one)| change(at, one));
    under_load(1, "n1", before, &load(samples))
}

fn load(samples: Vec<GpuSample>) -> Load {
    Load { samples, seconds: 2.0, ..Load::default() }
}

fn check(cases: &[Case]) {
    for (id, change, expected) in cases {
        assert_facts(id, &facts(&gpu(0), *change), expected);
    }
}

fn hot(it: &mut GpuSample) {
    (it.temperature.gpu_c, it.temperature.margin_c) = (Some(88), Some(1));
}

#[test]
fn a_gpu_at_its_power_limit_is_fine() {
    check(&[
        ("H01", |_, _| (), &[]),
        ("H03", |_, it| it.clocks.reasons = Some(0x1), &[]),
        ("no reason", |_, it| it.clocks.reasons = Some(0), &[]),
        ("nothing known", |_, it| *it = GpuSample::default(), &[]),
    ]);
}

#[test]
fn what_slows_a_gpu_is_a_fault_only_with_evidence() {
    check(&[
        (
            "power brake",
            |_, it| it.clocks.reasons = Some(0x88),
            &[(Fault, "1 gpu 0", &["power brake", "10 of 10", "1755 of 1980", "power supplies"])],
        ),
        (
            "H02: a moment is no share of time",
            |at, it| it.clocks.reasons = Some(if at < 2 { 0x88 } else { 0x4 }),
            &[],
        ),
        (
            "H02: a quarter of the time is",
            |at, it| it.clocks.reasons = Some(if at < 3 { 0x88 } else { 0x4 }),
            &[(Fault, "1 gpu 0", &["3 of 10"])],
        ),
        (
            "H06",
            |_, it| it.clocks.reasons = Some(0xc),
            &[(Fault, "1 gpu 0", &["slowed by its hardware", "power supplies and cooling"])],
        ),
        (
            "heat by hardware",
            |_, it| {
                it.clocks.reasons = Some(0x48);
                hot(it);
            },
            &[(Fault, "1 gpu 0", &["heat by hardware", "1 °C below", "cooling"])],
        ),
        (
            "heat by the driver",
            |_, it| {
                it.clocks.reasons = Some(0x20);
                hot(it);
            },
            &[(Fault, "1 gpu 0", &["heat by the driver"])],
        ),
        (
            "heat of the memory",
            |_, it| (it.clocks.reasons, it.temperature.memory_c) = (Some(0x20), Some(94)),
            &[(Fault, "1 gpu 0", &["1 °C below"])],
        ),
        (
            "H05: said to be hot at 68 °C",
            |_, it| it.clocks.reasons = Some(0x60),
            &[(Cause, "1 gpu 0", &["though", "15 °C below"])],
        ),
        (
            "a bit at full clock slows nothing",
            |_, it| (it.clocks.reasons, it.clocks.sm_mhz) = (Some(0x88), Some(1980)),
            &[],
        ),
        (
            "F11, I09: a bit without a name",
            |_, it| it.clocks.reasons = Some(0x1004),
            &[(Cause, "1 gpu 0", &["0x1000"])],
        ),
        ("sync boost", |_, it| it.clocks.reasons = Some(0x10), &[(Cause, "1 gpu 0", &["sync boost"])]),
        (
            "G10",
            |_, it| (it.clocks.reasons, it.clocks.sm_mhz) = (Some(0x2), Some(1200)),
            &[(Cause, "1 gpu 0", &["locked at 1200 of 1980"])],
        ),
    ]);
}

#[test]
fn without_sensors_only_the_hardwares_word_counts() {
    let blind = |reasons: u64| {
        let mut before = gpu(0);
        before.temperature = Default::default();
        let mut samples = vec![sample(); 4];
        for one in &mut samples {
            one.temperature = Default::default();
            one.clocks.reasons = Some(reasons);
        }
        under_load(1, "n1", &before, &load(samples.clone()))
    };
    assert_facts("hardware", &blind(0x40), &[(Fault, "1 gpu 0", &["not known"])]);
    assert_facts("driver", &blind(0x20), &[(Cause, "1 gpu 0", &["not known"])]);
}

#[test]
fn exactly_a_quarter_of_the_time_counts() {
    let mut samples = vec![sample(); 8];
    samples[0].clocks.reasons = Some(0x88);
    assert_facts("H02", &under_load(1, "n1", &gpu(0), &load(samples.clone())), &[]);
    samples[7].clocks.reasons = Some(0x88);
    assert_facts(
        "H02",
        &under_load(1, "n1", &gpu(0), &load(samples.clone())),
        &[(Fault, "1 gpu 0", &["2 of 8"])],
    );
}

#[test]
fn few_samples_show_no_share_of_time() {
    let mut one = sample();
    one.clocks = Clocks { reasons: Some(0x88), ..one.clocks };
    assert_facts("H02", &under_load(1, "n1", &gpu(0), &load(vec![one; 3])), &[]);
    assert_facts("none", &under_load(1, "n1", &gpu(0), &load(vec![])), &[]);
}

#[test]
fn a_gpu_at_its_factorys_clock_is_not_held_down() {
    let mut before = gpu(0);
    (before.clocks.sm_set_mhz, before.clocks.sm_default_mhz) = (Some(1189), Some(1189));
    let change = |_: usize, it: &mut GpuSample| {
        (it.clocks.reasons, it.clocks.sm_mhz) = (Some(0x2), Some(1189));
    };
    assert_facts("P100", &facts(&before, change), &[]);
}

#[test]
fn memory_errors_that_grow_are_a_fault() {
    check(&[
        (
            "E17: a storm of corrected ones",
            |at, it| it.ecc.volatile_corrected = Some(7 + 3540 * at as u64),
            &[(Fault, "1 gpu 0", &["15930 corrected", "limit 1000"])],
        ),
        ("E17: a few", |at, it| it.ecc.volatile_corrected = Some(7 + at as u64), &[]),
        (
            "uncorrected",
            |at, it| it.ecc.volatile_uncorrected = Some(u64::from(at > 5)),
            &[(Fault, "1 gpu 0", &["1 uncorrected", "while it worked"])],
        ),
        (
            "F14: a counter that went back",
            |at, it| it.ecc.volatile_corrected = Some(100_000 - 10_000 * at as u64),
            &[],
        ),
        (
            "E17: slow answers",
            |at, it| it.took_ms = if at == 4 { 45_000 } else { 3 },
            &[(Note, "1 gpu 0", &["45000 ms"])],
        ),
    ]);
}

#[test]
fn a_pcie_link_that_stays_low_under_load_is_a_fault() {
    check(&[
        (
            "generation",
            |_, it| it.pcie.generation = Some(3),
            &[(Fault, "1 gpu 0", &["PCIe generation 3", "can do 5"])],
        ),
        ("width", |_, it| it.pcie.width = Some(8), &[(Fault, "1 gpu 0", &["PCIe width 8", "can do 16"])]),
        (
            "an idle GPU rests its link",
            |_, it| (it.pcie.generation, it.clocks.reasons) = (Some(1), Some(1)),
            &[],
        ),
        ("once up is up", |at, it| it.pcie.generation = Some(if at == 9 { 5 } else { 1 }), &[]),
        (
            "J14: a new card in an old slot",
            |_, it| {
                (it.pcie.generation, it.pcie.generation_max) = (Some(4), Some(4));
                it.pcie.card_generation_max = Some(5);
            },
            &[],
        ),
    ]);
}

#[test]
fn under_load_a_gpus_own_link_counts() {
    let subject = Subject::Gpu { node: 1, index: 0 };
    let mut way = path("0000:81:00.0");
    assert_facts("J14", &path_under_load(&subject, "n1 GPU 0", &way), &[]);
    way.nodes[0].speed_gt_s = Some(2.5);
    let expected: &[Expected] = &[(Fault, "1 gpu 0", &["its PCIe link", "2.5 GT/s", "can do 32"])];
    assert_facts("J14", &path_under_load(&subject, "n1 GPU 0", &way), expected);
}

// A10: who was there before is told with the node, who comes meanwhile here.
#[test]
fn a_process_that_appears_under_load_is_a_cause() {
    let process = |pid| Process { pid, memory_bytes: None, mps: false, owner: None };
    let mut before = gpu(0);
    before.processes = Some(vec![process(7)]);
    let seen = Load { processes: vec![process(7), process(9)], ..load(vec![sample(); 4]) };
    assert_facts("A10", &under_load(1, "n1", &before, &seen), &[(Cause, "1 gpu 0", &["another process 9"])]);
}

// J14: the way through the tree as it was while the GPU worked.
#[test]
fn a_path_that_stays_low_under_load_is_a_fault() {
    let mut way = path("0000:81:00.0");
    way.nodes[0].width = Some(8);
    let seen = Load { path: Some(way), ..load(vec![sample(); 4]) };
    assert_facts("J14", &under_load(1, "n1", &gpu(0), &seen), &[(Fault, "1 gpu 0", &["has 8 lanes"])]);
}
