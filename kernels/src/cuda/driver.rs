//! The driver and the GPUs that it shows to this process. What a GPU is, not how it is: health is NVML's.

use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

use cudarc::driver::sys::{CUdevice, CUdevice_attribute, CUuuid};

use super::table::Functions;
use super::{Context, CudaError};
use crate::libraries::{Libraries, Purpose};

/// The oldest CUDA whose drivers (from R525 on) compile PTX ISA 8.0, which `checks.ptx` is in.
const OLDEST: Version = Version { major: 12, minor: 0 };

/// Room for a device's name and its PCI address; the longest names so far have some 50 characters.
const TEXT: usize = 256;

/// A version of CUDA, or a compute capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Before the dot.
    pub major: u32,
    /// After it.
    pub minor: u32,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The opened driver.
#[derive(Clone)]
pub struct Driver {
    functions: Arc<Functions>,
    version: Version,
}

/// The driver's library, before it has looked at any GPU.
pub struct Loaded {
    functions: Functions,
    version: Version,
}

impl Loaded {
    /// Initialises the driver, which may take seconds where no GPU is in use, and does not return where one hangs.
    ///
    /// # Errors
    /// It says that it can't start (no GPU, another version of the kernel module, ...).
    pub fn init(self) -> Result<Driver, CudaError> {
        // SAFETY: zero is the only flag; a second call in a process does nothing.
        let code = unsafe { (self.functions.init)(0) };
        self.functions.check("driver", "cuInit", code)?;
        Ok(Driver { functions: Arc::new(self.functions), version: self.version })
    }
}

impl Driver {
    /// Opens the driver's library and initialises it.
    ///
    /// # Errors
    /// [`Self::load`]'s and [`Loaded::init`]'s.
    pub fn open(libraries: &Libraries) -> Result<Self, CudaError> {
        Self::load(libraries)?.init()
    }

    /// Opens the driver's library.
    ///
    /// # Errors
    /// The library or a function is missing, or the driver is too old.
    pub fn load(libraries: &Libraries) -> Result<Loaded, CudaError> {
        let functions = Functions::load(libraries.open(Purpose::Driver)?)?;
        let mut number = 0;
        // SAFETY: the out pointer is valid for the call, which needs no initialisation.
        let code = unsafe { (functions.driver_version)(&raw mut number) };
        functions.check("driver", "cuDriverGetVersion", code)?;
        // 12040 is 12.4.
        let number = number.unsigned_abs();
        let version = Version { major: number / 1000, minor: number % 1000 / 10 };
        if version < OLDEST {
            return Err(CudaError::OldDriver { found: version.to_string(), needed: OLDEST.to_string() });
        }
        Ok(Loaded { functions, version })
    }

    /// The newest CUDA that the driver supports.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The library that was opened, as it was given to the loader.
    #[must_use]
    pub fn library(&self) -> &std::path::Path {
        self.functions.path()
    }

    /// The GPUs that this process sees.
    ///
    /// # Errors
    /// The driver can't say.
    pub fn devices(&self) -> Result<Vec<Device>, CudaError> {
        (0..self.count()?).map(|ordinal| self.describe(ordinal)).collect()
    }

    fn count(&self) -> Result<c_int, CudaError> {
        let mut count = 0;
        // SAFETY: the out pointer is valid for the call.
        let code = unsafe { (self.functions.device_count)(&raw mut count) };
        self.functions.check("driver", "cuDeviceGetCount", code).map(|()| count)
    }

    /// The GPU with a UUID (`GPU-...`).
    ///
    /// # Errors
    /// There is none, or the driver can't say.
    pub fn device(&self, uuid: &str) -> Result<Device, CudaError> {
        let mut present = Vec::new();
        for ordinal in 0..self.count()? {
            match self.describe(ordinal) {
                Ok(device) if device.info.uuid.eq_ignore_ascii_case(uuid) => return Ok(device),
                Ok(device) => present.push(device.info.uuid),
                // Another GPU's trouble is no reason to do without this one.
                Err(error) => present.push(error.to_string()),
            }
        }
        let present = if present.is_empty() { "none".into() } else { present.join(", ") };
        Err(CudaError::NoSuchDevice { wanted: uuid.to_owned(), present })
    }

    fn describe(&self, ordinal: c_int) -> Result<Device, CudaError> {
        let functions = &self.functions;
        let label = format!("GPU {ordinal}");
        let check = |call, code| functions.check(&label, call, code);
        let (mut raw, mut uuid, mut memory_bytes) = (0, CUuuid { bytes: [0; 16] }, 0);
        // SAFETY: the out pointer is valid for the call; the ordinal is below the driver's count.
        check("cuDeviceGet", unsafe { (functions.device)(&raw mut raw, ordinal) })?;
        // SAFETY: the out pointer is valid for the call, the device is the driver's.
        check("cuDeviceGetUuid", unsafe { (functions.device_uuid)(&raw mut uuid, raw) })?;
        // SAFETY: as above.
        check("cuDeviceTotalMem", unsafe { (functions.device_memory)(&raw mut memory_bytes, raw) })?;
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: as above; the attribute is one of the header's.
            let code = unsafe { (functions.device_attribute)(&raw mut value, which, raw) };
            check("cuDeviceGetAttribute", code).map(|()| value.unsigned_abs())
        };
        let text = |call, write: unsafe extern "C" fn(*mut c_char, c_int, CUdevice) -> c_int| {
            let mut buffer: [c_char; TEXT] = [0; TEXT];
            // SAFETY: the driver writes at most TEXT bytes with a zero at their end; one byte less is offered, so
            // that the last one stays zero.
            check(call, unsafe { write(buffer.as_mut_ptr(), TEXT as c_int - 1, raw) })?;
            // SAFETY: the buffer's last byte is zero.
            Ok::<_, CudaError>(unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_string_lossy().into_owned())
        };
        let info = DeviceInfo {
            ordinal: ordinal.unsigned_abs(),
            name: text("cuDeviceGetName", functions.device_name)?,
            uuid: uuid_text(uuid.bytes.map(c_char::cast_unsigned)),
            // sysfs writes it in lower case.
            bus_id: text("cuDeviceGetPCIBusId", functions.device_bus_id)?.to_ascii_lowercase(),
            capability: Version {
                major: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                minor: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            },
            multiprocessors: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            memory_bytes,
        };
        Ok(Device { functions: Arc::clone(functions), raw, info })
    }
}

/// What a GPU is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number in this process; means nothing in another.
    pub ordinal: u32,
    /// The model, such as `NVIDIA H200`.
    pub name: String,
    /// `GPU-` and the UUID; of a MIG instance, the instance's own.
    pub uuid: String,
    /// The PCI address as sysfs writes it, such as `0000:17:00.0`.
    pub bus_id: String,
    /// Compute capability.
    pub capability: Version,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// All of its memory.
    pub memory_bytes: usize,
}

/// A GPU.
#[derive(Clone)]
pub struct Device {
    functions: Arc<Functions>,
    raw: CUdevice,
    info: DeviceInfo,
}

impl Device {
    /// What it is.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Its primary context, which libraries in this process use too, made current on this thread. One context a GPU
    /// is kept for all checks: the first costs some 0.15 s.
    ///
    /// # Errors
    /// The driver can't make it: out of memory, exclusive mode, a lost GPU.
    pub fn context(&self) -> Result<Context, CudaError> {
        Context::retain(Arc::clone(&self.functions), self.raw, &self.info)
    }
}

/// `GPU-` and the bytes in groups of 4, 2, 2, 2 and 6, as NVML and Slurm write it.
fn uuid_text(bytes: [u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvml_does() {
        let bytes = [0x5a, 0x01, 0xff, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        assert_eq!(uuid_text(bytes), "GPU-5a01ff03-0405-0607-0809-0a0b0c0d0e0f");
    }

    #[test]
    fn versions_order_by_major_first() {
        assert!(Version { major: 11, minor: 8 } < OLDEST);
        assert!(Version { major: 13, minor: 0 } > Version { major: 12, minor: 9 });
    }
}
