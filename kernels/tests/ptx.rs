//! `checks.ptx` is what NVRTC 12.0 makes of `checks.cu`, byte for byte, and the driver's assembler takes it for every
//! architecture that we name. Neither needs a GPU. The compilers come from PyPI by pip, once, into the build's
//! folder for temporary files.
//!
//! With `AIMASTER_WRITE_PTX=1` the first test writes `checks.ptx` in place of comparing it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// The oldest NVRTC 12: its PTX ISA 8.0 is read by drivers from R525 on.
const NVRTC: (&str, &str) = ("nvidia-cuda-nvrtc-cu12", "12.0.76");

/// An assembler that knows Blackwell; any newer one would do.
const PTXAS: (&str, &str) = ("nvidia-cuda-nvcc", "13.0.88");

/// Ampere is the oldest architecture that the kernels are for.
const COMPILE_FOR: &CStr = c"--gpu-architecture=compute_80";

/// A100; H100 and H200; B200; workstation Blackwell.
const ASSEMBLE_FOR: &[&str] = &["sm_80", "sm_90", "sm_100", "sm_120"];

#[test]
fn the_ptx_is_what_the_compiler_makes_of_the_source() {
    let made = compile(&package(NVRTC), &read("checks.cu"));
    if std::env::var_os("AIMASTER_WRITE_PTX").is_some_and(|value| value == "1") {
        std::fs::write(source("checks.ptx"), &made).unwrap();
        return;
    }
    assert!(
        made == read("checks.ptx"),
        "checks.ptx is not what NVRTC {} makes of checks.cu; write it anew with \
         AIMASTER_WRITE_PTX=1 cargo test -p kernels --test ptx",
        NVRTC.1
    );
    let text = String::from_utf8(made).unwrap();
    assert!(text.contains(".version 8.0") && text.contains(".target sm_80"), "{text}");
}

#[test]
fn the_ptx_assembles_for_every_architecture() {
    let ptxas = find(&package(PTXAS), "ptxas");
    for architecture in ASSEMBLE_FOR {
        let output = Command::new(&ptxas)
            .args(["--gpu-name", architecture, "--output-file", "/dev/null"])
            .arg(source("checks.ptx"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{architecture}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(source(name)).unwrap()
}

/// The folder that a package was installed into, by pip if it is not there yet.
fn package((name, version): (&str, &str)) -> PathBuf {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = cache.join(format!("{name}-{version}"));
    if folder.is_dir() {
        return folder;
    }
    // Renamed when it is whole, so that an interrupted install does not pass for one.
    let fresh = tempfile::tempdir_in(cache).unwrap();
    let output = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile"])
        .args(["--only-binary=:all:", "--target"])
        .arg(fresh.path().join("site"))
        .arg(format!("{name}=={version}"))
        .output()
        .unwrap_or_else(|error| panic!("python3 with pip is needed to get {name}: {error}"));
    assert!(
        output.status.success(),
        "pip can't install {name}=={version}; this test needs python3 with pip and PyPI:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    if let Err(error) = std::fs::rename(fresh.path().join("site"), &folder) {
        assert!(folder.is_dir(), "{}: {error}", folder.display());
    }
    folder
}

/// The file whose name begins so, anywhere below a folder.
fn find(folder: &Path, beginning: &str) -> PathBuf {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.file_name().unwrap().to_string_lossy().starts_with(beginning) {
                return path;
            }
        }
    }
    panic!("no {beginning} in {}", folder.display());
}

type Program = *mut c_void;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

/// Compiles with NVRTC; the name of the source stands in no line of the PTX.
fn compile(nvrtc: &Path, text: &[u8]) -> Vec<u8> {
    let text = CString::new(text).unwrap();
    let open = |path: PathBuf| {
        // SAFETY: NVIDIA's compiler from its own package; its initialisers start nothing.
        unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.unwrap()
    };
    // NVRTC asks for this one by bare name.
    let _builtins = open(find(nvrtc, "libnvrtc-builtins.so"));
    let library = open(find(nvrtc, "libnvrtc.so"));
    // SAFETY: the names and types are those of nvrtc.h; the library lives to the end of this function.
    let (create, compile, sizes, texts) = unsafe {
        (
            library.get::<Create>(b"nvrtcCreateProgram\0").unwrap(),
            library.get::<Compile>(b"nvrtcCompileProgram\0").unwrap(),
            [b"nvrtcGetProgramLogSize\0".as_slice(), b"nvrtcGetPTXSize\0"]
                .map(|name| library.get::<Size>(name).unwrap()),
            [b"nvrtcGetProgramLog\0".as_slice(), b"nvrtcGetPTX\0"]
                .map(|name| library.get::<Text>(name).unwrap()),
        )
    };
    let mut program = std::ptr::null_mut();
    let none = std::ptr::null();
    // SAFETY: the texts end in a zero byte, the out pointer is valid for the call, and there are no headers.
    let code = unsafe { create(&raw mut program, text.as_ptr(), c"checks.cu".as_ptr(), 0, none, none) };
    assert_eq!(code, 0, "nvrtcCreateProgram");
    let options = [COMPILE_FOR.as_ptr()];
    // SAFETY: the program was made above; one option.
    let code = unsafe { compile(program, 1, options.as_ptr()) };
    let [log, ptx] = [0, 1].map(|which| {
        let mut bytes = 0;
        // SAFETY: as above; the out pointer is valid for the call.
        let sized = unsafe { sizes[which](program, &raw mut bytes) };
        let mut text = vec![0_u8; bytes];
        if sized == 0 {
            // SAFETY: the buffer has the size that the library asked for.
            unsafe { texts[which](program, text.as_mut_ptr().cast()) };
        }
        // Without the zero byte.
        text.pop();
        text
    });
    assert_eq!(code, 0, "checks.cu: {}", String::from_utf8_lossy(&log));
    ptx
}
