//! Switching the fakes; what they are for is in the tests.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use kernels::Libraries;
use kernels::cuda::{Context, CudaError, Driver, Limit};
use libloading::os::unix::Library;
use tempfile::TempDir;

pub use crate::built::{CUBLAS_LT, DRIVER, build};

/// What streams can answer: `CUDA_ERROR_NOT_READY`, `CUDA_ERROR_ILLEGAL_ADDRESS`.
pub const NOT_READY: i32 = 600;
pub const ILLEGAL_ADDRESS: i32 = 700;

/// A limit that no test reaches unless it means to.
pub const LONG: Duration = Duration::from_secs(20);

static NEVER: AtomicBool = AtomicBool::new(false);

pub fn within(time: Duration) -> Limit<'static> {
    Limit { deadline: Instant::now() + time, cancel: &NEVER }
}

pub fn error<T>(result: Result<T, CudaError>) -> CudaError {
    result.err().unwrap()
}

/// Each function of a source whose line begins so, and a source that has all the others. They do nothing, which is
/// enough: a library that lacks a function is refused before any is called.
pub fn one_less(source: &str, beginnings: &[&str]) -> Vec<(String, String)> {
    let functions = source.lines().filter(|line| beginnings.iter().any(|one| line.starts_with(one)));
    let names: Vec<&str> =
        functions.map(|line| line.split('(').next().unwrap().rsplit([' ', '*']).next().unwrap()).collect();
    names
        .iter()
        .map(|name| {
            let others = names.iter().filter(|other| *other != name);
            (name.to_string(), others.map(|other| format!("void {other}(void) {{}}\n")).collect())
        })
        .collect()
}

/// A built fake and the way to its switches.
pub struct Switches(Library);

impl Switches {
    pub fn new(library: &Path) -> Self {
        // SAFETY: compiled by `build`; it has no initialisers.
        Self(unsafe { Library::new(library) }.unwrap())
    }

    fn switch(&self, name: &str) -> &AtomicI32 {
        // SAFETY: the fake's switches are aligned ints that live as long as the library, and are only used here and
        // by the fake's functions in the same thread.
        unsafe { &**self.0.get::<*const AtomicI32>(name.as_bytes()).unwrap() }
    }

    pub fn set(&self, name: &str, value: i32) {
        self.switch(name).store(value, Ordering::SeqCst);
    }

    pub fn get(&self, name: &str) -> i32 {
        self.switch(name).load(Ordering::SeqCst)
    }
}

/// A fake driver.
pub struct Fake {
    pub libraries: Libraries,
    switches: Switches,
    folder: TempDir,
}

impl Fake {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let switches = Switches::new(&build(folder.path(), "libcuda.so.1", DRIVER));
        let libraries = Libraries { cuda: Some(folder.path().to_owned()), ..Libraries::default() };
        Self { libraries, switches, folder }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn set(&self, name: &str, value: i32) {
        self.switches.set(name, value);
    }

    pub fn get(&self, name: &str) -> i32 {
        self.switches.get(name)
    }

    pub fn context(&self) -> Context {
        Driver::open(&self.libraries).unwrap().devices().unwrap()[0].context().unwrap()
    }
}
