//! Debian packages that the demo and the tests need.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::stage::run;

/// What is needed beside Rust and git: Slurm and MUNGE, the tools that make the nodes' namespaces and faults, a C
/// linker and loader for Rust, python3 for programs that jobs of the tests run, PyTorch for its Gloo, and pip for the
/// compilers that the GPU kernels are checked with.
const PACKAGES: &[&str] = &[
    "slurmctld",
    "slurmd",
    "slurm-client",
    "munge",
    "libmunge2",
    "iptables",
    "iproute2",
    "procps",
    "util-linux",
    "passwd",
    "gcc",
    "libc6-dev",
    "python3-minimal",
    "python3-torch",
    "python3-pip",
];

/// What `cargo xtask valgrind` needs on top: valgrind reads the symbols of the C library.
pub const VALGRIND: &[&str] = &["valgrind", "libc6-dbg"];

/// What `cargo xtask mpi` needs on top: Open MPI, what Slurm starts its tasks with, and what reads its headers.
pub const MPI: &[&str] = &["openmpi-bin", "libopenmpi-dev", "libpmix2", "libclang-dev"];

/// What `cargo xtask screenshots` needs on top: a browser, and letters for it.
pub const BROWSER: &[&str] = &["chromium", "fonts-dejavu-core"];

/// Installs what the demo and the tests need, as far as it is missing.
///
/// # Errors
/// If this is not root on a machine with apt-get, or apt-get fails.
pub fn install() -> Result<()> {
    install_these(PACKAGES)
}

/// Installs those that are missing.
///
/// # Errors
/// See [`install`].
pub fn install_these(packages: &[&str]) -> Result<()> {
    let missing: Vec<&str> = packages.iter().copied().filter(|name| !installed(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("installing {}", missing.join(" "));
    let apt = |arguments: &[&str]| {
        run(Command::new("apt-get")
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdout(Stdio::null()))
    };
    apt(&["update"]).context("needs root and Debian's package lists")?;
    apt(&[&["install", "--yes", "--no-install-recommends"], missing.as_slice()].concat())?;
    let still: Vec<&str> = missing.into_iter().filter(|name| !installed(name)).collect();
    if !still.is_empty() {
        bail!("not installed: {}", still.join(" "));
    }
    Ok(())
}

fn installed(package: &str) -> bool {
    Command::new("dpkg-query")
        .args(["--show", "--showformat=${db:Status-Status}", package])
        .output()
        .is_ok_and(|output| output.stdout == b"installed")
}
