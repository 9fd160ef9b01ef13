//! The towers of Qwen.

use super::super::config::Config;
use super::super::import::Import;
use super::{Pixels, Prefix, Tensors, Tower};
use crate::{FormatError, Value};

/// Tensors of Qwen 3 VL and of Qwen 3.5.
static TENSORS: Tensors = &[
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

static PREFIXES: &[Prefix] = &[("visual.", "")];

static KEYS: &[(&str, &str)] = &[
    ("depth", "block_count"),
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("num_heads", "attention.head_count"),
    ("patch_size", "patch_size"),
    ("spatial_merge_size", "spatial_merge_size"),
];

pub(super) static QWEN3_5: Tower = Tower {
    names: &[
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
    ],
    projector: "qwen3vl_merger",
    prefixes: PREFIXES,
    tensors: &[TENSORS],
    keys: &[KEYS],
    prepare: |import, vision, pixels| {
        import.set_function(vision, "hidden_act", &[("gelu_pytorch_tanh", "use_gelu")])?;
        let patch = vision.usize("patch_size")?;
        let side = vision.usize("num_position_embeddings")?.isqrt();
        import.set("image_size", Value::Uint(side * patch));
        import.features(vision)?;
        import.qwen(vision, pixels)
    },
};

pub(super) static QWEN2_5VL: Tower = Tower {
    names: &["Qwen2_5_VLForConditionalGeneration"],
    projector: "qwen2.5vl_merger",
    prefixes: PREFIXES,
    tensors: &[&[
        ("blocks.*.norm1", "v.blk.*.ln1"),
        ("blocks.*.norm2", "v.blk.*.ln2"),
        ("blocks.*.attn.qkv", "v.blk.*.attn_qkv"),
        ("blocks.*.attn.proj", "v.blk.*.attn_out"),
        ("blocks.*.mlp.gate_proj", "v.blk.*.ffn_gate"),
        ("blocks.*.mlp.up_proj", "v.blk.*.ffn_up"),
        ("blocks.*.mlp.down_proj", "v.blk.*.ffn_down"),
        ("merger.ln_q", "v.post_ln"),
        ("merger.mlp.0", "mm.0"),
        ("merger.mlp.2", "mm.2"),
    ]],
    keys: &[KEYS],
    prepare: |import, vision, pixels| {
        import.set_function(vision, "hidden_act", &[("silu", "use_silu")])?;
        let whole = vision.optional_usizes("fullatt_block_indexes")?.unwrap_or_default();
        let run = whole.first().map_or(1, |first| first.saturating_add(1));
        let (layers, wrong) = (vision.usize("depth")?, "the last of each run of layers of one length");
        if whole != (0..layers.min(1 << 12)).filter(|layer| (layer + 1) % run == 0).collect::<Vec<_>>() {
            return Err(vision.wrong("fullatt_block_indexes", wrong));
        }
        import.set("n_wa_pattern", Value::Uint(run));
        import.set("window_size", Value::Uint(vision.usize("window_size")?));
        import.set("image_size", Value::Uint(vision.usize("window_size")?)); // no positions are learned
        import.qwen(vision, pixels)
    },
};

impl Import {
    /// What all of them have.
    fn qwen(&mut self, vision: &Config, pixels: &Pixels) -> Result<(), FormatError> {
        self.set("attention.layer_norm_epsilon", Value::Float(1e-6));
        // the sizes of Qwen are areas, despite their names
        for (names, to) in [
            (["shortest_edge", "min_pixels"], "image_min_pixels"),
            (["longest_edge", "max_pixels"], "image_max_pixels"),
        ] {
            let named = pixels.optional_usize(names[1])?;
            if let Some(area) = named.map_or_else(|| pixels.size(names[0]), |area| Ok(Some(area)))? {
                self.set(to, Value::Uint(area));
            }
        }
        self.put_patches("patch_embed.proj", vision.usize("patch_size")?)
    }

    /// Features of inner layers, which are numbered by layer in GGUF files.
    fn features(&mut self, vision: &Config) -> Result<(), FormatError> {
        let Some(layers) = vision.optional_usizes("deepstack_visual_indexes")?.filter(|l| !l.is_empty())
        else {
            return Ok(());
        };
        let count = vision.usize("depth")?;
        if layers.iter().any(|layer| *layer >= count) || layers.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(vision.wrong("deepstack_visual_indexes", &format!("layers below {count} in order")));
        }
        let deep = (0..count.min(1 << 12)).map(|layer| layers.contains(&layer)).collect();
        self.set("is_deepstack_layers", Value::Bools(deep));
        for (at, layer) in layers.iter().enumerate() {
            for (from, to) in [("norm", "norm"), ("linear_fc1", "fc1"), ("linear_fc2", "fc2")] {
                for part in ["weight", "bias"] {
                    let matrix = self.take(&format!("deepstack_merger_list.{at}.{from}.{part}"))?;
                    self.put(format!("v.deepstack.{layer}.{to}.{part}"), matrix)?;
                }
            }
        }
        Ok(())
    }
}
