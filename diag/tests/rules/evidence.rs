//! What a FAIL tells a person, check by check: the value, the limit and where it comes from, the others' median, what confirmed
//! it, and what to do next.

use crate::simulated::Job;
use crate::simulated::catalogue::CAPS;
use crate::simulated::fault::Fault;
use crate::simulated::machine::Machine;
use crate::simulated::noise::Noise;
use diag::check::ALL;
use diag::check::CheckName::{self, *};
use diag::verdict::{Finding, Status};
use diag::wording::quantity;

const NODES: u32 = 5;

/// A fault that the check meets, how the culprit is called, what confirmed it, and what is said to do.
type Row = (CheckName, Fault, &'static str, &'static str, &'static str);

const GPU: Fault = Fault::Gpu { node: 2, gpu: 4, left: 0.5 };
const INSIDE: Fault = Fault::Inside { node: 2, left: 0.5 };
const PORTS: Fault = Fault::Network { node: 2, left: 0.2 };
const RAIL: Fault = Fault::Rail { node: 2, rail: 3, left: 0.2 };
const NODE_PORTS: &str = "next: look at the node's ports and cables";
const PARTNERS: &str = "each fine with others";

const ROWS: &[Row] = &[
    (GemmFlops, GPU, "n3/gpu4", "measured 4 times", "next: nvidia-smi -q"),
    (GemmFlops, Fault::Wrong { node: 2, gpu: 4 }, "n3/gpu4", "measured 3 times", "next: run dcgmi diag"),
    (KernelLaunch, Fault::Host { node: 2, left: 0.1 }, "n3", "measured 3 times", "next: look at the host"),
    (AllReduce1, INSIDE, "n3", "measured 4 times", "next: nvidia-smi nvlink --status"),
    (CompCommOverlap, INSIDE, "n3", "measured 4 times", "next: nvidia-smi nvlink --status"),
    (PytorchGloo2, PORTS, "n3", PARTNERS, "next: look at the interface"),
    (AllReduce2, PORTS, "n3", PARTNERS, NODE_PORTS),
    (AllGather2, PORTS, "n3", PARTNERS, NODE_PORTS),
    (AllToAll2, PORTS, "n3", PARTNERS, NODE_PORTS),
    (MultiAllReduce2, RAIL, "n3/rail3", PARTNERS, "next: look at this port, its cable"),
    (AllReduce, PORTS, "n3", PARTNERS, NODE_PORTS),
    (AllGather, PORTS, "n3", PARTNERS, NODE_PORTS),
    (MultiAllReduce, RAIL, "n3/rail3", PARTNERS, "next: look at this port, its cable"),
];

fn job() -> Job {
    Job::on(Machine::H200, NODES, Noise { seed: 7, spread: 0.02, sigma: 0.005, outliers: 0.0 })
}

/// The only FAIL of a job.
fn fail(job: &Job, check: CheckName) -> Finding {
    let run = job.run_with(&[check], CAPS);
    let failed: Vec<&Finding> =
        run.verdict.findings.iter().filter(|one| one.status == Status::Fail).collect();
    let [one] = failed[..] else { panic!("{check}: {failed:#?}") };
    one.clone()
}

/// All that every number that speaks against a part tells.
fn assert_told(one: &Finding, (check, name): (CheckName, &str), words: &[&str]) {
    let (metric, message) = (one.metric.unwrap(), &one.message);
    let limit = one.limit.as_ref().unwrap();
    assert!(message.starts_with(&format!("{name}: {check} ")), "{message}");
    assert!(message.contains(&quantity(metric, one.value.unwrap())), "the value: {message}");
    if metric.is_rate() || limit.source.starts_with("baseline") {
        assert!(message.contains(&quantity(metric, limit.value)), "the limit: {message}");
        assert!(message.contains(&format!("[limit: {}", limit.source)), "its source: {message}");
        let median = format!("median of the others {}", quantity(metric, one.median.unwrap()));
        assert!(message.contains(&median), "{median}: {message}");
    }
    for words in words {
        assert!(message.contains(words), "{words}: {message}");
    }
}

// P06: "PCIe Fail - All" is too vague to act on.
#[test]
fn each_fail_of_each_check_tells_what_a_technician_needs() {
    for &(check, fault, name, confirmed, next) in ROWS {
        assert_told(&fail(&job().with(fault), check), (check, name), &[confirmed, next]);
    }
    let lossy = Job { lossy: [2].into(), ..job() };
    let words = [PARTNERS, "next: packets are lost"];
    assert_told(&fail(&lossy, NetworkConnectivity), (NetworkConnectivity, "n3"), &words);
    let told = |check: CheckName| check == NetworkConnectivity || ROWS.iter().any(|row| row.0 == check);
    assert!(ALL.iter().all(|spec| told(spec.name)), "a check without a row");
}

#[test]
fn a_link_the_fabric_and_a_closed_port_tell_it_too() {
    let one = fail(&job().with(Fault::Link { a: 0, b: 1, left: 0.5 }), AllReduce2);
    assert!(one.message.starts_with("n1 - n2: all_reduce_2 "), "{}", one.message);
    for words in [
        "median of the others",
        "both nodes are fine with others; next: look at what lies between them",
        "[limit: ",
    ] {
        assert!(one.message.contains(words), "{words}: {}", one.message);
    }
    let one = fail(&job().with(Fault::Fabric { left: 0.1 }), AllReduce);
    for words in [
        "5 nodes together: all_reduce ",
        " < ",
        "measured twice",
        "next: look at what all nodes share",
        "[limit: baseline",
    ] {
        assert!(one.message.contains(words), "{words}: {}", one.message);
    }
    let closed = Job { blocked: [(0, 1)].into(), ..Job::of(4) }.run_with(&[NetworkConnectivity], CAPS);
    let failed: Vec<&Finding> =
        closed.verdict.findings.iter().filter(|one| one.status == Status::Fail).collect();
    assert!(!failed.is_empty());
    for one in failed {
        for words in ["n1 -> n2:45100 connection refused", "tried twice", "open the port range"] {
            assert!(one.message.contains(words), "{words}: {}", one.message);
        }
    }
}
