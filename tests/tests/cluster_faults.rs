//! Each fault has its effect, measured inside the nodes, and none after it is mended.

use std::time::Duration;

use aimaster_tests::{Block, Cluster, Deny, Install, NODE_DIR, Running, serial};
use anyhow::{Context, Result};

const SOON: Duration = Duration::from_secs(20);
const PORT: &str = "40000";

fn cluster() -> Result<Cluster> {
    let install = Install::new().program(env!("CARGO_BIN_EXE_netprobe"));
    Cluster::builder().nodes(4).install(install).boot()
}

fn probe(cluster: &Cluster, node: &str, args: &[&str]) -> Result<String> {
    let program = format!("{NODE_DIR}/netprobe");
    Ok(cluster.command(node, [program]).args(args.iter().copied()).ok()?.text().to_owned())
}

/// Starts a receiver on every node.
fn serve(cluster: &Cluster) -> Result<Vec<Running>> {
    let program = format!("{NODE_DIR}/netprobe");
    let start = |node: &str| {
        let server = cluster.command(node, [program.as_str(), "serve", PORT]).spawn()?;
        server.wait_line(|line| line == "listening", SOON)?;
        Ok(server)
    };
    cluster.nodes().into_iter().map(start).collect()
}

/// Megabytes per second from one node to another.
fn speed(cluster: &Cluster, from: &str, to: &str, bytes: usize) -> Result<f64> {
    let text = probe(cluster, from, &["send", to, PORT, &bytes.to_string()])?;
    Ok(text.parse::<f64>().with_context(|| format!("{from} to {to}: {text}"))? / 1e6)
}

#[test]
fn rates_of_nodes_and_pairs() {
    let _machine = serial().unwrap();
    let cluster = cluster().unwrap();
    let _servers = serve(&cluster).unwrap();
    let whole = speed(&cluster, "n1", "n2", 200_000_000).unwrap();
    println!("healthy: {whole:.0} MB/s");
    assert!(whole > 200.0, "{whole}");

    // A pair: 20 Mbit/s are 2.5 MB/s, both ways; every other pair is as fast as before.
    let pair = cluster.rate_pair("n1", "n2", 20_000).unwrap();
    for (from, to) in [("n1", "n2"), ("n2", "n1")] {
        let slow = speed(&cluster, from, to, 2_000_000).unwrap();
        println!("bad pair {from}-{to}: {slow:.1} MB/s");
        assert!((1.0..5.0).contains(&slow), "{from}-{to}: {slow}");
    }
    for (from, to) in [("n1", "n3"), ("n3", "n1"), ("n2", "n3"), ("n3", "n4")] {
        let other = speed(&cluster, from, to, 200_000_000).unwrap();
        println!("beside it {from}-{to}: {other:.0} MB/s");
        assert!(other > whole / 4.0, "{from}-{to}: {other}");
    }
    pair.undo().unwrap();
    assert!(speed(&cluster, "n2", "n1", 200_000_000).unwrap() > whole / 4.0);

    // A node: both directions, and nobody else.
    let rate = cluster.rate("n3", 40_000).unwrap();
    for (from, to) in [("n1", "n3"), ("n3", "n1")] {
        let slow = speed(&cluster, from, to, 4_000_000).unwrap();
        println!("slow node {from}-{to}: {slow:.1} MB/s");
        assert!((2.0..10.0).contains(&slow), "{from}-{to}: {slow}");
    }
    assert!(speed(&cluster, "n1", "n2", 200_000_000).unwrap() > whole / 4.0);
    drop(rate);
    assert!(speed(&cluster, "n1", "n3", 200_000_000).unwrap() > whole / 4.0);
}

#[test]
fn links_and_ports() {
    let _machine = serial().unwrap();
    let cluster = cluster().unwrap();
    let _servers = serve(&cluster).unwrap();
    let connect = |from: &str, to: &str| probe(&cluster, from, &["connect", to, PORT]).unwrap();
    assert_eq!(connect("n1", "n2"), "open");

    let down = cluster.link_down("n2").unwrap();
    let said = connect("n1", "n2");
    assert!(["silent", "unreachable"].contains(&said.as_str()), "{said}");
    assert_eq!(connect("n1", "n3"), "open");
    assert_eq!(cluster.read_file("n2", "/sys/class/net/eth0/carrier").unwrap(), "0\n");
    down.undo().unwrap();
    assert_eq!(connect("n1", "n2"), "open");

    let refused = cluster.block("n3", Block::ports(39_990..=40_010)).unwrap();
    assert_eq!((connect("n1", "n3").as_str(), connect("n3", "n1").as_str()), ("refused", "open"));
    let silent = cluster.block("n4", Block::ports(40_000..=40_000).deny(Deny::Drop).from("n1")).unwrap();
    assert_eq!((connect("n1", "n4").as_str(), connect("n2", "n4").as_str()), ("silent", "open"));
    assert_eq!(connect("n4", "n1"), "open");
    drop(refused);
    assert_eq!((connect("n1", "n3").as_str(), connect("n1", "n4").as_str()), ("open", "silent"));
    silent.keep();
    cluster.clear("n4").unwrap();
    assert_eq!(connect("n1", "n4"), "open");
    // Slurm never noticed.
    assert_eq!(cluster.srun(["-N4", "hostname"]).ok().unwrap().stdout.lines().count(), 4);
}

#[test]
fn losses() {
    let _machine = serial().unwrap();
    let cluster = cluster().unwrap();
    let _servers = serve(&cluster).unwrap();
    let retransmitted = || {
        let text = cluster.read_file("n1", "/proc/net/snmp").unwrap();
        let values = text.lines().rfind(|l| l.starts_with("Tcp:")).unwrap().to_owned();
        values.split_whitespace().nth(12).unwrap().parse::<u64>().unwrap()
    };
    speed(&cluster, "n1", "n2", 60_000_000).unwrap();
    let before = retransmitted();
    let loss = cluster.loss("n2", 50).unwrap();
    speed(&cluster, "n1", "n2", 60_000_000).unwrap();
    let during = retransmitted();
    println!("segments sent again: {before} before, {} with 5 % loss", during - before);
    let lost = during - before;
    assert!(lost > 100, "{lost} segments sent again with 5 % loss, {before} before");
    drop(loss);
    let mended = retransmitted();
    speed(&cluster, "n1", "n2", 60_000_000).unwrap();
    let again = retransmitted() - mended;
    // A busy machine loses a few by itself: 1 % of some 14,000 segments was seen.
    assert!(again < lost / 2, "{again} segments sent again after the loss was mended, {lost} before");
}

#[test]
fn processor_limit() {
    let _machine = serial().unwrap();
    let cluster = cluster().unwrap();
    // The best of three: other work on this machine takes its part.
    let share = |node: &str| {
        let spin = || probe(&cluster, node, &["spin", "600"]).unwrap().parse::<u32>().unwrap();
        (0..3).map(|_| spin()).max().unwrap()
    };
    assert!(share("n1") > 25);
    let limit = cluster.limit_cpu("n1", 10).unwrap();
    let (limited, other) = (share("n1"), share("n2"));
    println!("limited to 10 %: {limited} %, another node: {other} %");
    assert!(limited <= 20 && other > 25, "{limited} {other}");
    // What Slurm starts is limited too.
    let program = format!("{NODE_DIR}/netprobe");
    let output = cluster.srun(["-w", "n1", program.as_str(), "spin", "600"]).ok().unwrap();
    assert!(output.text().parse::<u32>().unwrap() <= 20, "{}", output.text());
    drop(limit);
    assert!(share("n1") > 25);
    assert!(cluster.limit_cpu("n1", 0).is_err());
}
