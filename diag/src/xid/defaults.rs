//! The built-in rows, by [`super::SOURCE`]: what the catalogue mends by starting the program again is told; what it
//! mends by a reset of the GPU or a restart of the node, and is a fault of hardware or leaves the GPU unusable, drains.
//! What it has no action for is told. Where ours differ a comment says why.

use std::ops::RangeInclusive;

use super::{Family, Generation, Key, Rule, Severity};
use crate::health::{Action, Class};

/// Numbers, generation, severity, class, count, window, action.
type Row = (&'static [RangeInclusive<u32>], Option<Generation>, Option<Severity>, Class, u32, u32, Action);

const HOUR_S: u32 = 3600;

use Action::{Drain, Ignore, Report};
use Class::{Application, Driver, Gpu, Heat, Memory, Nvlink, Pcie, Power};
use Severity::{Fatal, Nonfatal};

const XID: &[Row] = &[
    // I01: the program's own. 45 is the clean-up after another Xid or after a program that was killed.
    (
        &[8..=8, 11..=11, 13..=13, 25..=25, 31..=32, 43..=43, 45..=45, 69..=69, 80..=80],
        None,
        None,
        Application,
        1,
        0,
        Report,
    ),
    // Copy, video and security engines: the catalogue starts the program again, so they drain nobody (I09: 68).
    (
        &[
            39..=41,
            60..=60,
            68..=68,
            70..=72,
            75..=77,
            82..=86,
            88..=89,
            96..=105,
            126..=135,
            139..=139,
            142..=142,
        ],
        None,
        None,
        Gpu,
        1,
        0,
        Report,
    ),
    (
        &[37..=38, 44..=44, 66..=67, 78..=78, 141..=141, 151..=151, 159..=161, 169..=169],
        None,
        None,
        Driver,
        1,
        0,
        Report,
    ),
    // Tests of the management interface.
    (&[14..=14, 106..=107], None, None, Driver, 1, 0, Ignore),
    // Stopped for good, micro-controller halted, security fault, no start, fatal timeout, lost from the bus.
    (&[46..=46, 62..=62, 79..=79, 110..=110, 143..=143, 158..=158], None, None, Gpu, 1, 0, Drain),
    // A context switch that took too long: a reset by the catalogue, and as often a program that hangs.
    (&[109..=109], None, None, Driver, 1, 0, Report),
    // The GPU's system processor does not answer: no program gets anything done before a reset.
    (&[119..=120], None, None, Driver, 1, 0, Drain),
    // Uncorrectable errors of memory; no spare row; not contained.
    (&[48..=48, 64..=64, 95..=95, 140..=140, 156..=156], None, None, Memory, 1, 0, Drain),
    // A row is replaced; a storm of corrected errors; contained; beside a 48. What waits for a reset NVML tells.
    (&[63..=63, 92..=94, 157..=157, 168..=168, 171..=172], None, None, Memory, 1, 0, Report),
    (&[54..=54], None, None, Power, 1, 0, Report),
    (&[162..=165], None, None, Power, 1, 0, Report),
    (&[167..=167], None, None, Pcie, 1, 0, Report),
    // Once is a retry that went well or a peer that was reset; again is a link that is broken.
    (&[74..=74], None, None, Nvlink, 3, HOUR_S, Drain),
    (&[108..=108, 121..=121, 137..=137, 166..=166, 170..=170], None, None, Nvlink, 1, 0, Report),
    (&[136..=136], Some(Generation::Hopper), None, Nvlink, 1, 0, Drain),
    (&[136..=136], None, None, Nvlink, 1, 0, Report),
    // I02: NVLink of Blackwell says itself how bad it is; most that is not fatal needs nothing.
    (&[144..=150], None, Some(Fatal), Nvlink, 1, 0, Drain),
    (&[144..=150], None, Some(Nonfatal), Nvlink, 1, 0, Report),
    (&[144..=150], None, None, Nvlink, 1, 0, Report),
    (&[155..=155], None, None, Nvlink, 1, 0, Drain),
    // What the driver asks for; fatal: a reset or a restart.
    (&[154..=154], None, Some(Fatal), Gpu, 1, 0, Drain),
    (&[154..=154], None, Some(Nonfatal), Gpu, 1, 0, Ignore),
    (&[154..=154], None, None, Gpu, 1, 0, Report),
];

const SXID: &[Row] = &[
    (&[10_004..=10_005], None, None, Heat, 1, 0, Report),
    // A link came up again: said once for each after a reset of a GPU.
    (&[22_013..=22_013], None, None, Nvlink, 1, 0, Ignore),
    // Not fatal by name, and the guide resets all GPUs and switches.
    (&[19_084..=19_084], None, None, Nvlink, 1, 0, Drain),
];

/// Every row by its key.
pub(super) fn rows() -> impl Iterator<Item = (Key, Rule)> {
    let of = |family: Family, rows: &'static [Row]| {
        rows.iter().flat_map(move |&(codes, generation, severity, class, count, window_s, action)| {
            let rule = Rule { class, count, window_s, action };
            codes
                .iter()
                .cloned()
                .flatten()
                .map(move |code| (Key { family, code, generation, severity }, rule))
        })
    };
    of(Family::Xid, XID).chain(of(Family::Sxid, SXID))
}

/// For an SXid without a row: the driver says itself whether it is fatal, and a switch belongs to the node.
pub(super) fn by_severity(family: Family, severity: Option<Severity>) -> Option<Rule> {
    let action = match (family, severity?) {
        (Family::Xid, _) => return None,
        (Family::Sxid, Fatal) => Drain,
        (Family::Sxid, Nonfatal) => Report,
    };
    Some(Rule { class: Nvlink, count: 1, window_s: 0, action })
}
