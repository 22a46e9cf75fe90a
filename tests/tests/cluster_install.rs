//! What is installed reaches every node, and a plugin is stamped so that Slurm loads it. The
//! plugin here is a stand-in of a few lines; the product's own has tests of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use aimaster_tests::{Cluster, Install, NODE_PLUGIN, SlurmVersion, serial, stamped};
use anyhow::{Result, ensure};

/// Says where it runs, as far as the user sees that, and carries the version 0.
const PLUGIN: &str = r#"
#![no_std]
#![allow(non_upper_case_globals)]
use core::ffi::{c_char, c_int, c_void};
#[unsafe(no_mangle)] pub static plugin_name: [u8; 5] = *b"tiny\0";
#[unsafe(no_mangle)] pub static plugin_type: [u8; 6] = *b"spank\0";
#[unsafe(no_mangle)] pub static plugin_version: u32 = 0;
#[unsafe(no_mangle)] pub static spank_plugin_version: u32 = 1;
unsafe extern "C" { fn slurm_spank_log(format: *const c_char, ...); }
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_init_post_opt(_: *mut c_void, _: c_int, _: *mut *mut c_char) -> c_int {
    unsafe { slurm_spank_log(c"tiny plugin".as_ptr()) };
    0
}
#[panic_handler] fn panic(_: &core::panic::PanicInfo) -> ! { loop {} }
"#;

fn build(dir: &Path) -> Result<PathBuf> {
    let (source, plugin) = (dir.join("tiny.rs"), dir.join("libtiny.so"));
    std::fs::write(&source, PLUGIN)?;
    let status = Command::new("rustc")
        .args(["--edition", "2024", "--crate-type", "cdylib", "-C", "panic=abort", "-o"])
        .args([&plugin, &source])
        .status()?;
    ensure!(status.success(), "rustc failed");
    Ok(plugin)
}

// B01.
#[test]
fn slurm_loads_a_stamped_plugin_only() {
    let _machine = serial().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let plugin = build(dir.path()).unwrap();
    let line = format!("required {NODE_PLUGIN}");
    let cluster = Cluster::builder().nodes(1).plugstack(&line).install(Install::new().plugin(&plugin));
    let cluster = cluster.boot().unwrap();
    let output = cluster.srun(["true"]).ok().unwrap();
    assert!(output.stderr.contains("tiny plugin"), "{}", output.stderr);
    let installed = cluster.base().join("opt/spank_aimaster.so");
    assert_eq!(stamped(&installed).unwrap(), SlurmVersion::installed().unwrap().number());
    assert_eq!(stamped(&plugin).unwrap(), 0, "the built plugin was changed");

    // The same file without the stamp, as any other file: Slurm refuses it.
    cluster.exec("ctl", ["rm", "/opt/aimaster/spank_aimaster.so"]).unwrap().ok().unwrap();
    std::fs::copy(&plugin, &installed).unwrap();
    let output = cluster.srun(["true"]).run().unwrap();
    assert!(!output.success() && output.stderr.contains("ncompatible"), "{}", output.stderr);
}

#[test]
fn what_is_not_built_is_named() {
    let _machine = serial().unwrap();
    let missing = Install::new().program("/no/such/aimaster-prolog");
    let error = Cluster::builder().nodes(1).install(missing).boot().err().unwrap();
    assert!(format!("{error:#}").contains("/no/such/aimaster-prolog"), "{error:#}");
}
