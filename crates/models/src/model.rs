//! From a checkpoint to a graph with its weights, or an error that says why not.

use tern_formats::{Checkpoint, Metadata};
use tern_graph::{Graph, LazyTensor, Op, Pooling, Weight};

use crate::build::{Build, Source};
use crate::config::{Config, Keys};
use crate::prism;
use crate::separate_experts::{self, ExpertName};
use crate::tensor::lazy_tensor;
use crate::{Arch, ModelError, Vectors};

/// Tensors that no graph needs.
const IGNORED: &[&str] = &[".attn_rot_embd", ".rotary_emb.inv_freq", ".input_scale"];

/// What is not a matter of the files, and changes the graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variant {
    /// The pooling of an encoder, if it is not the file's.
    pub pooling: Option<Pooling>,
    /// Rows of images take the place of tokens.
    pub sees: bool,
}

/// A model ready for any backend.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its architecture.
    pub arch: &'static Arch,
    /// Its sizes.
    pub config: Config,
    /// Its graph.
    pub graph: Graph,
    /// What it computes instead of logits, if it does.
    pub vectors: Option<Vectors>,
    /// Tensors whose values are part of the graph.
    consumed: std::collections::HashSet<String>,
    /// Layers of the file from here on are not run.
    skipped_from: Option<usize>,
}

impl Model {
    /// Whether tokens choose among experts.
    pub fn has_experts(&self) -> bool {
        self.graph.nodes.iter().any(|node| matches!(node.op, Op::Route { .. }))
    }

    /// Whether layers have matrices of state that tokens change.
    pub fn has_recurrent_layers(&self) -> bool {
        self.graph.nodes.iter().any(|node| matches!(node.op, Op::Delta { .. } | Op::Scan { .. }))
    }

    /// Builds the graph from metadata and the names and shapes of the tensors.
    ///
    /// `context` is the longest sequence of this run; by default, the context the model was trained for.
    pub fn build(
        metadata: &Metadata,
        source: &dyn Source,
        context: Option<usize>,
    ) -> Result<Model, ModelError> {
        Model::build_as(metadata, source, context, &Variant::default())
    }

    /// The same in a variant.
    fn build_as(
        metadata: &Metadata,
        source: &dyn Source,
        context: Option<usize>,
        variant: &Variant,
    ) -> Result<Model, ModelError> {
        let arch = Arch::of(metadata)?;
        let table = source.shape("token_embd.weight");
        let [vocab, _] = table.ok_or_else(|| ModelError::MissingTensor("token_embd.weight".into()))?;
        let keys = Keys { arch: arch.name, metadata };
        let experts = keys.optional_usize("expert_count")?.unwrap_or(0);
        let mut build = Build::new(Config::read(keys, vocab, context)?, metadata, source);
        (build.pooling, build.sees) = (variant.pooling, variant.sees);
        prism::rotate_weights(&mut build, metadata)?;
        (arch.build)(&mut build)?;
        if let Some(name) = build.graph.unread_rotations().next() {
            return Err(ModelError::UnreadRotation { name: name.into(), arch: arch.name });
        }
        let Build { config, mut graph, consumed, reads_experts, reads_layers, skipped_from, vectors, .. } =
            build;
        graph.vectors = vectors.is_some();
        if !reads_layers {
            keys.check_alike()?;
        }
        if experts > 0 && !reads_experts {
            let want = format!("0, experts of `{}` models are not supported", arch.name);
            return Err(ModelError::value(keys.key("expert_count"), experts, want));
        }
        if keys.optional_bool("attention.causal")? == Some(false) && !graph.sequence_rules().whole {
            return Err(ModelError::NotCausal { key: keys.key("attention.causal"), arch: arch.name });
        }
        Ok(Model { arch, config, graph, vectors, consumed, skipped_from })
    }

    /// Context length that a model was trained for.
    pub fn context_trained(metadata: &Metadata) -> Result<usize, ModelError> {
        Ok(Keys { arch: Arch::of(metadata)?.name, metadata }.usize("context_length")?)
    }

    /// Tensors whose values are part of the graph, in order of their names.
    pub(crate) fn constants(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.consumed.iter().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Builds the graph of a checkpoint and checks every tensor against it.
    pub fn open(
        checkpoint: &Checkpoint,
        context: Option<usize>,
    ) -> Result<(Model, Vec<LazyTensor>), ModelError> {
        Model::open_as(checkpoint, context, &Variant::default())
    }

    /// The same with another pooling than the file's, if it is an encoder: the pooling is part of its graph.
    pub fn open_pooled(
        checkpoint: &Checkpoint,
        context: Option<usize>,
        pooling: Option<Pooling>,
    ) -> Result<(Model, Vec<LazyTensor>), ModelError> {
        Model::open_as(checkpoint, context, &Variant { pooling, ..Variant::default() })
    }

    /// The same in a variant.
    pub fn open_as(
        checkpoint: &Checkpoint,
        context: Option<usize>,
        variant: &Variant,
    ) -> Result<(Model, Vec<LazyTensor>), ModelError> {
        let model = Model::build_as(&checkpoint.metadata, checkpoint, context, variant)?;
        let tensors = model.tensors(checkpoint)?;
        Ok((model, tensors))
    }

    /// The graph's weights from a checkpoint, in order. Nothing is read yet: they are views of the file, or
    /// are made when they are stored.
    pub fn tensors(&self, checkpoint: &Checkpoint) -> Result<Vec<LazyTensor>, ModelError> {
        let known: std::collections::HashSet<&str> =
            self.graph.weights.iter().map(|w| w.name.as_str()).collect();
        let stray = checkpoint.tensors.keys().find(|name| {
            !known.contains(name.as_str())
                && !self.consumed.contains(*name)
                && !self.is_skipped(name)
                && !self.is_expert(name, checkpoint)
                && !IGNORED.iter().any(|part| name.contains(part))
        });
        if let Some(name) = stray {
            return Err(ModelError::UnexpectedTensor { name: name.clone(), arch: self.arch.name });
        }
        let find = |w: &Weight| {
            let Some(t) = checkpoint.tensors.get(&w.name) else {
                let stacked = separate_experts::stacked(checkpoint, w)?;
                return stacked.ok_or_else(|| ModelError::MissingTensor(w.name.clone()));
            };
            let dims = &t.dims;
            let t = lazy_tensor(t)?;
            check_experts(w, dims)?;
            w.check_shape([t.rows(), t.cols()])?; // again in `Bindings::check`, but before anything is loaded
            Ok(t)
        };
        self.graph.weights.iter().map(find).collect()
    }

    /// Whether a tensor is one expert of a weight, in a file without the tensor of all of them.
    fn is_expert(&self, name: &str, checkpoint: &Checkpoint) -> bool {
        let of = |ExpertName { all, expert }: ExpertName| {
            let of = |w: &Weight| w.name == all && expert < w.experts;
            !checkpoint.tensors.contains_key(&all) && self.graph.weights.iter().any(of)
        };
        ExpertName::parse(name).is_some_and(of)
    }

    /// Whether a tensor is of a layer that is not run.
    fn is_skipped(&self, name: &str) -> bool {
        let layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')?.0.parse::<usize>().ok());
        self.skipped_from.is_some_and(|first| layer.is_some_and(|layer| layer >= first))
    }
}

/// Refuses matrices of experts of another number or shape.
fn check_experts(w: &Weight, dims: &[u64]) -> Result<(), ModelError> {
    let want = [w.experts, w.rows / w.experts, w.cols].map(|n| n as u64);
    let file: Vec<u64> = dims.iter().rev().copied().collect();
    if w.experts == 1 || file == want {
        return Ok(());
    }
    Err(ModelError::shape(&w.name, w.shape(), format!("{file:?}")))
}
