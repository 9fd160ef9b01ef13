//! Architectures: the name that files carry, how the graph is built, and what synthetic models of it need.

use tern_formats::Metadata;

use crate::{ALL, Build, ModelError, Shape};

/// One architecture.
#[derive(Debug)]
pub struct Arch {
    /// `general.architecture`.
    pub name: &'static str,
    /// Appends the whole model to the builder's graph.
    pub build: fn(&mut Build<'_>) -> Result<(), ModelError>,
    /// What a synthetic model of this architecture has beyond the common keys and tensors.
    pub synthetic: Synthetic,
}

/// What files of an architecture have beyond what all decoders have, for models made from a
/// [`Shape`](crate::Shape).
#[derive(Debug)]
pub struct Synthetic {
    /// The one whose tensors, keys and means it has too.
    pub extends: Option<&'static Synthetic>,
    /// Tensors per layer, without the `blk.N.` prefix.
    pub tensors: &'static [&'static str],
    /// Metadata keys, without the architecture's prefix.
    pub keys: &'static [(&'static str, Number)],
    /// The values of a tensor that is part of the graph itself, by its name.
    pub constants: fn(&str, &Shape) -> Option<Vec<f32>>,
    /// Mean of some vectors per layer, those of norms mostly, which is 1 otherwise.
    pub means: &'static [(&'static str, f32)],
    /// Its norms are layer norms.
    pub has_layer_norms: bool,
    /// Size of the embeddings, and so of the logits: with the factors of the architecture,
    /// layers must still matter.
    pub embedding_gain: f32,
    /// Columns of the blocks in which matrices are rotated, if the file has rotated ones.
    pub rotated: Option<usize>,
}

/// The value of a metadata key.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// An integer.
    Integer(u64),
    /// A float.
    Float(f64),
    /// Several integers.
    Integers(&'static [i64]),
    /// A bool.
    Bool(bool),
    /// A string.
    Text(&'static str),
    /// One bool per layer: this pattern, repeated.
    PerLayer(&'static [bool]),
}

impl Synthetic {
    /// Gate and up are two tensors, and q, k and v are three, without biases.
    pub(crate) const PLAIN: Synthetic = Synthetic {
        extends: None,
        tensors: &["ffn_gate.weight"],
        keys: &[],
        constants: |_, _| None,
        means: &[],
        has_layer_norms: false,
        embedding_gain: 3.0, // peaked distributions, as trained models have
        rotated: None,
    };

    /// Plain, with biases on q, k and v.
    pub(crate) const BIASED_HEADS: Synthetic = Synthetic {
        tensors: &["ffn_gate.weight", "attn_q.bias", "attn_k.bias", "attn_v.bias"],
        ..Synthetic::PLAIN
    };

    /// Itself, then the one that it extends, and so on.
    fn chain(&self) -> impl Iterator<Item = &Synthetic> {
        std::iter::successors(Some(self), |synthetic| synthetic.extends)
    }

    /// Whether files have this tensor, without the `blk.N.` prefix.
    pub(crate) fn has_tensor(&self, part: &str) -> bool {
        self.chain().any(|synthetic| synthetic.tensors.contains(&part))
    }

    /// All keys; later ones replace equal ones before them.
    pub(crate) fn all_keys(&self) -> impl Iterator<Item = (&'static str, Number)> {
        let mut chain: Vec<_> = self.chain().map(|synthetic| synthetic.keys).collect();
        chain.reverse();
        chain.into_iter().flatten().copied()
    }

    /// The mean of a vector, by the name of its tensor.
    pub(crate) fn mean(&self, name: &str) -> f32 {
        let mut means = self.chain().flat_map(|synthetic| synthetic.means);
        means.find(|(part, _)| name.ends_with(part)).map_or(1.0, |(_, mean)| *mean)
    }
}

/// Names are unique.
impl PartialEq for Arch {
    fn eq(&self, other: &Arch) -> bool {
        self.name == other.name
    }
}

impl Arch {
    /// The architecture of this name.
    pub fn by_name(name: &str) -> Option<&'static Arch> {
        ALL.iter().copied().find(|arch| arch.name == name)
    }

    /// The architecture that metadata names.
    pub fn of(metadata: &Metadata) -> Result<&'static Arch, ModelError> {
        if metadata.optional_str("general.type")? == Some("adapter") {
            return Err(ModelError::IsAdapter);
        }
        let name = metadata.str("general.architecture")?;
        Arch::by_name(name).ok_or_else(|| ModelError::Architecture(name.into()))
    }
}
