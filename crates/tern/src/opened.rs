//! A model between its file and a device: the graph is built, the weights are mapped,
//! nothing is allocated yet.

use tern_engine::Capacity;
use tern_formats::Metadata;
use tern_graph::{Backend, Graph, KvCells, LazyTensor};
use tern_models::Model as Architecture;

use crate::{ExpertPlacement, GpuLayers, OpenedAdapters, OpenedTower};

/// A model with its weights mapped, not yet on a device. Clones share the weights.
#[derive(Clone)]
pub struct OpenedModel {
    /// As it was asked for.
    pub name: String,
    /// The keys of its file.
    pub metadata: Metadata,
    /// Its configuration and its graph.
    pub model: Architecture,
    /// Its weights, in the order of the graph's. They are made, if they are not mapped,
    /// when a device stores them.
    pub tensors: Vec<LazyTensor>,
    /// The type of cached keys and values, if one is requested; see [`OpenedModel::with_cells`].
    pub kv_cells: Option<KvCells>,
    /// Where its experts are.
    pub experts: ExpertPlacement,
    /// Layers on a GPU.
    pub gpu_layers: GpuLayers,
    /// CPU threads for what is in host memory; one per core if not set.
    pub threads: Option<usize>,
    /// Its adapters.
    pub adapters: OpenedAdapters,
    /// The tower of its images, if it sees.
    pub tower: Option<OpenedTower>,
}

impl OpenedModel {
    /// Tokens that one sequence may have.
    pub fn context(&self) -> usize {
        self.model.config.context
    }

    /// Bytes of all weights.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.bytes() as u64).sum()
    }

    /// Bytes of a KV cache.
    pub fn kv_bytes(&self, capacity: &Capacity) -> u64 {
        self.kv_bytes_of(&self.model.graph, capacity)
    }

    /// Bytes of the KV cache of a part of the model.
    pub(crate) fn kv_bytes_of(&self, graph: &Graph, capacity: &Capacity) -> u64 {
        capacity.kv_spec(graph, self.cells()).bytes().unwrap_or(u64::MAX)
    }

    /// Bytes of the keys and values that one token sees after `tokens` others.
    pub fn kv_bytes_seen(&self, tokens: usize) -> u64 {
        let layers = self.model.graph.kv.iter().zip(self.model.graph.windows());
        let seen = |window: Option<usize>| window.map_or(tokens, |window| window.min(tokens)) as u64;
        layers.map(|(layer, window)| layer.bytes_per_token(self.cells()) as u64 * seen(window)).sum()
    }

    /// The format that most of the weights are in.
    pub fn main_format(&self) -> &'static str {
        let mut counts: Vec<(&'static str, usize)> = vec![];
        for t in &self.tensors {
            match counts.iter_mut().find(|c| c.0 == t.quant().name) {
                Some(c) => c.1 += t.rows() * t.cols(),
                None => counts.push((t.quant().name, t.rows() * t.cols())),
            }
        }
        counts.iter().max_by_key(|c| c.1).map_or("no weights", |c| c.0)
    }

    /// The type of cached keys and values: the requested one, or halves.
    pub fn cells(&self) -> KvCells {
        self.kv_cells.unwrap_or_default()
    }

    /// The same with a type of keys and values for this device, unless one is requested: f32, if the device
    /// has it, of an encoder, whose pages are scratch, so that nothing is gained by rounding what they hold,
    /// and of a model with weights in f32, in which nothing else is rounded to halves. Rounded keys move the
    /// logits of routers by up to 1e-2 of their spread, and so choose other experts.
    pub fn with_cells(self, backend: &dyn Backend) -> OpenedModel {
        let is_exact = self.model.graph.sequence_rules().whole || self.main_format() == "F32";
        let exact = (is_exact && backend.kv_cells().contains(&KvCells::F32)).then_some(KvCells::F32);
        OpenedModel { kv_cells: Some(self.kv_cells.or(exact).unwrap_or_default()), ..self }
    }
}
