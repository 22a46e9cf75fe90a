//! The delay matrix as text: senders down, receivers across, only as much of it as holds the worst connections.

use crate::c4d::finding::Who;
use crate::c4d::matrix::Delay;
use crate::runtime_report::RuntimeReport;

/// Most cells from which rows and columns are taken.
const MOST_CELLS: usize = 8;

/// Width of a column.
const WIDTH: usize = 12;

impl RuntimeReport {
    /// Nothing where nothing was looked into.
    pub(super) fn delay_lines(&self) -> Vec<String> {
        let worst = self.delays.iter().take(MOST_CELLS);
        let (mut rows, mut columns): (Vec<Who>, Vec<Who>) = (Vec::new(), Vec::new());
        for delay in worst {
            if !rows.contains(&delay.from) {
                rows.push(delay.from.clone());
            }
            if !columns.contains(&delay.to) {
                columns.push(delay.to.clone());
            }
        }
        if rows.is_empty() {
            return Vec::new();
        }
        rows.sort();
        columns.sort();
        let mut lines = vec![
            "  delays: what a step of the network waits, us; senders down, receivers across, the worst of those \
             looked into"
                .to_owned(),
        ];
        let heads = columns.iter().map(|who| format!("{:>WIDTH$}", self.short_place(who)));
        lines.push(format!("  {:>WIDTH$}{}", "", heads.collect::<String>()));
        for from in &rows {
            let cells = columns.iter().map(|to| format!("{:>WIDTH$}", self.cell(from, to)));
            lines.push(format!("  {:>WIDTH$}{}", self.short_place(from), cells.collect::<String>()));
        }
        lines
    }

    fn cell(&self, from: &Who, to: &Who) -> String {
        let found: Option<&Delay> = self.delays.iter().find(|one| (&one.from, &one.to) == (from, to));
        match found {
            Some(Delay { open: true, .. }) => "stuck".to_owned(),
            Some(one) => one.mean_us.to_string(),
            None => ".".to_owned(),
        }
    }

    /// Where a rank is, in few words.
    pub(crate) fn place(&self, who: &Who) -> String {
        let name = self.name(who.node);
        match (who.gpu, who.task, who.rank) {
            (Some(gpu), ..) => format!("{name}/gpu{gpu}"),
            (None, Some(task), _) => format!("{name}/t{task}"),
            (None, None, Some(rank)) => format!("{name}/r{rank}"),
            (None, None, None) => name,
        }
    }

    /// The same as a column has room for: the end of a name tells nodes apart, not its beginning.
    fn short_place(&self, who: &Who) -> String {
        let place = self.place(who);
        let long = place.chars().count().saturating_sub(WIDTH - 1);
        place.chars().skip(long).collect()
    }
}
