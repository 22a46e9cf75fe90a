//! The kernels of `checks.cu` on a GPU: compiled by the driver from the PTX beside it, launched with arguments whose
//! sizes are checked here. What they compute is said in `pattern.rs`.

use std::ffi::{CStr, c_char, c_void};

use cudarc::driver::sys::{CUfunction, CUjit_option, CUmodule};

use super::context::Parked;
use super::pattern::Collective;
use super::table::SUCCESS;
use super::{Context, CudaError, DeviceBuffer, Element, Limit, Operand, Stream};

use Argument::{Narrow, Wide};

/// The PTX, with the zero byte at its end that the driver wants.
const PTX: &str = concat!(include_str!("../../checks.ptx"), "\0");

/// Threads of a block: enough to keep a multiprocessor busy with a few blocks, on every model.
const THREADS: u32 = 256;

/// Blocks a multiprocessor: with [`THREADS`], 2048 threads, as many as one holds.
const BLOCKS_EACH: u32 = 8;

/// Room for the compiler's words when it fails.
const LOG: usize = 4096;

/// The loaded kernels of one GPU.
pub struct Kernels {
    context: Context,
    module: CUmodule,
    null: CUfunction,
    fill_bf16: CUfunction,
    fill_e4m3: CUfunction,
    checksum: CUfunction,
    fill_rank: CUfunction,
    count_wrong: CUfunction,
}

// SAFETY: the driver's functions may be called with a module and its functions from any thread.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Hands the PTX to the driver.
    ///
    /// # Errors
    /// [`CudaError::Kernels`] with the compiler's words.
    pub fn load(context: &Context) -> Result<Self, CudaError> {
        let module = Module::load(context)?;
        let kernels = Self {
            context: context.clone(),
            null: module.function(c"aimaster_null")?,
            fill_bf16: module.function(c"aimaster_fill_bf16")?,
            fill_e4m3: module.function(c"aimaster_fill_e4m3")?,
            checksum: module.function(c"aimaster_checksum")?,
            fill_rank: module.function(c"aimaster_fill_rank")?,
            count_wrong: module.function(c"aimaster_count_wrong")?,
            module: module.keep(),
        };
        Ok(kernels)
    }

    /// The context that they were loaded in.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Queues operands of a matrix product.
    ///
    /// # Errors
    /// The buffer does not hold whole elements, something is of another GPU, or the driver refuses.
    pub fn fill_operand(
        &self,
        stream: &Stream,
        buffer: &mut DeviceBuffer<u8>,
        operand: Operand,
        seed: u64,
    ) -> Result<(), CudaError> {
        if !buffer.len().is_multiple_of(operand.bytes()) {
            return Err(self.context.size_error(format!("{} bytes of {operand:?}", buffer.len())));
        }
        let function = match operand {
            Operand::Bf16 => self.fill_bf16,
            Operand::E4m3 => self.fill_e4m3,
        };
        let count = (buffer.len() / operand.bytes()) as u64;
        self.owns(stream, buffer)?;
        let arguments = [Wide(buffer.address()), Wide(count), Wide(seed)];
        // SAFETY: the kernel takes an address and two 64-bit numbers, and writes `count` elements there.
        unsafe { self.launch(function, stream, count, &arguments) }
    }

    /// The checksum of a buffer: the same bits in the same places give the same number, on every GPU.
    ///
    /// # Errors
    /// The buffer does not hold whole 32-bit words, something is of another GPU, or the wait's.
    pub fn checksum<T: Element>(
        &self,
        stream: &Stream,
        buffer: &DeviceBuffer<T>,
        limit: Limit<'_>,
    ) -> Result<u64, CudaError> {
        if !buffer.bytes().is_multiple_of(size_of::<u32>()) {
            return Err(self.context.size_error(format!("the checksum of {} bytes", buffer.bytes())));
        }
        let count = (buffer.bytes() / size_of::<u32>()) as u64;
        self.owns(stream, buffer)?;
        self.total(stream, limit, |sum| {
            let arguments = [Wide(buffer.address()), Wide(count), Wide(sum)];
            // SAFETY: the kernel takes two addresses around a 64-bit number; it reads `count` words and adds to one
            // 64-bit number.
            unsafe { self.launch(self.checksum, stream, count, &arguments) }
        })
    }

    /// Queues what a rank brings to a collective.
    ///
    /// # Errors
    /// Something is of another GPU, or the driver refuses.
    pub fn fill_rank(
        &self,
        stream: &Stream,
        buffer: &mut DeviceBuffer<f32>,
        rank: u32,
    ) -> Result<(), CudaError> {
        let count = buffer.len() as u64;
        self.owns(stream, buffer)?;
        let arguments = [Wide(buffer.address()), Wide(count), Narrow(rank)];
        // SAFETY: the kernel takes an address, a 64-bit and a 32-bit number, and writes `count` floats there.
        unsafe { self.launch(self.fill_rank, stream, count, &arguments) }
    }

    /// How many elements of a receive buffer differ from what the collective must leave there.
    ///
    /// # Errors
    /// The collective can't have filled such a buffer, something is of another GPU, or the wait's.
    pub fn count_wrong(
        &self,
        stream: &Stream,
        buffer: &DeviceBuffer<f32>,
        collective: Collective,
        limit: Limit<'_>,
    ) -> Result<u64, CudaError> {
        self.count_wrong_in(stream, buffer, buffer.len(), collective, limit)
    }

    /// The same for a collective that filled only the first `elements` of the buffer.
    ///
    /// # Errors
    /// As above, or the buffer is shorter.
    pub fn count_wrong_in(
        &self,
        stream: &Stream,
        buffer: &DeviceBuffer<f32>,
        elements: usize,
        collective: Collective,
        limit: Limit<'_>,
    ) -> Result<u64, CudaError> {
        if elements > buffer.len() {
            let what = format!("{elements} elements of a buffer of {}", buffer.len());
            return Err(self.context.size_error(what));
        }
        let count = elements as u64;
        let form = collective
            .expected(count)
            .ok_or_else(|| self.context.size_error(format!("{collective:?} into {count} elements")))?;
        self.owns(stream, buffer)?;
        self.total(stream, limit, |wrong| {
            let arguments = [
                Wide(buffer.address()),
                Wide(count),
                Wide(form.chunk),
                Wide(form.origin),
                Narrow(form.factor),
                Narrow(form.offset),
                Narrow(form.step),
                Wide(wrong),
            ];
            // SAFETY: the kernel takes an address, three 64-bit and three 32-bit numbers and an address; it reads
            // `count` floats, no more than the buffer has, divides by a chunk that is not zero, and adds to one 64-bit number.
            unsafe { self.launch(self.count_wrong, stream, count, &arguments) }
        })
    }

    /// Launches the null kernel with one thread, where the context is current and the stream is of this GPU.
    pub(super) fn launch_null(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: the kernel takes no argument and touches no memory.
        let code = unsafe { self.raw_launch(self.null, 1, 1, stream, std::ptr::null_mut()) };
        self.context.check("cuLaunchKernel", code)
    }

    /// Runs a kernel that adds to a number, and reads the number.
    fn total(
        &self,
        stream: &Stream,
        limit: Limit<'_>,
        launch: impl FnOnce(u64) -> Result<(), CudaError>,
    ) -> Result<u64, CudaError> {
        let mut total = DeviceBuffer::<u64>::new(&self.context, 1)?;
        total.zero(stream)?;
        launch(total.address())?;
        total.read(stream, limit).map(|value| value.into_iter().sum())
    }

    fn owns<T: Element>(&self, stream: &Stream, buffer: &DeviceBuffer<T>) -> Result<(), CudaError> {
        self.context.owns(stream.context(), "the stream")?;
        self.context.owns(buffer.context(), "the buffer")
    }

    /// Queues a kernel over `count` elements.
    ///
    /// # Safety
    /// The arguments are of the types that the kernel takes, and what it touches lives in this context until the
    /// stream has run dry.
    unsafe fn launch(
        &self,
        function: CUfunction,
        stream: &Stream,
        count: u64,
        arguments: &[Argument],
    ) -> Result<(), CudaError> {
        self.context.bind()?;
        let most = u64::from(self.context.info().multiprocessors.max(1) * BLOCKS_EACH);
        let blocks = count.div_ceil(THREADS.into()).clamp(1, most);
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        let mut pointers: Vec<*mut c_void> = arguments.iter().map(Argument::pointer).collect();
        // SAFETY: the caller's promise; the pointers are those of the arguments, which outlive the call.
        let code = unsafe { self.raw_launch(function, blocks, THREADS, stream, pointers.as_mut_ptr()) };
        self.context.check("cuLaunchKernel", code)
    }

    /// # Safety
    /// As for [`Self::launch`]; each pointer is one of a value that outlives the call.
    unsafe fn raw_launch(
        &self,
        function: CUfunction,
        blocks: u32,
        threads: u32,
        stream: &Stream,
        arguments: *mut *mut c_void,
    ) -> i32 {
        let none = std::ptr::null_mut();
        // SAFETY: function and stream live in this context, which is current; the driver copies the arguments
        // before it returns, which the caller vouches for.
        unsafe {
            let launch = self.context.functions().launch;
            launch(function, blocks, 1, 1, threads, 1, 1, 0, stream.raw(), arguments, none)
        }
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        self.context.give_back(Parked::Module(self.module));
    }
}

/// A kernel's argument, by its width.
enum Argument {
    Wide(u64),
    Narrow(u32),
}

impl Argument {
    fn pointer(&self) -> *mut c_void {
        match self {
            Wide(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Narrow(value) => std::ptr::from_ref(value).cast_mut().cast(),
        }
    }
}

/// A loaded module until its functions are known.
struct Module<'a> {
    context: &'a Context,
    raw: CUmodule,
}

impl<'a> Module<'a> {
    fn load(context: &'a Context) -> Result<Self, CudaError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        let mut log: [c_char; LOG] = [0; LOG];
        let mut options =
            [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // A number is handed over in place of a pointer; one byte less, so that the last one stays zero.
        let mut values: [*mut c_void; 2] =
            [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(LOG - 1)];
        // SAFETY: the PTX ends in a zero byte; two options with two values of the kinds that the header says, and the
        // log's buffer is as long as it says; all are valid for the call.
        let code = unsafe {
            (context.functions().module_load)(
                &raw mut raw,
                PTX.as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        if code == SUCCESS {
            return Ok(Self { context, raw });
        }
        // SAFETY: the buffer's last byte is zero.
        let words = unsafe { CStr::from_ptr(log.as_ptr()) }.to_string_lossy();
        let log = if words.trim().is_empty() { "no words".into() } else { words.trim().to_owned() };
        let name = context.functions().name(code);
        Err(CudaError::Kernels { gpu: context.gpu().to_owned(), name, log })
    }

    fn function(&self, name: &CStr) -> Result<CUfunction, CudaError> {
        let mut function = std::ptr::null_mut();
        // SAFETY: the out pointer is valid for the call, the name ends in a zero byte, the module is loaded.
        let code =
            unsafe { (self.context.functions().module_function)(&raw mut function, self.raw, name.as_ptr()) };
        self.context.check("cuModuleGetFunction", code)?;
        Ok(function)
    }

    fn keep(self) -> CUmodule {
        std::mem::ManuallyDrop::new(self).raw
    }
}

impl Drop for Module<'_> {
    fn drop(&mut self) {
        self.context.give_back(Parked::Module(self.raw));
    }
}
