//! Towers of SigLIP: Gemma 3, SmolVLM and Idefics 3, LFM2-VL.

use super::{Prefix, Tensors, Tower};
use crate::Value;

/// Tensors of SigLIP.
pub(super) static TENSORS: Tensors = &[
    ("embeddings.position_embedding", "v.position_embd"),
    ("encoder.layers.*.layer_norm1", "v.blk.*.ln1"),
    ("encoder.layers.*.layer_norm2", "v.blk.*.ln2"),
    ("encoder.layers.*.self_attn.q_proj", "v.blk.*.attn_q"),
    ("encoder.layers.*.self_attn.k_proj", "v.blk.*.attn_k"),
    ("encoder.layers.*.self_attn.v_proj", "v.blk.*.attn_v"),
    ("encoder.layers.*.self_attn.out_proj", "v.blk.*.attn_out"),
    ("encoder.layers.*.mlp.fc1", "v.blk.*.ffn_up"),
    ("encoder.layers.*.mlp.fc2", "v.blk.*.ffn_down"),
    ("post_layernorm", "v.post_ln"),
    ("projector.mm_input_projection_weight", "mm.input_projection.weight"),
    ("projector.modality_projection.proj", "mm.model.fc"),
    ("projector.layer_norm", "mm.input_norm"),
    ("projector.linear_1", "mm.1"),
    ("projector.linear_2", "mm.2"),
];

static PREFIXES: &[Prefix] = &[
    ("vision_tower.vision_model.", ""),
    ("vision_tower.", ""),
    ("vision_model.", ""),
    ("multi_modal_projector.", "projector."),
    ("connector.", "projector."),
];

static KEYS: &[(&str, &str)] = &[
    ("num_hidden_layers", "block_count"),
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("num_attention_heads", "attention.head_count"),
    ("patch_size", "patch_size"),
];

const GELU_TANH: &str = "gelu_pytorch_tanh";

pub(super) static GEMMA3: Tower = Tower {
    names: &["Gemma3ForConditionalGeneration"],
    projector: "gemma3",
    prefixes: PREFIXES,
    tensors: &[TENSORS],
    keys: &[KEYS, &[("image_size", "image_size")]],
    prepare: |import, vision, _| {
        import.set_function(vision, "hidden_act", &[(GELU_TANH, "use_gelu")])?;
        import.set_eps(vision, "layer_norm_eps", 1e-6)?;
        let side = vision.usize("image_size")? / vision.usize("patch_size")?.max(1);
        let tokens = import.config.optional_usize("mm_tokens_per_image")?.unwrap_or(256).isqrt();
        if tokens == 0 || !side.is_multiple_of(tokens) {
            return Err(import.config.wrong("mm_tokens_per_image", &format!("a square that divides {side}")));
        }
        import.set("projector.scale_factor", Value::Uint(side / tokens));
        // stored without its one
        let norm = import.take("projector.mm_soft_emb_norm.weight")?;
        import.put("mm.soft_emb_norm.weight".into(), norm.mapped(|v| v + 1.0))?;
        import.put_patches("embeddings.patch_embedding", vision.usize("patch_size")?)
    },
};

pub(super) static IDEFICS3: Tower = Tower {
    names: &["Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"],
    projector: "idefics3",
    prefixes: PREFIXES,
    tensors: &[TENSORS],
    keys: &[KEYS, &[("image_size", "image_size")]],
    prepare: |import, vision, pixels| {
        import.set_function(vision, "hidden_act", &[(GELU_TANH, "use_gelu")])?;
        import.set_eps(vision, "layer_norm_eps", 1e-6)?;
        import.set("projector.scale_factor", Value::Uint(import.config.usize("scale_factor")?));
        if let Some(longest) = pixels.size("longest_edge")? {
            import.set("preproc_image_size", Value::Uint(longest));
        }
        import.put_patches("embeddings.patch_embedding", vision.usize("patch_size")?)
    },
};

pub(super) static LFM2VL: Tower = Tower {
    names: &["Lfm2VlForConditionalGeneration"],
    projector: "lfm2",
    prefixes: PREFIXES,
    tensors: &[TENSORS],
    keys: &[KEYS],
    prepare: |import, vision, pixels| {
        import.set_function(vision, "hidden_act", &[(GELU_TANH, "use_gelu")])?;
        import.set_eps(vision, "layer_norm_eps", 1e-6)?;
        let patch = vision.usize("patch_size")?;
        let factor = import.config.optional_usize("downsample_factor")?.unwrap_or(2);
        import.set("projector.scale_factor", Value::Uint(factor));
        import.set("image_size", Value::Uint(vision.usize("num_patches")?.isqrt() * patch));
        let cell = patch.saturating_mul(factor).saturating_pow(2);
        for (from, to, unit) in [
            ("min_image_tokens", "image_min_pixels", cell),
            ("max_image_tokens", "image_max_pixels", cell),
            ("min_tiles", "preproc_min_tiles", 1),
            ("max_tiles", "preproc_max_tiles", 1),
            ("tile_size", "preproc_tile_size", 1),
        ] {
            let of_processor = pixels.optional_usize(from)?;
            let of_model = || import.config.optional_usize(from);
            if let Some(value) = of_processor.map_or_else(of_model, |value| Ok(Some(value)))? {
                import.set(to, Value::Uint(value.saturating_mul(unit)));
            }
        }
        if pixels.optional_bool("do_image_splitting")? == Some(false) {
            import.set("preproc_min_tiles", Value::Uint(1));
            import.set("preproc_max_tiles", Value::Uint(1));
        }
        import.put_flat_patches("embeddings.patch_embedding", patch)
    },
};
