//! What findings say to a person: one line, who, what shows it, what to do next.

use crate::c4d::digest::ProcessState;
use crate::c4d::finding::{Finding, Operation, Who};
use crate::c4d::hang::End;
use crate::c4d::link::Place;
use crate::c4d::meeting::{Key, What};
use crate::c4d::picture::{Picture, Rank};
use crate::c4d::slow::Slow;
use crate::c4d::suspects::Scene;
use crate::c4d::timing::Late;
use crate::wording::{listed, number, size};

/// Most ranks that one line names.
const MAX_IN_LINE: usize = 8;

/// Seconds, as people read them.
pub(super) fn seconds(ms: u64) -> String {
    format!("{} s", number(ms as f64 / 1000.0))
}

/// A rank: `rank 5 (n3, GPU 2, process 4711, task 21)`; by its number in the communicator that is spoken of, else by that in
/// the job.
pub(super) fn who(picture: &Picture, who: &Who) -> String {
    let gpu = who.gpu.map_or_else(String::new, |gpu| format!(", GPU {gpu}"));
    let place = format!("{}{gpu}, process {}", picture.name(who.node), who.pid);
    match (who.rank, who.task) {
        (Some(rank), Some(task)) => format!("rank {rank} ({place}, task {task})"),
        (Some(rank), None) => format!("rank {rank} ({place})"),
        (None, Some(task)) => format!("task {task} ({place})"),
        (None, None) => format!("process {} ({place})", who.pid),
    }
}

/// Several ranks, the first ones by name.
pub(super) fn several(picture: &Picture, ranks: &[Who], total: usize) -> String {
    let mut names: Vec<String> = ranks.iter().take(MAX_IN_LINE).map(|one| who(picture, one)).collect();
    let more = total.saturating_sub(names.len());
    if more > 0 {
        names.push(format!("{more} more"));
    }
    listed(&names.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A communicator: `communicator tp 59a3 (8 ranks)`.
pub(super) fn comm(operation: &Operation) -> String {
    let name = if operation.name.is_empty() { String::new() } else { format!("{} ", operation.name) };
    format!("communicator {name}{:x} ({} ranks)", operation.comm, operation.nranks)
}

/// An operation: `AllReduce 8 of communicator ...`.
fn operation(finding: &Finding, key: Key) -> String {
    let Some(operation) = &finding.operation else { return "an operation".to_owned() };
    let seq = operation.seq.unwrap_or(0);
    let what = match key.what {
        What::Collective(func) => format!("{} {seq}", func.text()),
        What::Pair { from, to } => format!("send {seq} from rank {from} to rank {to}"),
    };
    format!("{what} of {}", comm(operation))
}

fn state(rank: &Rank) -> String {
    let state = match rank.state {
        ProcessState::Running => "its process runs",
        ProcessState::Sleeping => "its process sleeps",
        ProcessState::Blocked => "its process is blocked in the kernel",
        ProcessState::Stopped => "its process is stopped",
        ProcessState::Zombie | ProcessState::Gone => "its process has ended",
    };
    let wchan = if rank.wchan.is_empty() { String::new() } else { format!(" in {}", rank.wchan) };
    format!("{state}{wchan}")
}

/// Said of a rank whose GPU another rank uses too.
const SHARES_GPU: &str = "; it shares its GPU with another rank of the job";

/// What one rank did last and what it does now.
pub(super) fn rank_shows(scene: &Scene<'_>, place: usize, key: Key) -> Option<String> {
    let rank = scene.picture.rank(place)?;
    let name = who(scene.picture, &scene.who(place, key)?);
    let mut line = format!("{name}: {}", state(rank));
    if let Some(busy) = rank.busy_percent {
        line.push_str(&format!("; its GPU is busy {busy} % of the time"));
    }
    if rank.shares_gpu {
        line.push_str(SHARES_GPU);
    }
    let count = scene.count(place, key);
    if let (Some(count), Some(meeting)) = (count, scene.knot.meetings.get(&key)) {
        line.push_str(match (count.started > meeting.seq, count.enqueued > meeting.seq) {
            (true, _) => "; it is inside the operation",
            (false, true) => "; its program has called the operation, its GPU has not begun it",
            (false, false) => "; its program has not called the operation",
        });
    }
    if rank.moved_ms > 0 {
        let still_ms = scene.now_ms.saturating_sub(rank.moved_ms);
        line.push_str(&format!("; its last step in any communicator was {} ago", seconds(still_ms)));
    }
    if rank.lost_ms.is_some_and(|lost| lost >= rank.moved_ms) {
        line.push_str("; records of it were lost, so it may have come");
    }
    Some(line)
}

/// Ranks that others wait for.
pub(super) fn missing(
    scene: &Scene<'_>,
    finding: &Finding,
    end: End,
    key: Key,
    suspects: &[usize],
) -> String {
    let names = several(scene.picture, &finding.suspects, finding.suspects_total);
    let operation = operation(finding, key);
    let one = finding.suspects_total == 1;
    let (has, does) = if one { ("has", "its process") } else { ("have", "their processes") };
    let waited = seconds(scene.now_ms.saturating_sub(finding.since_ms));
    let waits = match finding.waiting {
        1 => "1 rank waits".to_owned(),
        count => format!("{count} ranks wait"),
    };
    match end {
        End::Paused => format!(
            "{names}: {does} {} stopped (SIGSTOP or a debugger), and {waits} for it in {operation}; continue or end it",
            if one { "is" } else { "are" }
        ),
        End::Ended => format!(
            "{names}: {does} {has} ended, and {waits} for it in {operation}; see the end of its output and the kernel's log \
             of its node for why"
        ),
        End::Silent => {
            let ranks = suspects.iter().filter_map(|who| scene.picture.rank(*who));
            let heard_ms = ranks.map(|rank| rank.heard_ms).max().unwrap_or(0);
            let node = match finding.subject.nodes().first() {
                Some(node) => scene.picture.name(*node),
                None => "-",
            };
            format!(
                "{node}: nothing was heard of it for {}, and {waits} for {names} in {operation}; look whether the node is up",
                seconds(scene.now_ms.saturating_sub(heard_ms))
            )
        }
        _ => format!(
            "{names} {has} not come to {operation}, in which {waits}; nothing moved for {waited}; look at what {does} {} \
             (py-spy dump, cuda-gdb)",
            if one { "does" } else { "do" }
        ),
    }
}

/// Few ranks ahead of many.
pub(super) fn majority(scene: &Scene<'_>, finding: &Finding, key: Key) -> String {
    let meeting = scene.knot.meetings.get(&key);
    let ahead = meeting.map(|meeting| meeting.waiting.as_slice()).unwrap_or_default();
    let ahead: Vec<Who> = ahead.iter().filter_map(|who| scene.who(*who, key)).collect();
    format!(
        "{} ranks have not come to {}: {}; only {} ranks have: {}; either those lag or these went ahead by themselves: \
         compare what the two groups do",
        finding.suspects_total,
        operation(finding, key),
        several(scene.picture, &finding.suspects, finding.suspects_total),
        ahead.len(),
        several(scene.picture, &ahead, ahead.len()),
    )
}

/// An operation to which all have come.
pub(super) fn stuck(scene: &Scene<'_>, finding: &Finding, key: Key, place: Option<&Place>) -> String {
    let stood = seconds(scene.now_ms.saturating_sub(finding.since_ms));
    let where_ = match place {
        Some(place) => place.words.clone(),
        None => "which connection is stuck is not known: the network's steps were not recorded".to_owned(),
    };
    format!(
        "all {} ranks have come to {}, {} are still in it and nothing moved for {stood}: the transport; {where_}",
        finding.compared.0,
        operation(finding, key),
        finding.waiting,
    )
}

/// Something hangs and the cause is where nothing is told.
pub(super) fn undecided(finding: &Finding, key: Key) -> String {
    let (told, all) = finding.compared;
    format!(
        "{} hangs: the {told} ranks that tell of themselves have all come, the other {} of {all} tell nothing",
        operation(finding, key),
        all - told,
    )
}

/// Ranks that wait for each other.
pub(super) fn deadlock(scene: &Scene<'_>, finding: &Finding, key: Key) -> String {
    let inside = finding.suspects_total;
    let others = scene.knot.meetings.len();
    format!(
        "ranks wait for each other in {others} different operations, and nobody is outside of one: {} ({} of them wait in {}); \
         the order of operations differs between ranks of the program",
        several(scene.picture, &finding.suspects, inside),
        finding.waiting,
        operation(finding, key),
    )
}

/// How late one rank was in one communicator.
pub(super) fn late(picture: &Picture, who_: usize, at: usize, late: &Late) -> String {
    let (Some(rank), Some(one)) = (picture.rank(who_), picture.comm(at)) else { return String::new() };
    let Late { late, ops, wait_us, share, .. } = *late;
    let mut line = format!(
        "{}: last to come in {late} of {ops} operations of {}; the others waited {} ms each time, {} % of the time",
        who(picture, &rank.named(one)),
        one.title(),
        number(wait_us as f64 / 1000.0),
        number(share * 100.0),
    );
    if let Some(busy) = rank.busy_percent {
        line.push_str(&format!("; its GPU is busy {busy} %"));
    }
    if rank.shares_gpu {
        line.push_str(SHARES_GPU);
    }
    line
}

/// Ranks that come late.
pub(super) fn straggler(
    picture: &Picture,
    (ranks, total): (&[Who], usize),
    operation: &Operation,
    worst: &Late,
    pipeline: bool,
) -> String {
    let names = several(picture, ranks, total);
    let cost = format!(
        "the others of {} wait {} ms each time, {} % of the time",
        comm(operation),
        number(worst.wait_us as f64 / 1000.0),
        number(worst.share * 100.0)
    );
    if pipeline {
        return format!(
            "one of {names}, which are stages of one pipeline, slows it down; which one is not clear; {cost}"
        );
    }
    let come = if total == 1 { "comes" } else { "come" };
    format!(
        "{names} {come} last to nearly every operation; {cost}; look at clocks, temperature, host load and input of {names}"
    )
}

/// A pipeline that is late because a connection of it is slow.
pub(super) fn slow_pipeline(operation: &Operation, worst: &Late, place: &Place) -> String {
    format!(
        "sends of {} take long, and a whole pipeline is late for it, {} % of the time: the transport; {}",
        comm(operation),
        number(worst.share * 100.0),
        place.words
    )
}

/// A transport that is slow.
pub(super) fn slow(operation: &Operation, worst: &Slow, place: Option<&Place>) -> String {
    let func = worst.shown.func.text();
    let where_ = match place {
        Some(place) => place.words.clone(),
        None => "the network's steps, which say where, are not recorded yet".to_owned(),
    };
    format!(
        "{func} of {} in {} takes {} ms also for the last rank that comes, {} ms at its best or among its like, {} % of the \
         time: the transport; {where_}",
        size(worst.shown.bytes),
        comm(operation),
        number(f64::from(worst.shown.now_us) / 1000.0),
        number(f64::from(worst.reference_us) / 1000.0),
        number(worst.share * 100.0)
    )
}
