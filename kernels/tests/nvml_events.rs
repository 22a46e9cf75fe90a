//! What NVML tells by itself, from a stand-in, and how busy a GPU is.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[allow(dead_code, reason = "the stage is shared with the tests of single readings")]
#[path = "fakes/stage.rs"]
mod stage;

use std::time::{Duration, Instant};

use diag::health::reading::GpuEvent;
use serde_json::{Value, json};
use stage::{Stage, h200, node, uuid};

/// Long enough for a stand-in that looks every few milliseconds.
const SOON: Duration = Duration::from_secs(5);

/// Short enough to be waited out.
const MOMENT: Duration = Duration::from_millis(40);

fn with(changes: &Value) -> Value {
    let mut gpu = h200(0);
    for (key, value) in changes.as_object().unwrap() {
        gpu[key] = value.clone();
    }
    node(&[gpu, h200(1)])
}

// I09: an Xid that NVML has no number of.
#[test]
fn events_are_told_in_their_order_and_once() {
    let old = json!({"type": 8, "data": 62});
    let stage = Stage::new(&with(&json!({"events": [old]})));
    let nvml = stage.nvml().unwrap();
    let events = nvml.events(&uuid(0)).unwrap();
    let other = nvml.events(&uuid(1)).unwrap();
    assert_eq!(events.next(MOMENT).unwrap(), None, "history is not told");
    let all = [
        old.clone(),
        json!({"type": 8, "data": 79}),
        // A change of the performance state was not asked for.
        json!({"type": 4, "data": 0}),
        json!({"type": 2, "data": 0}),
        json!({"type": 8, "data": 999}),
    ];
    stage.set(&with(&json!({"events": all})));
    let told: Vec<GpuEvent> = (0..3).map(|_| events.next(SOON).unwrap().unwrap()).collect();
    assert_eq!(told, [GpuEvent::Xid(79), GpuEvent::DoubleBit, GpuEvent::Xid(999)]);
    assert_eq!(events.next(MOMENT).unwrap(), None);
    assert_eq!(other.next(MOMENT).unwrap(), None, "the other GPU is not meant");
}

#[test]
fn a_wait_has_an_end_and_a_lost_gpu_is_an_error() {
    let stage = Stage::new(&with(&json!({})));
    let nvml = stage.nvml().unwrap();
    let events = nvml.events(&uuid(0)).unwrap();
    let begun = Instant::now();
    assert_eq!(events.next(MOMENT).unwrap(), None);
    assert!(begun.elapsed() >= MOMENT && begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let mut state = with(&json!({}));
    state["nvmlEventSetWait_v2"] = json!({"error": 15});
    stage.set(&state);
    assert!(events.next(SOON).unwrap_err().to_string().contains(&uuid(0)));
}

#[test]
fn a_driver_without_events_is_an_error_in_words() {
    for changes in [
        json!({"nvmlDeviceGetSupportedEventTypes": 4}),
        json!({"nvmlDeviceRegisterEvents": {"error": 3}}),
        json!({"nvmlDeviceRegisterEvents": {"error": 999}}),
    ] {
        let stage = Stage::new(&with(&changes));
        let nvml = stage.nvml().unwrap();
        assert!(nvml.events(&uuid(0)).is_err(), "{changes}");
        assert!(nvml.events(&uuid(1)).is_ok());
        assert!(nvml.events("GPU-none").is_err());
    }
    let old = Stage::of("fake_nvml_old", &with(&json!({})));
    assert!(old.nvml().unwrap().events(&uuid(0)).is_err());
}

#[test]
fn a_sample_says_how_busy_a_gpu_is() {
    let stage = Stage::new(&with(&json!({"nvmlDeviceGetUtilizationRates": {"gpu": 97, "memory": 40}})));
    assert_eq!(stage.nvml().unwrap().sample(&uuid(0)).unwrap().busy_percent, Some(97));
    let stage = Stage::new(&with(&json!({"nvmlDeviceGetUtilizationRates": {"error": 3}})));
    assert_eq!(stage.nvml().unwrap().sample(&uuid(0)).unwrap().busy_percent, None);
}
