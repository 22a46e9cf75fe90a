//! cuBLASLt by its raw interface: one square product, C = AᵀB, described, and run by one of the library's algorithms.
//! Which algorithm, on what data and how often is `gemm.rs`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use cudarc::cublaslt::sys::{
    cublasComputeType_t, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t, cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
    cublasLtMatrixLayout_t, cublasLtReductionScheme_t, cudaDataType_t, cudaStream_t,
};

use super::table::{SUCCESS, Status, functions};
use super::{Context, CudaError, Operand, Output, Stream};
use crate::libraries::{Libraries, Purpose};

/// `CUBLAS_OP_N` and `CUBLAS_OP_T` of `cublas_api.h`, which `cublaslt::sys` leaves out.
const PLAIN: i32 = 0;
const TRANSPOSED: i32 = 1;

functions!(Functions {
    version = c"cublasLtGetVersion"() -> usize;
    status_name = c"cublasLtGetStatusName"(Status) -> *const c_char;
    create = c"cublasLtCreate"(*mut cublasLtHandle_t) -> Status;
    destroy = c"cublasLtDestroy"(cublasLtHandle_t) -> Status;
    product_create = c"cublasLtMatmulDescCreate"(
        *mut cublasLtMatmulDesc_t, cublasComputeType_t, cudaDataType_t
    ) -> Status;
    product_set = c"cublasLtMatmulDescSetAttribute"(
        cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, *const c_void, usize
    ) -> Status;
    product_destroy = c"cublasLtMatmulDescDestroy"(cublasLtMatmulDesc_t) -> Status;
    layout_create = c"cublasLtMatrixLayoutCreate"(
        *mut cublasLtMatrixLayout_t, cudaDataType_t, u64, u64, i64
    ) -> Status;
    layout_destroy = c"cublasLtMatrixLayoutDestroy"(cublasLtMatrixLayout_t) -> Status;
    preference_create = c"cublasLtMatmulPreferenceCreate"(*mut cublasLtMatmulPreference_t) -> Status;
    preference_set = c"cublasLtMatmulPreferenceSetAttribute"(
        cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, *const c_void, usize
    ) -> Status;
    preference_destroy = c"cublasLtMatmulPreferenceDestroy"(cublasLtMatmulPreference_t) -> Status;
    heuristic = c"cublasLtMatmulAlgoGetHeuristic"(
        cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
        cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, c_int, *mut Found, *mut c_int
    ) -> Status;
    multiply = c"cublasLtMatmul"(
        cublasLtHandle_t, cublasLtMatmulDesc_t, *const c_void, *const c_void, cublasLtMatrixLayout_t,
        *const c_void, cublasLtMatrixLayout_t, *const c_void, *const c_void, cublasLtMatrixLayout_t, *mut c_void,
        cublasLtMatrixLayout_t, *const cublasLtMatmulAlgo_t, *mut c_void, usize, cudaStream_t
    ) -> Status;
});

/// cuBLASLt's `cublasLtMatmulHeuristicResult_t`, with its state as an integer.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Found {
    algorithm: cublasLtMatmulAlgo_t,
    workspace_bytes: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

/// An algorithm of the library for one product.
#[derive(Clone, Copy)]
pub(super) struct Algorithm {
    raw: cublasLtMatmulAlgo_t,
}

/// The opened library on one GPU.
#[derive(Clone)]
pub struct CublasLt {
    inner: Arc<Inner>,
}

struct Inner {
    context: Context,
    functions: Functions,
    handle: cublasLtHandle_t,
    version: String,
}

// SAFETY: cuBLASLt's functions may be called with one handle from several threads.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl CublasLt {
    /// Opens the library, after the driver, so that it finds the driver that the policy names.
    ///
    /// # Errors
    /// The library or a function is missing, or it can't start.
    pub fn open(libraries: &Libraries, context: &Context) -> Result<Self, CudaError> {
        let functions = Functions::load(libraries.open(Purpose::CublasLt)?)?;
        // SAFETY: takes nothing, and needs no initialisation.
        let number = unsafe { (functions.version)() };
        // 130100 is 13.1.0.
        let version = format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100);
        context.bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the out pointer is valid for the call; the context is current.
        let code = unsafe { (functions.create)(&raw mut handle) };
        check(&functions, context, &version, "cublasLtCreate", code)?;
        Ok(Self { inner: Arc::new(Inner { context: context.clone(), functions, handle, version }) })
    }

    /// The library's version.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.inner.version
    }

    /// The library that was opened, as it was given to the loader.
    #[must_use]
    pub fn library(&self) -> &std::path::Path {
        self.inner.functions.path()
    }

    /// The context that it was opened in.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    fn check(&self, call: &'static str, code: Status) -> Result<(), CudaError> {
        check(&self.inner.functions, &self.inner.context, &self.inner.version, call, code)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // It waits for all work of the GPU, so a handle that such work may outlive stays.
        if !self.context.is_dry() {
            return;
        }
        // SAFETY: made by cublasLtCreate, destroyed once; products hold a clone of the owner. The context is current.
        let _ = unsafe { (self.functions.destroy)(self.handle) };
    }
}

fn check(
    functions: &Functions,
    context: &Context,
    version: &str,
    call: &'static str,
    code: Status,
) -> Result<(), CudaError> {
    if code == SUCCESS {
        return Ok(());
    }
    // SAFETY: takes any number and returns a string of the library's own, or null.
    let name = unsafe { (functions.status_name)(code) };
    let name = if name.is_null() {
        "a status without a name".into()
    } else {
        // SAFETY: not null, so it ends in a zero byte and is never freed.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    };
    Err(CudaError::Blas { gpu: context.gpu().to_owned(), version: version.to_owned(), call, code, name })
}

/// Something of the library's that is destroyed in every way out.
struct Owned<T: Copy> {
    raw: T,
    destroy: unsafe extern "C" fn(T) -> Status,
}

impl<T: Copy> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: made by the matching function, destroyed once; it frees memory of the host and waits for nothing.
        let _ = unsafe { (self.destroy)(self.raw) };
    }
}

/// The description of D = AᵀB for square matrices in column order: both operands are read along their columns, which
/// is how a linear layer of PyTorch calls the library, and the only layout for fp8 before Blackwell.
pub(super) struct Product {
    lt: CublasLt,
    n: u64,
    product: Owned<cublasLtMatmulDesc_t>,
    operands: Owned<cublasLtMatrixLayout_t>,
    result: Owned<cublasLtMatrixLayout_t>,
}

// SAFETY: the descriptions are not changed after they are made, and the library only reads them.
unsafe impl Send for Product {}
// SAFETY: as above.
unsafe impl Sync for Product {}

/// What a product works on: device addresses of n × n elements each, and of the workspace.
pub(super) struct Places {
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) d: u64,
    pub(super) workspace: u64,
    pub(super) workspace_bytes: usize,
}

impl Product {
    pub(super) fn new(lt: &CublasLt, n: u32, operand: Operand, output: Output) -> Result<Self, CudaError> {
        use cublasLtMatmulDescAttributes_t as Attribute;
        let functions = &lt.inner.functions;
        let mut raw = std::ptr::null_mut();
        let (accumulate, scale) = (cublasComputeType_t::CUBLAS_COMPUTE_32F, cudaDataType_t::CUDA_R_32F);
        // SAFETY: the out pointer is valid for the call.
        let code = unsafe { (functions.product_create)(&raw mut raw, accumulate, scale) };
        lt.check("cublasLtMatmulDescCreate", code)?;
        let product = Owned { raw, destroy: functions.product_destroy };
        let set = |attribute, value: *const c_void, bytes| {
            // SAFETY: the description lives; the value is of the type and size that the header gives the attribute.
            let code = unsafe { (functions.product_set)(product.raw, attribute, value, bytes) };
            lt.check("cublasLtMatmulDescSetAttribute", code)
        };
        for (attribute, operation) in [
            (Attribute::CUBLASLT_MATMUL_DESC_TRANSA, TRANSPOSED),
            (Attribute::CUBLASLT_MATMUL_DESC_TRANSB, PLAIN),
        ] {
            set(attribute, (&raw const operation).cast(), size_of::<i32>())?;
        }
        if operand == Operand::E4m3 {
            // As training does it: the tensor cores keep the sum, in fewer bits than a float has.
            let fast: i8 = 1;
            set(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, (&raw const fast).cast(), size_of::<i8>())?;
        }
        let layout = |kind| {
            let mut raw = std::ptr::null_mut();
            let rows = u64::from(n);
            // SAFETY: the out pointer is valid for the call.
            let code = unsafe { (functions.layout_create)(&raw mut raw, kind, rows, rows, i64::from(n)) };
            lt.check("cublasLtMatrixLayoutCreate", code)?;
            Ok::<_, CudaError>(Owned { raw, destroy: functions.layout_destroy })
        };
        let operands = layout(match operand {
            Operand::Bf16 => cudaDataType_t::CUDA_R_16BF,
            Operand::E4m3 => cudaDataType_t::CUDA_R_8F_E4M3,
        })?;
        let result = layout(match output {
            Output::Bf16 => cudaDataType_t::CUDA_R_16BF,
            Output::F32 => cudaDataType_t::CUDA_R_32F,
        })?;
        Ok(Self { lt: lt.clone(), n: n.into(), product, operands, result })
    }

    /// The library's algorithms for it, the most promising first, at most `most`.
    pub(super) fn algorithms(
        &self,
        workspace_bytes: usize,
        most: usize,
    ) -> Result<Vec<Algorithm>, CudaError> {
        use cublasLtMatmulPreferenceAttributes_t as Attribute;
        let functions = &self.lt.inner.functions;
        self.lt.context().bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the out pointer is valid for the call.
        let code = unsafe { (functions.preference_create)(&raw mut raw) };
        self.lt.check("cublasLtMatmulPreferenceCreate", code)?;
        let preference = Owned { raw, destroy: functions.preference_destroy };
        let set = |attribute, value: *const c_void, bytes| {
            // SAFETY: the preference lives; the value is of the type and size that the header gives the attribute.
            let code = unsafe { (functions.preference_set)(preference.raw, attribute, value, bytes) };
            self.lt.check("cublasLtMatmulPreferenceSetAttribute", code)
        };
        let room = workspace_bytes as u64;
        set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (&raw const room).cast(), size_of::<u64>())?;
        // Where a sum is split, its parts are added as floats, never as bf16: the result stays exact.
        let reduction = cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        set(
            Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
            (&raw const reduction).cast(),
            size_of::<u32>(),
        )?;
        let none = Found {
            algorithm: cublasLtMatmulAlgo_t { data: [0; 8] },
            workspace_bytes: 0,
            state: SUCCESS,
            waves: 0.0,
            reserved: [0; 4],
        };
        let mut found = vec![none; most];
        let mut count: c_int = 0;
        // SAFETY: all descriptions live; the list has room for as many results as are asked for, and both out
        // pointers are valid for the call.
        let code = unsafe {
            (functions.heuristic)(
                self.lt.inner.handle,
                self.product.raw,
                self.operands.raw,
                self.operands.raw,
                self.result.raw,
                self.result.raw,
                preference.raw,
                c_int::try_from(most).unwrap_or(c_int::MAX),
                found.as_mut_ptr(),
                &raw mut count,
            )
        };
        self.lt.check("cublasLtMatmulAlgoGetHeuristic", code)?;
        found.truncate(usize::try_from(count).unwrap_or(0));
        found.retain(|one| one.state == SUCCESS && one.workspace_bytes <= workspace_bytes);
        Ok(found.into_iter().map(|one| Algorithm { raw: one.algorithm }).collect())
    }

    /// Queues the product.
    ///
    /// # Safety
    /// The addresses are those of n × n elements of the described types and of the workspace, in the library's
    /// context, and stay good until the stream has run dry.
    pub(super) unsafe fn queue(
        &self,
        stream: &Stream,
        algorithm: &Algorithm,
        places: &Places,
    ) -> Result<(), CudaError> {
        self.lt.context().owns(stream.context(), "the stream")?;
        self.lt.context().bind()?;
        let (one, zero) = (1.0_f32, 0.0_f32);
        let at = |address: u64| std::ptr::without_provenance_mut::<c_void>(address as usize);
        // SAFETY: the caller vouches for the device addresses; the factors are floats as the description says, read
        // before the call returns; C is D, which a factor of zero keeps from being read.
        let code = unsafe {
            (self.lt.inner.functions.multiply)(
                self.lt.inner.handle,
                self.product.raw,
                (&raw const one).cast(),
                at(places.a),
                self.operands.raw,
                at(places.b),
                self.operands.raw,
                (&raw const zero).cast(),
                at(places.d),
                self.result.raw,
                at(places.d),
                self.result.raw,
                &raw const algorithm.raw,
                at(places.workspace),
                places.workspace_bytes,
                stream.handle().cast(),
            )
        };
        self.lt.check("cublasLtMatmul", code)
    }

    /// Rows of each matrix.
    pub(super) fn n(&self) -> u64 {
        self.n
    }

    pub(super) fn lt(&self) -> &CublasLt {
        &self.lt
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use cudarc::cublaslt::sys::cublasLtMatmulHeuristicResult_t as Theirs;

    use super::*;

    #[test]
    fn the_heuristics_result_has_the_headers_layout() {
        assert_eq!(size_of::<Found>(), size_of::<Theirs>());
        assert_eq!(
            [
                offset_of!(Found, algorithm),
                offset_of!(Found, workspace_bytes),
                offset_of!(Found, state),
                offset_of!(Found, waves),
                offset_of!(Found, reserved),
            ],
            [
                offset_of!(Theirs, algo),
                offset_of!(Theirs, workspaceSize),
                offset_of!(Theirs, state),
                offset_of!(Theirs, wavesCount),
                offset_of!(Theirs, reserved),
            ]
        );
    }
}
