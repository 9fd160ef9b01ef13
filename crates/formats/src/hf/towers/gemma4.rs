//! The towers of Gemma 4.

use super::super::import::Import;
use super::{Pixels, Prefix, Tensors, Tower};
use crate::{FormatError, Value};

static TENSORS: Tensors = &[
    ("std_bias", "v.std_bias"),
    ("std_scale", "v.std_scale"),
    ("encoder.layers.*.input_layernorm", "v.blk.*.ln1"),
    ("encoder.layers.*.post_attention_layernorm", "v.blk.*.attn_post_norm"),
    ("encoder.layers.*.pre_feedforward_layernorm", "v.blk.*.ln2"),
    ("encoder.layers.*.post_feedforward_layernorm", "v.blk.*.ffn_post_norm"),
    ("encoder.layers.*.self_attn.q_norm", "v.blk.*.attn_q_norm"),
    ("encoder.layers.*.self_attn.k_norm", "v.blk.*.attn_k_norm"),
    ("projector.embedding_projection", "mm.input_projection"),
];

/// Linears that may have bounds.
static LINEARS: Tensors = &[
    ("encoder.layers.*.self_attn.q_proj", "v.blk.*.attn_q"),
    ("encoder.layers.*.self_attn.k_proj", "v.blk.*.attn_k"),
    ("encoder.layers.*.self_attn.v_proj", "v.blk.*.attn_v"),
    ("encoder.layers.*.self_attn.o_proj", "v.blk.*.attn_out"),
    ("encoder.layers.*.mlp.gate_proj", "v.blk.*.ffn_gate"),
    ("encoder.layers.*.mlp.up_proj", "v.blk.*.ffn_up"),
    ("encoder.layers.*.mlp.down_proj", "v.blk.*.ffn_down"),
];

/// What linears consist of.
const PARTS: [(&str, &str); 5] = [
    (".linear.weight", ".weight"),
    (".input_min", ".input_min"),
    (".input_max", ".input_max"),
    (".output_min", ".output_min"),
    (".output_max", ".output_max"),
];

static PREFIXES: &[Prefix] = &[("vision_tower.", ""), ("embed_vision.", "projector.")];

pub(super) static GEMMA4: Tower = Tower {
    names: &["Gemma4ForConditionalGeneration"],
    projector: "gemma4v",
    prefixes: PREFIXES,
    tensors: &[TENSORS],
    keys: &[&[
        ("num_hidden_layers", "block_count"),
        ("hidden_size", "embedding_length"),
        ("intermediate_size", "feed_forward_length"),
        ("num_attention_heads", "attention.head_count"),
        ("num_key_value_heads", "attention.head_count_kv"),
        ("head_dim", "attention.head_dim"),
        ("patch_size", "patch_size"),
        ("pooling_kernel_size", "projector.scale_factor"),
    ]],
    prepare: |import, vision, pixels| {
        import.set_function(vision, "hidden_activation", &[("gelu_pytorch_tanh", "use_gelu")])?;
        import.set_eps(vision, "rms_norm_eps", 1e-6)?;
        let layers = vision.usize("num_hidden_layers")?;
        for layer in 0..layers.min(1 << 12) {
            for ((from, to), (part, end)) in LINEARS.iter().flat_map(|l| PARTS.iter().map(move |p| (l, p))) {
                let numbered = |name: &str| name.replace('*', &layer.to_string());
                if let Some(matrix) = import.take_optional(&format!("{}{part}", numbered(from))) {
                    let matrix = if matrix.shape.is_empty() { matrix.reshaped(vec![1]) } else { matrix };
                    import.put(format!("{}{end}", numbered(to)), matrix)?;
                }
            }
        }
        let patch = vision.usize("patch_size")?;
        import.set_budget(pixels, patch.saturating_mul(vision.usize("pooling_kernel_size")?))?;
        let table = import.take("patch_embedder.position_embedding_table")?;
        import.put("v.position_embd.weight".into(), table)?;
        import.put_flat_patches("patch_embedder.input_proj", patch)
    },
};

impl Import {
    /// How many squares of pixels an image has.
    fn set_budget(&mut self, pixels: &Pixels, side: u64) -> Result<(), FormatError> {
        if let Some(tokens) = pixels.optional_usize("max_soft_tokens")? {
            self.set("image_max_pixels", Value::Uint(tokens.saturating_mul(side).saturating_mul(side)));
        }
        for (key, value) in [("image_mean", 0.0), ("image_std", 1.0)] {
            if self.metadata.get(&format!("{}.{key}", super::KEYS)).is_none() {
                self.set(key, Value::Floats(vec![value; 3]));
            }
        }
        Ok(())
    }
}
