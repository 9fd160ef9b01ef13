//! DeepSeek V2 and V3, Mistral Small 4 and models of their shape: latent keys and values.

use super::super::family::Kind::{OptionalUint, Uint};
use super::super::family::{EXPERT_KEYS, Family, Key, Rule, key, rule};
use super::super::import::Import;
use super::experts::{SIGMOID, SOFTMAX};
use crate::{FolderError, FormatError, Value};

static KEYS: &[Key] = &[
    key("q_lora_rank", "attention.q_lora_rank", OptionalUint),
    key("kv_lora_rank", "attention.kv_lora_rank", Uint),
    key("qk_rope_head_dim", "rope.dimension_count", Uint),
    key("v_head_dim", "attention.value_length_mla", Uint),
];

static TENSORS: &[Rule] = &[
    rule("layers.self_attn.q_a_proj", "attn_q_a"),
    rule("layers.self_attn.q_a_layernorm", "attn_q_a_norm"),
    rule("layers.self_attn.q_b_proj", "attn_q_b"),
    rule("layers.self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    rule("layers.self_attn.kv_a_layernorm", "attn_kv_a_norm"),
];

pub(crate) static DEEPSEEK2: Family = Family {
    names: &["DeepseekV2ForCausalLM"],
    arch: "deepseek2",
    keys: &[KEYS, EXPERT_KEYS],
    tensors: &[TENSORS],
    prepare: |import| prepare(import, SOFTMAX),
};

pub(crate) static DEEPSEEK3: Family = Family {
    names: &["DeepseekV3ForCausalLM", "KimiK2ForCausalLM", "Glm4MoeLiteForCausalLM"],
    arch: "deepseek2",
    keys: &[KEYS, EXPERT_KEYS],
    tensors: &[TENSORS],
    prepare: |import| prepare(import, SIGMOID),
};

pub(crate) static MISTRAL4: Family = Family {
    names: &["Mistral4ForCausalLM"],
    arch: "mistral4",
    keys: &[KEYS, EXPERT_KEYS],
    tensors: &[TENSORS],
    prepare: |import| {
        import.set_temperature()?;
        prepare(import, SOFTMAX)
    },
};

fn prepare(import: &mut Import, gating: u64) -> Result<(), FormatError> {
    if import.config.optional_bool("rope_interleave")? == Some(false) {
        return Err(import.config.wrong("rope_interleave", "true"));
    }
    if import.config.optional_usize("moe_layer_freq")?.unwrap_or(1) != 1 {
        return Err(import.config.wrong("moe_layer_freq", "1"));
    }
    let gating = match import.config.optional_str("scoring_func")? {
        None => gating,
        Some("softmax") => SOFTMAX,
        Some("sigmoid") => SIGMOID,
        Some(_) => return Err(import.config.wrong("scoring_func", "softmax or sigmoid")),
    };
    import.set("expert_gating_func", Value::Uint(gating));
    let (rank, rotated) = (import.config.usize("kv_lora_rank")?, import.config.usize("qk_rope_head_dim")?);
    let (plain, v_dim) = (import.config.usize("qk_nope_head_dim")?, import.config.usize("v_head_dim")?);
    import.set("attention.head_count_kv", Value::Uint(1));
    import.set("attention.key_length", Value::Uint(rank.saturating_add(rotated)));
    import.set("attention.value_length", Value::Uint(rank));
    import.set("attention.key_length_mla", Value::Uint(plain.saturating_add(rotated)));
    let heads = import.config.usize("num_attention_heads")?;
    for layer in 0..import.layers()? {
        // [heads, keys and values, rank]: keys are stored exchanged
        let each = plain.saturating_add(v_dim);
        let name = format!("layers.{layer}.self_attn.kv_b_proj.weight");
        let both = import.take_shaped(&name, &[heads.saturating_mul(each), rank])?;
        if !both.is_float() {
            let found = format!("{}: its dimensions must be exchanged", both.quant);
            return Err(FolderError::no_floats(name, found).into());
        }
        let rows = |start: u64, count: u64| {
            (0..heads * count).map(move |r| (r / count * each + start + r % count) as u32)
        };
        let keys = both.clone().gathered(rows(0, plain).collect()).reshaped(vec![heads, plain, rank]);
        let values = both.gathered(rows(plain, v_dim).collect()).reshaped(vec![heads, v_dim, rank]);
        import.put(format!("blk.{layer}.attn_k_b.weight"), keys.transposed())?;
        import.put(format!("blk.{layer}.attn_v_b.weight"), values)?;
    }
    import.split_gate_up("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
}
