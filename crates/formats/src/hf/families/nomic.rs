//! nomic-embed-text: BERT with rotated heads, and with experts in v2.

use super::super::family::Kind::{OptionalFloat, OptionalUint};
use super::super::family::{Family, key, rule};
use super::super::import::Import;
use super::encoder_parts::{EPS, FUSED_TENSORS};
use crate::{FolderError, FormatError, Value};

pub(crate) static NOMIC_BERT: Family = Family {
    names: &["NomicBertModel"],
    arch: "nomic-bert",
    keys: &[
        EPS,
        &[
            // the names of the model's own code, which most folders have
            key("n_embd", "embedding_length", OptionalUint),
            key("n_layer", "block_count", OptionalUint),
            key("n_inner", "feed_forward_length", OptionalUint),
            key("n_head", "attention.head_count", OptionalUint),
            key("n_positions", "context_length", OptionalUint),
            key("layer_norm_epsilon", "attention.layer_norm_epsilon", OptionalFloat),
            key("rotary_emb_base", "rope.freq_base", OptionalFloat),
        ],
    ],
    tensors: &[FUSED_TENSORS, &[rule("layers.mlp.router.layer", "ffn_gate_inp")]],
    prepare: |import| {
        for key in ["prenorm", "use_rms_norm", "rotary_emb_interleaved"] {
            import.want_bool(key, false)?;
        }
        for key in ["rotary_scaling_factor", "rotary_emb_scale_base"] {
            if import.config.optional_f64(key)?.is_some() {
                return Err(import.config.wrong(key, "null"));
            }
        }
        if import.config.optional_f64("rotary_emb_fraction")?.is_some_and(|part| part != 1.0) {
            return Err(import.config.wrong("rotary_emb_fraction", "1"));
        }
        match import.config.optional_usize("moe_every_n_layers")?.unwrap_or(0) {
            0 => {
                import.want_text("activation_function", "swiglu")?;
                import.want_text("hidden_act", "silu")?;
            }
            every => import.set_nomic_experts(every)?,
        }
        if let (Some(width), Some(heads)) =
            (import.config.optional_usize("n_embd")?, import.config.optional_usize("n_head")?)
        {
            import.set("rope.dimension_count", Value::Uint(width / heads.max(1)));
        }
        import.set_types()?;
        import.set_classifier(&["pooler.", "cls."])
    },
};

impl Import {
    /// The experts of each `every`th layer: up `[experts * inner, columns]` and down of the same shape, and
    /// one bias of their sum.
    fn set_nomic_experts(&mut self, every: u64) -> Result<(), FormatError> {
        let config = &self.config;
        if config.optional_str("activation_function")? != Some("gelu") {
            return Err(config.wrong("activation_function", "gelu, as experts have it"));
        }
        for key in ["moe_normalize_expert_weights", "expert_choice_router"] {
            self.want_bool(key, false)?;
        }
        for (key, usual) in [("num_shared_experts", 0), ("ffn_div", 1)] {
            if config.optional_usize(key)?.is_some_and(|number| number != usual) {
                return Err(config.wrong(key, &usual.to_string()));
            }
        }
        let (experts, used) = (config.usize("num_experts")?, config.usize("moe_top_k")?);
        let (width, inner, layers) =
            (config.usize("n_embd")?, config.usize("n_inner")?, config.usize("n_layer")?);
        let rows = experts.saturating_mul(inner);
        self.set_arch("nomic-bert-moe");
        self.set("moe_every_n_layers", Value::Uint(every));
        self.set("expert_count", Value::Uint(experts));
        self.set("expert_used_count", Value::Uint(used));
        let layers = layers.min(self.weights.names().count() as u64); // a layer has a tensor at least
        for layer in (0..layers).filter(|layer| layer % every == 1) {
            let name = |part: &str| format!("layers.{layer}.mlp.experts.{part}");
            let up = self.take_shaped(&name("mlp.w1"), &[rows, width])?;
            let down = self.take_shaped(&name("mlp.w2"), &[rows, width])?;
            if !down.is_float() {
                return Err(FolderError::no_floats(name("mlp.w2"), down.quant).into());
            }
            let bias = self.take_shaped(&name("bias"), &[width])?;
            let shape = vec![experts, inner, width];
            self.put(format!("blk.{layer}.ffn_up_exps.weight"), up.reshaped(shape.clone()))?;
            self.put(format!("blk.{layer}.ffn_down_exps.weight"), down.reshaped(shape).transposed())?;
            // a row of a table: it is added like one
            self.put(format!("blk.{layer}.ffn_exps_sum.bias"), bias.in_f32().reshaped(vec![1, width]))?;
        }
        Ok(())
    }
}
