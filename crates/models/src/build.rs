//! The builder that an architecture uses for its graph: tensors by name, with checked shapes.

use std::collections::HashSet;

use tern_formats::{Checkpoint, Metadata};
use tern_graph::{Graph, Val, WeightId};

use crate::ModelError;
use crate::config::{Config, Keys};
use crate::tensor::host_tensor;

/// Where weights come from: a checkpoint, or a shape that has no weights yet.
pub trait Source {
    /// `[rows, cols]` of a tensor, if it exists.
    fn shape(&self, name: &str) -> Option<[usize; 2]>;
    /// The values of a small tensor.
    fn values(&self, name: &str) -> Option<Vec<f32>>;
}

impl Source for Checkpoint {
    fn shape(&self, name: &str) -> Option<[usize; 2]> {
        let t = self.tensors.get(name)?;
        Some([t.rows(), t.cols()])
    }

    fn values(&self, name: &str) -> Option<Vec<f32>> {
        host_tensor(self.tensors.get(name)?).ok().map(|t| t.to_f32())
    }
}

/// A graph under construction.
pub struct Build<'a> {
    /// The graph so far.
    pub graph: Graph,
    /// The model's sizes.
    pub config: Config,
    metadata: &'a Metadata,
    source: &'a dyn Source,
    consumed: HashSet<String>,
}

impl<'a> Build<'a> {
    pub(crate) fn new(config: Config, metadata: &'a Metadata, source: &'a dyn Source) -> Build<'a> {
        Build { graph: Graph::new(), config, metadata, source, consumed: HashSet::new() }
    }

    /// The metadata under the architecture's prefix.
    pub(crate) fn keys(&self) -> Keys<'_> {
        Keys { arch: &self.config.arch, metadata: self.metadata }
    }

    /// Whether the source has a tensor.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.source.shape(name).is_some()
    }

    /// Rows of a tensor, if the source has it.
    pub(crate) fn rows(&self, name: &str) -> Option<usize> {
        self.source.shape(name).map(|[rows, _]| rows)
    }

    /// The values of a small tensor that goes into the graph itself (rope factors).
    pub(crate) fn values(&mut self, name: &str) -> Option<Vec<f32>> {
        let values = self.source.values(name)?;
        self.consumed.insert(name.into());
        Some(values)
    }

    /// Token embeddings times `scale`. `[tokens, width]`
    pub(crate) fn embed(&mut self, scale: f32) -> Result<Val, ModelError> {
        let (vocab, width) = (self.config.vocab, self.config.width);
        let table = self.graph.matrix("token_embd.weight", vocab, width)?;
        Ok(self.graph.embed(table, scale))
    }

    /// The final norm and the head; a file without `output.weight` uses the embedding table again.
    pub(crate) fn head(&mut self, x: Val) -> Result<Val, ModelError> {
        let x = self.graph.outputs(x);
        let x = self.norm(x, "output_norm", self.config.width)?;
        let name = if self.has("output.weight") { "output" } else { "token_embd" };
        self.linear(x, name, self.config.vocab)
    }

    /// RMS norm over groups of `len` columns.
    pub(crate) fn norm(&mut self, x: Val, name: &str, len: usize) -> Result<Val, ModelError> {
        let weight = self.graph.vector(format!("{name}.weight"), len)?;
        Ok(self.graph.norm(x, weight, self.config.eps)?)
    }

    /// A linear, with `.bias` and `.scale` if the source has them. `[.., rows]`
    pub(crate) fn linear(&mut self, x: Val, name: &str, rows: usize) -> Result<Val, ModelError> {
        let weight = self.graph.matrix(format!("{name}.weight"), rows, self.graph.width(x))?;
        let scale = self.optional_vector(format!("{name}.scale"), 1)?;
        let bias = self.optional_vector(format!("{name}.bias"), rows)?;
        Ok(self.graph.linear_with(x, weight, scale, bias)?)
    }

    fn optional_vector(&mut self, name: String, len: usize) -> Result<Option<WeightId>, ModelError> {
        if !self.has(&name) {
            return Ok(None);
        }
        Ok(Some(self.graph.vector(name, len)?))
    }

    /// The graph, and the names of tensors whose values are part of it.
    pub(crate) fn finish(self) -> (Config, Graph, HashSet<String>) {
        (self.config, self.graph, self.consumed)
    }
}
