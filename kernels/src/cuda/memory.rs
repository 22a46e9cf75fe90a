//! Device memory by plain `cuMemAlloc`, and copies that can't hang: they go through pinned memory of the host, in
//! pieces that are waited for with a limit. A copy to ordinary memory would wait inside the driver.
//!
//! These copies carry operands and results of kilobytes; their speed is not measured.

use std::ffi::c_void;
use std::marker::PhantomData;

use cudarc::driver::sys::CUdeviceptr;

use super::context::Parked;
use super::{Context, CudaError, Limit, Stream};

/// Bytes of a piece: large enough that its start does not matter, small against what a user may lock in memory.
const PIECE: usize = 4 << 20;

mod sealed {
    pub trait Sealed {}
}

/// What a buffer may hold: numbers for which every bit pattern is one.
pub trait Element: Copy + Default + sealed::Sealed {}

macro_rules! elements {
    ($($number:ty)*) => { $(impl sealed::Sealed for $number {} impl Element for $number {})* };
}
elements!(u8 u16 u32 u64 f32);

/// Device memory for a number of elements. What is in a new one is not known.
pub struct DeviceBuffer<T: Element> {
    context: Context,
    address: CUdeviceptr,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> DeviceBuffer<T> {
    /// Takes memory.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`] says how much was free; no elements, or more bytes than there are addresses.
    pub fn new(context: &Context, len: usize) -> Result<Self, CudaError> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or_else(|| context.size_error(format!("a buffer of {len} elements")))?;
        let address = context.alloc(bytes)?;
        Ok(Self { context: context.clone(), address, len, element: PhantomData })
    }

    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: a buffer has an element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// The device address, for another library's calls. It is good for as long as this value.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The context that it was made in.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Queues filling it with zeros.
    ///
    /// # Errors
    /// The stream is of another GPU, or the driver refuses.
    pub fn zero(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.usable(stream)?;
        // SAFETY: the range is this buffer's, which is not freed before the stream has run dry.
        let code =
            unsafe { (self.context.functions().set_bytes)(self.address, 0, self.bytes(), stream.raw()) };
        self.context.check("cuMemsetD8Async", code)
    }

    /// Copies from the host, behind everything that is queued, and waits.
    ///
    /// # Errors
    /// Another length, or the wait's.
    pub fn write(&mut self, stream: &Stream, from: &[T], limit: Limit<'_>) -> Result<(), CudaError> {
        self.usable(stream)?;
        if from.len() != self.len {
            let what = format!("a copy of {} elements into {}", from.len(), self.len);
            return Err(self.context.size_error(what));
        }
        let piece = PIECE / size_of::<T>();
        let staging = Staging::<T>::new(&self.context, piece.min(self.len))?;
        let mut at = self.address;
        for part in from.chunks(piece) {
            // SAFETY: the staging memory holds at least a piece, no copy of an earlier one is under way, and it is
            // nobody else's.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), staging.address, part.len()) };
            // SAFETY: source and target hold that many bytes; both outlive the copy, the staging memory because it
            // is given back only once the stream has run dry.
            let code = unsafe {
                let source = staging.address.cast::<c_void>().cast_const();
                (self.context.functions().copy_to_device)(at, source, size_of_val(part), stream.raw())
            };
            self.context.check("cuMemcpyHtoDAsync", code)?;
            stream.wait(limit)?;
            at += size_of_val(part) as u64;
        }
        Ok(())
    }

    /// Copies to the host, behind everything that is queued, and waits.
    ///
    /// # Errors
    /// The wait's.
    pub fn read(&self, stream: &Stream, limit: Limit<'_>) -> Result<Vec<T>, CudaError> {
        self.read_from(stream, 0, self.len, limit)
    }

    /// As [`Self::read`], `len` elements from `start` on.
    ///
    /// # Errors
    /// The range is not in the buffer, or the wait's.
    pub fn read_from(
        &self,
        stream: &Stream,
        start: usize,
        len: usize,
        limit: Limit<'_>,
    ) -> Result<Vec<T>, CudaError> {
        self.usable(stream)?;
        if start.checked_add(len).is_none_or(|end| end > self.len) {
            let what = format!("{len} elements from {start} on, of {}", self.len);
            return Err(self.context.size_error(what));
        }
        let mut to = vec![T::default(); len];
        let piece = PIECE / size_of::<T>();
        let staging = Staging::<T>::new(&self.context, piece.min(len).max(1))?;
        let mut at = self.address + (start * size_of::<T>()) as u64;
        for part in to.chunks_mut(piece) {
            let bytes = size_of_val(part);
            // SAFETY: source and target hold that many bytes; both outlive the copy, the staging memory because it
            // is given back only once the stream has run dry.
            let code = unsafe {
                (self.context.functions().copy_to_host)(staging.address.cast(), at, bytes, stream.raw())
            };
            self.context.check("cuMemcpyDtoHAsync", code)?;
            stream.wait(limit)?;
            // SAFETY: the copy is done, so the staging memory holds as many elements, of which any bits are valid.
            unsafe { std::ptr::copy_nonoverlapping(staging.address, part.as_mut_ptr(), part.len()) };
            at += bytes as u64;
        }
        Ok(to)
    }

    /// Copies short pieces, `len` elements from each of some places on, to the host, one after the other, and waits
    /// once.
    ///
    /// # Errors
    /// A piece is not in the buffer, there is none, all together are more than 4 MiB, or the wait's.
    pub fn read_places(
        &self,
        stream: &Stream,
        starts: &[usize],
        len: usize,
        limit: Limit<'_>,
    ) -> Result<Vec<T>, CudaError> {
        self.usable(stream)?;
        let inside = |start: &usize| start.checked_add(len).is_some_and(|end| end <= self.len);
        let total = starts.len().saturating_mul(len);
        if !(1..=PIECE / size_of::<T>()).contains(&total) || !starts.iter().all(inside) {
            let what = format!("{} pieces of {len} elements, of {}", starts.len(), self.len);
            return Err(self.context.size_error(what));
        }
        let staging = Staging::<T>::new(&self.context, total)?;
        for (index, start) in starts.iter().enumerate() {
            let from = self.address + (start * size_of::<T>()) as u64;
            // SAFETY: the staging memory holds a piece for each start, and is given back only once the stream has run
            // dry; the piece is in the buffer.
            let code = unsafe {
                let to = staging.address.add(index * len).cast();
                (self.context.functions().copy_to_host)(to, from, len * size_of::<T>(), stream.raw())
            };
            self.context.check("cuMemcpyDtoHAsync", code)?;
        }
        stream.wait(limit)?;
        let mut to = vec![T::default(); total];
        // SAFETY: the copies are done, so the staging memory holds as many elements, of which any bits are valid.
        unsafe { std::ptr::copy_nonoverlapping(staging.address, to.as_mut_ptr(), total) };
        Ok(to)
    }

    fn usable(&self, stream: &Stream) -> Result<(), CudaError> {
        self.context.owns(stream.context(), "the stream")?;
        self.context.bind()
    }
}

impl<T: Element> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        self.context.give_back(Parked::Device(self.address));
    }
}

/// Pinned memory of the host for the pieces of one copy.
struct Staging<'a, T: Element> {
    context: &'a Context,
    address: *mut T,
}

impl<'a, T: Element> Staging<'a, T> {
    fn new(context: &'a Context, len: usize) -> Result<Self, CudaError> {
        // The driver aligns it to a page, more than any element needs.
        let address = context.alloc_host(len * size_of::<T>())?.cast();
        Ok(Self { context, address })
    }
}

impl<T: Element> Drop for Staging<'_, T> {
    fn drop(&mut self) {
        self.context.give_back(Parked::Host(self.address.cast()));
    }
}
