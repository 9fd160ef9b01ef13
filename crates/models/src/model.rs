//! From a checkpoint to a graph with its weights, or an error that says why not.

use tern_formats::{Checkpoint, Metadata, shown};
use tern_graph::{Graph, HostTensor};

use crate::build::{Build, Source};
use crate::config::{Config, Keys};
use crate::tensor::host_tensor;
use crate::{Arch, ModelError};

/// Tensors that no graph needs.
const IGNORED: &[&str] = &[".attn_rot_embd", ".rotary_emb.inv_freq", ".input_scale"];

/// A model ready for any backend.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its architecture.
    pub arch: &'static Arch,
    /// Its sizes.
    pub config: Config,
    /// Its graph.
    pub graph: Graph,
    /// Tensors whose values are part of the graph.
    consumed: std::collections::HashSet<String>,
}

impl Model {
    /// Builds the graph from metadata and the names and shapes of the tensors.
    ///
    /// `context` is the longest sequence of this run; by default, the context the model was trained for.
    pub fn build(
        metadata: &Metadata,
        source: &dyn Source,
        context: Option<usize>,
    ) -> Result<Model, ModelError> {
        let arch = Arch::of(metadata)?;
        let table = source.shape("token_embd.weight");
        let [vocab, _] = table.ok_or_else(|| ModelError::Tensor("token_embd.weight is missing".into()))?;
        let keys = Keys { arch: arch.name, metadata };
        if keys.optional_usize("expert_count")?.is_some_and(|n| n > 0) {
            let text = format!("`{}`: mixtures of experts are not supported yet", keys.key("expert_count"));
            return Err(ModelError::Unsupported(text));
        }
        let mut build = Build::new(Config::read(keys, vocab, context)?, metadata, source);
        (arch.build)(&mut build)?;
        let (config, graph, consumed) = build.finish();
        Ok(Model { arch, config, graph, consumed })
    }

    /// Context length that a model was trained for.
    pub fn context_trained(metadata: &Metadata) -> Result<usize, ModelError> {
        Ok(Keys { arch: Arch::of(metadata)?.name, metadata }.usize("context_length")?)
    }

    /// Builds the graph of a checkpoint and checks every tensor against it.
    pub fn open(
        checkpoint: &Checkpoint,
        context: Option<usize>,
    ) -> Result<(Model, Vec<HostTensor>), ModelError> {
        let model = Model::build(&checkpoint.metadata, checkpoint, context)?;
        let tensors = model.tensors(checkpoint)?;
        Ok((model, tensors))
    }

    /// The graph's weights from a checkpoint, in order. Nothing is read yet: they are views of the file.
    pub fn tensors(&self, checkpoint: &Checkpoint) -> Result<Vec<HostTensor>, ModelError> {
        let known: std::collections::HashSet<&str> =
            self.graph.weights.iter().map(|w| w.name.as_str()).collect();
        let stray = checkpoint.tensors.keys().find(|name| {
            !known.contains(name.as_str())
                && !self.consumed.contains(*name)
                && !IGNORED.iter().any(|part| name.contains(part))
        });
        if let Some(name) = stray {
            let arch = self.arch.name;
            return Err(ModelError::Tensor(format!(
                "{}: unexpected tensor in a `{arch}` model: results without it would be wrong",
                shown(name)
            )));
        }
        let find = |w: &tern_graph::Weight| {
            let t = checkpoint.tensors.get(&w.name);
            let t = t.ok_or_else(|| ModelError::Tensor(format!("{} is missing", w.name)))?;
            let t = host_tensor(t)?;
            w.check_shape([t.rows(), t.cols()])?; // again in `Bindings::check`, but before anything is loaded
            Ok(t)
        };
        self.graph.weights.iter().map(find).collect()
    }
}
