//! What differs between the folders of architectures: which keys and tensors they have, and what
//! those are in GGUF terms.

use super::import::Import;
use crate::FormatError;

/// The folders of one architecture.
pub(crate) struct Family {
    /// The names in `architectures` of `config.json`.
    pub(crate) names: &'static [&'static str],
    /// `general.architecture`.
    pub(crate) arch: &'static str,
    /// Keys beyond [`COMMON_KEYS`].
    pub(crate) keys: &'static [&'static [Key]],
    /// Tensors beyond [`COMMON_TENSORS`]; the first rule of a name counts.
    pub(crate) tensors: &'static [&'static [Rule]],
    /// What tables cannot express; runs before tensors are renamed.
    pub(crate) prepare: fn(&mut Import) -> Result<(), FormatError>,
}

/// A key of `config.json` and its name under the architecture's prefix.
pub(crate) struct Key {
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
    pub(crate) kind: Kind,
}

/// The type of a key.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// A whole number that must exist.
    Uint,
    /// A whole number that may be missing.
    OptionalUint,
    /// A number that must exist.
    Float,
    /// A number that may be missing.
    OptionalFloat,
    /// A bool that may be missing.
    OptionalBool,
    /// A string that may be missing.
    OptionalText,
}

/// A tensor: its name, without `.weight` or `.bias` if it has either, with `*` for the number of an expert.
/// Names of layers begin after `layers.N.`, and become `blk.N.`.
pub(crate) struct Rule {
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
    pub(crate) fix: Fix,
}

/// How the weights of a tensor change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fix {
    /// Not at all.
    Keep,
    /// Rows of query heads: pairs are neighbours instead of halves of a head.
    QueryHeads,
    /// The same for key heads.
    KeyHeads,
    /// Norms that are stored without their one.
    PlusOne,
    /// Logarithms of decays.
    NegatedExp,
    /// A matrix of one column.
    Column,
}

pub(crate) const fn key(from: &'static str, to: &'static str, kind: Kind) -> Key {
    Key { from, to, kind }
}

pub(crate) const fn rule(from: &'static str, to: &'static str) -> Rule {
    Rule { from, to, fix: Fix::Keep }
}

pub(crate) const fn fixed(from: &'static str, to: &'static str, fix: Fix) -> Rule {
    Rule { from, to, fix }
}

/// Keys of nearly all decoders; a family may have another key for one of these names.
pub(crate) static COMMON_KEYS: &[Key] = &[
    key("max_position_embeddings", "context_length", Kind::Uint),
    key("hidden_size", "embedding_length", Kind::Uint),
    key("num_hidden_layers", "block_count", Kind::Uint),
    key("intermediate_size", "feed_forward_length", Kind::Uint),
    key("num_attention_heads", "attention.head_count", Kind::Uint),
    key("num_key_value_heads", "attention.head_count_kv", Kind::OptionalUint),
    key("head_dim", "attention.key_length", Kind::OptionalUint),
    key("head_dim", "attention.value_length", Kind::OptionalUint),
    key("rms_norm_eps", "attention.layer_norm_rms_epsilon", Kind::OptionalFloat),
    key("vocab_size", "vocab_size", Kind::OptionalUint),
];

/// Keys of experts.
pub(crate) static EXPERT_KEYS: &[Key] = &[
    key("num_experts", "expert_count", Kind::OptionalUint),
    key("num_local_experts", "expert_count", Kind::OptionalUint),
    key("n_routed_experts", "expert_count", Kind::OptionalUint),
    key("num_experts_per_tok", "expert_used_count", Kind::Uint),
    key("moe_intermediate_size", "expert_feed_forward_length", Kind::OptionalUint),
    key("n_shared_experts", "expert_shared_count", Kind::OptionalUint),
    key("shared_expert_intermediate_size", "expert_shared_feed_forward_length", Kind::OptionalUint),
    key("first_k_dense_replace", "leading_dense_block_count", Kind::OptionalUint),
    key("norm_topk_prob", "expert_weights_norm", Kind::OptionalBool),
    key("routed_scaling_factor", "expert_weights_scale", Kind::OptionalFloat),
    key("n_group", "expert_group_count", Kind::OptionalUint),
    key("topk_group", "expert_group_used_count", Kind::OptionalUint),
];

/// Tensors of nearly all decoders.
pub(crate) static COMMON_TENSORS: &[Rule] = &[
    rule("embed_tokens", "token_embd"),
    rule("norm", "output_norm"),
    rule("lm_head", "output"),
    rule("layers.input_layernorm", "attn_norm"),
    rule("layers.post_attention_layernorm", "ffn_norm"),
    rule("layers.self_attn.q_proj", "attn_q"),
    rule("layers.self_attn.k_proj", "attn_k"),
    rule("layers.self_attn.v_proj", "attn_v"),
    rule("layers.self_attn.o_proj", "attn_output"),
    rule("layers.self_attn.q_norm", "attn_q_norm"),
    rule("layers.self_attn.k_norm", "attn_k_norm"),
    rule("layers.mlp.gate_proj", "ffn_gate"),
    rule("layers.mlp.up_proj", "ffn_up"),
    rule("layers.mlp.down_proj", "ffn_down"),
    rule("layers.mlp.gate", "ffn_gate_inp"),
    rule("layers.mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    rule("layers.mlp.experts.*.gate_proj", "ffn_gate_exps"),
    rule("layers.mlp.experts.*.up_proj", "ffn_up_exps"),
    rule("layers.mlp.experts.*.down_proj", "ffn_down_exps"),
    rule("layers.mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    rule("layers.mlp.shared_experts.up_proj", "ffn_up_shexp"),
    rule("layers.mlp.shared_experts.down_proj", "ffn_down_shexp"),
    rule("layers.mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    rule("layers.mlp.shared_expert.up_proj", "ffn_up_shexp"),
    rule("layers.mlp.shared_expert.down_proj", "ffn_down_shexp"),
    rule("layers.mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
];

/// Heads whose pairs are neighbours in GGUF files and halves in safetensors.
pub(crate) static PAIRED_HEADS: [Rule; 2] = [
    fixed("layers.self_attn.q_proj", "attn_q", Fix::QueryHeads),
    fixed("layers.self_attn.k_proj", "attn_k", Fix::KeyHeads),
];
