//! What the numbers belong to: the GPUs, and the machine around them.

use anyhow::{Context, Result, bail};
use kernels::Libraries;
use kernels::cuda::Driver;
use kernels::nvml::Nvml;

/// The GPUs of this machine.
pub struct Machine {
    /// `GPU-...`, in the driver's order.
    pub uuids: Vec<String>,
    models: Vec<String>,
}

impl Machine {
    /// Looks.
    ///
    /// # Errors
    /// If there is no GPU.
    pub fn look() -> Result<Self> {
        let driver = Driver::open(&Libraries::default())
            .context("`cargo xtask bench gpu` needs a machine with an NVIDIA GPU and its driver")?;
        let mut devices = driver.devices().context("the GPUs of this machine")?;
        if devices.is_empty() {
            bail!("`cargo xtask bench gpu` needs an NVIDIA GPU: the driver shows none");
        }
        // As on the bus, which is Slurm's order and everybody's here.
        devices.sort_by(|one, other| one.info().bus_id.cmp(&other.info().bus_id));
        let of = |what: fn(&kernels::cuda::DeviceInfo) -> &String| {
            devices.iter().map(|device| what(device.info()).clone()).collect()
        };
        Ok(Self { uuids: of(|info| &info.uuid), models: of(|info| &info.name) })
    }

    /// Lines about it.
    pub fn words(&self) -> Vec<String> {
        let reading = Nvml::open(None).and_then(|nvml| nvml.read(&[], &[]));
        let driver = reading.ok().and_then(|reading| reading.driver_version);
        let mut models: Vec<(String, usize)> = Vec::new();
        for model in &self.models {
            match models.iter_mut().find(|(known, _)| known == model) {
                Some((_, count)) => *count += 1,
                None => models.push((model.clone(), 1)),
            }
        }
        let gpus: Vec<String> = models.iter().map(|(model, count)| format!("{count} × {model}")).collect();
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpu = read("/proc/cpuinfo");
        let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        vec![
            format!("{}, NVIDIA driver {}", gpus.join(", "), driver.as_deref().unwrap_or("unknown")),
            format!(
                "{cores} cores of {}, Linux {}",
                cpu.map_or("an unknown processor", |(_, model)| model.trim()),
                read("/proc/sys/kernel/osrelease").trim()
            ),
        ]
    }
}
