//! The tower of InternVL, as `transformers` saves it.

use super::{Prefix, Tower};
use crate::{FolderError, Value};

static PREFIXES: &[Prefix] = &[("vision_tower.", ""), ("multi_modal_projector.", "projector.")];

pub(super) static INTERNVL: Tower = Tower {
    names: &["InternVLForConditionalGeneration"],
    projector: "internvl",
    prefixes: PREFIXES,
    tensors: &[&[
        ("layernorm", "v.post_ln"),
        ("encoder.layer.*.layernorm_before", "v.blk.*.ln1"),
        ("encoder.layer.*.layernorm_after", "v.blk.*.ln2"),
        ("encoder.layer.*.lambda_1", "v.blk.*.ls1.weight"),
        ("encoder.layer.*.lambda_2", "v.blk.*.ls2.weight"),
        ("encoder.layer.*.attention.q_proj", "v.blk.*.attn_q"),
        ("encoder.layer.*.attention.k_proj", "v.blk.*.attn_k"),
        ("encoder.layer.*.attention.v_proj", "v.blk.*.attn_v"),
        ("encoder.layer.*.attention.q_norm", "v.blk.*.attn_q_norm"),
        ("encoder.layer.*.attention.k_norm", "v.blk.*.attn_k_norm"),
        ("encoder.layer.*.attention.projection_layer", "v.blk.*.attn_out"),
        ("encoder.layer.*.mlp.fc1", "v.blk.*.ffn_up"),
        ("encoder.layer.*.mlp.fc2", "v.blk.*.ffn_down"),
        ("projector.layer_norm", "mm.model.mlp.0"),
        ("projector.linear_1", "mm.model.mlp.1"),
        ("projector.linear_2", "mm.model.mlp.3"),
    ]],
    keys: &[&[
        ("num_hidden_layers", "block_count"),
        ("hidden_size", "embedding_length"),
        ("intermediate_size", "feed_forward_length"),
        ("num_attention_heads", "attention.head_count"),
    ]],
    prepare: |import, vision, pixels| {
        import.set_function(vision, "hidden_act", &[("gelu", "use_gelu")])?;
        import.set_eps(vision, "layer_norm_eps", 1e-6)?;
        let [patch, size] = [vision.square("patch_size")?, vision.square("image_size")?];
        import.set("patch_size", Value::Uint(patch));
        import.set("image_size", Value::Uint(size));
        let factor = match import.config.optional_f64("downsample_ratio")? {
            None => 2,
            Some(ratio) if ratio > 0.0 && (1.0 / ratio).fract() == 0.0 => (1.0 / ratio) as u64,
            Some(_) => return Err(import.config.wrong("downsample_ratio", "one over a whole number")),
        };
        import.set("projector.scale_factor", Value::Uint(factor));
        if pixels.optional_bool("crop_to_patches")? == Some(false) {
            import.set("preproc_max_tiles", Value::Uint(1));
        } else {
            for (from, to) in [("min_patches", "preproc_min_tiles"), ("max_patches", "preproc_max_tiles")] {
                if let Some(tiles) = pixels.optional_usize(from)? {
                    import.set(to, Value::Uint(tiles));
                }
            }
        }
        import.take_optional("embeddings.mask_token");
        for (from, to) in [("cls_token", "v.class_embd"), ("position_embeddings", "v.position_embd.weight")] {
            let name = format!("embeddings.{from}");
            let matrix = import.take(&name)?;
            let &[1, rows, width] = matrix.shape.as_slice() else {
                return Err(
                    FolderError::tensor(name, "[1, rows, columns]", format!("{:?}", matrix.shape)).into()
                );
            };
            let shape = if rows == 1 { vec![width] } else { vec![rows, width] };
            import.put(to.into(), matrix.reshaped(shape))?;
        }
        import.put_patches("embeddings.patch_embeddings.projection", patch)
    },
};
