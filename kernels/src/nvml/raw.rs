//! The calls of NVML that `nvml-wrapper` has no safe form of, or one that loses what a newer driver says. Each checks
//! that the driver has the function and gives NVML's error as a value.

use std::ffi::{CStr, c_uint};

use diag::gpu_facts::reading::{Fabric, FabricState, Memory, RemappedRows, SpareRows, SramEcc};
use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{self as sys, field_id};

/// NVML's tag of a versioned structure: its size, and its version in the highest byte.
const fn tag<T>(version: u32) -> u32 {
    #[allow(clippy::cast_possible_truncation, reason = "structures of NVML have some hundred bytes")]
    let size = size_of::<T>() as u32;
    size | (version << 24)
}

/// Calls a function of the form `f(device, out...)` and gives its code as a result.
macro_rules! call {
    ($device:expr, $function:ident, $($out:expr),+) => {{
        let symbol = nvml_sym($device.nvml().lib().$function.as_ref())?;
        // SAFETY: the symbol has the name and so the type that NVML documents, and the library stays loaded as long
        // as the device's `Nvml`; so does the handle. Each pointer is to a local value of the type that the function
        // fills in and lives until it returns; structures carry the tag of their version.
        nvml_try(unsafe { symbol($device.handle(), $($out),+) })
    }};
}

/// What holds the clocks down, all bits. Drivers before R535 call it throttle reasons.
pub(super) fn clock_reasons(device: &Device<'_>) -> Result<u64, NvmlError> {
    let mut bits = 0;
    if device.nvml().lib().nvmlDeviceGetCurrentClocksEventReasons.is_ok() {
        call!(device, nvmlDeviceGetCurrentClocksEventReasons, &raw mut bits)?;
    } else {
        call!(device, nvmlDeviceGetCurrentClocksThrottleReasons, &raw mut bits)?;
    }
    Ok(bits)
}

/// Memory as drivers before R510 tell it: the driver's own part counts as used.
pub(super) fn memory(device: &Device<'_>) -> Result<Memory, NvmlError> {
    let mut memory = sys::nvmlMemory_t { total: 0, free: 0, used: 0 };
    call!(device, nvmlDeviceGetMemoryInfo, &raw mut memory)?;
    Ok(Memory { total_bytes: memory.total, free_bytes: memory.free })
}

pub(super) fn remapped_rows(device: &Device<'_>) -> Result<RemappedRows, NvmlError> {
    let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
    call!(
        device,
        nvmlDeviceGetRemappedRows,
        &raw mut corrected,
        &raw mut uncorrected,
        &raw mut pending,
        &raw mut failed
    )?;
    Ok(RemappedRows { corrected, uncorrected, pending: pending != 0, failed: failed != 0 })
}

pub(super) fn spare_rows(device: &Device<'_>) -> Result<SpareRows, NvmlError> {
    let mut banks = sys::nvmlRowRemapperHistogramValues_t { max: 0, high: 0, partial: 0, low: 0, none: 0 };
    call!(device, nvmlDeviceGetRowRemapperHistogram, &raw mut banks)?;
    Ok(SpareRows {
        all: banks.max,
        high: banks.high,
        partial: banks.partial,
        low: banks.low,
        none: banks.none,
    })
}

pub(super) fn sram_ecc(device: &Device<'_>) -> Result<SramEcc, NvmlError> {
    let mut status = sys::nvmlEccSramErrorStatus_t {
        version: tag::<sys::nvmlEccSramErrorStatus_v1_t>(1),
        aggregateUncParity: 0,
        aggregateUncSecDed: 0,
        aggregateCor: 0,
        volatileUncParity: 0,
        volatileUncSecDed: 0,
        volatileCor: 0,
        aggregateUncBucketL2: 0,
        aggregateUncBucketSm: 0,
        aggregateUncBucketPcie: 0,
        aggregateUncBucketMcu: 0,
        aggregateUncBucketOther: 0,
        bThresholdExceeded: 0,
    };
    call!(device, nvmlDeviceGetSramEccErrorStatus, &raw mut status)?;
    Ok(SramEcc {
        volatile_uncorrected: status.volatileUncParity.saturating_add(status.volatileUncSecDed),
        aggregate_uncorrected: status.aggregateUncParity.saturating_add(status.aggregateUncSecDed),
        threshold_exceeded: status.bThresholdExceeded != 0,
    })
}

pub(super) fn margin_c(device: &Device<'_>) -> Result<i32, NvmlError> {
    let version = tag::<sys::nvmlMarginTemperature_v1_t>(1);
    let mut margin = sys::nvmlMarginTemperature_t { version, marginTemperature: 0 };
    call!(device, nvmlDeviceGetMarginTemperature, &raw mut margin)?;
    Ok(margin.marginTemperature)
}

/// The highest PCIe generation of the GPU itself, whatever slot it is in.
pub(super) fn card_pcie_generation(device: &Device<'_>) -> Result<u32, NvmlError> {
    let mut generation = 0;
    call!(device, nvmlDeviceGetGpuMaxPcieLinkGeneration, &raw mut generation)?;
    Ok(generation)
}

/// The newest form of the fabric's state that the driver knows.
pub(super) fn fabric(device: &Device<'_>) -> Result<Fabric, NvmlError> {
    let lib = device.nvml().lib();
    if lib.nvmlDeviceGetGpuFabricInfoV.is_err() {
        return fabric_without_health(device);
    }
    let asked = |version: u32| {
        let mut info = sys::nvmlGpuFabricInfo_v3_t {
            version,
            clusterUuid: [0; 16],
            status: 0,
            cliqueId: 0,
            state: 0,
            healthMask: 0,
            healthSummary: 0,
        };
        call!(device, nvmlDeviceGetGpuFabricInfoV, &raw mut info).map(|()| info)
    };
    // Version 2 is the beginning of version 3, and its tag keeps the driver within that.
    let newest = asked(tag::<sys::nvmlGpuFabricInfo_v3_t>(3)).map(|info| (info, true));
    let (info, with_summary) = newest.or_else(|error| match error {
        NvmlError::UnexpectedVariant(sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        | NvmlError::InvalidArg => asked(tag::<sys::nvmlGpuFabricInfo_v2_t>(2)).map(|info| (info, false)),
        error => Err(error),
    })?;
    Ok(Fabric {
        state: fabric_state(info.state),
        status: (info.status, words(device, info.status)),
        cluster_uuid: uuid(info.clusterUuid),
        clique: info.cliqueId,
        health_mask: Some(info.healthMask),
        health_summary: with_summary.then_some(info.healthSummary.into()),
    })
}

fn fabric_without_health(device: &Device<'_>) -> Result<Fabric, NvmlError> {
    let mut info = sys::nvmlGpuFabricInfo_t { clusterUuid: [0; 16], status: 0, cliqueId: 0, state: 0 };
    call!(device, nvmlDeviceGetGpuFabricInfo, &raw mut info)?;
    Ok(Fabric {
        state: fabric_state(info.state),
        status: (info.status, words(device, info.status)),
        cluster_uuid: uuid(info.clusterUuid),
        clique: info.cliqueId,
        health_mask: None,
        health_summary: None,
    })
}

fn fabric_state(state: u8) -> FabricState {
    match u32::from(state) {
        sys::NVML_GPU_FABRIC_STATE_NOT_SUPPORTED => FabricState::NotSupported,
        sys::NVML_GPU_FABRIC_STATE_NOT_STARTED => FabricState::NotStarted,
        sys::NVML_GPU_FABRIC_STATE_IN_PROGRESS => FabricState::InProgress,
        sys::NVML_GPU_FABRIC_STATE_COMPLETED => FabricState::Completed,
        other => FabricState::Other(other),
    }
}

fn uuid(bytes: [u8; 16]) -> Option<String> {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(32);
    for byte in bytes {
        // Writing into a string can't fail.
        let _ = write!(text, "{byte:02x}");
    }
    bytes.iter().any(|byte| *byte != 0).then_some(text)
}

/// NVML's own words for a code.
fn words(device: &Device<'_>, code: sys::nvmlReturn_t) -> String {
    let Ok(symbol) = device.nvml().lib().nvmlErrorString.as_ref() else { return format!("code {code}") };
    // SAFETY: the function takes any number and gives a text of the library's own that is never freed, or null.
    let text = unsafe { symbol(code) };
    if text.is_null() {
        return format!("code {code}");
    }
    // SAFETY: not null, and NVML's texts end with a zero byte; the library is loaded while `device` lives.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Which number of NVML's list of fields, of which part (link) of the GPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    pub id: u32,
    pub scope: u32,
}

impl Field {
    pub(super) const MEMORY_TEMPERATURE: Self = Self { id: field_id::NVML_FI_DEV_MEMORY_TEMP, scope: 0 };
    pub(super) const LINK_COUNT: Self = Self { id: field_id::NVML_FI_DEV_NVLINK_LINK_COUNT, scope: 0 };
    pub(super) const RECOVERY: Self = Self { id: field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, scope: 0 };

    pub(super) fn link_crc(link: u32) -> Self {
        Self { id: field_id::NVML_FI_DEV_NVLINK_ERROR_DL_CRC, scope: link }
    }

    pub(super) fn link_replay(link: u32) -> Self {
        Self { id: field_id::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, scope: link }
    }

    pub(super) fn link_recovery(link: u32) -> Self {
        Self { id: field_id::NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY, scope: link }
    }
}

/// The numbers of several fields in one call, in their order; `None` for what the GPU doesn't have. The wrapper's
/// form can't say which link is meant. No field that is asked for changed its number between drivers.
pub(super) fn fields(device: &Device<'_>, fields: &[Field]) -> Result<Vec<Option<u64>>, NvmlError> {
    let mut values: Vec<sys::nvmlFieldValue_t> = fields.iter().map(|field| asked(*field)).collect();
    let count = i32::try_from(values.len()).map_err(|_| NvmlError::InvalidArg)?;
    call!(device, nvmlDeviceGetFieldValues, count, values.as_mut_ptr())?;
    Ok(values.iter().map(answer).collect())
}

fn asked(field: Field) -> sys::nvmlFieldValue_t {
    sys::nvmlFieldValue_t {
        fieldId: field.id,
        scopeId: field.scope,
        timestamp: 0,
        latencyUsec: 0,
        valueType: 0,
        nvmlReturn: sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED,
        value: sys::nvmlValue_t { ullVal: 0 },
    }
}

fn answer(value: &sys::nvmlFieldValue_t) -> Option<u64> {
    if value.nvmlReturn != sys::nvmlReturn_enum_NVML_SUCCESS {
        return None;
    }
    let kind: c_uint = value.valueType;
    // SAFETY: every member of the union is a plain number and all of its bytes were set when it was made, so each
    // may be read whatever NVML wrote.
    unsafe {
        match kind {
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT => Some(value.value.uiVal.into()),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG => Some(value.value.ulVal),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG => Some(value.value.ullVal),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_LONG_LONG => {
                u64::try_from(value.value.sllVal).ok()
            }
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT => u64::try_from(value.value.siVal).ok(),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT => Some(value.value.usVal.into()),
            // None of the fields that are asked for is a fraction.
            _ => None,
        }
    }
}
