//! Where the weights of experts are: on the device, or in host memory, where the CPU computes them
//! while a GPU runs the rest.

use std::fmt;
use std::str::FromStr;

use tern_cpu::Cpu;
use tern_engine::Capacity;
use tern_graph::{Backend, BackendError, ExpertSplit, HostExperts};

use crate::memory::HostMemory;
use crate::{Error, MemoryPlan, OpenedModel, machine};

/// Where the experts of a model are. As text: `auto`, `device`, `cpu` or `cpu:N`.
///
/// ```
/// use tern::ExpertPlacement;
/// assert_eq!("cpu:12".parse(), Ok(ExpertPlacement::Host(Some(12))));
/// assert_eq!(ExpertPlacement::default(), ExpertPlacement::Auto);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertPlacement {
    /// On the device, but for as many layers as it has no memory for.
    #[default]
    Auto,
    /// On the device.
    Device,
    /// Those of the first layers that have some in host memory; of all layers without a number.
    Host(Option<usize>),
}

impl FromStr for ExpertPlacement {
    type Err = String;

    fn from_str(text: &str) -> Result<ExpertPlacement, String> {
        match text {
            "auto" => Ok(ExpertPlacement::Auto),
            "device" => Ok(ExpertPlacement::Device),
            "cpu" => Ok(ExpertPlacement::Host(None)),
            _ => match text.strip_prefix("cpu:").and_then(|n| n.parse().ok()) {
                Some(layers) => Ok(ExpertPlacement::Host(Some(layers))),
                None => Err("expected auto, device, cpu or cpu:N".into()),
            },
        }
    }
}

impl fmt::Display for ExpertPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExpertPlacement::Auto => f.write_str("auto"),
            ExpertPlacement::Device => f.write_str("device"),
            ExpertPlacement::Host(None) => f.write_str("cpu"),
            ExpertPlacement::Host(Some(layers)) => write!(f, "cpu:{layers}"),
        }
    }
}

impl OpenedModel {
    /// Layers whose experts are in host memory; `capacity` gives the sizes of a runner from the bytes of
    /// weights on the device. None if the device is the CPU itself.
    pub fn host_layers(
        &self,
        backend: &dyn Backend,
        capacity: impl Fn(u64) -> Capacity,
    ) -> Result<usize, Error> {
        self.host_layers_within(backend.info().memory_free, backend, capacity)
    }

    /// The same if only `free` bytes of the device may be used.
    pub(crate) fn host_layers_within(
        &self,
        free: u64,
        backend: &dyn Backend,
        capacity: impl Fn(u64) -> Capacity,
    ) -> Result<usize, Error> {
        let available = self.model.graph.expert_layers();
        if !backend.runs_host_ops() {
            return Ok(0);
        }
        match self.experts {
            ExpertPlacement::Device => Ok(0),
            ExpertPlacement::Host(None) => Ok(available),
            ExpertPlacement::Host(Some(layers)) if layers <= available => Ok(layers),
            ExpertPlacement::Host(Some(requested)) => {
                Err(Error::ExpertLayers { name: self.name.clone(), requested, available })
            }
            ExpertPlacement::Auto => {
                let free = free - free / SPARE;
                let fits = |layers: usize| -> Result<bool, Error> {
                    let capacity = capacity(self.device_bytes(layers)?);
                    Ok(self.memory(backend, capacity, layers)?.total() <= free)
                };
                // the fewest: a layer more takes less of the device
                let (mut least, mut most) = (0, available);
                while least < most {
                    let middle = (least + most) / 2;
                    if fits(middle)? {
                        most = middle;
                    } else {
                        least = middle + 1;
                    }
                }
                Ok(least)
            }
        }
    }

    /// Bytes of the weights on a device if the experts of these layers are not.
    pub fn device_bytes(&self, host_layers: usize) -> Result<u64, Error> {
        let weights = self.bytes_of(self.split(host_layers)?.device_weights.iter());
        Ok(weights.saturating_add(self.adapters.set.bytes()))
    }

    /// What it will take on a device, with the experts of the first `host_layers` layers in host memory.
    pub fn memory(
        &self,
        backend: &dyn Backend,
        capacity: Capacity,
        host_layers: usize,
    ) -> Result<MemoryPlan, Error> {
        let split = self.split(host_layers)?;
        let host = split.pieces.iter().flat_map(|piece| &piece.weights);
        let Capacity { max_tokens, max_outputs, .. } = capacity;
        let adapted = match &self.adapters.set {
            set if set.count == 0 => 0,
            set => {
                let graph = self.model.graph.with_adapters(set.count, &set.linears);
                let split = graph.and_then(|graph| graph.split_experts(host_layers, 0));
                let split = split.map_err(|e| BackendError::Invalid(e.to_string()))?;
                backend.scratch(&split.device, max_tokens, max_outputs)
            }
        };
        Ok(MemoryPlan {
            weights: self.bytes_of(split.device_weights.iter()),
            adapters: self.adapters.set.bytes(),
            tower: self.tower.as_ref().map_or(0, |tower| tower.weight_bytes()),
            tower_on_host: backend.runs_host_ops(), // a GPU
            kv: self.kv_bytes(&capacity),
            kv_tokens: capacity.kv_tokens(),
            window_tokens: capacity.window.map(|window| window.pages.saturating_mul(capacity.page_len)),
            state: self.state_bytes(&capacity),
            state_slots: capacity.state.map_or(0, |state| state.slots),
            scratch: backend.scratch(&split.device, max_tokens, max_outputs).saturating_add(adapted),
            host: (host_layers > 0).then(|| HostMemory {
                layers: host_layers,
                all_layers: self.model.graph.expert_layers(),
                weights: self.bytes_of(host),
            }),
        })
    }

    /// The device, with the CPU for the experts of some layers.
    pub(crate) fn with_host_layers(
        &self,
        backend: Box<dyn Backend>,
        layers: usize,
    ) -> Result<Box<dyn Backend>, Error> {
        if layers == 0 {
            return Ok(backend);
        }
        let cpu = Box::new(Cpu::beside_a_gpu(machine::threads(self.threads))?);
        Ok(Box::new(HostExperts::new(backend, cpu, &self.model.graph, layers)?))
    }

    fn split(&self, host_layers: usize) -> Result<ExpertSplit, Error> {
        let split = self.model.graph.split_experts(host_layers, 0);
        split.map_err(|e| BackendError::Invalid(e.to_string()).into())
    }

    fn bytes_of<'a>(&self, weights: impl Iterator<Item = &'a usize>) -> u64 {
        weights.map(|weight| self.tensors[*weight].bytes() as u64).sum()
    }
}

/// The share of a device's free memory that is left for what is not planned, as 1 / `SPARE`: kernels, and
/// formats that take more than in the file.
const SPARE: u64 = 20;
