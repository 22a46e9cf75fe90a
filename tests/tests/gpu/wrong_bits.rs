//! A GPU that computes wrongly is found by the bits of its product, or by an element.

use aimaster_tests::{product, serial};
use serde_json::Value;

use crate::site::{FLIPPING, Site, items, table};

/// The GPUs with this status, in order.
fn with_status<'r>(report: &'r Value, status: &str) -> Vec<&'r str> {
    let gpus = items(report).filter(|item| item["status"] == status && item["subject"]["kind"] == "gpu");
    gpus.filter_map(|item| item["subject"]["name"].as_str()).collect()
}

/// The GPUs that compute wrongly. How fast each is does not count here: those of nodes that share one take turns.
fn wrong(report: &Value) -> Vec<&str> {
    let failed = items(report).filter(|item| item["status"] == "FAIL" && item["subject"]["kind"] == "gpu");
    let wrong = failed.filter(|item| {
        item["message"].as_str().is_some_and(|text| text.contains("of the results are right"))
    });
    wrong.filter_map(|item| item["subject"]["name"].as_str()).collect()
}

#[test]
fn a_wrong_bit_of_one_gpu_is_its_fail_and_nobody_elses() {
    let _machine = serial().unwrap();
    let Some(site) = Site::sharing(3) else { return };
    // Nodes that share a GPU are alike in speed only over a while.
    let policy = format!("{}seconds_per_check = 2.0\n", site.policy);
    product::set_policy(&site.cluster, &policy).unwrap();
    let own: String = policy
        .lines()
        .filter(|line| !line.starts_with("cublas_lt"))
        .fold(String::new(), |text, line| text + line + "\n");
    let own = format!("{own}cublas_lt = '/opt/aimaster/{FLIPPING}'\n");
    let own = product::policy_text(&site.cluster, &own).unwrap();
    let _fault = site.cluster.set_node_policy("n2", &own).unwrap();
    let (bits, exact) = ("other bits than that of 2 others", "sampled elements of the product are wrong");
    for (number, element, why) in [(1, "unseen", bits), (2, "seen", exact)] {
        site.install_flipping(element);
        let (report, said) = site.run_on(&["-N3"], number, "--sanity-check=gemm_flops");
        println!("{said}");
        table(&report);
        // Where their turns make others look slow as well, it is too many for one verdict.
        assert!(report["outcome"] == "FAIL" || report["outcome"] == "ENVIRONMENT", "{report:#}");
        assert_eq!(wrong(&report), ["n2/gpu0"]);
        assert!(items(&report).any(|item| item["message"].as_str().is_some_and(|text| text.contains(why))));
    }
    // Of two that differ nobody knows which is wrong, unless one of them is seen to be.
    for (number, element, outcome) in [(3, "unseen", "SUSPECT"), (4, "seen", "FAIL")] {
        site.install_flipping(element);
        let (report, said) = site.run_on(&["-N2", "-wn1,n2"], number, "--sanity-check=gemm_flops");
        println!("{said}");
        table(&report);
        assert_eq!(report["outcome"], outcome, "{report:#}");
        let named = if outcome == "FAIL" { wrong(&report) } else { with_status(&report, outcome) };
        let expected = if outcome == "FAIL" { vec!["n2/gpu0"] } else { vec!["n1/gpu0", "n2/gpu0"] };
        assert_eq!(named, expected);
    }
    assert!(site.cluster.drained().unwrap().is_empty());
}
