//! An all-reduce between the ranks of this node alone, and then with products beside it: how much each slows
//! the other down is for the reader of the numbers. Products alone are a primitive of their own.

use std::thread;
use std::time::Duration;

use super::collective::{self, Plan};
use super::{Host, Until, product};
use crate::protocol::{
    Busbw, Collected, Collective, Member, Overlap, Overlapped, Products, Reply, Tag, Unreachable,
};

/// Why there are no numbers.
enum Trouble {
    Failed(String),
    Unreachable(Vec<Unreachable>),
}

/// Runs the two parts one after another.
pub(super) fn run(host: &Host, tag: Tag, members: &[Member], window: Duration, until: &Until) -> Reply {
    match parts(host, tag, members, window, until) {
        Ok(overlap) => Reply::Overlap(Overlapped::Measured(Box::new(overlap))),
        Err(Trouble::Unreachable(ways)) => Reply::Overlap(Overlapped::Unreachable(ways)),
        Err(Trouble::Failed(message)) => Reply::Failed { message },
    }
}

fn parts(
    host: &Host,
    tag: Tag,
    members: &[Member],
    window: Duration,
    until: &Until,
) -> Result<Overlap, Trouble> {
    let ranks = u32::try_from(members.len()).unwrap_or(u32::MAX);
    let products = |until: &Until| match product::run(&host.inputs, window, ranks, until) {
        Reply::Product(products) => Ok(products),
        other => Err(failed(other)),
    };
    let communicators = [members.to_vec()];
    let reduce = |until: &Until| -> Result<Busbw, Trouble> {
        let plan = Plan { tag, collective: Collective::AllReduce, window };
        match collective::run(host, plan, &communicators, until) {
            Reply::Collective(mut collected) => match collected.pop() {
                Some(Collected::Measured(busbw)) => Ok(busbw),
                Some(Collected::Unreachable(ways)) => Err(Trouble::Unreachable(ways)),
                Some(Collected::Broken(_) | Collected::PeerBroken) | None => {
                    Err(Trouble::Failed("the all-reduce came to no result".to_owned()))
                }
            },
            other => Err(failed(other)),
        }
    };
    // One that hangs leaves half of the limit to both; an undisturbed one leaves nearly all of it.
    let busbw_alone = reduce(&until.at_most(until.left() / 2))?;
    let both = until.clone();
    let (products, busbw): (Result<Products, Trouble>, Result<Busbw, Trouble>) = thread::scope(|scope| {
        let multiplying = thread::Builder::new()
            .name("products".to_owned())
            .spawn_scoped(scope, || products(&both))
            .map_err(|error| Trouble::Failed(format!("the products can't start: {error}")));
        let busbw = reduce(&both);
        let bug = || Err(Trouble::Failed("the products hit a bug (panic)".to_owned()));
        (multiplying.and_then(|thread| thread.join().unwrap_or_else(|_| bug())), busbw)
    });
    Ok(Overlap { busbw_alone, products: products?, busbw: busbw? })
}

fn failed(reply: Reply) -> Trouble {
    match reply {
        Reply::Failed { message } => Trouble::Failed(message),
        other => Trouble::Failed(format!("{other:?} is no part of an overlap")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::timed::Cancel;
    use super::super::testing::{Node, TAG};
    use super::*;

    fn overlap(members: &[Member], node: &Node, window_ms: u64, limit_s: u64) -> Reply {
        let until = Until::after(Duration::from_secs(limit_s), &Cancel::default());
        run(&node.host, TAG, members, Duration::from_millis(window_ms), &until)
    }

    #[test]
    fn all_numbers_are_there_and_right() {
        let node = Node::new(0, 2);
        let reply = overlap(&node.members, &node, 150, 30);
        let Reply::Overlap(Overlapped::Measured(overlap)) = reply else { panic!("{reply:?}") };
        let products = &overlap.products;
        assert!(products.products > 0 && products.right == 1.0, "{products:?}");
        for busbw in [&overlap.busbw_alone, &overlap.busbw] {
            assert!(busbw.gb_per_s > 0.0 && busbw.right == Some(1.0) && !busbw.limited, "{busbw:?}");
        }
    }

    #[test]
    fn ranks_that_do_not_reach_each_other_are_named() {
        let node = Node::new(0, 2);
        let mut members = node.members.clone();
        members[1].port = 1;
        let reply = overlap(&members, &node, 50, 6);
        let Reply::Overlap(Overlapped::Unreachable(ways)) = reply else { panic!("{reply:?}") };
        assert_eq!((ways[0].port, ways[0].why.as_str()), (1, "connection refused"));
    }

    #[test]
    fn one_rank_has_nobody_to_reduce_with() {
        let node = Node::new(0, 1);
        assert!(matches!(overlap(&node.members, &node, 20, 6), Reply::Failed { .. }));
    }
}
