//! How the plugin's file is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for argument in [
        // NCCL unloads the file with the last communicator, while threads of NCCL's may still be on their way out of it.
        "-Wl,-z,nodelete",
        // A name that no library has is an error here and not in the user's job. It is also how the file proves that it can't panic.
        "-Wl,-z,defs",
        // No look-up of a symbol in a callback.
        "-Wl,-z,now",
        "-Wl,--exclude-libs,ALL",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
