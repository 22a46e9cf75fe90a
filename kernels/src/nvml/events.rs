//! What NVML tells by itself of one GPU: Xids and errors of memory that could not be corrected. The kernel's log is the
//! fuller source (of several Xids at once NVML tells the last); this one needs no rights.

use std::time::Duration;

use diag::health::reading::GpuEvent;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError as Error;
use nvml_wrapper::event::EventSet;

use super::{Nvml, NvmlError};

/// What NVML gives for an Xid that it has no number of.
const UNNAMED_XID: u32 = 999;

/// Events of one GPU, from the moment that it is made.
#[derive(Debug)]
pub struct Events<'nvml> {
    set: EventSet<'nvml>,
    gpu: String,
}

impl Nvml {
    /// Starts to listen to a GPU, by its UUID.
    ///
    /// # Errors
    /// If the GPU can't be opened, or the driver has no events for it.
    pub fn events(&self, uuid: &str) -> Result<Events<'_>, NvmlError> {
        let failed = |error: Error| NvmlError::Gpu { gpu: uuid.to_owned(), words: error.to_string() };
        // The wrapper would panic when the set is dropped.
        if self.inner.lib().nvmlEventSetFree.is_err() {
            return Err(failed(Error::FunctionNotFound));
        }
        let device = self.inner.device_by_uuid(uuid).map_err(failed)?;
        let wanted = EventTypes::CRITICAL_XID_ERROR | EventTypes::DOUBLE_BIT_ECC_ERROR;
        // A board without ECC has no events of it.
        let able = device.supported_event_types().map_or(wanted, |able| able & wanted);
        if able.is_empty() {
            return Err(failed(Error::NotSupported));
        }
        let set = self.inner.create_event_set().map_err(failed)?;
        let set = device.register_events(able, set).map_err(|error| failed(error.error))?;
        Ok(Events { set, gpu: uuid.to_owned() })
    }
}

impl Events<'_> {
    /// Waits for the next event; `None`: there was none in time, or one of no interest.
    ///
    /// # Errors
    /// If the GPU is lost, or NVML fails.
    pub fn next(&self, within: Duration) -> Result<Option<GpuEvent>, NvmlError> {
        let within_ms = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
        let event = match self.set.wait(within_ms) {
            Ok(event) => event,
            Err(Error::Timeout) => return Ok(None),
            Err(error) => {
                return Err(NvmlError::Gpu { gpu: self.gpu.clone(), words: error.to_string() });
            }
        };
        if event.event_type.contains(EventTypes::DOUBLE_BIT_ECC_ERROR) {
            return Ok(Some(GpuEvent::DoubleBit));
        }
        Ok(event.event_data.map(|xid| match xid {
            XidError::Value(code) => GpuEvent::Xid(u32::try_from(code).unwrap_or(UNNAMED_XID)),
            XidError::Unknown => GpuEvent::Xid(UNNAMED_XID),
        }))
    }
}
