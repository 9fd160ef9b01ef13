//! What differs between the attentions of decoders: norms, rotations, windows, shapes of
//! heads, latent keys and values.

use tern_graph::{ImageOrder, RopeStyle, Temperature};

/// How queries and keys are normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QkNorm {
    /// Not at all.
    None,
    /// Each head, before it is rotated.
    Heads,
    /// Each head, after it is rotated.
    RotatedHeads,
    /// All heads together, before they are rotated.
    Rows,
}

/// What differs between the attentions of decoders.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionStyle {
    /// How heads are rotated.
    pub(crate) rope: RopeStyle,
    /// The rotary table of this layer; `None` if heads are not rotated.
    pub(crate) table: Option<usize>,
    /// How queries and keys are normalised.
    pub(crate) qk_norm: QkNorm,
    /// Factor on the scores.
    pub(crate) scale: f32,
    /// A query sees no keys after it.
    pub(crate) causal: bool,
    /// Keys visible to a query, itself included.
    pub(crate) window: Option<usize>,
    /// How scores grow with the position.
    pub(crate) temperature: Option<Temperature>,
    /// Each head has a sink.
    pub(crate) sinks: bool,
    /// A norm of the result of all heads.
    pub(crate) sub_norm: Option<&'static str>,
    /// Keys and values are latent.
    pub(crate) latent: Option<Latent>,
    /// The heads of this layer, if layers differ.
    pub(crate) shape: Option<HeadShape>,
    /// Values are normalised, without weights; a layer without a matrix of values has its
    /// keys, before their norm.
    pub(crate) norms_values: bool,
    /// The KV layer of an earlier layer, if this one has no keys and values.
    pub(crate) kv_of: Option<usize>,
    /// What gates the results of the heads.
    pub(crate) gate: Option<Gate>,
    /// Factor on the values.
    pub(crate) value_scale: f32,
    /// What tokens of an image see of it.
    pub(crate) images: ImageOrder,
}

/// What gates the results of the heads, through a sigmoid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// As many columns after each head of queries.
    Queries,
    /// The matrix `attn_gate`, with a row per column of the results.
    Columns,
}

/// The heads of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadShape {
    /// Query heads.
    pub(crate) heads: usize,
    /// Key and value heads.
    pub(crate) kv_heads: usize,
    /// Columns of a query or key head.
    pub(crate) head_dim: usize,
    /// Columns of a value head.
    pub(crate) v_dim: usize,
}

/// Sizes of latent attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latent {
    /// Columns of the row that keys and values share.
    pub(crate) rank: usize,
    /// Columns of a query head that are not rotated, before the rotated ones.
    pub(crate) plain: usize,
    /// Columns of a value head.
    pub(crate) v_dim: usize,
    /// Columns between the two matrices of queries, if there are two.
    pub(crate) q_rank: Option<usize>,
}

impl AttentionStyle {
    /// Full attention.
    pub(crate) fn full(rope: RopeStyle, table: usize, qk_norm: QkNorm, scale: f32) -> AttentionStyle {
        AttentionStyle {
            rope,
            table: Some(table),
            qk_norm,
            scale,
            causal: true,
            window: None,
            temperature: None,
            sinks: false,
            sub_norm: None,
            latent: None,
            shape: None,
            norms_values: false,
            kv_of: None,
            gate: None,
            value_scale: 1.0,
            images: ImageOrder::Sequence,
        }
    }
}
