//! The towers of Qwen.

use super::Tower;
use crate::Value;

/// Tensors of Qwen 3 VL and of Qwen 3.5.
static TENSORS: &[(&str, &str)] = &[
    ("pos_embed", "v.position_embd"),
    ("blocks.*.norm1", "v.blk.*.ln1"),
    ("blocks.*.norm2", "v.blk.*.ln2"),
    ("blocks.*.attn.qkv", "v.blk.*.attn_qkv"),
    ("blocks.*.attn.proj", "v.blk.*.attn_out"),
    ("blocks.*.mlp.linear_fc1", "v.blk.*.ffn_up"),
    ("blocks.*.mlp.linear_fc2", "v.blk.*.ffn_down"),
    ("merger.norm", "v.post_ln"),
    ("merger.linear_fc1", "mm.0"),
    ("merger.linear_fc2", "mm.2"),
];

pub(super) static QWEN3_5: Tower = Tower {
    names: &["Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"],
    projector: "qwen3vl_merger",
    prefixes: &["model.visual.", "visual."],
    tensors: TENSORS,
    keys: &[
        ("depth", "block_count"),
        ("hidden_size", "embedding_length"),
        ("intermediate_size", "feed_forward_length"),
        ("num_heads", "attention.head_count"),
        ("patch_size", "patch_size"),
        ("spatial_merge_size", "spatial_merge_size"),
    ],
    prepare: |import, vision| {
        let patch = vision.usize("patch_size")?;
        match vision.optional_str("hidden_act")? {
            None | Some("gelu_pytorch_tanh") => {}
            Some(_) => return Err(vision.wrong("hidden_act", "gelu_pytorch_tanh")),
        }
        import.set("attention.layer_norm_epsilon", Value::Float(1e-6));
        let side = vision.usize("num_position_embeddings")?.isqrt();
        import.set("image_size", Value::Uint(side * patch));
        import.metadata.insert("clip.use_gelu", Value::Bool(true));
        import.put_patches("patch_embed.proj", patch)
    },
};
