//! The events of a suite; how they reach syslog is in `cluster::events`.

use cluster::events::Events;
use diag::report::Report;
use diag::verdict::Outcome;

use crate::assignment::Assignment;

/// The event of a finished suite.
pub fn finished(events: &Events, report: &Report) {
    let name = match report.outcome {
        Outcome::Pass => "SanityCheckSucceeded",
        Outcome::Skip => "SanityCheckSkipped",
        Outcome::Error | Outcome::Suspect | Outcome::Environment | Outcome::Fail => "SanityCheckFailed",
    };
    let seconds = report.seconds();
    let line = format!(
        "event={name} cluster={} check_number={} outcome={} action={} nodes={} drained={} seconds={seconds:.1} \
         summary={:?}",
        report.cluster,
        report.check_number,
        report.outcome,
        report.action,
        report.nodes.len(),
        report.drained.join(","),
        report.summary
    );
    events.event(&line, !matches!(report.outcome, Outcome::Pass | Outcome::Skip));
}

/// The event of parts of this node that do less than they did; nobody is drained for it.
pub fn declines(events: &Events, assignment: &Assignment, lines: &[String]) {
    for line in lines {
        let (cluster, number) = (&assignment.job.cluster, assignment.check_number());
        let node = &assignment.job.node;
        events.event(
            &format!(
                "event=PartDeclining cluster={cluster} check_number={number} node={node} summary={line:?}"
            ),
            true,
        );
    }
}
