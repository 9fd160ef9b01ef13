//! Which format each tensor of a quantized file gets: recipes with the names and the mixes of llama.cpp.

use tern_quant::{
    BF16, F16, F32, I2_S, IQ4_NL, IQ4_XS, MXFP4, PQ2_0, PTQ1_0, Q1_0, Q2_0, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K,
    Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, Quant, TQ1_0, TQ2_0, TQ2_0_G128,
};

use crate::{Checkpoint, Tensor};

/// A named mix of formats.
#[derive(Debug)]
pub struct Recipe {
    /// The name, such as `Q4_K_M`.
    pub name: &'static str,
    /// What most tensors get.
    pub base: &'static Quant,
    /// The number in `general.file_type`, if llama.cpp has one.
    pub file_type: Option<u64>,
    /// What other tensors get: the first rule that applies.
    rules: &'static [Rule],
    /// Whether all matrices get the base, the embedding and the output too.
    uniform: bool,
}

impl PartialEq for Recipe {
    fn eq(&self, other: &Recipe) -> bool {
        self.name == other.name
    }
}

/// A part of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Embedding,
    Values,
    AttentionOutput,
    AttentionAll,
    Down,
}

/// When a rule applies.
#[derive(Clone, Copy, Debug)]
enum When {
    Always,
    /// In the first and the last eighth of the layers, and in every third one between.
    MoreBits,
    /// In this many of the first layers.
    First(usize),
    /// In this share of the layers: of eight, the first eighth.
    FirstShare(usize),
    /// If at least four query heads share a key head.
    SharedKeys,
    /// In the first eighth of the layers, with or without an importance.
    FirstEighth {
        weighted: bool,
    },
}

/// Tensors of a part get this format, when it applies.
#[derive(Debug)]
struct Rule(Part, When, &'static Quant);

/// The fields that most recipes have alike.
const MIX: Recipe = Recipe { name: "", base: &F32, file_type: None, rules: &[], uniform: false };

use self::Part::{AttentionAll, AttentionOutput, Down, Embedding, Values};
use self::When::{Always, First, FirstEighth, FirstShare, MoreBits, SharedKeys};

/// All recipes.
pub static RECIPES: &[Recipe] = &[
    Recipe { name: "F32", base: &F32, file_type: Some(0), uniform: true, ..MIX },
    Recipe { name: "F16", base: &F16, file_type: Some(1), uniform: true, ..MIX },
    Recipe { name: "BF16", base: &BF16, file_type: Some(32), uniform: true, ..MIX },
    Recipe { name: "Q8_0", base: &Q8_0, file_type: Some(7), ..MIX },
    Recipe { name: "Q6_K", base: &Q6_K, file_type: Some(18), ..MIX },
    Recipe {
        name: "Q5_K_M",
        base: &Q5_K,
        file_type: Some(17),
        rules: &[
            Rule(Values, MoreBits, &Q6_K),
            Rule(Down, MoreBits, &Q6_K),
            Rule(AttentionAll, Always, &Q6_K),
        ],
        ..MIX
    },
    Recipe { name: "Q5_K_S", base: &Q5_K, file_type: Some(16), ..MIX },
    Recipe { name: "Q5_1", base: &Q5_1, file_type: Some(9), ..MIX },
    Recipe {
        name: "Q5_0",
        base: &Q5_0,
        file_type: Some(8),
        rules: &[Rule(Down, FirstEighth { weighted: true }, &Q5_1)],
        ..MIX
    },
    Recipe {
        name: "Q4_K_M",
        base: &Q4_K,
        file_type: Some(15),
        rules: &[
            Rule(Values, MoreBits, &Q6_K),
            Rule(Down, MoreBits, &Q6_K),
            Rule(AttentionAll, Always, &Q5_K),
        ],
        ..MIX
    },
    Recipe {
        name: "Q4_K_S",
        base: &Q4_K,
        file_type: Some(14),
        rules: &[Rule(Values, First(4), &Q5_K), Rule(Down, FirstShare(8), &Q5_K)],
        ..MIX
    },
    Recipe { name: "Q4_1", base: &Q4_1, file_type: Some(3), ..MIX },
    Recipe {
        name: "Q4_0",
        base: &Q4_0,
        file_type: Some(2),
        rules: &[Rule(Down, FirstEighth { weighted: true }, &Q4_1)],
        ..MIX
    },
    Recipe {
        name: "IQ4_NL",
        base: &IQ4_NL,
        file_type: Some(25),
        rules: &[Rule(Values, SharedKeys, &Q5_K), Rule(Down, FirstEighth { weighted: false }, &Q5_K)],
        ..MIX
    },
    Recipe {
        name: "IQ4_XS",
        base: &IQ4_XS,
        file_type: Some(30),
        rules: &[Rule(Values, SharedKeys, &Q5_K), Rule(Down, FirstEighth { weighted: false }, &Q5_K)],
        ..MIX
    },
    Recipe { name: "MXFP4", base: &MXFP4, uniform: true, ..MIX },
    Recipe {
        name: "Q3_K_L",
        base: &Q3_K,
        file_type: Some(13),
        rules: &[
            Rule(Values, Always, &Q5_K),
            Rule(Down, Always, &Q5_K),
            Rule(AttentionOutput, Always, &Q5_K),
            Rule(AttentionAll, Always, &Q4_K),
        ],
        ..MIX
    },
    Recipe {
        name: "Q3_K_M",
        base: &Q3_K,
        file_type: Some(12),
        rules: &[
            Rule(Values, First(2), &Q5_K),
            Rule(Values, Always, &Q4_K),
            Rule(Down, FirstShare(16), &Q5_K),
            Rule(Down, Always, &Q4_K),
            Rule(AttentionOutput, Always, &Q4_K),
            Rule(AttentionAll, Always, &Q4_K),
        ],
        ..MIX
    },
    Recipe { name: "Q3_K_S", base: &Q3_K, file_type: Some(11), ..MIX },
    Recipe {
        name: "Q2_K",
        base: &Q2_K,
        file_type: Some(10),
        rules: &[
            Rule(Values, SharedKeys, &Q4_K),
            Rule(Values, Always, &Q3_K),
            Rule(Down, Always, &Q3_K),
            Rule(AttentionOutput, Always, &Q3_K),
        ],
        ..MIX
    },
    Recipe {
        name: "Q2_K_S",
        base: &Q2_K,
        file_type: Some(21),
        rules: &[Rule(Values, SharedKeys, &Q4_K), Rule(Down, FirstShare(8), &Q4_K)],
        ..MIX
    },
    Recipe {
        name: "TQ2_0",
        base: &TQ2_0,
        file_type: Some(37),
        rules: &[Rule(Embedding, Always, &Q4_K)],
        ..MIX
    },
    Recipe {
        name: "TQ1_0",
        base: &TQ1_0,
        file_type: Some(36),
        rules: &[Rule(Embedding, Always, &Q4_K)],
        ..MIX
    },
    Recipe { name: "Q2_0", base: &Q2_0, uniform: true, ..MIX },
    Recipe { name: "PQ2_0", base: &PQ2_0, uniform: true, ..MIX },
    Recipe { name: "TQ2_0_G128", base: &TQ2_0_G128, uniform: true, ..MIX },
    Recipe { name: "I2_S", base: &I2_S, uniform: true, ..MIX },
    Recipe { name: "PTQ1_0", base: &PTQ1_0, uniform: true, ..MIX },
    Recipe { name: "Q1_0", base: &Q1_0, uniform: true, ..MIX },
];

/// Other names of recipes, as llama-quantize has them.
const ALIASES: [(&str, &str); 3] = [("Q3_K", "Q3_K_M"), ("Q4_K", "Q4_K_M"), ("Q5_K", "Q5_K_M")];

/// Formats that a model must have been trained for.
static TRAINED: [&Quant; 8] = [&Q1_0, &Q2_0, &PQ2_0, &PTQ1_0, &TQ1_0, &TQ2_0, &TQ2_0_G128, &I2_S];

impl Recipe {
    /// The recipe of this name, in any case.
    pub fn named(name: &str) -> Option<&'static Recipe> {
        let alias = ALIASES.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(name));
        let name = alias.map_or(name, |(_, name)| name);
        RECIPES.iter().find(|recipe| recipe.name.eq_ignore_ascii_case(name))
    }

    /// Whether only models that were trained with such weights keep their quality.
    pub fn needs_training(&self) -> bool {
        TRAINED.contains(&self.base)
    }
}

/// What the choice of formats depends on, of a whole model.
#[derive(Debug)]
pub(super) struct Shape {
    layers: usize,
    experts: usize,
    shared_keys: bool,
    has_output: bool,
    /// The layers that have a tensor of values.
    value_layers: Vec<usize>,
    weighted: bool,
}

const OUTPUT: &str = "output.weight";
const EMBEDDING: &str = "token_embd.weight";

impl Shape {
    pub(super) fn of(source: &Checkpoint, weighted: bool) -> Shape {
        let architecture = source.metadata.optional_str("general.architecture").ok().flatten().unwrap_or("");
        let architecture = if architecture == "clip" { "clip.vision" } else { architecture };
        let count =
            |key: &str| source.metadata.optional_usize(&format!("{architecture}.{key}")).ok().flatten();
        let (heads, keys) = (count("attention.head_count"), count("attention.head_count_kv"));
        Shape {
            layers: count("block_count").unwrap_or(0),
            experts: count("expert_count").unwrap_or(0),
            shared_keys: heads.zip(keys).is_some_and(|(heads, keys)| keys > 0 && heads / keys >= 4),
            has_output: source.tensors.contains_key(OUTPUT),
            value_layers: source
                .tensors
                .keys()
                .filter(|name| is_values(name))
                .filter_map(|name| layer_of(name))
                .collect(),
            weighted,
        }
    }

    /// The format of a tensor, before its rows are looked at.
    pub(super) fn format(&self, recipe: &Recipe, name: &str) -> &'static Quant {
        if recipe.uniform {
            return recipe.base;
        }
        if name == OUTPUT || name == EMBEDDING && !self.has_output {
            return if recipe.base == &Q8_0 { &Q8_0 } else { &Q6_K };
        }
        let Some(part) = part_of(name) else {
            return if self.experts == 8 && name.contains("attn_k.weight") { &Q8_0 } else { recipe.base };
        };
        if self.experts == 8 && part == Values {
            return &Q8_0;
        }
        if self.experts == 8
            && part == AttentionOutput
            && recipe.base.bits_per_weight() < Q5_K.bits_per_weight()
        {
            return &Q5_K;
        }
        let layer = layer_of(name).unwrap_or(0);
        let (i, of) = match part {
            Values => {
                (self.value_layers.iter().filter(|&&other| other < layer).count(), self.value_layers.len())
            }
            _ => (layer, self.layers),
        };
        let applies = |Rule(of_part, when, _): &&Rule| {
            *of_part == part
                && match *when {
                    Always => true,
                    MoreBits => i < of / 8 || i >= 7 * of / 8 || (i - of / 8) % 3 == 2,
                    First(count) => i < count,
                    FirstShare(share) => i < of / share,
                    SharedKeys => self.shared_keys,
                    FirstEighth { weighted } => weighted == self.weighted && i < of / 8,
                }
        };
        recipe.rules.iter().find(applies).map_or(recipe.base, |Rule(_, _, becomes)| becomes)
    }
}

fn is_values(name: &str) -> bool {
    part_of(name) == Some(Values)
}

fn part_of(name: &str) -> Option<Part> {
    let parts = [
        ("attn_v.weight", Values),
        ("attn_output.weight", AttentionOutput),
        ("attn_qkv.weight", AttentionAll),
        ("ffn_down", Down),
        (EMBEDDING, Embedding),
    ];
    parts.iter().find(|(part, _)| name.contains(part)).map(|(_, part)| *part)
}

fn layer_of(name: &str) -> Option<usize> {
    let name = name.strip_prefix("v.").unwrap_or(name); // of a tower
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// Matrices that keep their format: what they compute is sensitive, and they are small.
const KEPT: [&str; 11] = [
    "_norm.weight",
    "ffn_gate_inp",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "position_embd",
    "patch_embd",
    "patch_merger",
    "token_types",
    "attn_rel_b",
    "altup",
    "laurel",
];

/// Whether a recipe applies to a tensor at all: matrices of weights, except for some that
/// are small and sensitive.
pub(super) fn is_quantized(tensor: &Tensor) -> bool {
    let matrix = tensor.dims.iter().filter(|&&dim| dim > 1).count() >= 2;
    matrix && tensor.name.ends_with("weight") && !KEPT.iter().any(|part| tensor.name.contains(part))
}

/// The format if rows of `cols` weights are whole blocks of it, otherwise the nearest that has such rows.
pub(super) fn fitting(format: &'static Quant, cols: usize) -> &'static Quant {
    if cols.is_multiple_of(format.block_len) {
        return format;
    }
    let other: &'static Quant = match format {
        f if f == &Q4_K => &Q5_0,
        f if f == &Q5_K => &Q5_1,
        f if f == &Q6_K => &Q8_0,
        f if f == &IQ4_XS => &IQ4_NL,
        f if [&Q2_K, &Q3_K].contains(&f) || TRAINED.contains(&f) => &Q4_0,
        _ => &F16,
    };
    if cols.is_multiple_of(other.block_len) { other } else { &F16 }
}
