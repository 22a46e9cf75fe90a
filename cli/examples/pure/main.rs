//! What the parts without IO cost: planning and judging a job, localising its faults, reading a policy and a hostlist, a report
//! as JSON and as a page, the digests of a second. `pure count NAME NODES` does one of them once, in [`counted`], for a counter of
//! instructions (`cargo xtask instructions`); `pure time NODES TURNS` prints how long each takes (`cargo xtask bench pure`).
//! Everything is made from seeds: the same work every time. It judges nothing.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "an example may stop at the first surprise")]

#[path = "../../../diag/tests/c4d/job/mod.rs"]
#[allow(dead_code, reason = "the simulation is that of the tests")]
mod job;
#[path = "../../../diag/tests/rules/simulated/mod.rs"]
mod simulated;
mod work;

/// The page is made by the command line itself.
#[path = "../../src"]
mod source {
    pub mod html;
}

use std::time::{Duration, Instant};

use work::{ALL, Once, Size};

/// All that a counter of instructions looks at; its name is known to `cargo xtask instructions`.
#[inline(never)]
fn counted(once: Once) -> usize {
    once()
}

fn count(name: &str, nodes: u32) -> Option<usize> {
    let work = ALL.iter().find(|work| work.name == name)?;
    let once = (work.prepare)(Size::short(nodes))();
    Some(std::hint::black_box(counted(once)))
}

fn time(nodes: u32, turns: usize) {
    println!("| what, of {nodes} nodes with 8 GPUs each | median, ms | least to greatest | turns |");
    println!("|---|---|---|---|");
    for work in ALL {
        let mut prepared = (work.prepare)(Size::whole(nodes));
        let mut times: Vec<Duration> = (0..turns.max(1))
            .map(|_| {
                let once = prepared();
                let begun = Instant::now();
                std::hint::black_box(counted(once));
                begun.elapsed()
            })
            .collect();
        times.sort_unstable();
        let ms = |at: usize| times[at].as_secs_f64() * 1000.0;
        let (median, least, most) = (ms(times.len() / 2), ms(0), ms(times.len() - 1));
        println!("| {} | {median:.2} | {least:.2} to {most:.2} | {} |", work.what, times.len());
    }
}

fn main() -> Result<(), String> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |word: &String| word.parse::<u32>().map_err(|error| format!("{word}: {error}"));
    match words.as_slice() {
        [mode, name, nodes] if mode == "count" => match count(name, number(nodes)?) {
            Some(made) => println!("{name}: {made}"),
            None => return Err(format!("there is no work {name}")),
        },
        [mode, nodes, turns] if mode == "time" => time(number(nodes)?, number(turns)? as usize),
        _ => return Err("usage: pure count NAME NODES | pure time NODES TURNS".into()),
    }
    Ok(())
}
