//! Names of GPUs in every form that Slurm and GPU libraries write them in.

use diag::gpu_facts::ids::{GpuId, GpuIdError, MAX_GPUS, UnknownGpus, parse, pci_address, resolve};
use diag::gpu_facts::reading::Device;
use proptest::prelude::*;

const UUID: &str = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";

/// A list of numbers and nothing else.
fn minors(text: &str) -> Vec<u32> {
    let number = |id| if let GpuId::Minor(minor) = id { Some(minor) } else { None };
    let numbers: Result<Option<Vec<u32>>, _> = parse(text).map(|ids| ids.into_iter().map(number).collect());
    let Ok(Some(numbers)) = numbers else { unreachable!("{text}: {numbers:?}") };
    numbers
}

// L01.
#[test]
fn every_form_of_a_name_is_read() {
    let upper = UUID.to_uppercase();
    for (text, id) in [
        ("7".to_owned(), GpuId::Minor(7)),
        (format!("GPU-{UUID}"), GpuId::Gpu(format!("GPU-{UUID}"))),
        (format!("gpu-{upper}"), GpuId::Gpu(format!("GPU-{UUID}"))),
        (format!("MIG-{upper}"), GpuId::Mig(format!("MIG-{UUID}"))),
        (format!("MIG-GPU-{upper}/7/0"), GpuId::Mig(format!("MIG-GPU-{UUID}/7/0"))),
        ("0000:C1:00.0".to_owned(), GpuId::Pci("0000:c1:00.0".to_owned())),
        ("00000000:c1:00.0".to_owned(), GpuId::Pci("0000:c1:00.0".to_owned())),
        ("c1:00.0".to_owned(), GpuId::Pci("0000:c1:00.0".to_owned())),
    ] {
        assert_eq!(parse(&text), Ok(vec![id]), "{text}");
    }
}

#[test]
fn lists_and_ranges_keep_their_order_and_repeats_count_once() {
    assert_eq!(minors("4-7"), [4, 5, 6, 7]);
    assert_eq!(minors("3, 1,0-2 ,3"), [3, 1, 0, 2]);
    assert_eq!(minors("5-5"), [5]);
    assert_eq!(minors(""), Vec::<u32>::new());
    assert_eq!(minors(" , "), Vec::<u32>::new());
}

#[test]
fn a_gres_gives_its_indexes_and_only_those_of_gpus() {
    for (text, expected) in [
        ("gpu:2(IDX:0-1)", vec![0, 1]),
        ("gpu:h200:4(IDX:4-7)", vec![4, 5, 6, 7]),
        ("gres:gpu:h200:3(IDX:0,2-3)", vec![0, 2, 3]),
        ("gres/gpu:1(IDX:6)", vec![6]),
        ("gpu(IDX:0,5)", vec![0, 5]),
        ("gpu:a100:1(IDX:1),gpu:h200:1(IDX:3),fpga:1(IDX:9)", vec![1, 3]),
        ("gpu:h200:0(IDX:N/A)", vec![]),
        ("gpu:4", vec![]),
        ("gres/gpu=4", vec![]),
        ("gpu", vec![]),
        ("shard:5(IDX:1)", vec![]),
    ] {
        assert_eq!(minors(text), expected, "{text}");
    }
}

#[test]
fn what_names_no_gpu_is_an_error() {
    for text in [
        "gpu0",
        "abc",
        "-1",
        "1-",
        "-",
        "0x3",
        "GPU-12",
        "GPU-",
        "MIG-",
        "MIG-GPU-1/2/3",
        "1.5",
        "c1:00",
        "é",
    ] {
        assert_eq!(parse(text), Err(GpuIdError::Item { item: text.to_owned() }), "{text}");
    }
    assert_eq!(parse("0,7-4"), Err(GpuIdError::Backwards { item: "7-4".to_owned() }));
    assert!(parse(&format!("MIG-GPU-{UUID}/1")).is_err());
    assert_eq!(parse("gpu:2(IDX:0-x)"), Err(GpuIdError::Item { item: "0-x".to_owned() }));
}

#[test]
fn a_list_is_bounded() {
    assert_eq!(parse(&format!("0-{}", MAX_GPUS - 1)).unwrap().len(), MAX_GPUS);
    assert_eq!(parse(&format!("0-{MAX_GPUS}")), Err(GpuIdError::TooMany));
    assert_eq!(parse("0-999999999"), Err(GpuIdError::TooMany));
    assert!(matches!(parse(&"0,".repeat(40_000)), Err(GpuIdError::TextTooLong { .. })));
}

/// A node whose NVML counts its GPUs in another order than their device files.
fn present() -> Vec<Device> {
    (0..8_u32)
        .map(|index| Device {
            index,
            minor: Some(7 - index),
            uuid: Some(format!("GPU-0a1b2c3d-4e5f-6071-8293-{:012x}", 7 - index)),
            pci: Some(format!("0000:{:02x}:00.0", 0xc1 + index)),
            ..Device::default()
        })
        .collect()
}

// L02, L03: the device file's number, never a position; GPUs 4 to 7 of 8.
#[test]
fn a_number_is_that_of_the_device_file() {
    assert_eq!(resolve(&parse("4-7").unwrap(), &present()), Ok(vec![3, 2, 1, 0]));
    let same = parse("6,GPU-0A1B2C3D-4E5F-6071-8293-000000000006,C2:00.0").unwrap();
    assert_eq!(resolve(&same, &present()), Ok(vec![1]));
    let old_mig = parse("MIG-GPU-0a1b2c3d-4e5f-6071-8293-000000000003/1/0").unwrap();
    assert_eq!(resolve(&old_mig, &present()), Ok(vec![4]));
    let without: Vec<Device> = present().into_iter().map(|it| Device { minor: None, ..it }).collect();
    assert_eq!(resolve(&parse("2").unwrap(), &without), Ok(vec![2]));
    // A GPU that can't say its number does not stand in for one that can.
    let mut one_silent = present();
    one_silent[1].minor = None;
    assert_eq!(
        resolve(&parse("1,6").unwrap(), &one_silent),
        Err(UnknownGpus {
            unknown: "6".to_owned(),
            present: resolve(&[GpuId::Minor(99)], &one_silent).unwrap_err().present,
        })
    );
    assert_eq!(resolve(&parse("1").unwrap(), &one_silent), Ok(vec![6]));
}

#[test]
fn what_is_not_there_is_an_error_with_what_is() {
    let mut there = present();
    there.truncate(2);
    there[1].lost = Some("fell off the bus".to_owned());
    let error = resolve(&parse("7,3,ff:00.0").unwrap(), &there).unwrap_err().to_string();
    assert!(error.starts_with("no GPU 3, 0000:ff:00.0 here; there are: 7 GPU-0a1b2c3d"), "{error}");
    assert!(error.contains("0000:c1:00.0; 6 GPU-") && error.ends_with("(lost: fell off the bus)"), "{error}");
    let error = resolve(&parse("0").unwrap(), &[]).unwrap_err().to_string();
    assert!(error.ends_with("there are: none"), "{error}");
}

fn id() -> impl Strategy<Value = GpuId> {
    let uuid = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";
    prop_oneof![
        (0_u32..999_999_999).prop_map(GpuId::Minor),
        uuid.prop_map(|uuid| GpuId::Gpu(format!("GPU-{uuid}"))),
        uuid.prop_map(|uuid| GpuId::Mig(format!("MIG-{uuid}"))),
        (uuid, 0..100, 0..100)
            .prop_map(|(uuid, gpu, part)| GpuId::Mig(format!("MIG-GPU-{uuid}/{gpu}/{part}"))),
        (any::<u16>(), any::<u8>(), 0_u8..32, 0_u8..8).prop_map(|(domain, bus, device, function)| {
            GpuId::Pci(format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"))
        }),
    ]
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in ".{0,200}") {
        let _ = parse(&text);
        let _ = pci_address(&text);
    }

    #[test]
    fn any_text_of_the_right_letters_is_read_or_refused(text in "[-0-9a-gA-GIMPUXD:./,() ]{0,60}") {
        if let Ok(ids) = parse(&text) {
            // What was read is written so that it is read again.
            let written: Vec<String> = ids.iter().map(ToString::to_string).collect();
            prop_assert_eq!(parse(&written.join(",")), Ok(ids));
        }
    }

    #[test]
    fn written_names_are_read_back(mut ids in prop::collection::vec(id(), 0..20), upper in any::<bool>()) {
        let mut known = std::collections::BTreeSet::new();
        ids.retain(|id| known.insert(id.clone()));
        let mut text = ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        if upper {
            text = text.to_uppercase();
        }
        prop_assert_eq!(parse(&text), Ok(ids));
    }

    #[test]
    fn a_range_is_the_list_of_its_numbers(first in 0_u32..1000, length in 0_u32..50) {
        let last = first + length;
        let list: Vec<String> = (first..=last).map(|minor| minor.to_string()).collect();
        prop_assert_eq!(parse(&format!("{first}-{last}")), parse(&list.join(",")));
        let gres = format!("gpu:h200:{length}(IDX:{first}-{last})");
        prop_assert_eq!(parse(&gres), parse(&list.join(",")));
    }
}
