//! Lines of several generations of drivers, and lines that are not what they seem.

use proptest::prelude::*;

use super::*;

fn of(text: &str) -> Option<Said> {
    said(&record(&format!("4,17,123456,-;{text}")).unwrap())
}

fn event(text: &str) -> (Family, String, u32, Option<Severity>) {
    match of(text) {
        Some(Said::Xid { family, pci, code, severity, .. }) => (family, pci, code, severity),
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn the_head_of_a_record_is_read() {
    let expected = Record { seq: 339, at_us: 5_140_900, of_kernel: true, text: "NET: a ; b\\c d".to_owned() };
    assert_eq!(record("6,339,5140900,-;NET: a ; b\\x5cc\\x0ad"), Some(expected.clone()));
    assert_eq!(record("6,339,5140900,c,caller=T12;NET: a ; b\\x5cc d"), Some(expected));
    for other in ["", " SUBSYSTEM=pci", "6,339;x", "x,1,2,-;x", "6,1,2;x", "6,-1,2,-;x", "6,1,2,-"] {
        assert_eq!(record(other), None, "{other}");
    }
    assert_eq!(record(&format!("6,1,2,-;{}", "x".repeat(MOST_RECORD_BYTES))), None);
}

#[test]
fn xids_of_all_drivers_are_read() {
    let xid = |code, severity| (Family::Xid, "0000:3b:00.0".to_owned(), code, severity);
    for (text, expected) in [
        ("NVRM: Xid (0000:3b:00): 31, Ch 0000000b, engmask 00000120, intr 10000000", xid(31, None)),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", xid(79, None)),
        (
            "NVRM: Xid (PCI:0000:3b:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception",
            xid(13, None),
        ),
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=7, name=python, Contained error", xid(94, None)),
        ("NVRM: Xid (PCI:0000:3B:00.0): 48", xid(48, None)),
        ("NVRM: Xid (PCI:00000000:3b:00): 63, pid=1896, Row Remapper: New row marked", xid(63, None)),
        // I02: the driver's own severity.
        (
            "NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x0)",
            xid(149, Some(Severity::Fatal)),
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x8)",
            xid(145, Some(Severity::Nonfatal)),
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            xid(154, Some(Severity::Fatal)),
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
            xid(154, Some(Severity::Nonfatal)),
        ),
        // Without an Xid.
        (
            "NVRM: The NVIDIA GPU 0000:3b:00.0\\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has\\x0aNVRM: fallen off the bus and is not responding to commands.",
            xid(79, None),
        ),
        ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", xid(79, None)),
    ] {
        assert_eq!(event(text), expected, "{text}");
    }
    assert_eq!(event("NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1").1, "0019:01:00.0");
}

// F09: what can't be made out says nothing of how bad it is, and its words are kept.
#[test]
fn a_malformed_recovery_action_is_an_event_with_its_words() {
    for words in [
        "GPU recovery action changed from 0x0 (None) to 0x",
        "GPU recovery action changed from 0x0 (None) to 0xzz (Reset)",
        "GPU recovery action changed from 0x0 to 0x1ffffffff (GPU Reset Required)",
        "GPU recovery action changed from",
        "(null) to (null)",
        "",
    ] {
        let read = of(&format!("NVRM: Xid (PCI:0000:3b:00): 154, {words}"));
        let Some(Said::Xid { code, severity, words: kept, .. }) = read else { panic!("{words}: {read:?}") };
        assert_eq!((code, severity, kept.as_str()), (154, None, words));
    }
    // The same action without its number's name.
    assert_eq!(event("NVRM: Xid (PCI:0000:3b:00): 154 GPU action to 0x2").3, Some(Severity::Fatal));
}

#[test]
fn an_sxid_counts_once_though_it_has_several_lines() {
    let line = |rest: &str| format!("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): {rest}");
    let expected = (Family::Sxid, "0000:c1:00.0".to_owned(), 24_007, Some(Severity::Fatal));
    assert_eq!(event(&line("24007, Fatal, Link 32 sourcetrack timeout error (First)")), expected);
    let nonfatal = event(&line("28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)"));
    assert_eq!((nonfatal.2, nonfatal.3), (28_006, Some(Severity::Nonfatal)));
    assert_eq!(of(&line("24007, Severity 1 Engine instance 32 Sub-engine instance 00")), None);
    assert_eq!(of(&line("24007, Data {0x00000001, 0x00000000}")), None);
}

#[test]
fn a_failed_network_device_is_read() {
    for words in [
        "0000:81:00.0: poll_health:829:(pid 0): Fatal error 1 detected",
        "0000:81:00.0 ens1np0: Fatal error 3 detected",
        "0000:81:00.0: poll_health:848:(pid 0): device's health compromised - reached miss count",
    ] {
        match of(&format!("mlx5_core {words}")) {
            Some(Said::NicFailed { pci, .. }) => assert_eq!(pci, "0000:81:00.0"),
            other => panic!("{words}: {other:?}"),
        }
    }
    for words in
        ["0000:81:00.0 ens1np0: Link down", "0000:81:00.0: Port module event: module 0, Cable plugged"]
    {
        assert_eq!(of(&format!("mlx5_core {words}")), None, "{words}");
    }
}

// I03, and a user's words in a line.
#[test]
fn what_only_looks_like_an_event_is_none() {
    for text in [
        "python: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid error: xyz",
        "NVRM: Xid (PCI:0000:3b:00): x79",
        "NVRM: Xid (PCI:0000:3b:00): 79x",
        "NVRM: Xid (PCI:0000:3b:00): 0, nothing",
        "NVRM: Xid (PCI:0000:3b:00): 4294967296, much",
        "NVRM: Xid (PCI:zz:3b:00): 79, x",
        "NVRM: Xid (43, pid: 5678): x",
        "NVRM: GPU at PCI:0000:3b:00: GPU-00000000-0000-0000-0000-000000000000",
        "NVRM: loading NVIDIA UNIX Open Kernel Module",
        "nvidia-nvswitch3: using MSI",
    ] {
        assert_eq!(of(text), None, "{text}");
    }
    // A process that writes into /dev/kmsg gets facility 1 (user) at the least.
    let forged = record("12,18,1,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.").unwrap();
    assert_eq!((forged.of_kernel, said(&forged)), (false, None));
    // A program's name is part of the words of its own Xid, and nothing else.
    let named = "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=NVRM: Xid (PCI:0000:3c:00): 79, Fatal, Ch 8";
    assert_eq!(event(named), (Family::Xid, "0000:3b:00.0".to_owned(), 31, None));
}

proptest! {
    #[test]
    fn any_bytes_can_be_read(text in "\\PC*", bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let lossy = String::from_utf8_lossy(&bytes);
        for line in [&*text, &*lossy, &format!("4,1,2,-;{text}"), &format!("4,1,2,-;NVRM: Xid {lossy}")] {
            if let Some(record) = record(line) {
                _ = said(&record);
            }
        }
    }

    #[test]
    fn every_well_formed_line_is_read_back(
        (domain, bus, device) in (0_u32..=0xffff, 0_u32..=0xff, 0_u32..32),
        code in 1..=MOST_CODE,
        rest in "[ -~]{0,80}",
        prefix in prop::sample::select(vec!["", "PCI:"]),
    ) {
        let text = format!("NVRM: Xid ({prefix}{domain:04x}:{bus:02x}:{device:02x}): {code}, {rest}");
        let (family, pci, read, _) = event(&text);
        prop_assert_eq!((family, read), (Family::Xid, code));
        prop_assert_eq!(pci, format!("{domain:04x}:{bus:02x}:{device:02x}.0"));
    }
}
