//! `aimaster-c4d`: started by `aimaster-prolog`, with an [`Order`] on its standard input, when a job with the runtime
//! check starts on this node. What it does is in [`epilog::c4d`].
#![forbid(unsafe_code)]

use std::process::ExitCode;

use cluster::order::Order;
use epilog::c4d::{birth, life};

fn main() -> ExitCode {
    // Whoever started the helper may have left it something of slurmd's.
    kernels::confined::close_inherited();
    let order = Order::take(std::io::stdin().lock());
    let Ok(answer) = birth::Answer::detach() else { return ExitCode::FAILURE };
    match order.map_err(Into::into).and_then(birth::agent).and_then(life::Life::new) {
        Ok(life) => match answer.ready() {
            Ok(()) => life.live(),
            Err(_) => ExitCode::FAILURE,
        },
        Err(error) => {
            answer.refuse(&error);
            ExitCode::FAILURE
        }
    }
}
