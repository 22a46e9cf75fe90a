//! Collectives between nodes that live in one process, with real sockets, and with faults between them.

use std::io::Write;
use std::net::TcpStream;

use super::super::super::timed::Cancel;
use super::super::testing::{Fault, LOCAL, Node, TAG, proxy, silent_port};
use super::*;
use crate::protocol::DataKey;

/// Bytes that a connecting rank sends for the handshake.
const HANDSHAKE: usize = 8 + 32 + 25 + 32;

const WINDOW: Duration = Duration::from_millis(150);
const LIMIT: Duration = Duration::from_millis(1500);

/// All nodes' results of an all-reduce; `views[i]` is what node i believes the members to be.
fn reduce(nodes: &[Node], views: &[Vec<Member>], window: Duration, limit: Duration) -> Vec<Collected> {
    let views: Vec<Vec<Vec<Member>>> = views.iter().map(|members| vec![members.clone()]).collect();
    let results = collect(nodes, &views, Collective::AllReduce, window, limit);
    results.into_iter().map(|mut communicators| communicators.pop().unwrap()).collect()
}

/// All nodes' results, communicator by communicator.
fn collect(
    nodes: &[Node],
    views: &[Vec<Vec<Member>>],
    collective: Collective,
    window: Duration,
    limit: Duration,
) -> Vec<Vec<Collected>> {
    let plan = Plan { tag: TAG, collective, window };
    thread::scope(|scope| {
        let running: Vec<_> = nodes
            .iter()
            .zip(views)
            .map(|(node, communicators)| {
                scope.spawn(move || {
                    run(&node.host, plan, communicators, &Until::after(limit, &Cancel::default()))
                })
            })
            .collect();
        let replies = running.into_iter().map(|node| node.join().unwrap());
        replies
            .map(|reply| match reply {
                Reply::Collective(collected) => collected,
                other => panic!("{other:?}"),
            })
            .collect()
    })
}

fn same_view(nodes: &[Node]) -> Vec<Vec<Member>> {
    let members: Vec<Member> = nodes.iter().flat_map(|node| node.members.clone()).collect();
    vec![members; nodes.len()]
}

fn number(reduced: &Collected) -> &Busbw {
    match reduced {
        Collected::Measured(busbw) => busbw,
        other => panic!("{other:?}"),
    }
}

fn ways(reduced: &Collected) -> &[Unreachable] {
    match reduced {
        Collected::Unreachable(ways) => ways,
        other => panic!("{other:?}"),
    }
}

/// Two nodes with one rank each; what goes from node 0 to node 1 passes the fault.
fn with_fault(fault: Fault) -> Vec<Collected> {
    let nodes = [Node::new(0, 1), Node::new(1, 1)];
    let mut views = same_view(&nodes);
    views[0][1].port = proxy(views[0][1].port, fault);
    let began = Instant::now();
    let results = reduce(&nodes, &views, WINDOW, LIMIT);
    assert!(began.elapsed() < LIMIT + Duration::from_millis(500), "{:?}", began.elapsed());
    results
}

#[test]
fn sums_are_right_for_two_to_eight_ranks() {
    for (nodes, ranks) in [(1, 2), (3, 1), (2, 2), (5, 1), (3, 2), (7, 1), (1, 8), (2, 4)] {
        let nodes: Vec<_> = (0..nodes).map(|node| Node::new(node, ranks)).collect();
        let results = reduce(&nodes, &same_view(&nodes), WINDOW, Duration::from_secs(10));
        let iterations = number(&results[0]).iterations;
        for result in &results {
            let busbw = number(result);
            assert_eq!(busbw.right, Some(1.0), "{busbw:?}");
            assert!(!busbw.limited && busbw.gb_per_s > 0.0 && busbw.bytes > 0, "{busbw:?}");
            assert_eq!(busbw.iterations, iterations, "all ranks stop together");
        }
    }
}

#[test]
fn blocks_arrive_where_they_belong_for_two_to_eight_ranks() {
    for collective in [Collective::AllGather, Collective::AllToAll] {
        for (nodes, ranks) in [(1, 2), (3, 1), (2, 2), (5, 1), (3, 2), (7, 1), (1, 8), (2, 4)] {
            let nodes: Vec<_> = (0..nodes).map(|node| Node::new(node, ranks)).collect();
            let views: Vec<_> = same_view(&nodes).into_iter().map(|members| vec![members]).collect();
            for result in collect(&nodes, &views, collective, WINDOW, Duration::from_secs(10)) {
                let busbw = number(&result[0]);
                assert_eq!(busbw.right, Some(1.0), "{collective:?} {busbw:?}");
                assert!(!busbw.limited && busbw.gb_per_s > 0.0 && busbw.bytes > 0, "{busbw:?}");
            }
        }
    }
}

#[test]
fn sixteen_nodes_of_two_ranks_come_to_a_result() {
    let nodes: Vec<_> = (0..16).map(|node| Node::new(node, 2)).collect();
    let views: Vec<_> = same_view(&nodes).into_iter().map(|members| vec![members]).collect();
    for collective in [Collective::AllReduce, Collective::AllGather, Collective::AllToAll] {
        let window = Duration::from_millis(600);
        for result in collect(&nodes, &views, collective, window, Duration::from_secs(20)) {
            let busbw = number(&result[0]);
            println!("{collective:?} {:.3} GB/s at {} bytes", busbw.gb_per_s, busbw.bytes);
            assert_eq!(busbw.right, Some(1.0), "{collective:?} {busbw:?}");
            assert!(!busbw.limited && busbw.gb_per_s > 0.0, "{busbw:?}");
        }
    }
}

/// Communicator i is rank i of every node.
fn rails(nodes: &[Node]) -> Vec<Vec<Vec<Member>>> {
    let ranks = nodes[0].members.len();
    let rail = |rank: usize| nodes.iter().map(|node| node.members[rank]).collect::<Vec<_>>();
    vec![(0..ranks).map(rail).collect(); nodes.len()]
}

#[test]
fn a_slow_rail_leaves_the_others_alone() {
    let nodes = [Node::new(0, 3), Node::new(1, 3)];
    let mut views = rails(&nodes);
    let slow = 500e3;
    views[0][1][1].port = proxy(views[0][1][1].port, Fault::Slow(slow));
    // Long enough for the quick rails to get going while other tests take the processors.
    let window = Duration::from_millis(600);
    for result in collect(&nodes, &views, Collective::AllReduce, window, Duration::from_secs(6)) {
        let rates: Vec<f64> = result.iter().map(|rail| number(rail).gb_per_s).collect();
        println!("{rates:?}");
        assert!(rates[1] * 1e9 < 5.0 * slow, "{rates:?}");
        assert!(rates[0] > 5.0 * rates[1] && rates[2] > 5.0 * rates[1], "{rates:?}");
    }
}

#[test]
fn a_blocked_rail_is_named_and_the_others_are_measured() {
    let nodes = [Node::new(0, 2), Node::new(1, 2)];
    let mut views = rails(&nodes);
    views[0][1][1].port = 1;
    let results = collect(&nodes, &views, Collective::AllReduce, WINDOW, LIMIT);
    for result in &results {
        assert_eq!(number(&result[0]).right, Some(1.0), "{result:?}");
        let way = &ways(&result[1])[0];
        assert_eq!((way.from, way.to), (0, 1), "{way:?}");
    }
    assert_eq!(ways(&results[0][1])[0].port, 1);
}

#[test]
fn a_stalled_peer_of_an_all_to_all_does_not_outlast_the_limit() {
    let nodes = [Node::new(0, 2), Node::new(1, 2)];
    let mut views: Vec<_> = same_view(&nodes).into_iter().map(|members| vec![members]).collect();
    // From rank 0 of node 0 to rank 0 of node 1, two places on.
    views[0][0][2].port = proxy(views[0][0][2].port, Fault::StallAfter(HANDSHAKE + 10_000));
    let began = Instant::now();
    for result in collect(&nodes, &views, Collective::AllToAll, WINDOW, LIMIT) {
        assert!(number(&result[0]).limited, "{result:?}");
    }
    assert!(began.elapsed() < LIMIT + Duration::from_millis(500));
}

#[test]
fn a_dead_and_a_lying_way_of_an_all_to_all_are_noticed() {
    for fault in [Fault::CutAfter(HANDSHAKE + 10_000), Fault::Spoil(HANDSHAKE + 16 + 100)] {
        let nodes = [Node::new(0, 2), Node::new(1, 2)];
        let mut views: Vec<_> = same_view(&nodes).into_iter().map(|members| vec![members]).collect();
        views[0][0][2].port = proxy(views[0][0][2].port, fault);
        let results = collect(&nodes, &views, Collective::AllToAll, WINDOW, LIMIT);
        match fault {
            Fault::CutAfter(_) => {
                let way = &ways(&results[0][0])[0];
                assert_eq!((way.from, way.to), (0, 1), "{way:?}");
            }
            _ => assert!(number(&results[1][0]).right.unwrap() < 1.0, "{results:?}"),
        }
    }
}

#[test]
fn a_spoiled_block_of_an_all_gather_is_noticed() {
    let nodes = [Node::new(0, 1), Node::new(1, 1)];
    let mut views: Vec<_> = same_view(&nodes).into_iter().map(|members| vec![members]).collect();
    views[0][0][1].port = proxy(views[0][0][1].port, Fault::Spoil(HANDSHAKE + 16 + 16 + 100));
    let results = collect(&nodes, &views, Collective::AllGather, WINDOW, LIMIT);
    assert!(number(&results[1][0]).right.unwrap() < 1.0, "{results:?}");
}

#[test]
fn a_rank_in_two_places_is_refused() {
    let node = Node::new(0, 2);
    let plan = Plan { tag: TAG, collective: Collective::AllReduce, window: WINDOW };
    let until = Until::after(LIMIT, &Cancel::default());
    for communicators in [vec![node.members.clone(); 2], vec![], vec![node.members[..1].to_vec()]] {
        assert!(matches!(run(&node.host, plan, &communicators, &until), Reply::Failed { .. }));
    }
}

#[test]
fn four_ranks_on_loopback_are_fast() {
    let nodes = [Node::new(0, 2), Node::new(1, 2)];
    let results = reduce(&nodes, &same_view(&nodes), Duration::from_millis(600), Duration::from_secs(6));
    let busbw = number(&results[0]);
    println!("{} GB/s at {} bytes, {} all-reduces", busbw.gb_per_s, busbw.bytes, busbw.iterations);
    // The floor of conf/baselines/host.toml: what any working machine reaches, also while other tests run.
    assert!(busbw.gb_per_s > 0.05, "{busbw:?}");
}

#[test]
fn a_spoiled_contribution_is_noticed() {
    // After the handshake: the head of the step in which the ranks meet, a head, and then data of the warm-up.
    let results = with_fault(Fault::Spoil(HANDSHAKE + 16 + 16 + 100));
    for result in &results {
        let right = number(result).right.unwrap();
        assert!(right < 1.0, "{result:?}");
    }
}

#[test]
fn a_spoiled_head_is_no_number() {
    let results = with_fault(Fault::Spoil(HANDSHAKE + 1));
    assert!(ways(&results[1])[0].why.contains("no part of this collective"), "{results:?}");
}

// N02: nobody waits longer than the limit.
#[test]
fn a_stalled_peer_does_not_outlast_the_limit() {
    for result in &with_fault(Fault::StallAfter(HANDSHAKE + 40_000)) {
        let busbw = number(result);
        assert!(busbw.limited && busbw.gb_per_s < 0.001, "{busbw:?}");
        assert!(busbw.moved_bytes > 0, "{busbw:?}");
    }
}

#[test]
fn a_slow_link_gives_a_low_number() {
    for rate in [2e6, 20e3] {
        for result in &with_fault(Fault::Slow(rate)) {
            let busbw = number(result);
            let share = busbw.gb_per_s * 1e9 / rate;
            // Buffers on the way take a first part at full speed.
            assert!(share > 0.2 && share < 4.0, "{rate}: {busbw:?}");
        }
    }
}

#[test]
fn a_peer_that_dies_is_named() {
    let results = with_fault(Fault::CutAfter(HANDSHAKE + 100_000));
    let way = &ways(&results[0])[0];
    assert_eq!((way.from, way.to), (0, 1), "{way:?}");
    assert!(way.why.contains("in the middle"), "{way:?}");
    assert!(matches!(results[1], Collected::Unreachable(_)));
}

#[test]
fn a_blocked_port_is_one_way_on_both_sides() {
    let nodes = [Node::new(0, 2), Node::new(1, 2)];
    let mut views = same_view(&nodes);
    // Nothing listens on port 1.
    views[0][2].port = 1;
    let began = Instant::now();
    let results = reduce(&nodes, &views, WINDOW, LIMIT);
    assert!(began.elapsed() < LIMIT + Duration::from_millis(500));
    let refused = &ways(&results[0])[0];
    assert_eq!((refused.from, refused.to, refused.port), (0, 1, 1));
    assert_eq!(refused.why, "connection refused");
    for way in ways(&results[1]) {
        assert_eq!((way.from, way.to), (0, 1), "{way:?}");
    }
}

// N02.
#[test]
fn a_silent_port_is_the_same_one_way_on_both_sides() {
    let nodes = [Node::new(0, 2), Node::new(1, 2)];
    let mut views = same_view(&nodes);
    views[0][2].port = silent_port();
    let limit = Duration::from_secs(4);
    let began = Instant::now();
    let results = reduce(&nodes, &views, WINDOW, limit);
    assert!(began.elapsed() < limit + Duration::from_millis(500));
    let silent = &ways(&results[0])[0];
    assert_eq!((silent.from, silent.to, silent.port), (0, 1, views[0][2].port));
    assert_eq!(silent.why, "timed out after 2.0 s");
    for way in ways(&results[1]) {
        assert_eq!((way.from, way.to), (0, 1), "{way:?}");
    }
}

// J15.
#[test]
fn another_key_is_refused() {
    let nodes = [Node::new(0, 1), Node::with_key(1, 1, DataKey([8; 32]))];
    let results = reduce(&nodes, &same_view(&nodes), WINDOW, LIMIT);
    assert!(ways(&results[0])[0].why.contains("not a worker of this job"), "{results:?}");
}

// J15.
#[test]
fn an_address_of_another_node_is_told_from_a_stranger() {
    let nodes = [Node::new(0, 1), Node::new(1, 1)];
    let mut views = same_view(&nodes);
    views[0][1].port = nodes[0].members[0].port;
    let results = reduce(&nodes, &views, WINDOW, LIMIT);
    assert!(ways(&results[0])[0].why.contains("leads to another node"), "{results:?}");
}

#[test]
fn garbage_has_no_effect() {
    let nodes = [Node::new(0, 2), Node::new(1, 2)];
    let ports: Vec<u16> = nodes.iter().flat_map(|node| &node.members).map(|member| member.port).collect();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for port in ports {
            let over = &over;
            scope.spawn(move || {
                let mut silent = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let Ok(mut stranger) = TcpStream::connect((LOCAL, port)) else { continue };
                    let _ = stranger.write_all(b"GET / HTTP/1.0\r\n\r\n");
                    // Half of an opening, and then silence.
                    let Ok(mut stranger) = TcpStream::connect((LOCAL, port)) else { continue };
                    let _ = stranger.write_all(b"AIMDATA1 and nothing else");
                    silent.push(stranger);
                    silent.truncate(200);
                    thread::sleep(Duration::from_millis(2));
                }
            });
        }
        for _ in 0..3 {
            let results = reduce(&nodes, &same_view(&nodes), WINDOW, Duration::from_secs(6));
            assert!(results.iter().all(|result| number(result).right == Some(1.0)), "{results:?}");
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_cancelled_all_reduce_ends_at_once() {
    let node = Node::new(0, 1);
    let absent = Member { node: 1, rank: 0, address: LOCAL, port: node.members[0].port };
    let members = [node.members[0], absent];
    let cancel = Cancel::default();
    let began = Instant::now();
    thread::scope(|scope| {
        let limit = Until::after(Duration::from_secs(60), &cancel);
        let running = scope.spawn(move || {
            let plan = Plan { tag: TAG, collective: Collective::AllReduce, window: WINDOW };
            run(&node.host, plan, &[members.to_vec()], &limit);
        });
        thread::sleep(Duration::from_millis(100));
        cancel.store(true, Ordering::Relaxed);
        running.join().unwrap();
    });
    assert!(began.elapsed() < Duration::from_secs(2));
}
