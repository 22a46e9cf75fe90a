//! A drain's reason, pasted as somebody found it: by `sinfo -R`, by `scontrol show node`, or with words that an admin added.

use diag::action::undrain::{Drained, one_node_can_tell};
use diag::check::CheckName;
use diag::reason::{MARK, Ours};
use diag::xid::XidTable;
use jiff::Timestamp;

use super::{Explained, pages, xid};

/// The name of the field in Slurm's output.
const FIELD: &str = "Reason=";

/// Reasons of Slurm itself that are taken for ours.
const SLURMS: [(&str, &str); 4] = [
    (
        "Prolog error",
        "Slurm's own: a Prolog of the site failed on this node, or is missing; this software's never fails. slurmd's log of that time says why",
    ),
    ("Not responding", "Slurm's own: slurmd was not heard for SlurmdTimeout"),
    (
        "Kill task failed",
        "Slurm's own: a process of a job did not end within UnkillableStepTimeout; it waits for a disk or a driver",
    ),
    ("Epilog error", "Slurm's own: an Epilog of the site failed on this node"),
];

/// Explains it; `None`: it is no reason of a drain.
pub fn explain(asked: &str, table: &XidTable) -> Option<Explained> {
    let text = asked.trim().trim_start_matches(FIELD).trim_matches(['"', '\'']).trim();
    if let Some((_, words)) =
        SLURMS.iter().find(|(reason, _)| text.to_lowercase().starts_with(&reason.to_lowercase()))
    {
        return Some(Explained {
            title: format!("{text}: no reason of this software"),
            says: vec![(*words).to_owned()],
            ..Explained::default()
        });
    }
    let text = &text[text.find(MARK)?..];
    let (ours, added) = taken_apart(text)?;
    let check = CheckName::parse(ours.check());
    let mut found = match check {
        Some(check) => super::of_check(check),
        None => of_hardware(&ours, table),
    };
    found.title = format!("{}: found by check {} of job {}", ours.what, ours.check_number, ours.job_id);
    if let Some(check) = check {
        let doc = check.spec().doc;
        found.says.insert(0, format!("{check}: {doc}"));
        let first = diag::next_step::of_reason(&ours).map(str::to_owned);
        found.next = first.into_iter().collect();
    }
    if let Some(added) = added {
        found.says.push(format!("somebody added {added:?}: `aimaster undrain` leaves this node to him"));
    }
    found.next.push(format!(
        "`aimaster report {} --check {}` has the evidence, on the job's first node where reports are not shared",
        ours.job_id, ours.check_number
    ));
    let drained = Drained { reason: ours, at: Timestamp::UNIX_EPOCH };
    found.next.push(match one_node_can_tell(&drained) {
        Ok(()) => "when it is mended: `aimaster undrain NODE --check`, as root on the node".to_owned(),
        Err(why) => format!("when it is mended: `aimaster undrain NODE --after-pass JOBID`; {why}"),
    });
    Some(found)
}

/// The reason, and what somebody wrote behind it.
fn taken_apart(text: &str) -> Option<(Ours, Option<String>)> {
    // `[root@2026-11-30T11:24:12]` is Slurm's, as `scontrol show node` prints it.
    let unsigned =
        |text: &str| match text.trim_end().strip_suffix(']').and_then(|text| text.rsplit_once(" [")) {
            Some((own, signature)) if signature.contains('@') => own.to_owned(),
            _ => text.to_owned(),
        };
    let text = unsigned(text).trim_end_matches(['"', '\'', ' ']).to_owned();
    if let Some(ours) = Ours::parse(&text) {
        return Some((ours, None));
    }
    // Behind `n=1` it is somebody else's.
    let at = text.rfind(" n=")? + " n=".len();
    let digits = text[at..].bytes().take_while(u8::is_ascii_digit).count();
    let (own, added) = text.split_at(at + digits);
    Some((Ours::parse(own)?, Some(added.trim_start_matches([' ', ';', ',', '|']).to_owned())))
}

fn of_hardware(ours: &Ours, table: &XidTable) -> Explained {
    let second = ours.what.split(' ').nth(1).unwrap_or_default().trim_end_matches(':');
    let word = if ours.is_of_communication() { second } else { "hardware" };
    let what = match ours.check() {
        "c4d" => "while the job ran the runtime check found it",
        "hardware" => "it was seen on the node before anything was measured",
        _ => "no check of this version has that name",
    };
    let xid = xid::inside(&ours.what).and_then(|number| xid::explain(&number, table));
    let mut says = vec![what.to_owned()];
    says.extend(xid.iter().map(|found| found.title.clone()));
    says.extend(xid.into_iter().flat_map(|found| found.says));
    Explained { says, passages: pages::about(word), ..Explained::default() }
}
