//! Jobs that ask for nothing hardly notice that the plugin is there.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::time::{Duration, Instant};

use aimaster_tests::{Cluster, product, serial};

const SOON: Duration = Duration::from_secs(60);

/// Starts of each kind whose times are compared.
const STARTS: usize = 11;

/// How much longer a job without checks may take with the plugin than without any plugin. Measured: 1.2 to 1.6 on an
/// idle machine. A prolog that waited for something would take many times as long.
const MOST_RATIO: f64 = 3.0;

fn start_time(cluster: &Cluster) -> Duration {
    let begun = Instant::now();
    cluster.srun(["-N1", "-w", "n1", "true"]).timeout(SOON).ok().unwrap();
    let took = begun.elapsed();
    // The epilog of this job must not be part of the next one's time.
    cluster.wait_idle(1, SOON).unwrap();
    took
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

// L14, B07.
#[test]
fn a_job_without_checks_hardly_notices_the_plugin() {
    let _machine = serial().unwrap();
    let without = Cluster::builder().nodes(1).boot().unwrap();
    let with = product::boot(Cluster::builder().nodes(1), "").unwrap();
    let out_of_scope =
        product::policy_text(&with, "scope.partitions = ['gpu']\nchecks.always = ['gemm_flops']").unwrap();
    let nothing_asked = product::policy_text(&with, "").unwrap();

    let [mut bare, mut plain, mut scoped] = [(); 3].map(|()| Vec::new());
    for _ in 0..STARTS {
        bare.push(start_time(&without));
        with.set_policy(&nothing_asked).unwrap();
        plain.push(start_time(&with));
        with.set_policy(&out_of_scope).unwrap();
        scoped.push(start_time(&with));
    }
    let [bare, plain, scoped] = [bare, plain, scoped].map(median);
    eprintln!(
        "srun of one task, median: no plugin {bare:?}, plugin {plain:?}, checks.always out of scope {scoped:?}"
    );
    for (name, time) in [("no flag", plain), ("out of scope", scoped)] {
        let ratio = time.as_secs_f64() / bare.as_secs_f64();
        assert!(ratio < MOST_RATIO, "{name}: {time:?} is {ratio:.1} times {bare:?}");
    }
}
