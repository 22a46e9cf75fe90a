//! The readers of what was written by a run, an agent or a plugin of this or another version, or by whoever can write there:
//! reports, reports of running jobs, launch gates and the ranks' way to their agent.
//!
//! The first byte says which: `r`, `a`, `g`, `t`.

use diag::gate::{Gate, MAX_LINE_CHARS, MAX_LINES};
use diag::report::{Report, user_lines};
use diag::runtime_report::{RuntimeReport, joint_outcome};
use diag::telemetry::Telemetry;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::holds;

/// Each reads back what it writes, and shows nothing that moves a cursor.
pub fn run(data: &[u8]) {
    match data {
        [b'r', json @ ..] => {
            let Some(report) = read::<Report>(json) else { return };
            holds::lines(&report.text());
            user_lines(&report, "/x").iter().for_each(|line| holds::line(line, usize::MAX));
            gate(Gate::closed(user_lines(&report, "/x")));
            assert!(report.seconds() >= 0.0);
        }
        [b'a', json @ ..] => {
            let Some(report) = read::<RuntimeReport>(json) else { return };
            holds::lines(&report.text());
            report.news(None).iter().for_each(|line| holds::line(line, usize::MAX));
            let joint = joint_outcome(std::slice::from_ref(&report));
            assert_eq!(joint, Some(report.outcome()));
            assert!(report.news(Some(&report)).is_empty(), "nothing is news twice");
        }
        [b'g', json @ ..] => {
            if let Some(read) = read::<Gate>(json) {
                gate(Gate::open(read.lines.clone()).with("one more".into()));
                gate(Gate::closed(read.lines));
            }
        }
        [b't', json @ ..] => {
            let Some(telemetry) = read::<Telemetry>(json) else { return };
            if telemetry.is_sound() {
                // It becomes an environment variable.
                let texts = [&telemetry.socket, &telemetry.profiler, &telemetry.nccl_deny];
                assert!(texts.iter().all(|text| !text.contains('\0')));
            }
        }
        _ => {}
    }
}

/// What was read, if it is one and reads back as it was.
fn read<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(json: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(json).ok()?;
    let written = serde_json::to_vec(&value).unwrap();
    assert_eq!(serde_json::from_slice::<T>(&written).unwrap(), value);
    Some(value)
}

/// A gate that is written is one that can be read.
fn gate(gate: Gate) {
    assert!(gate.lines.len() <= MAX_LINES);
    assert!(gate.lines.iter().all(|line| line.chars().count() <= MAX_LINE_CHARS));
    assert!(serde_json::to_vec(&gate).unwrap().len() <= diag::gate::MAX_BYTES);
}
