//! Which part of a model the CPU computes in host memory while a GPU runs the rest: experts, or the first
//! layers.

use tern_cpu::Cpu;
use tern_engine::Capacity;
use tern_graph::{Backend, BackendError, Graph, HostExperts, LayerGroup};

use crate::memory::HostMemory;
use crate::{Error, ExpertPlacement, GpuLayers, MemoryPlan, OpenedModel, machine};

/// What the CPU computes beside a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnHost {
    /// Nothing: the model is on one device.
    #[default]
    Nothing,
    /// The experts of the first layers that have some.
    Experts(usize),
    /// The embedding and the first layers.
    Layers(usize),
}

/// A model divided between a device and the host.
pub(crate) struct Divided {
    /// The device's graph.
    pub(crate) device: Graph,
    /// The index of each weight that is on the device.
    device_weights: Vec<usize>,
    /// The index of each weight that is in host memory.
    host_weights: Vec<usize>,
    /// The layers of the host, which keep their KV cache and state there.
    pub(crate) host: Option<Graph>,
}

impl OpenedModel {
    /// What is in host memory; `capacity` gives the sizes of a runner. Nothing if the device is the CPU.
    pub fn on_host(
        &self,
        backend: &dyn Backend,
        capacity: impl Fn(OnHost) -> Result<Capacity, Error>,
    ) -> Result<OnHost, Error> {
        self.on_host_within(backend.info().memory_free, backend, capacity)
    }

    /// The same if only `free` bytes of the device may be used.
    pub(crate) fn on_host_within(
        &self,
        free: u64,
        backend: &dyn Backend,
        capacity: impl Fn(OnHost) -> Result<Capacity, Error>,
    ) -> Result<OnHost, Error> {
        if !backend.runs_host_ops() {
            return Ok(OnHost::Nothing);
        }
        let available = self.model.graph.expert_layers();
        let experts = match self.experts {
            ExpertPlacement::Host(None) => Some(available),
            ExpertPlacement::Host(Some(requested)) if requested > available => {
                return Err(Error::ExpertLayers { name: self.name.clone(), requested, available });
            }
            ExpertPlacement::Host(layers) => layers,
            ExpertPlacement::Auto | ExpertPlacement::Device => None,
        };
        let experts = experts.filter(|layers| *layers > 0).map(OnHost::Experts);
        let chosen = self.first_layers_on_host()?;
        if let (Some(_), Some(OnHost::Layers(_))) = (experts, chosen) {
            return Err(Error::TwoPlacements(self.name.clone()));
        }
        if let Some(on_host) = experts.or(chosen) {
            return Ok(on_host);
        }
        // the fewest that must leave the device; of a model with experts, only these do
        let candidates: Vec<OnHost> = match self.experts {
            ExpertPlacement::Auto if available > 0 => (1..=available).map(OnHost::Experts).collect(),
            ExpertPlacement::Auto if self.gpu_layers == GpuLayers::Auto => {
                self.model.graph.layer_borders().into_iter().map(OnHost::Layers).collect()
            }
            _ => vec![],
        };
        let fits = |on_host: OnHost| -> Result<bool, Error> {
            // a model that just fits stays on its device, where all of its steps are far faster
            let spare = if on_host == OnHost::Nothing && available == 0 { 0 } else { free / SPARE };
            Ok(self.device_memory(backend, capacity(on_host)?, on_host)?.total() <= free - spare)
        };
        if candidates.is_empty() || fits(OnHost::Nothing)? {
            return Ok(OnHost::Nothing);
        }
        let (mut least, mut most) = (0, candidates.len() - 1);
        while least < most {
            let middle = (least + most) / 2;
            if fits(candidates[middle])? {
                most = middle;
            } else {
                least = middle + 1;
            }
        }
        Ok(candidates[least])
    }

    /// What the requested number of layers on the GPU leaves to the host: with the fewest more, if layers
    /// there cannot be separated. None if no number is requested.
    fn first_layers_on_host(&self) -> Result<Option<OnHost>, Error> {
        let graph = &self.model.graph;
        let on_gpu = match self.gpu_layers {
            GpuLayers::Auto | GpuLayers::All => return Ok(None),
            GpuLayers::Count(layers) => layers,
        };
        let least = (graph.layers() + 1).saturating_sub(on_gpu);
        if least == 0 {
            return Ok(None);
        }
        let borders = graph.layer_borders();
        let border = borders.iter().find(|border| **border >= least).or(borders.last());
        let border = border.filter(|_| on_gpu > 0);
        let name = || self.name.clone();
        border
            .map(|border| Some(OnHost::Layers(*border)))
            .ok_or_else(|| Error::GpuLayers { name: name(), requested: on_gpu })
    }

    /// The model in its two parts.
    pub(crate) fn divided(&self, on_host: OnHost) -> Result<Divided, Error> {
        self.divide(&self.model.graph, on_host)
    }

    fn divide(&self, graph: &Graph, on_host: OnHost) -> Result<Divided, Error> {
        let invalid = |e: tern_graph::GraphError| BackendError::Invalid(e.to_string());
        match on_host {
            OnHost::Nothing | OnHost::Experts(_) => {
                let layers = if let OnHost::Experts(layers) = on_host { layers } else { 0 };
                let split = graph.split_experts(layers, 0).map_err(invalid)?;
                let host_weights = split.pieces.into_iter().flat_map(|piece| piece.weights).collect();
                let (device, device_weights) = (split.device, split.device_weights);
                Ok(Divided { device, device_weights, host_weights, host: None })
            }
            OnHost::Layers(border) => {
                let mut parts = graph.split_layers(&[border]).map_err(invalid)?.into_iter();
                let (Some(host), Some(device)) = (parts.next(), parts.next()) else {
                    return Err(BackendError::Invalid("a model in one part".into()).into());
                };
                Ok(Divided {
                    device: device.graph,
                    device_weights: device.weights,
                    host_weights: host.weights,
                    host: Some(host.graph),
                })
            }
        }
    }

    /// Bytes of the weights and adapters on a device with this part in host memory.
    pub fn device_bytes(&self, on_host: OnHost) -> Result<u64, Error> {
        let divided = self.divided(on_host)?;
        Ok(self.bytes_of(&divided.device_weights).saturating_add(self.adapter_bytes(&divided)))
    }

    /// What it will take on a device and, with this part in host memory, there.
    pub fn memory(
        &self,
        backend: &dyn Backend,
        capacity: Capacity,
        on_host: OnHost,
    ) -> Result<MemoryPlan, Error> {
        let plan = self.device_memory(backend, capacity, on_host)?;
        if on_host == OnHost::Nothing {
            return Ok(plan);
        }
        let divided = self.divided(on_host)?;
        let weights = self.bytes_of(&divided.host_weights);
        let mut host = HostMemory { part: on_host, weights, kv: 0, state: 0, scratch: 0, all_layers: 0 };
        match &divided.host {
            None => host.all_layers = self.model.graph.expert_layers(),
            Some(graph) => {
                host.all_layers = self.model.graph.layers();
                host.weights += self.adapters.set.bytes() - plan.adapters;
                host.kv = self.kv_bytes_of(graph, &capacity);
                host.state = state_bytes_of(graph, &capacity);
                let cpu = Cpu::new(machine::threads(self.threads))?;
                // every token of a step passes on its row
                let scratch = |graph: &Graph| cpu.scratch(graph, capacity.max_tokens, capacity.max_tokens);
                host.scratch = scratch(graph).saturating_add(match self.adapted(on_host)? {
                    Some(Divided { host: Some(graph), .. }) => scratch(&graph),
                    _ => 0,
                });
            }
        }
        Ok(MemoryPlan { host: Some(host), ..plan })
    }

    /// What it will take on the device.
    fn device_memory(
        &self,
        backend: &dyn Backend,
        capacity: Capacity,
        on_host: OnHost,
    ) -> Result<MemoryPlan, Error> {
        let divided = self.divided(on_host)?;
        let scratch = |graph: &Graph| backend.scratch(graph, capacity.max_tokens, capacity.max_outputs);
        let adapted = self.adapted(on_host)?.map_or(0, |adapted| scratch(&adapted.device));
        Ok(MemoryPlan {
            weights: self.bytes_of(&divided.device_weights),
            adapters: self.adapter_bytes(&divided),
            tower: self.tower.as_ref().map_or(0, |tower| tower.weight_bytes()),
            tower_on_host: backend.runs_host_ops(), // a GPU
            kv: self.kv_bytes_of(&divided.device, &capacity),
            kv_tokens: capacity.kv_tokens(),
            window_tokens: capacity.window.map(|window| window.pages.saturating_mul(capacity.page_len)),
            state: state_bytes_of(&divided.device, &capacity),
            state_slots: capacity.state.map_or(0, |state| state.slots),
            scratch: scratch(&divided.device).saturating_add(adapted),
            host: None,
        })
    }

    /// The device, with the CPU for what is in host memory.
    pub(crate) fn with_host(
        &self,
        backend: Box<dyn Backend>,
        on_host: OnHost,
    ) -> Result<Box<dyn Backend>, Error> {
        let cpu = || -> Result<Box<dyn Backend>, Error> {
            Ok(Box::new(Cpu::beside_a_gpu(machine::threads(self.threads))?))
        };
        let graph = &self.model.graph;
        Ok(match on_host {
            OnHost::Nothing => backend,
            OnHost::Experts(layers) => Box::new(HostExperts::new(backend, cpu()?, graph, layers)?),
            OnHost::Layers(border) => Box::new(LayerGroup::new(vec![cpu()?, backend], graph, &[border])?),
        })
    }

    /// The same with `on_host` as what is requested.
    pub(crate) fn placed(self, on_host: OnHost) -> OpenedModel {
        let (experts, gpu_layers) = match on_host {
            OnHost::Nothing => (ExpertPlacement::Device, GpuLayers::All),
            OnHost::Experts(layers) => (ExpertPlacement::Host(Some(layers)), GpuLayers::All),
            OnHost::Layers(border) => {
                let on_gpu = self.model.graph.layers() + 1 - border;
                (ExpertPlacement::Device, GpuLayers::Count(on_gpu))
            }
        };
        OpenedModel { experts, gpu_layers, ..self }
    }

    /// The model with its adapters in two parts; none without adapters.
    fn adapted(&self, on_host: OnHost) -> Result<Option<Divided>, Error> {
        let set = &self.adapters.set;
        if set.count == 0 {
            return Ok(None);
        }
        let graph = self.model.graph.with_adapters(set.count, &set.linears);
        let graph = graph.map_err(|e| BackendError::Invalid(e.to_string()))?;
        self.divide(&graph, on_host).map(Some)
    }

    /// Bytes of the adapters on the device: those of linears that it has.
    fn adapter_bytes(&self, divided: &Divided) -> u64 {
        let set = &self.adapters.set;
        let Some(host) = &divided.host else { return set.bytes() };
        let is_on_host = |name: &str| host.weights.iter().any(|weight| weight.name == name);
        let pairs = set.linears.iter().zip(set.tensors.chunks(2));
        let on_device = pairs.filter(|(linear, _)| !is_on_host(&linear.weight));
        on_device.flat_map(|(_, pair)| pair).map(|tensor| tensor.data().len() as u64).sum()
    }

    fn bytes_of(&self, weights: &[usize]) -> u64 {
        weights.iter().map(|weight| self.tensors[*weight].bytes() as u64).sum()
    }
}

/// Bytes of the state of a part's recurrent layers.
pub(crate) fn state_bytes_of(graph: &Graph, capacity: &Capacity) -> u64 {
    capacity.state.map_or(0, |state| graph.state_bytes().saturating_mul(state.slots as u64))
}

/// The share of a device's free memory that is left for what is not planned, as 1 / `SPARE`: kernels, and
/// formats that take more than in the file.
const SPARE: u64 = 20;
