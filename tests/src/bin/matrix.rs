//! The fault matrix on the local Slurm, for `cargo xtask matrix`: every cell of the table, or those whose names contain
//! all the words given. Prints a line a cell and the evidence of those that went wrong, and ends with 1 if any did.

use std::sync::{Mutex, PoisonError};

use aimaster_tests::matrix::cell::Cell;
use aimaster_tests::matrix::crowds::{self, CROWDS};
use aimaster_tests::matrix::{Results, line, run_all, table};
use aimaster_tests::side_by_side;
use anyhow::{Context, Result, bail};

/// How many clusters run side by side: their jobs mostly wait.
const CLUSTERS: usize = 6;

fn main() -> Result<()> {
    let mut clusters = CLUSTERS;
    let (mut words, mut unfinished, mut list) = (Vec::new(), false, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--clusters" => {
                let count = arguments.next().context("--clusters COUNT")?;
                clusters = count.parse().with_context(|| format!("number of clusters: {count}"))?;
            }
            "--unfinished" => unfinished = true,
            "--list" => list = true,
            _ => words.push(argument),
        }
    }
    let all = table::cells();
    let fits = |cell: &&Cell| words.iter().all(|word| cell.name().contains(word));
    let mut chosen: Vec<Cell> = all.iter().filter(fits).copied().collect();
    let mut results = Results::open()?;
    if unfinished {
        chosen = results.open_cells(&chosen);
    }
    let fits = |name: &&str| words.iter().all(|word| name.contains(word));
    let mut crowds: Vec<&str> = CROWDS.iter().map(|crowd| crowd.name).filter(fits).collect();
    if unfinished {
        crowds.retain(|name| results.is_open(name));
    }
    if list {
        chosen.iter().for_each(|cell| println!("{}", cell.name()));
        crowds.iter().for_each(|name| println!("{name}"));
        return Ok(());
    }
    if chosen.is_empty() && crowds.is_empty() && !unfinished {
        bail!("no cell has these words in its name; --list shows them all");
    }
    let _machine = side_by_side()?;
    let shared = Mutex::new(&mut results);
    let done = run_all(&chosen, clusters, |done| {
        println!("{}", line(done));
        if let Err(error) = shared.lock().unwrap_or_else(PoisonError::into_inner).add(done) {
            eprintln!("{error:#}");
        }
    });
    let mut wrong = 0;
    for one in done.iter().filter(|done| !done.seen.wrong.is_empty()) {
        wrong += 1;
        println!("\n== {}\n{}\n{}", one.cell.name(), one.seen.wrong.join("\n"), one.evidence);
    }
    // One at a time: each of them needs the machine.
    for name in &crowds {
        let (seen, words) = crowds::run(name);
        wrong += usize::from(!seen.wrong.is_empty());
        println!("{name}: {words}, longest prolog {:.1} s {:#?}", seen.longest.as_secs_f64(), seen.wrong);
        results.add_crowd(name, &seen, &words)?;
    }
    let names: Vec<&str> = CROWDS.iter().map(|crowd| crowd.name).collect();
    results.write_page(&all, &names)?;
    println!("\n{} cells, {wrong} of them wrong", done.len() + crowds.len());
    if wrong > 0 {
        bail!("something does not hold under these faults");
    }
    Ok(())
}
