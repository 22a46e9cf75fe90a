//! Keeps the library's exports to what Slurm looks for: the crate slurm-spank exports its own option callback,
//! which another plugin in the same process could be bound to.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
}
