//! Models with recurrent layers: Qwen 3.5 and Qwen 3 Next, LFM2.

use super::super::family::Fix::{NegatedExp, PlusOne};
use super::super::family::Kind::{Float, OptionalUint, Uint};
use super::super::family::{EXPERT_KEYS, Family, Key, Rule, fixed, key, rule};
use super::super::import::Import;
use super::super::matrix::Matrix;
use super::experts::SIGMOID;
use crate::{FolderError, FormatError, Value};

static DELTA_KEYS: &[Key] = &[
    key("linear_conv_kernel_dim", "ssm.conv_kernel", Uint),
    key("linear_key_head_dim", "ssm.state_size", Uint),
    key("linear_num_key_heads", "ssm.group_count", Uint),
    key("linear_num_value_heads", "ssm.time_step_rank", Uint),
    key("moe_intermediate_size", "feed_forward_length", OptionalUint),
    key("intermediate_size", "feed_forward_length", OptionalUint),
];

static DELTA_TENSORS: &[Rule] = &[
    fixed("norm", "output_norm", PlusOne),
    fixed("layers.input_layernorm", "attn_norm", PlusOne),
    fixed("layers.post_attention_layernorm", "post_attention_norm", PlusOne),
    fixed("layers.self_attn.q_norm", "attn_q_norm", PlusOne),
    fixed("layers.self_attn.k_norm", "attn_k_norm", PlusOne),
    rule("layers.linear_attn.norm", "ssm_norm"),
];

pub(crate) static QWEN35: Family = Family {
    names: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    arch: "qwen35",
    keys: &[DELTA_KEYS],
    tensors: &[DELTA_TENSORS],
    prepare: prepare_qwen35,
};

pub(crate) static QWEN35_MOE: Family = Family {
    names: &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"],
    arch: "qwen35moe",
    keys: &[DELTA_KEYS, EXPERT_KEYS],
    tensors: &[DELTA_TENSORS],
    prepare: prepare_qwen35,
};

pub(crate) static QWEN3_NEXT: Family = Family {
    names: &["Qwen3NextForCausalLM"],
    arch: "qwen3next",
    keys: &[DELTA_KEYS, EXPERT_KEYS],
    tensors: &[
        DELTA_TENSORS,
        &[
            rule("layers.linear_attn.in_proj_ba", "ssm_ba"),
            fixed("layers.linear_attn.A_log", "ssm_a", NegatedExp),
            rule("layers.linear_attn.dt_bias", "ssm_dt.bias"),
            rule("layers.linear_attn.out_proj", "ssm_out"),
        ],
    ],
    prepare: |import| {
        import.check_all_experts()?;
        import.split_gate_up("mlp.experts.gate_up_proj", "mlp.experts.down_proj")?;
        let sizes = import.delta_sizes()?;
        for layer in import.set_recurrent_layers()? {
            import.grouped_delta(layer, &sizes)?;
        }
        Ok(())
    },
};

/// Sizes of layers with the delta rule.
struct DeltaSizes {
    k_heads: u64,
    /// Value heads per key head.
    each: u64,
    k_dim: u64,
    v_dim: u64,
    width: u64,
    taps: u64,
}

impl DeltaSizes {
    /// Rows of values: `[key head, value head of it, column]` in the folder.
    fn values(&self) -> u64 {
        self.k_heads * self.each * self.v_dim
    }

    /// Rows of queries, or of keys.
    fn keys(&self) -> u64 {
        self.k_heads * self.k_dim
    }

    /// The order in which GGUF files have value heads,
    /// `[value head of a key head, key head]`, of `n` rows each.
    fn tiled(&self, n: u64) -> impl Iterator<Item = u64> {
        let (k_heads, each) = (self.k_heads, self.each);
        (0..k_heads * each * n).map(move |row| {
            let (head, col) = (row / n, row % n);
            ((head % k_heads) * each + head / k_heads) * n + col
        })
    }
}

impl Import {
    fn delta_sizes(&mut self) -> Result<DeltaSizes, FormatError> {
        let config = &self.config;
        let (k_heads, v_heads) =
            (config.usize("linear_num_key_heads")?, config.usize("linear_num_value_heads")?);
        let each = v_heads.checked_div(k_heads).filter(|each| each * k_heads == v_heads && v_heads < 1 << 20);
        let each =
            each.ok_or_else(|| config.wrong("linear_num_value_heads", "a multiple of the key heads"))?;
        let (k_dim, v_dim) = (config.usize("linear_key_head_dim")?, config.usize("linear_value_head_dim")?);
        let (width, taps) = (config.usize("hidden_size")?, config.usize("linear_conv_kernel_dim")?);
        if k_dim >= 1 << 20 || v_dim >= 1 << 20 {
            return Err(config.wrong("linear_key_head_dim", "less than 1048576"));
        }
        self.set("ssm.inner_size", Value::Uint(v_heads * v_dim));
        Ok(DeltaSizes { k_heads, each, k_dim, v_dim, width, taps })
    }

    /// Says which layers are recurrent, and returns them.
    fn set_recurrent_layers(&mut self) -> Result<Vec<u64>, FormatError> {
        let layers = self.layers()?;
        let interval = self.config.optional_usize("full_attention_interval")?;
        let listed = self.config.optional_strings("layer_types")?;
        let recurrent: Vec<bool> = match listed {
            Some(listed) if listed.len() as u64 == layers => {
                listed.iter().map(|kind| *kind == "linear_attention").collect()
            }
            Some(_) => {
                return Err(self.config.wrong("layer_types", &format!("{layers} types, one per layer")));
            }
            None => {
                (1..=layers.min(1 << 16)).map(|layer| layer % interval.unwrap_or(4).max(1) != 0).collect()
            }
        };
        let run = recurrent.iter().position(|r| !r).map_or(layers, |first| first as u64 + 1);
        if recurrent.iter().zip(1..).all(|(r, layer)| *r == (layer % run != 0)) {
            self.set("full_attention_interval", Value::Uint(run));
        } else {
            self.set("attention.recurrent_layers", Value::Bools(recurrent.clone()));
        }
        Ok(recurrent.iter().zip(0..).filter(|(r, _)| **r).map(|(_, layer)| layer).collect())
    }

    /// A layer of Qwen 3.5, with value heads in the order of GGUF files.
    fn tiled_delta(&mut self, layer: u64, s: &DeltaSizes) -> Result<(), FormatError> {
        let name = |part: &str| format!("layers.{layer}.linear_attn.{part}");
        let to = |part: &str| format!("blk.{layer}.{part}");
        let heads = s.k_heads * s.each;
        let rows = |order: Vec<u64>| order.into_iter().map(|row| row as u32).collect::<Vec<u32>>();
        // queries and keys as they are, then the values
        let qkv = |s: &DeltaSizes| {
            rows((0..2 * s.keys()).chain(s.tiled(s.v_dim).map(|row| 2 * s.keys() + row)).collect())
        };
        let all = 2 * s.keys() + s.values();
        let matrix = self.take_shaped(&name("in_proj_qkv.weight"), &[all, s.width])?;
        self.put(to("attn_qkv.weight"), matrix.gathered(qkv(s)))?;
        let conv = self.take_shaped(&name("conv1d.weight"), &[all, 1, s.taps])?.reshaped(vec![all, s.taps]);
        self.put(to("ssm_conv1d.weight"), conv.in_f32().gathered(qkv(s)))?;
        let gate = self.take_shaped(&name("in_proj_z.weight"), &[s.values(), s.width])?;
        self.put(to("attn_gate.weight"), gate.gathered(rows(s.tiled(s.v_dim).collect())))?;
        for (from, part) in
            [("in_proj_a.weight", "ssm_alpha.weight"), ("in_proj_b.weight", "ssm_beta.weight")]
        {
            let matrix = self.take_shaped(&name(from), &[heads, s.width])?;
            self.put(to(part), matrix.gathered(rows(s.tiled(1).collect())))?;
        }
        let decay = self.take_shaped(&name("A_log"), &[heads])?.mapped(|w| -w.exp());
        self.put(to("ssm_a"), decay.gathered(rows(s.tiled(1).collect())))?;
        let bias = self.take_shaped(&name("dt_bias"), &[heads])?.in_f32();
        self.put(to("ssm_dt.bias"), bias.gathered(rows(s.tiled(1).collect())))?;
        let out = self.take_shaped(&name("out_proj.weight"), &[s.width, s.values()])?;
        let out = match (out.is_float(), s.each) {
            (_, 1) => out,
            (true, _) => out.gathered_columns(rows(s.tiled(s.v_dim).collect())),
            (false, _) => {
                let found = format!("{}: its columns change places", out.quant);
                return Err(FolderError::no_floats(name("out_proj"), found).into());
            }
        };
        self.put(to("ssm_out.weight"), out)
    }

    /// A layer of Qwen 3 Next: queries, keys, values and gates of one key head after the
    /// other become four parts.
    fn grouped_delta(&mut self, layer: u64, s: &DeltaSizes) -> Result<(), FormatError> {
        let name = |part: &str| format!("layers.{layer}.linear_attn.{part}");
        let values = s.each * s.v_dim; // of one key head
        let block = 2 * s.k_dim + 2 * values;
        let all = self.take_shaped(&name("in_proj_qkvz.weight"), &[s.k_heads * block, s.width])?;
        let part = |start: u64, n: u64| {
            (0..s.k_heads * n).map(move |row| (row / n * block + start + row % n) as u32)
        };
        let qkv = part(0, s.k_dim).chain(part(s.k_dim, s.k_dim)).chain(part(2 * s.k_dim, values)).collect();
        self.put(format!("blk.{layer}.attn_qkv.weight"), all.clone().gathered(qkv))?;
        let gates = part(2 * s.k_dim + values, values).collect();
        self.put(format!("blk.{layer}.attn_gate.weight"), all.gathered(gates))?;
        self.put_conv(&name("conv1d.weight"), format!("blk.{layer}.ssm_conv1d.weight"))
    }

    /// A convolution of `[columns, 1, taps]` as `[columns, taps]`.
    pub(super) fn put_conv(&mut self, from: &str, to: String) -> Result<(), FormatError> {
        let conv: Matrix = self.take(from)?;
        let [columns, _, taps] = <[u64; 3]>::try_from(conv.shape.clone())
            .ok()
            .filter(|[_, one, _]| *one == 1)
            .ok_or_else(|| super::super::import::shape_error(from, &[0, 1, 0], &conv.shape))?;
        self.put(to, conv.in_f32().reshaped(vec![columns, taps]))
    }
}

fn prepare_qwen35(import: &mut Import) -> Result<(), FormatError> {
    import.split_gate_up("mlp.experts.gate_up_proj", "mlp.experts.down_proj")?;
    import.set_sections([11, 11, 10])?;
    let sizes = import.delta_sizes()?;
    for layer in import.set_recurrent_layers()? {
        import.tiled_delta(layer, &sizes)?;
    }
    Ok(())
}

static LFM_KEYS: &[Key] = &[
    key("norm_eps", "attention.layer_norm_rms_epsilon", Float),
    key("conv_L_cache", "shortconv.l_cache", Uint),
    key("num_dense_layers", "leading_dense_block_count", OptionalUint),
];

static LFM_TENSORS: &[Rule] = &[
    rule("embedding_norm", "token_embd_norm"),
    rule("layers.operator_norm", "attn_norm"),
    rule("layers.ffn_norm", "ffn_norm"),
    rule("layers.self_attn.out_proj", "attn_output"),
    rule("layers.self_attn.q_layernorm", "attn_q_norm"),
    rule("layers.self_attn.k_layernorm", "attn_k_norm"),
    rule("layers.conv.in_proj", "shortconv.in_proj"),
    rule("layers.conv.out_proj", "shortconv.out_proj"),
    rule("layers.feed_forward.w1", "ffn_gate"),
    rule("layers.feed_forward.w3", "ffn_up"),
    rule("layers.feed_forward.w2", "ffn_down"),
    rule("layers.feed_forward.gate", "ffn_gate_inp"),
    rule("layers.feed_forward.expert_bias", "exp_probs_b.bias"),
    rule("layers.feed_forward.experts.*.w1", "ffn_gate_exps"),
    rule("layers.feed_forward.experts.*.w3", "ffn_up_exps"),
    rule("layers.feed_forward.experts.*.w2", "ffn_down_exps"),
];

pub(crate) static LFM2: Family = Family {
    names: &["Lfm2ForCausalLM", "Lfm2Model"],
    arch: "lfm2",
    keys: &[LFM_KEYS],
    tensors: &[LFM_TENSORS],
    prepare: prepare_lfm2,
};

pub(crate) static LFM2_MOE: Family = Family {
    names: &["Lfm2MoeForCausalLM"],
    arch: "lfm2moe",
    keys: &[LFM_KEYS, EXPERT_KEYS],
    tensors: &[LFM_TENSORS],
    prepare: |import| {
        import.set("expert_gating_func", Value::Uint(SIGMOID));
        prepare_lfm2(import)
    },
};

/// Layers without attention have no key heads.
fn prepare_lfm2(import: &mut Import) -> Result<(), FormatError> {
    let layers = import.layers()?;
    let kv_heads = import.config.usize("num_key_value_heads")?;
    let full: Vec<bool> = match import.config.optional_strings("layer_types")? {
        Some(listed) => listed.iter().map(|kind| *kind == "full_attention").collect(),
        None => {
            let listed = import.config.optional_usizes("full_attn_idxs")?;
            let listed = listed.ok_or_else(|| import.config.missing("layer_types"))?;
            (0..layers.min(1 << 16)).map(|layer| listed.contains(&layer)).collect()
        }
    };
    if full.len() as u64 != layers {
        return Err(import.config.wrong("layer_types", &format!("{layers} types, one per layer")));
    }
    for (layer, _) in full.iter().enumerate().filter(|(_, full)| !**full) {
        let (from, to) =
            (format!("layers.{layer}.conv.conv.weight"), format!("blk.{layer}.shortconv.conv.weight"));
        import.put_conv(&from, to)?;
    }
    import.set(
        "attention.head_count_kv",
        Value::Uints(full.iter().map(|full| if *full { kv_heads } else { 0 }).collect()),
    );
    // the length in the folder is not always that of the tensors
    if let Some(rows) =
        import.weights.get("layers.0.feed_forward.w1.weight").and_then(|m| m.shape.first().copied())
    {
        import.set("feed_forward_length", Value::Uint(rows));
    }
    Ok(())
}
