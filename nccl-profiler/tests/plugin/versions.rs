//! NCCL versions that crash jobs with a profiler: the plugin keeps quiet there, and says why.

use nccl_profiler::handover::{DENY_VARIABLE, Status};

use crate::agent::{Rank, done, load};
use crate::nccl::{ALL_REDUCE, COMM, Handle, LIGHT};

pub const SCENARIOS: &[(&str, fn())] = &[("run_one", run_one), ("no_log", no_log)];

fn run_one() {
    let nccl = load(std::env::var("PLUGIN_TEST_API").unwrap().parse().unwrap());
    for _ in 0..2 {
        let context = nccl.init(COMM);
        let on = context != Handle::NULL;
        assert_eq!(nccl.mask(), if on { LIGHT } else { 0 });
        nccl.run(context, ALL_REDUCE);
    }
}

fn no_log() {
    let plugin = std::env::var("PLUGIN_TEST_FILES").unwrap();
    let api = std::env::var("PLUGIN_TEST_API").unwrap().parse().unwrap();
    // A log function in a program that exports no ncclGetVersion: NCCL linked in statically.
    extern "C" fn log() {}
    let log = log as *const std::ffi::c_void;
    let nccl = crate::nccl::Nccl::load(plugin.split(':').next().unwrap().as_ref(), api, log);
    let context = nccl.init(COMM);
    assert_eq!(nccl.mask(), if context == Handle::NULL { 0 } else { LIGHT });
    nccl.run(context, ALL_REDUCE);
}

fn judged(scenario: &str, api: &str, version: &str, denied: &str) -> (Status, u32) {
    let variables = [("PLUGIN_TEST_API", api), ("FAKE_NCCL_VERSION", version), (DENY_VARIABLE, denied)];
    let rank = Rank::start_with(scenario, &variables);
    let (hello, ring) = rank.hello();
    rank.finish();
    if let Some(mut ring) = ring {
        assert!(!done(&ring.records()).is_empty());
    }
    (hello.status, hello.nccl_version)
}

// O01, O03.
#[test]
fn a_version_that_crashes_jobs_gets_no_telemetry_and_the_agent_hears_why() {
    for (api, version, denied, expected) in [
        ("5", "22803", "", (Status::VersionDenied, 22803)),
        ("5", "22808", "", (Status::VersionDenied, 22808)),
        ("5", "22809", "", (Status::Ring, 22809)),
        ("4", "22703", "", (Status::Ring, 22703)),
        ("6", "23007", "2.30.7", (Status::VersionDenied, 23007)),
        ("6", "23007", "2.30.8-2.31.0", (Status::Ring, 23007)),
        ("6", "23007", "no version", (Status::VersionDenied, 23007)),
    ] {
        assert_eq!(judged("run_one", api, version, denied), expected, "v{api} {version} {denied}");
    }
    let long = "2.10.1,".repeat(200);
    assert_eq!(judged("run_one", "6", "23007", &long).0, Status::VersionDenied, "a list that is cut");
}

#[test]
fn a_version_that_nobody_knows_is_judged_by_the_interface() {
    for (api, denied, expected) in [
        ("5", "", Status::VersionUnknown),
        ("6", "", Status::Ring),
        ("4", "", Status::Ring),
        ("6", "2.31.0", Status::VersionUnknown),
        ("4", "2.31.0", Status::Ring),
    ] {
        assert_eq!(judged("no_log", api, "22809", denied), (expected, 0), "v{api} {denied}");
    }
}
