//! A folder with a copy of the stand-in for NVML and the state that it shows: each test has its own, and the loader
//! takes each copy for another library.

use std::path::{Path, PathBuf};

use kernels::nvml::{Nvml, NvmlError};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A stand-in with its state.
pub struct Stage {
    folder: TempDir,
}

impl Stage {
    /// A driver of today.
    pub fn new(state: &Value) -> Self {
        Self::of("fake_nvml", state)
    }

    /// One of the stand-ins that Cargo.toml lists.
    pub fn of(name: &str, state: &Value) -> Self {
        let stage = Self { folder: tempfile::tempdir().unwrap() };
        std::fs::copy(built(name), stage.library()).unwrap();
        stage.set(state);
        stage
    }

    /// Shows another state from now on.
    pub fn set(&self, state: &Value) {
        std::fs::write(self.folder.path().join("libnvidia-ml.so.1.json"), state.to_string()).unwrap();
    }

    pub fn library(&self) -> PathBuf {
        self.folder.path().join("libnvidia-ml.so.1")
    }

    pub fn nvml(&self) -> Result<Nvml, NvmlError> {
        Nvml::open(Some(&self.library()))
    }
}

/// Where cargo puts examples, seen from the test that runs.
pub fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(Path::parent).unwrap().join("examples");
    let library = folder.join(format!("lib{name}.so"));
    assert!(library.is_file(), "{} is missing: cargo build -p kernels --examples", library.display());
    library
}

/// A node with these GPUs.
pub fn node(gpus: &[Value]) -> Value {
    json!({
        "nvmlInit_v2": 0,
        "nvmlSystemGetDriverVersion": "580.159.03",
        "nvmlSystemGetCudaDriverVersion_v2": 13000,
        "gpus": gpus,
    })
}

pub fn uuid(minor: u32) -> String {
    format!("GPU-00000000-0000-0000-0000-{minor:012x}")
}

/// A healthy, idle H200.
pub fn h200(minor: u32) -> Value {
    let mut gpu: Value = serde_json::from_str(include_str!("h200.json")).unwrap();
    gpu["nvmlDeviceGetUUID"] = json!(uuid(minor));
    gpu["nvmlDeviceGetMinorNumber"] = json!(minor);
    gpu["nvmlDeviceGetPciInfo_v3"] = json!(format!("00000000:{:02X}:00.0", 0x81 + minor));
    for link in 0..18 {
        gpu[format!("nvmlDeviceGetNvLinkState:{link}")] = json!(1);
        // Checksum errors, replays, recoveries.
        for (field, count) in [(163, 0), (161, 7), (162, 0)] {
            gpu[format!("nvmlDeviceGetFieldValues:{field}:{link}")] = json!(count);
        }
    }
    gpu
}
