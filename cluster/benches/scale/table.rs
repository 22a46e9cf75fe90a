//! The tables: medians, with the least and the greatest, and how much each grows with the number of nodes.

use crate::run::{Took, Way};

type Column = (&'static str, fn(&Took) -> f64);

const COLUMNS: [Column; 9] = [
    ("met, s", |took| took.met),
    ("first barrier, s", |took| took.first),
    ("second barrier, s", |took| took.second),
    ("leader, CPU s", |took| took.leader_cpu),
    ("deputy, CPU s", |took| took.deputy_cpu),
    ("other nodes, CPU s", |took| took.others_cpu),
    ("munged, CPU s", |took| took.munged_cpu),
    ("all, CPU s", Took::all_cpu),
    ("leader's memory, MiB", |took| took.leader_mib),
];

/// What is shown of growth: the columns of this many names.
const GROWING: [usize; 3] = [2, 3, 7];

struct Seen {
    median: f64,
    least: f64,
    greatest: f64,
}

fn seen(runs: &[Took], of: fn(&Took) -> f64) -> Seen {
    let mut values: Vec<f64> = runs.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    Seen { median: values[values.len() / 2], least: values[0], greatest: values[values.len() - 1] }
}

fn row(cells: impl IntoIterator<Item = String>) {
    println!("| {} |", cells.into_iter().collect::<Vec<_>>().join(" | "));
}

fn head(first: &str, names: impl Iterator<Item = &'static str>) {
    let names: Vec<String> = std::iter::once(first.to_owned()).chain(names.map(str::to_owned)).collect();
    let line = names.iter().map(|_| "---".to_owned());
    row(names.clone());
    row(line);
}

pub fn print(way: &Way<'_>, rows: &[(u32, Vec<Took>)]) {
    let way = if matches!(way, Way::Munge(_)) { "MUNGE" } else { "key file" };
    println!(
        "## By {way}\n\nmedians (least to greatest) of {} runs\n",
        rows.first().map_or(0, |row| row.1.len())
    );
    head("nodes", COLUMNS.iter().map(|(name, _)| *name));
    for (nodes, runs) in rows {
        let cells = COLUMNS.iter().map(|(_, of)| {
            let Seen { median, least, greatest } = seen(runs, *of);
            format!("{median:.3} ({least:.3} to {greatest:.3})")
        });
        row(std::iter::once(nodes.to_string()).chain(cells));
    }
    println!();
    head("growth", GROWING.iter().map(|at| COLUMNS[*at].0).chain(["N log N"]));
    for pair in rows.windows(2) {
        let [(less, before), (more, after)] = pair else { continue };
        let factors = GROWING.iter().map(|at| {
            let of = COLUMNS[*at].1;
            format!("{:.2}", seen(after, of).median / seen(before, of).median)
        });
        let n_log_n = |nodes: u32| f64::from(nodes) * f64::from(nodes).log2();
        let allowed = format!("{:.2}", n_log_n(*more) / n_log_n(*less));
        row(std::iter::once(format!("{less} to {more}")).chain(factors).chain([allowed]));
    }
    println!();
}
