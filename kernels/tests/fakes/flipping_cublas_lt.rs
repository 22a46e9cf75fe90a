//! A cuBLASLt that computes wrongly: it hands every call to the real one, and after each bf16 product changes bits of one
//! element of the result, on the product's own stream. The real library, the driver and which element are in a
//! file beside it, `NAME.conf`, since the worker that loads it has no environment.
#![allow(non_snake_case, missing_docs, reason = "the names are cuBLASLt's")]
#![allow(clippy::not_unsafe_ptr_arg_deref, reason = "a C interface: the caller vouches for its pointers")]

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use kernels::cuda::Operand;
use kernels::cuda::pattern::{exact, splitmix};
use kernels::{Libraries, Purpose};
use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

/// `CUBLAS_STATUS_NOT_INITIALIZED`: there is no file beside this library, or it leads nowhere.
const NOT_INITIALIZED: c_int = 1;

/// `CUDA_R_16BF`.
const BF16: c_int = 14;

/// The seeds of `kernels::cuda::Gemm`: of the operands, and of the places that it compares with exact values.
const OPERANDS: [u64; 2] = [1, 2];
const SAMPLES: u64 = 3;

type Pointer = *mut c_void;

struct Shim {
    real: Library,
    driver: Library,
    /// Whether the element is one that is compared with its exact value; else only the bits of the whole product tell.
    seen: bool,
    /// Type and rows of the layouts that live.
    layouts: Mutex<BTreeMap<usize, (c_int, u64)>>,
    /// Place and bits of the element that is changed, by rows.
    changes: Mutex<BTreeMap<u64, (u64, u16)>>,
}

#[repr(C)]
struct Found {
    file: *const c_char,
    base: Pointer,
    symbol: *const c_char,
    address: Pointer,
}

unsafe extern "C" {
    fn dladdr(address: *const c_void, found: *mut Found) -> c_int;
}

/// Where this library was loaded from.
fn own_path() -> Option<PathBuf> {
    let (file, base) = (std::ptr::null(), std::ptr::null_mut());
    let mut found = Found { file, base, symbol: file, address: base };
    let here: extern "C" fn() -> usize = cublasLtGetVersion;
    // SAFETY: the address is this library's own, and the out pointer is valid for the call.
    let known = unsafe { dladdr(here as *const c_void, &raw mut found) } != 0 && !found.file.is_null();
    // SAFETY: the loader's own string, which lives as long as this library is loaded.
    known.then(|| PathBuf::from(OsStr::from_bytes(unsafe { CStr::from_ptr(found.file) }.to_bytes())))
}

fn open(path: &Path) -> Option<Library> {
    // SAFETY: the vendor's library, or a test's stand-in: initialisers start nothing.
    unsafe { Library::open(Some(path), RTLD_LAZY | RTLD_LOCAL) }.ok()
}

fn shim() -> Option<&'static Shim> {
    static SHIM: OnceLock<Option<Shim>> = OnceLock::new();
    SHIM.get_or_init(|| {
        let mut conf = own_path()?.into_os_string();
        conf.push(".conf");
        let text = std::fs::read_to_string(conf).ok()?;
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        let given = |key: &str| value(key).filter(|path| !path.is_empty()).map(PathBuf::from);
        let libraries =
            Libraries { cublas_lt: given("cublas_lt"), cuda: given("driver"), ..Libraries::default() };
        let first = |purpose| libraries.candidates(purpose).iter().find_map(|path| open(path));
        Some(Shim {
            real: first(Purpose::CublasLt)?,
            driver: first(Purpose::Driver)?,
            seen: value("element")? == "seen",
            layouts: Mutex::default(),
            changes: Mutex::default(),
        })
    })
    .as_ref()
}

impl Shim {
    /// # Safety
    /// `F` is the function's type.
    unsafe fn real<F: Copy>(&self, name: &CStr) -> Option<F> {
        // SAFETY: the caller vouches for the type; the library is never closed.
        unsafe { self.real.get::<F>(name.to_bytes_with_nul()) }.ok().map(|found| *found)
    }

    fn layout(&self, layout: Pointer) -> Option<(c_int, u64)> {
        self.layouts.lock().unwrap_or_else(PoisonError::into_inner).get(&layout.addr()).copied()
    }

    /// The place of the element in the result, and what is written there in place of the right bits.
    fn change(&self, rows: u64) -> (u64, u16) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        *changes.entry(rows).or_insert_with(|| {
            let sampled = [0, 1].map(|index| splitmix(SAMPLES, index) % rows);
            let [row, column] = if self.seen { sampled } else { [rows - 1, rows - 1] };
            let right = exact(Operand::Bf16, rows, OPERANDS, [row, column]).value;
            // To the nearest bf16, of two the even one; the sum itself is exact in a float.
            let bits = (right as f32).to_bits();
            let rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
            // An exponent's bit, or one of the last of the mantissa.
            let flipped = if self.seen { 0x4000 } else { 0x0004 };
            (column * rows + row, u16::try_from(rounded).unwrap_or(0) ^ flipped)
        })
    }

    /// Queues the change of a result.
    fn flip(&self, result: Pointer, rows: u64, stream: Pointer) -> c_int {
        type Set = unsafe extern "C" fn(u64, u8, usize, Pointer) -> c_int;
        // SAFETY: the type is that of the driver's interface.
        let Ok(set) = (unsafe { self.driver.get::<Set>(b"cuMemsetD8Async\0") }) else {
            return NOT_INITIALIZED;
        };
        let (place, bits) = self.change(rows);
        let at = result.addr() as u64 + 2 * place;
        bits.to_le_bytes()
            .into_iter()
            .zip(at..)
            .map(|(byte, at)| {
                // SAFETY: the element lies in the result that the product was queued for, on the same stream, in the
                // context that is current.
                unsafe { set(at, byte, 1, stream) }
            })
            .find(|code| *code != 0)
            .unwrap_or(0)
    }
}

/// Functions that are handed on as they are; a library that is not there gives the last value.
macro_rules! forward {
    ($($name:ident($($argument:ident: $of:ty),*) -> $result:ty, $none:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $of),*) -> $result {
            type Function = unsafe extern "C" fn($($of),*) -> $result;
            let name = concat!(stringify!($name), "\0");
            let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else { return $none };
            // SAFETY: the type is the header's.
            let Some(real) = shim().and_then(|shim| unsafe { shim.real::<Function>(name) }) else { return $none };
            // SAFETY: the caller's arguments are handed on as they came.
            unsafe { real($($argument),*) }
        }
    )*};
}

forward! {
    cublasLtGetVersion() -> usize, 0;
    cublasLtGetStatusName(code: c_int) -> *const c_char, std::ptr::null();
    cublasLtCreate(handle: *mut Pointer) -> c_int, NOT_INITIALIZED;
    cublasLtDestroy(handle: Pointer) -> c_int, NOT_INITIALIZED;
    cublasLtMatmulDescCreate(to: *mut Pointer, compute: c_int, scale: c_int) -> c_int, NOT_INITIALIZED;
    cublasLtMatmulDescSetAttribute(of: Pointer, which: c_int, value: *const c_void, bytes: usize) -> c_int,
        NOT_INITIALIZED;
    cublasLtMatmulDescDestroy(one: Pointer) -> c_int, NOT_INITIALIZED;
    cublasLtMatrixLayoutDestroy(one: Pointer) -> c_int, NOT_INITIALIZED;
    cublasLtMatmulPreferenceCreate(to: *mut Pointer) -> c_int, NOT_INITIALIZED;
    cublasLtMatmulPreferenceSetAttribute(of: Pointer, which: c_int, value: *const c_void, bytes: usize) -> c_int,
        NOT_INITIALIZED;
    cublasLtMatmulPreferenceDestroy(one: Pointer) -> c_int, NOT_INITIALIZED;
    cublasLtMatmulAlgoGetHeuristic(
        handle: Pointer, product: Pointer, a: Pointer, b: Pointer, c: Pointer, d: Pointer, preference: Pointer,
        wanted: c_int, to: Pointer, count: *mut c_int
    ) -> c_int, NOT_INITIALIZED;
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatrixLayoutCreate(
    to: *mut Pointer,
    kind: c_int,
    rows: u64,
    columns: u64,
    stride: i64,
) -> c_int {
    type Function = unsafe extern "C" fn(*mut Pointer, c_int, u64, u64, i64) -> c_int;
    let Some(shim) = shim() else { return NOT_INITIALIZED };
    // SAFETY: the type is the header's.
    let Some(real) = (unsafe { shim.real::<Function>(c"cublasLtMatrixLayoutCreate") }) else {
        return NOT_INITIALIZED;
    };
    // SAFETY: the caller's arguments are handed on as they came.
    let code = unsafe { real(to, kind, rows, columns, stride) };
    if code == 0 {
        // SAFETY: the library has just written the layout there.
        let layout = unsafe { *to };
        let mut layouts = shim.layouts.lock().unwrap_or_else(PoisonError::into_inner);
        // One that takes a destroyed one's address takes its place.
        layouts.insert(layout.addr(), (kind, rows));
    }
    code
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "cuBLASLt's own")]
pub extern "C" fn cublasLtMatmul(
    handle: Pointer,
    product: Pointer,
    alpha: *const c_void,
    a: *const c_void,
    a_layout: Pointer,
    b: *const c_void,
    b_layout: Pointer,
    beta: *const c_void,
    c: *const c_void,
    c_layout: Pointer,
    d: Pointer,
    d_layout: Pointer,
    algorithm: *const c_void,
    workspace: Pointer,
    bytes: usize,
    stream: Pointer,
) -> c_int {
    type Function = unsafe extern "C" fn(
        Pointer,
        Pointer,
        *const c_void,
        *const c_void,
        Pointer,
        *const c_void,
        Pointer,
        *const c_void,
        *const c_void,
        Pointer,
        Pointer,
        Pointer,
        *const c_void,
        Pointer,
        usize,
        Pointer,
    ) -> c_int;
    let Some(shim) = shim() else { return NOT_INITIALIZED };
    // SAFETY: the type is the header's.
    let Some(real) = (unsafe { shim.real::<Function>(c"cublasLtMatmul") }) else { return NOT_INITIALIZED };
    // SAFETY: the caller's arguments are handed on as they came.
    let code = unsafe {
        real(
            handle, product, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm,
            workspace, bytes, stream,
        )
    };
    match (code, shim.layout(a_layout), shim.layout(d_layout)) {
        (0, Some((BF16, rows)), Some((BF16, _))) => shim.flip(d, rows, stream),
        _ => code,
    }
}
