//! Every file that ships in `conf/` can be read, every check has a limit in each of them, or a written none, and no limit
//! is one that physics rules out.

use std::path::Path;

use diag::baseline::{Baselines, Conditions};
use diag::baseline_lint::lint;
use diag::check::{ALL, CheckName};
use diag::facts::Engine;
use diag::measurement::Metric;

fn files() -> Vec<(String, Baselines)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf/baselines");
    let files: Vec<(String, Baselines)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let baselines = Baselines::parse(&std::fs::read_to_string(&path).unwrap());
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, baselines.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
        })
        .collect();
    assert!(!files.is_empty());
    files
}

#[test]
fn every_check_has_a_limit_or_a_written_none_in_each_baseline() {
    for (name, baselines) in files() {
        for spec in ALL {
            let limit = baselines.limits.iter().any(|limit| limit.check == spec.name);
            let none = baselines.none.iter().any(|none| none.check == spec.name);
            assert!(limit != none, "{name}: {} wants a limit or a none, and not both", spec.text);
        }
        let sourced = baselines.limits.iter().all(|limit| !limit.source.trim().is_empty());
        assert!(sourced, "{name}: a limit without a source");
    }
}

#[test]
fn a_file_is_called_by_what_it_is_for() {
    for (name, baselines) in files() {
        assert_eq!(name, baselines.name().to_lowercase());
        assert_eq!(baselines.engine == Engine::Host, name == "host");
    }
}

// G05.
#[test]
fn no_limit_that_ships_is_ruled_out_by_physics() {
    for (name, baselines) in files() {
        let found: Vec<String> = lint(&baselines).iter().map(ToString::to_string).collect();
        assert!(found.is_empty(), "{name}:\n{}", found.join("\n"));
    }
}

#[test]
fn numbers_that_healthy_hardware_showed_keep_the_limits() {
    let files: Vec<Baselines> = files().into_iter().map(|(_, baselines)| baselines).collect();
    let limit = |gpu, check, metric, at: &Conditions<'_>| {
        Baselines::for_gpu(&files, gpu).unwrap().limit_at(check, metric, at).map(|limit| limit.value)
    };
    let any = Conditions::default();
    for (gpu, lowest) in [
        ("NVIDIA A100-SXM4-80GB", 261.0),
        ("NVIDIA H100 80GB HBM3", 730.0),
        ("NVIDIA H200", 683.0),
        ("NVIDIA B200", 1745.0),
        ("NVIDIA B300 SXM6 AC", 1769.0),
        ("NVIDIA GB200", 1550.0),
        ("NVIDIA GH200 480GB", 705.0),
    ] {
        let flops = limit(gpu, CheckName::GemmFlops, Metric::Flops, &any).unwrap();
        assert!(flops < lowest && flops > 0.7 * lowest, "{gpu}: {flops}");
    }
    let fp8 = limit("NVIDIA H200", CheckName::GemmFlops, Metric::Fp8Flops, &any).unwrap();
    assert!(fp8 < 1315.0 && fp8 > 0.7 * 1315.0, "{fp8}");
    let h200 = |gpus, bytes, nvls| {
        let at = Conditions { gpus: Some(gpus), bytes: Some(bytes), nvls: Some(nvls), network: None };
        limit("NVIDIA H200", CheckName::AllReduce1, Metric::Busbw, &at)
    };
    let (mib, gib) = (1 << 20, 1 << 30);
    for (gpus, bytes, nvls, healthy) in [
        (8, 8 * gib, true, 477.0),
        (8, gib, true, 464.0),
        (8, 128 * mib, true, 402.0),
        (8, 8 * gib, false, 368.0),
        (4, 8 * gib, true, 363.0),
        (2, gib, false, 328.0),
        (2, 64 * mib, false, 267.0),
        (2, 4 * mib, false, 52.0),
    ] {
        let limit = h200(gpus, bytes, nvls).unwrap();
        assert!(limit < healthy, "{gpus} GPUs, {bytes} bytes: {limit}");
    }
    assert_eq!(h200(8, 4 * mib, false), None, "nothing is known of small messages");
    // Between nodes a limit holds for the ports that it was published for, and for no others.
    let pair = |network| {
        let at = Conditions { gpus: Some(8), bytes: Some(gib), nvls: Some(false), network };
        limit("NVIDIA H100 80GB HBM3", CheckName::AllGather2, Metric::Busbw, &at)
    };
    let floors = [pair(Some("4x200")), pair(Some("8x200")), pair(Some("2x100")), pair(None)];
    assert_eq!(floors, [Some(60.0), Some(150.0), None, None]);
}
