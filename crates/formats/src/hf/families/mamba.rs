//! Models with layers of Mamba-2: Mamba-2 itself, Granite 4 H, Falcon H1, Nemotron H.

use super::super::family::Fix::Column;
use super::super::family::Kind::{Float, OptionalUint, Uint};
use super::super::family::{EXPERT_KEYS, Family, PAIRED_HEADS, Rule, fixed, key, rule};
use super::super::import::{Import, shape_error};
use super::dense::GRANITE_KEYS;
use crate::{FolderError, FormatError, Value};

/// Tensors of Mamba-2 and Nemotron H.
static MIXER_TENSORS: &[Rule] = &[
    rule("embeddings", "token_embd"),
    rule("norm_f", "output_norm"),
    rule("layers.norm", "attn_norm"),
    rule("layers.mixer.in_proj", "ssm_in"),
    rule("layers.mixer.out_proj", "ssm_out"),
    rule("layers.mixer.dt_bias", "ssm_dt.bias"),
    fixed("layers.mixer.D", "ssm_d", Column),
];

pub(crate) static MAMBA2: Family = Family {
    names: &["Mamba2ForCausalLM"],
    arch: "mamba2",
    keys: &[&[
        key("layer_norm_epsilon", "attention.layer_norm_rms_epsilon", Float),
        key("conv_kernel", "ssm.conv_kernel", Uint),
        key("state_size", "ssm.state_size", Uint),
    ]],
    tensors: &[MIXER_TENSORS],
    prepare: prepare_mamba2,
};

/// Texts of any length: as long as other tools allow.
const MAMBA_CONTEXT: u64 = 1 << 20;

fn prepare_mamba2(import: &mut Import) -> Result<(), FormatError> {
    let sizes = import.mamba_sizes("num_heads", "head_dim", "n_groups")?;
    import.set("context_length", Value::Uint(MAMBA_CONTEXT));
    let attention =
        ["head_count", "head_count_kv", "key_length", "value_length"].map(|name| format!("attention.{name}"));
    for name in attention.iter().map(String::as_str).chain(["feed_forward_length", "rope.dimension_count"]) {
        import.set(name, Value::Uint(0));
    }
    (0..import.layers()?).try_for_each(|layer| import.put_mamba(layer, "mixer", &sizes))
}

/// Keys of Granite and Falcon.
static MAMBA_KEYS: &[super::super::family::Key] =
    &[key("mamba_d_conv", "ssm.conv_kernel", Uint), key("mamba_d_state", "ssm.state_size", Uint)];

/// Tensors of Granite and Falcon.
static MAMBA_TENSORS: &[super::super::family::Rule] = &[
    rule("layers.mamba.in_proj", "ssm_in"),
    rule("layers.mamba.out_proj", "ssm_out"),
    rule("layers.mamba.dt_bias", "ssm_dt.bias"),
    fixed("layers.mamba.D", "ssm_d", Column),
];

pub(crate) static GRANITE_HYBRID: Family = Family {
    names: &["GraniteMoeHybridForCausalLM"],
    arch: "granitehybrid",
    keys: &[
        GRANITE_KEYS,
        MAMBA_KEYS,
        EXPERT_KEYS,
        &[key("shared_intermediate_size", "expert_shared_feed_forward_length", OptionalUint)],
    ],
    tensors: &[&PAIRED_HEADS, MAMBA_TENSORS, &[rule("layers.block_sparse_moe.router.layer", "ffn_gate_inp")]],
    prepare: |import| {
        let sizes = import.mamba_sizes("mamba_n_heads", "mamba_d_head", "mamba_n_groups")?;
        let layers = import.layers()?;
        let listed = import.config.optional_strings("layer_types")?;
        let listed = listed.ok_or_else(|| import.config.missing("layer_types"))?;
        let full: Vec<bool> =
            listed.iter().map(|kind| ["attention", "full_attention"].contains(kind)).collect();
        if full.len() as u64 != layers {
            return Err(import.config.wrong("layer_types", &format!("{layers} types, one per layer")));
        }
        let kv_heads = import.config.usize("num_key_value_heads")?;
        let heads = full.iter().map(|full| if *full { kv_heads } else { 0 }).collect();
        import.set("attention.head_count_kv", Value::Uints(heads));
        let rotated = import.config.optional_str("position_embedding_type")? == Some("rope");
        import.set("rope.scaling.finetuned", Value::Bool(rotated));
        for (layer, _) in full.iter().enumerate().filter(|(_, full)| !**full) {
            import.put_mamba(layer as u64, "mamba", &sizes)?;
        }
        let has_experts = import.config.optional_usize("num_local_experts")?.unwrap_or(0) > 0;
        if !has_experts {
            // one MLP, which has the name of a shared expert
            let ff = import.config.usize("shared_intermediate_size")?;
            import.set("feed_forward_length", Value::Uint(ff));
        }
        import.split_granite_experts(if has_experts { "_shexp" } else { "" })
    },
};

pub(crate) static FALCON_H1: Family = Family {
    names: &["FalconH1ForCausalLM"],
    arch: "falcon-h1",
    keys: &[MAMBA_KEYS],
    tensors: &[
        MAMBA_TENSORS,
        &[
            rule("final_layernorm", "output_norm"),
            rule("layers.pre_ff_layernorm", "ffn_norm"),
            rule("layers.feed_forward.gate_proj", "ffn_gate"),
            rule("layers.feed_forward.up_proj", "ffn_up"),
            rule("layers.feed_forward.down_proj", "ffn_down"),
        ],
    ],
    prepare: |import| {
        let sizes = import.mamba_sizes("mamba_n_heads", "mamba_d_head", "mamba_n_groups")?;
        let is_set =
            |key: &str| -> Result<bool, FormatError> { Ok(import.config.optional_bool(key)? == Some(true)) };
        if is_set("mamba_rms_norm")? && is_set("mamba_norm_before_gate")? {
            return Err(import.config.wrong("mamba_norm_before_gate", "false if there is a norm"));
        }
        import.fold_falcon(&sizes)?;
        (0..import.layers()?).try_for_each(|layer| import.put_mamba(layer, "mamba", &sizes))
    },
};

pub(crate) static NEMOTRON_H: Family = Family {
    names: &["NemotronHForCausalLM"],
    arch: "nemotron_h",
    keys: &[
        &[
            key("layer_norm_epsilon", "attention.layer_norm_rms_epsilon", Float),
            key("conv_kernel", "ssm.conv_kernel", Uint),
            key("ssm_state_size", "ssm.state_size", Uint),
            key("attention_head_dim", "attention.key_length", OptionalUint),
            key("attention_head_dim", "attention.value_length", OptionalUint),
            key("moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length", OptionalUint),
            key("moe_latent_size", "moe_latent_size", OptionalUint),
        ],
        EXPERT_KEYS,
    ],
    tensors: &[
        MIXER_TENSORS,
        &[
            rule("layers.mixer.q_proj", "attn_q"),
            rule("layers.mixer.k_proj", "attn_k"),
            rule("layers.mixer.v_proj", "attn_v"),
            rule("layers.mixer.o_proj", "attn_output"),
            rule("layers.mixer.up_proj", "ffn_up"),
            rule("layers.mixer.down_proj", "ffn_down"),
            rule("layers.mixer.gate", "ffn_gate_inp"),
            rule("layers.mixer.gate.e_score_correction_bias", "exp_probs_b.bias"),
            rule("layers.mixer.experts.*.up_proj", "ffn_up_exps"),
            rule("layers.mixer.experts.*.down_proj", "ffn_down_exps"),
            rule("layers.mixer.shared_experts.up_proj", "ffn_up_shexp"),
            rule("layers.mixer.shared_experts.down_proj", "ffn_down_shexp"),
            rule("layers.mixer.fc1_latent_proj", "ffn_latent_down"),
            rule("layers.mixer.fc2_latent_proj", "ffn_latent_up"),
        ],
    ],
    prepare: prepare_nemotron,
};

/// What a layer of Nemotron H is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Mamba,
    Attention,
    Mlp,
    Experts,
}

/// Names in lists, and letters of `hybrid_override_pattern`.
const BLOCKS: [(&[&str], Block); 4] = [
    (&["M", "mamba", "linear_attention"], Block::Mamba),
    (&["*", "attention", "full_attention"], Block::Attention),
    (&["-", "mlp"], Block::Mlp),
    (&["E", "moe"], Block::Experts),
];

fn prepare_nemotron(import: &mut Import) -> Result<(), FormatError> {
    let sizes = import.mamba_sizes("mamba_num_heads", "mamba_head_dim", "n_groups")?;
    let blocks = import.nemotron_blocks()?;
    if import.config.optional_str("mlp_hidden_act")?.is_some_and(|act| act != "relu2") {
        return Err(import.config.wrong("mlp_hidden_act", "relu2"));
    }
    if blocks.contains(&Block::Experts) {
        if blocks.contains(&Block::Mlp) {
            return Err(FolderError::MlpBesideExperts.into());
        }
        import.arch = "nemotron_h_moe";
        import.metadata.insert("general.architecture", Value::String(import.arch.into()));
        import.set("ssm.inner_size", Value::Uint(sizes.inner));
        import.set("ssm.group_count", Value::Uint(sizes.groups));
        import.set("ssm.time_step_rank", Value::Uint(sizes.heads));
    } else {
        import.set("expert_count", Value::Uint(0));
        import.set("expert_used_count", Value::Uint(0));
    }
    let of = |block: Block, size: u64| blocks.iter().map(|b| if *b == block { size } else { 0 }).collect();
    let kv_heads = import.config.usize("num_key_value_heads")?;
    import.set("attention.head_count_kv", Value::Uints(of(Block::Attention, kv_heads)));
    let lengths: Vec<u64> = match blocks.contains(&Block::Experts) {
        true => of(Block::Experts, import.config.usize("moe_intermediate_size")?),
        false => of(Block::Mlp, import.config.usize("intermediate_size")?),
    };
    import.set("feed_forward_length", Value::Uints(lengths));
    import.set("block_count", Value::Uint(blocks.len() as u64));
    for (layer, _) in blocks.iter().enumerate().filter(|(_, block)| **block == Block::Mamba) {
        import.put_mamba(layer as u64, "mixer", &sizes)?;
    }
    Ok(())
}

/// Sizes of the layers of Mamba-2.
struct MambaSizes {
    heads: u64,
    groups: u64,
    /// Columns of all heads.
    inner: u64,
}

impl Import {
    /// Reads the sizes from these keys, and sets them.
    fn mamba_sizes(&mut self, heads: &str, dim: &str, groups: &str) -> Result<MambaSizes, FormatError> {
        let (heads, dim) = (self.config.usize(heads)?, self.config.usize(dim)?);
        let of_groups = self.config.usize(groups)?;
        let inner = heads.checked_mul(dim).filter(|inner| inner.checked_rem(of_groups) == Some(0));
        let want = "a number that divides the columns of all heads";
        let inner = inner.ok_or_else(|| self.config.wrong(groups, want))?;
        self.set("ssm.inner_size", Value::Uint(inner));
        self.set("ssm.time_step_rank", Value::Uint(heads));
        self.set("ssm.group_count", Value::Uint(of_groups));
        Ok(MambaSizes { heads, groups: of_groups, inner })
    }

    /// What of a layer of Mamba-2 no rule can express.
    fn put_mamba(&mut self, layer: u64, part: &str, sizes: &MambaSizes) -> Result<(), FormatError> {
        let MambaSizes { heads, groups, inner } = *sizes;
        let name = |tensor: &str| format!("layers.{layer}.{part}.{tensor}");
        self.put_conv(&name("conv1d.weight"), format!("blk.{layer}.ssm_conv1d.weight"))?;
        if let Some(bias) = self.take_optional(&name("conv1d.bias")) {
            self.put(format!("blk.{layer}.ssm_conv1d.bias"), bias)?;
        }
        let decay = self.take_shaped(&name("A_log"), &[heads])?;
        self.put(format!("blk.{layer}.ssm_a"), decay.mapped(|w| -w.exp()).reshaped(vec![heads, 1]))?;
        if let Some(norm) = self.take_optional(&name("norm.weight")) {
            let norm = norm.in_f32();
            if norm.shape != [inner] {
                return Err(shape_error(&name("norm.weight"), &[inner], &norm.shape));
            }
            self.put(format!("blk.{layer}.ssm_norm.weight"), norm.reshaped(vec![groups, inner / groups]))?;
        }
        Ok(())
    }

    /// The layers of Nemotron H, by a list or by letters.
    fn nemotron_blocks(&self) -> Result<Vec<Block>, FormatError> {
        let block = |key: &str, name: &str| {
            let known = BLOCKS.iter().find(|(names, _)| names.contains(&name));
            known.map(|(_, block)| *block).ok_or_else(|| self.config.wrong(key, "known kinds of layers"))
        };
        let (listed, letters) = ("layers_block_type", "hybrid_override_pattern");
        let blocks: Vec<Block> = match self.config.optional_strings(listed)? {
            Some(names) => names.iter().map(|name| block(listed, name)).collect::<Result<_, _>>()?,
            None => {
                let text = self.config.optional_str(letters)?.ok_or_else(|| self.config.missing(letters))?;
                let one = |letter: char| block(letters, letter.encode_utf8(&mut [0; 4]));
                text.chars().map(one).collect::<Result<_, _>>()?
            }
        };
        match self.config.optional_usize("num_hidden_layers")? {
            Some(layers) if layers != blocks.len() as u64 => {
                Err(self.config.wrong("num_hidden_layers", &format!("{}, the number of kinds", blocks.len())))
            }
            _ => Ok(blocks),
        }
    }

    /// Falcon H1 multiplies values by constants: in GGUF files they are part of the weights.
    fn fold_falcon(&mut self, sizes: &MambaSizes) -> Result<(), FormatError> {
        let factor = |key: &str| -> Result<f32, FormatError> {
            Ok(self.config.optional_f64(key)?.unwrap_or(1.0) as f32)
        };
        let several = |key: &str, count: usize| -> Result<Vec<f32>, FormatError> {
            let listed = self.config.optional_f64s(key)?.unwrap_or_else(|| vec![1.0; count]);
            match listed.len() == count {
                true => Ok(listed.into_iter().map(|x| x as f32).collect()),
                false => Err(self.config.wrong(key, &format!("{count} numbers"))),
            }
        };
        let input = factor("attention_in_multiplier")?;
        let (mlp, scan) = (several("mlp_multipliers", 2)?, several("ssm_multipliers", 5)?);
        let by_name = [
            ("embed_tokens.weight", factor("embedding_multiplier")?),
            ("lm_head.weight", factor("lm_head_multiplier")?),
            ("self_attn.q_proj.weight", input),
            ("self_attn.k_proj.weight", input * factor("key_multiplier")?),
            ("self_attn.v_proj.weight", input),
            ("self_attn.o_proj.weight", factor("attention_out_multiplier")?),
            ("mamba.out_proj.weight", factor("ssm_out_multiplier")?),
            ("feed_forward.gate_proj.weight", mlp[0]),
            ("feed_forward.down_proj.weight", mlp[1]),
        ];
        let state = self.config.usize("mamba_d_state")?.saturating_mul(sizes.groups);
        let parts = [sizes.inner, sizes.inner, state, state, sizes.heads].map(|n| n.min(1 << 24) as usize);
        let inner = factor("ssm_in_multiplier")?;
        let rows: Vec<f32> =
            parts.iter().zip(scan).flat_map(|(count, by)| std::iter::repeat_n(by * inner, *count)).collect();
        if self.config.optional_bool("tie_word_embeddings")? == Some(true) && by_name[1].1 != by_name[0].1 {
            return Err(self.config.wrong("tie_word_embeddings", "false, since the factors of both differ"));
        }
        for (name, matrix) in std::mem::take(&mut self.weights) {
            let scaled = match by_name.iter().find(|(end, _)| name.ends_with(end)) {
                Some((_, by)) => vec![*by; matrix.rows()],
                None if name.ends_with("mamba.in_proj.weight") => rows.clone(),
                None => vec![],
            };
            let matrix = match scaled.iter().all(|by| *by == 1.0) {
                true => matrix,
                false if !matrix.is_float() => {
                    return Err(FolderError::no_floats(name, matrix.quant).into());
                }
                false if scaled.len() != matrix.rows() => {
                    return Err(shape_error(&name, &[scaled.len() as u64], &matrix.shape));
                }
                false => matrix.rows_times(scaled),
            };
            self.weights.insert(name, matrix);
        }
        Ok(())
    }
}
