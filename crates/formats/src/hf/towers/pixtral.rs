//! The tower of Pixtral and Mistral 3.

use super::super::config::Config;
use super::super::import::Import;
use super::super::renaming::paired_rows;
use super::{Pixels, Prefix, Tensors, Tower};
use crate::{FormatError, Value};

static TENSORS: Tensors = &[
    ("ln_pre", "v.pre_ln"),
    ("transformer.layers.*.attention_norm", "v.blk.*.ln1"),
    ("transformer.layers.*.ffn_norm", "v.blk.*.ln2"),
    ("transformer.layers.*.attention.v_proj", "v.blk.*.attn_v"),
    ("transformer.layers.*.attention.o_proj", "v.blk.*.attn_out"),
    ("transformer.layers.*.feed_forward.gate_proj", "v.blk.*.ffn_gate"),
    ("transformer.layers.*.feed_forward.up_proj", "v.blk.*.ffn_up"),
    ("transformer.layers.*.feed_forward.down_proj", "v.blk.*.ffn_down"),
    ("projector.norm", "mm.input_norm"),
    ("projector.patch_merger.merging_layer", "mm.patch_merger"),
    ("projector.linear_1", "mm.1"),
    ("projector.linear_2", "mm.2"),
];

static PREFIXES: &[Prefix] = &[("vision_tower.", ""), ("multi_modal_projector.", "projector.")];

static KEYS: &[(&str, &str)] = &[
    ("num_hidden_layers", "block_count"),
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("num_attention_heads", "attention.head_count"),
    ("patch_size", "patch_size"),
];

pub(super) static MISTRAL3: Tower = Tower {
    names: &["Mistral3ForConditionalGeneration"],
    projector: "pixtral",
    prefixes: PREFIXES,
    tensors: &[TENSORS],
    keys: &[KEYS],
    prepare: |import, vision, pixels| {
        import.set("spatial_merge_size", Value::Uint(import.config.usize("spatial_merge_size")?));
        prepare(import, vision, pixels)
    },
};

pub(super) static PIXTRAL: Tower = Tower {
    names: &["LlavaForConditionalGeneration"],
    projector: "pixtral",
    prefixes: PREFIXES,
    tensors: &[TENSORS],
    keys: &[KEYS],
    prepare: |import, vision, pixels| match vision.optional_str("model_type")? {
        Some("pixtral") => prepare(import, vision, pixels),
        _ => Err(vision.wrong("model_type", "\"pixtral\": other towers of LLaVA are not supported")),
    },
};

fn prepare(import: &mut Import, vision: &Config, pixels: &Pixels) -> Result<(), FormatError> {
    import.set_function(vision, "hidden_act", &[("gelu", "use_gelu"), ("silu", "use_silu")])?;
    import.set("attention.layer_norm_epsilon", Value::Float(1e-5));
    let longest = match pixels.size("longest_edge")? {
        Some(longest) => longest,
        None => vision.usize("image_size")?,
    };
    import.set("image_size", Value::Uint(longest));
    let (width, heads) = (vision.usize("hidden_size")?, vision.usize("num_attention_heads")?.max(1));
    let dim = vision.optional_usize("head_dim")?.unwrap_or(width / heads);
    import.set("attention.head_dim", Value::Uint(dim));
    // pairs are neighbours in GGUF files
    let rows = heads.saturating_mul(dim);
    let order = paired_rows(rows, heads).ok_or_else(|| vision.wrong("head_dim", "a smaller, even number"))?;
    for layer in 0..vision.usize("num_hidden_layers")?.min(1 << 12) {
        for part in ["q", "k"] {
            let name = format!("transformer.layers.{layer}.attention.{part}_proj.weight");
            let matrix = import.take_shaped(&name, &[rows, width])?;
            import.put(format!("v.blk.{layer}.attn_{part}.weight"), matrix.gathered(order.clone()))?;
        }
    }
    import.put_patches("patch_conv", vision.usize("patch_size")?)
}
