//! BERT and the encoders that follow it: norms after attention and after the MLP, in both directions.

use tern_graph::{Activation, Attention, Function, Gating, Graph, Pooling, RopeStyle, TableRow, Val};

use crate::layers::ExpertStyle;
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static BERT: Arch = Arch {
    name: "bert",
    build: |b| b.bert(&Style { positions: Positions::Learned, mlp: Mlp::Plain, pooling: Pooling::Mean }),
    synthetic: Synthetic {
        extends: Some(&BIASED),
        tensors: &["attn_q.bias", "attn_k.bias", "attn_v.bias"],
        ..ENCODER
    },
};

/// A classifier of one score, as rerankers have.
pub(crate) static RANKING: Synthetic = Synthetic {
    extends: Some(&BERT.synthetic),
    tensors: &["cls.weight", "cls.bias", "cls.output.weight", "cls.output.bias"],
    keys: &[("pooling_type", Number::Integer(4))],
    ..ENCODER
};

/// What nearly all of them have: types of tokens, norms with biases, means as vectors.
static NORMED: Synthetic = Synthetic {
    tensors: &[
        "token_types.weight",
        "token_embd_norm.bias",
        "attn_output_norm.bias",
        "layer_output_norm.bias",
    ],
    keys: &[("pooling_type", Number::Integer(1))],
    ..ENCODER
};

/// Biases of the matrices too.
static BIASED: Synthetic = Synthetic {
    extends: Some(&NORMED),
    tensors: &["attn_output.bias", "ffn_up.bias", "ffn_down.bias"],
    ..ENCODER
};

pub(crate) static NOMIC_BERT: Arch = Arch {
    name: "nomic-bert",
    build: |b| {
        let mlp = Mlp::Gated(Activation::Silu);
        b.bert(&Style { positions: Positions::Rotated, mlp, pooling: Pooling::Mean })
    },
    synthetic: Synthetic {
        extends: Some(&NORMED),
        tensors: &["attn_qkv.weight", "ffn_gate.weight"],
        ..ENCODER
    },
};

pub(crate) static NOMIC_BERT_MOE: Arch = Arch {
    name: "nomic-bert-moe",
    build: |b| {
        let every = b.keys().optional_usize("moe_every_n_layers")?.unwrap_or(0);
        let mlp = Mlp::Experts { every, style: b.expert_style(Gating::Softmax, false)? };
        b.bert(&Style { positions: Positions::Rotated, mlp, pooling: Pooling::Mean })
    },
    synthetic: Synthetic {
        extends: Some(&BIASED),
        tensors: &["attn_qkv.weight", "attn_qkv.bias"],
        keys: &[("moe_every_n_layers", Number::Integer(2))],
        ..ENCODER
    },
};

pub(crate) static JINA_BERT_V2: Arch = Arch {
    name: "jina-bert-v2",
    build: |b| {
        let slopes = b.keys().optional_f32("attention.max_alibi_bias")?.unwrap_or(8.0);
        let mlp = Mlp::Gated(Activation::Gelu);
        b.bert(&Style { positions: Positions::Slopes(slopes), mlp, pooling: Pooling::Mean })
    },
    synthetic: Synthetic {
        extends: Some(&NORMED),
        tensors: &[
            "attn_q.bias",
            "attn_k.bias",
            "attn_v.bias",
            "attn_q_norm.weight",
            "attn_q_norm.bias",
            "attn_k_norm.weight",
            "attn_k_norm.bias",
            "attn_output.bias",
            "ffn_gate.weight",
            "ffn_down.bias",
        ],
        ..ENCODER
    },
};

pub(crate) static JINA_BERT_V3: Arch = Arch {
    name: "jina-bert-v3",
    build: |b| b.bert(&Style { positions: Positions::Rotated, mlp: Mlp::Plain, pooling: Pooling::Mean }),
    synthetic: Synthetic {
        extends: Some(&BIASED),
        tensors: &["attn_qkv.weight", "attn_qkv.bias"],
        ..ENCODER
    },
};

/// Encoders normalise their embeddings, so that layers matter at any size of them.
pub(crate) const ENCODER: Synthetic =
    Synthetic { tensors: &[], has_layer_norms: true, embedding_gain: 1.0, ..Synthetic::PLAIN };

/// What differs between these encoders.
struct Style {
    positions: Positions,
    mlp: Mlp,
    /// If the file has none.
    pooling: Pooling,
}

/// How a token's position enters.
#[derive(Clone, Copy)]
enum Positions {
    /// A table that is added to the embeddings.
    Learned,
    /// Rotations of queries and keys.
    Rotated,
    /// Slopes of the scores (ALiBi).
    Slopes(f32),
}

/// The MLP.
enum Mlp {
    /// Two matrices with GELU between them.
    Plain,
    /// Three matrices; gate and up may be one tensor.
    Gated(Activation),
    /// Experts in each `every`th layer, the second first, and a plain MLP in the others.
    Experts { every: usize, style: ExpertStyle },
}

/// Rotation base of files without the key.
const ROPE_BASE: f32 = 10_000.0;

impl Build<'_> {
    fn bert(&mut self, style: &Style) -> Result<(), ModelError> {
        let width = self.config.width;
        let mut x = self.embed(1.0)?;
        if self.has("token_types.weight") {
            let count = self.token_types()?;
            let types = self.graph.matrix("token_types.weight", count, width)?;
            let row = if count > 1 { TableRow::Type } else { TableRow::First };
            x = self.graph.add_row(x, types, row)?;
        }
        if let Positions::Learned = style.positions {
            let positions = self.graph.matrix("position_embd.weight", self.config.context_trained, width)?;
            x = self.graph.add_row(x, positions, TableRow::Position)?;
        }
        x = self.layer_norm(x, "token_embd_norm", width)?;
        let table = match style.positions {
            Positions::Rotated => {
                let base = self.keys().optional_f32("rope.freq_base")?.unwrap_or(ROPE_BASE);
                Some(self.rope_table(base)?)
            }
            Positions::Learned | Positions::Slopes(_) => None,
        };
        for layer in 0..self.config.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            let attended = self.encoder_attention(x, layer, style, table)?;
            let sum = self.graph.add(attended, x)?;
            let mut y = self.layer_norm(sum, &name("attn_output_norm"), width)?;
            if self.has(&name("attn_norm_2.weight")) {
                let sum = self.graph.add(y, x)?;
                y = self.layer_norm(sum, &name("attn_norm_2"), width)?;
            }
            let mlp = match &style.mlp {
                Mlp::Gated(activation) => {
                    let names = ["ffn_gate", "ffn_up", "ffn_down"].map(name);
                    self.gated_mlp_of(y, names, self.config.ff, *activation, None)?
                }
                Mlp::Experts { every, style } if *every > 0 && layer % every == 1 => {
                    let logits = self.linear(y, &name("ffn_gate_inp"), style.count)?;
                    let route = self.graph.route(logits, None, style.routing)?;
                    let gelu = |graph: &mut Graph, up| Ok(graph.apply(up, Function::Gelu));
                    let sum = self.plain_experts(y, route, layer, style, gelu)?;
                    let bias = name("ffn_exps_sum.bias"); // which files of llama.cpp omit
                    match self.has(&bias) {
                        true => {
                            let bias = self.graph.matrix(bias, 1, width)?;
                            self.graph.add_row(sum, bias, TableRow::First)?
                        }
                        false => sum,
                    }
                }
                Mlp::Plain | Mlp::Experts { .. } => {
                    let up = self.linear(y, &name("ffn_up"), self.config.ff)?;
                    let hidden = self.graph.apply(up, Function::Gelu);
                    self.linear(hidden, &name("ffn_down"), width)?
                }
            };
            let sum = self.graph.add(mlp, y)?;
            x = self.layer_norm(sum, &name("layer_output_norm"), width)?;
        }
        self.pooled(x, style.pooling)
    }

    /// Attention of one layer in both directions. `[tokens, width]`
    fn encoder_attention(
        &mut self,
        x: Val,
        layer: usize,
        style: &Style,
        table: Option<usize>,
    ) -> Result<Val, ModelError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (heads, kv_heads, head_dim) = (self.config.heads, self.config.kv_heads, self.config.head_dim);
        let [mut q, mut k, v] = self.heads_of(x, layer)?;
        for (heads, norm) in [(&mut q, name("attn_q_norm")), (&mut k, name("attn_k_norm"))] {
            if self.has(&format!("{norm}.weight")) {
                *heads = self.layer_norm(*heads, &norm, self.graph.width(*heads))?;
            }
            if let Some(table) = table {
                *heads = self.graph.rope(*heads, head_dim, RopeStyle::Halves, table)?;
            }
        }
        let alibi = if let Positions::Slopes(most) = style.positions { Some(most) } else { None };
        let scale = 1.0 / (head_dim as f32).sqrt();
        let args = Attention { causal: false, alibi, ..Attention::full(heads, kv_heads, head_dim, scale) };
        let out = self.graph.attend(q, k, v, args)?;
        self.linear(out, &name("attn_output"), self.config.width)
    }
}
