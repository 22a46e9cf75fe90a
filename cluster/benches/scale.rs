//! `cargo xtask bench scale`, or `cargo bench -p cluster --bench scale`: what it costs the nodes of a job to meet, as tables.
//! All of them are on this machine, over real sockets and with a munged of their own: the leader in a process, its deputy in
//! another, the other nodes in some more. Each run is one meeting, with a roster that every node reads, and two barriers after
//! it, which are exchanges of an empty answer.
//!
//! Arguments (after `--`), each `name=value`, all with defaults: `nodes=256,1024,4096` how many nodes, `auth=munge,key` how they
//! prove themselves, `runs=5` how often, `processes=2` how many hold the other nodes, `answer=0` bytes that each
//! node answers at a barrier.
//! MUNGE needs `munged` on the PATH or in `/usr/sbin`, and `libmunge.so.2`. The program needs no other file.
#![allow(clippy::unwrap_used, reason = "a bench may stop at the first surprise")]

#[path = "scale/munged.rs"]
mod munged;
#[path = "scale/nodes.rs"]
mod nodes;
#[path = "scale/run.rs"]
mod run;
#[path = "scale/table.rs"]
mod table;

use std::process::ExitCode;

use munged::Munged;
use run::{Plan, Way};

/// What an argument says, else `usual`.
fn argument(name: &str, usual: &str) -> String {
    let given =
        std::env::args().find_map(|word| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned()));
    given.unwrap_or_else(|| usual.to_owned())
}

fn main() -> ExitCode {
    if let Some(part) = nodes::Part::of_arguments() {
        part.play();
        return ExitCode::SUCCESS;
    }
    // `cargo test --all-targets` starts benches too, without this flag: it has no minutes for them.
    if std::env::args().all(|word| word != "--bench") {
        return ExitCode::SUCCESS;
    }
    let number = |name: &str, usual: &str| argument(name, usual).parse::<u32>().unwrap();
    let sizes: Vec<u32> = argument("nodes", "256,1024,4096").split(',').map(|n| n.parse().unwrap()).collect();
    let munged = Munged::start();
    for way in argument("auth", "munge,key").split(',') {
        let way = match (way, &munged) {
            ("munge", Ok(munged)) => Way::Munge(munged),
            ("munge", Err(why)) => {
                println!("## By MUNGE\n\nnot measured: {why}\n");
                continue;
            }
            _ => Way::Key,
        };
        let mut rows = Vec::new();
        for nodes in &sizes {
            let plan =
                Plan { nodes: *nodes, processes: number("processes", "2"), answer: number("answer", "0") };
            let runs: Vec<_> = (0..number("runs", "5")).map(|_| run::run(&plan, &way)).collect();
            rows.push((*nodes, runs));
        }
        table::print(&way, &rows);
    }
    ExitCode::SUCCESS
}
