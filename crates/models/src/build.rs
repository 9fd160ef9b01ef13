//! The builder that an architecture uses for its graph: tensors by name, with checked shapes.

use std::collections::HashSet;

use tern_formats::{Checkpoint, Metadata, MetadataError};
use tern_graph::{Function, Graph, Pooling, Val, WeightId};

use crate::config::{Config, Keys};
use crate::tensor::host_tensor;
use crate::{ModelError, Vectors};

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
    /// Tensors whose values are part of the graph.
    pub(crate) consumed: HashSet<String>,
    /// The architecture read the keys of experts.
    pub(crate) reads_experts: bool,
    /// The architecture read sizes that differ from layer to layer.
    pub(crate) reads_layers: bool,
    /// Layers of the file from here on are not run.
    pub(crate) skipped_from: Option<usize>,
    /// The pooling of an encoder, if it is not the file's.
    pub(crate) pooling: Option<Pooling>,
    /// The model computes these instead of logits.
    pub(crate) vectors: Option<Vectors>,
    /// Rows of images take the place of tokens.
    pub(crate) sees: bool,
    /// Norms are layer norms, with biases if the source has them.
    pub(crate) layer_norms: bool,
}

impl<'a> Build<'a> {
    pub(crate) fn new(config: Config, metadata: &'a Metadata, source: &'a dyn Source) -> Build<'a> {
        Build {
            graph: Graph::new(),
            config,
            metadata,
            source,
            consumed: HashSet::new(),
            reads_experts: false,
            reads_layers: false,
            skipped_from: None,
            pooling: None,
            vectors: None,
            sees: false,
            layer_norms: false,
        }
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

    /// Rows of the table of token types.
    pub(crate) fn token_types(&self) -> Result<usize, ModelError> {
        Ok(self.metadata.usize("tokenizer.ggml.token_type_count")?)
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
        let x = self.graph.embed(table, scale);
        if self.sees { Ok(self.graph.image_rows(x, 0, false)?) } else { Ok(x) }
    }

    /// The final norm and the head; a file without `output.weight` uses the embedding table again, and one
    /// with a classifier has that instead.
    pub(crate) fn head(&mut self, x: Val) -> Result<Val, ModelError> {
        let x = self.graph.outputs(x);
        let x = self.last_norm(x)?;
        if self.has("cls.output.weight") {
            self.classifier(x, Pooling::Last, Function::Tanh)?;
            return Ok(self.graph.val(self.graph.nodes.len() - 1));
        }
        let name = if self.has("output.weight") { "output" } else { "token_embd" };
        self.linear(x, name, self.config.vocab)
    }

    /// The norm after the layers. Files of LFM2 have another name for it.
    pub(crate) fn last_norm(&mut self, x: Val) -> Result<Val, ModelError> {
        let norm = if self.has("token_embd_norm.weight") { "token_embd_norm" } else { "output_norm" };
        self.norm(x, norm, self.config.width)
    }

    /// The architecture's kind of norm over groups of `len` columns. Files of Falcon H1 have a tensor without
    /// the suffix.
    pub(crate) fn norm(&mut self, x: Val, name: &str, len: usize) -> Result<Val, ModelError> {
        if self.layer_norms {
            return self.layer_norm(x, name, len);
        }
        self.rms_norm(x, name, len, self.config.eps)
    }

    /// A norm of the root mean square with this epsilon.
    pub(crate) fn rms_norm(&mut self, x: Val, name: &str, len: usize, eps: f32) -> Result<Val, ModelError> {
        let tensor = if self.has(name) { name.into() } else { format!("{name}.weight") };
        let weight = self.graph.vector(tensor, len)?;
        Ok(self.graph.norm(x, weight, eps)?)
    }

    /// A linear, with `.bias` and `.scale` if the source has them. `[.., rows]`
    pub(crate) fn linear(&mut self, x: Val, name: &str, rows: usize) -> Result<Val, ModelError> {
        let weight = self.graph.matrix(format!("{name}.weight"), rows, self.graph.width(x))?;
        let scale = self.optional_vector(format!("{name}.scale"), 1)?;
        let bias = self.optional_vector(format!("{name}.bias"), rows)?;
        Ok(self.graph.linear_with(x, weight, scale, bias)?)
    }

    /// A vector, if the source has it.
    pub(crate) fn optional_vector(
        &mut self,
        name: String,
        len: usize,
    ) -> Result<Option<WeightId>, ModelError> {
        if !self.has(&name) {
            return Ok(None);
        }
        Ok(Some(self.graph.vector(name, len)?))
    }

    /// The error of a missing key.
    pub(crate) fn missing(&self, name: &str) -> ModelError {
        ModelError::Metadata(MetadataError::Missing(self.keys().key(name)))
    }

    /// Omits the last layers of the file, which draft the next tokens.
    pub(crate) fn skip_drafting_layers(&mut self) -> Result<(), ModelError> {
        let drafting = self.keys().optional_usize("nextn_predict_layers")?.unwrap_or(0);
        let all = self.config.layers;
        let Some(layers) = all.checked_sub(drafting).filter(|layers| *layers > 0) else {
            let (key, want) =
                (self.keys().key("nextn_predict_layers"), format!("less than the {all} layers"));
            return Err(ModelError::value(key, drafting, want));
        };
        self.skipped_from = (drafting > 0).then_some(layers);
        self.config.layers = layers;
        Ok(())
    }
}
