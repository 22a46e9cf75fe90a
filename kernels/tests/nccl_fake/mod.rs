//! Builds the library in NCCL's shape and talks to it beside NCCL's own functions. Each test gets a copy, and so states
//! and counters of its own.

use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libloading::Library;

/// Which functions it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// All.
    Whole,
    /// Not one that is needed.
    WithoutInit,
    /// None of those that may be missing.
    WithoutOptional,
    /// Those of an older version.
    Old,
}

/// What can be set and read, in the order of `../fakes/nccl.rs`.
#[derive(Debug, Clone, Copy)]
pub enum Knob {
    Polls,
    InitResult,
    CollectiveResult,
    AsyncResult,
    AbortMs,
    DestroyMs,
    FinalizePolls,
    SaysSuccessEarly,
    InitWithoutComm,
    IdMs,
    Aborts,
    Destroys,
    Live,
    Sends,
    Recvs,
    GroupEnds,
    Collectives,
    Finalizes,
    BadHandles,
}

/// One copy.
pub struct Fake {
    pub path: PathBuf,
    library: Library,
}

impl Fake {
    pub fn new(test: &str, variant: Variant) -> Self {
        let path = folder(test).join("libnccl.so.2");
        // Put in place by a rename: another run of these tests may have the old one mapped.
        let fresh = path.with_extension(std::process::id().to_string());
        std::fs::copy(built(variant), &fresh).unwrap();
        std::fs::rename(&fresh, &path).unwrap();
        // SAFETY: our own library, whose initialisers do nothing.
        let library = unsafe { Library::new(&path) }.unwrap();
        Self { path, library }
    }

    pub fn set(&self, knob: Knob, value: c_int) {
        // SAFETY: the type is that of the fake's function.
        let set = unsafe { self.library.get::<extern "C" fn(usize, c_int)>(c"fake_set") }.unwrap();
        set(knob as usize, value);
    }

    pub fn get(&self, knob: Knob) -> c_int {
        // SAFETY: the type is that of the fake's function.
        let get = unsafe { self.library.get::<extern "C" fn(usize) -> c_int>(c"fake_get") }.unwrap();
        get(knob as usize)
    }
}

/// A folder of the test's own.
pub fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nccl").join(test);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The library, compiled once a variant.
fn built(variant: Variant) -> &'static Path {
    static BUILT: [OnceLock<PathBuf>; 4] = [const { OnceLock::new() }; 4];
    BUILT[variant as usize].get_or_init(|| {
        let built = folder("built").join(format!("{variant:?}.so"));
        let out = built.with_extension(std::process::id().to_string());
        // The compiler that built this test, whatever the search path says.
        let rustc = Path::new(env!("CARGO")).with_file_name("rustc");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fakes/nccl.rs");
        let cfg = match variant {
            Variant::Whole => "whole",
            Variant::WithoutInit => "without_init",
            Variant::WithoutOptional => "without_optional",
            Variant::Old => "old",
        };
        let mut command = Command::new(rustc);
        command.args([
            "--edition",
            "2024",
            "--crate-type",
            "cdylib",
            "--crate-name",
            "fake_nccl",
            "--cfg",
            cfg,
        ]);
        command
            .args(["--allow", "unexpected_cfgs", "-C", "panic=abort", "-C", "strip=symbols", "-o"])
            .arg(&out)
            .arg(source);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::rename(&out, &built).unwrap();
        built
    })
}
