//! Nemotron H, Nano and Super: every layer has one norm and one of Mamba-2, attention without rotation, or an
//! MLP with a squared ReLU, which may be experts of a smaller width.

use tern_graph::{Gating, RopeStyle, Val};

use crate::layers::{AttentionStyle, ExpertStyle, QkNorm};
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static NEMOTRON_H: Arch = Arch {
    name: "nemotron_h",
    build,
    synthetic: Synthetic { extends: Some(&TINY), tensors: &["ffn_up.bias"], ..Synthetic::PLAIN },
};

pub(crate) static NEMOTRON_H_MOE: Arch = Arch {
    name: "nemotron_h_moe",
    build,
    synthetic: Synthetic {
        extends: Some(&TINY),
        tensors: &["exp_probs_b.bias", "ffn_latent_down.weight", "ffn_latent_up.weight"],
        keys: &[
            ("moe_latent_size", Number::Integer(64)),
            ("expert_shared_feed_forward_length", Number::Integer(320)),
            ("expert_weights_norm", Number::Bool(true)),
            ("expert_weights_scale", Number::Float(2.5)),
        ],
        ..Synthetic::PLAIN
    },
};

/// The letters of NVIDIA's files: Mamba-2 (M), attention (*), an MLP (-) or experts (E).
static TINY: Synthetic = Synthetic {
    extends: Some(&super::mamba::TINY_LAYERS),
    keys: &[
        ("attention.head_count_kv", Number::Integers(&sizes(b"ME*ME", b'*', 2))),
        ("feed_forward_length", Number::Integers(&sizes(b"ME*ME", b'E', 512))),
        ("attention.layer_norm_epsilon", Number::Float(0.25)), // of no norm
    ],
    ..Synthetic::PLAIN
};

const NANO_30B: &[u8; 52] = b"MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";

/// The sizes of Nemotron 3 Nano 30B-A3B.
pub(crate) static SIZES_30B: Synthetic = Synthetic {
    extends: Some(&super::mamba::TINY_LAYERS),
    tensors: &["exp_probs_b.bias"],
    keys: &[
        ("attention.head_count_kv", Number::Integers(&sizes(NANO_30B, b'*', 2))),
        ("feed_forward_length", Number::Integers(&sizes(NANO_30B, b'E', 1856))),
        ("ssm.inner_size", Number::Integer(4096)),
        ("ssm.state_size", Number::Integer(128)),
        ("ssm.time_step_rank", Number::Integer(64)),
        ("ssm.group_count", Number::Integer(8)),
        ("expert_shared_feed_forward_length", Number::Integer(3712)),
        ("expert_weights_norm", Number::Bool(true)),
        ("expert_weights_scale", Number::Float(2.5)),
    ],
    ..Synthetic::PLAIN
};

/// This size in the layers with this letter, 0 in the others.
const fn sizes<const LAYERS: usize>(letters: &[u8; LAYERS], letter: u8, size: i64) -> [i64; LAYERS] {
    let (mut sizes, mut layer) = ([0; LAYERS], 0);
    while layer < LAYERS {
        if letters[layer] == letter {
            sizes[layer] = size;
        }
        layer += 1;
    }
    sizes
}

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    b.reads_layers = true;
    b.skip_drafting_layers()?;
    let mamba = b.mamba()?;
    let heads = b.heads_per_layer()?;
    let name = "feed_forward_length";
    let ff = b.keys().usize_per_layer(name, b.config.layers)?.ok_or_else(|| b.missing(name))?;
    let experts = b.optional_expert_style(Gating::Sigmoid, false)?;
    let scale = b.attention_scale()?;
    let style =
        AttentionStyle { table: None, ..AttentionStyle::full(RopeStyle::Halves, 0, QkNorm::None, scale) };
    let mut x = b.embed(1.0)?;
    for layer in 0..b.config.layers {
        let normed = b.norm(x, &format!("blk.{layer}.attn_norm"), b.config.width)?;
        let y = match (heads[layer], ff[layer], &experts) {
            (None, 0, _) => b.mamba_layer(normed, layer, &mamba)?,
            (shape, 0, _) => b.attention(normed, layer, AttentionStyle { shape, ..style })?,
            (_, _, Some(experts)) => b.squared_experts(normed, layer, experts)?,
            (_, ff, None) => {
                let names = ["ffn_up", "ffn_down"].map(|part| format!("blk.{layer}.{part}"));
                b.squared_mlp(normed, names, ff)?
            }
        };
        x = b.graph.add(x, y)?;
    }
    b.head(x)?;
    Ok(())
}

impl Build<'_> {
    /// Two matrices with a squared ReLU between them. `[tokens, width]`
    fn squared_mlp(&mut self, x: Val, [up, down]: [String; 2], ff: usize) -> Result<Val, ModelError> {
        let up = self.linear(x, &up, ff)?;
        let hidden = self.graph.squared_relu(up)?;
        self.linear(hidden, &down, self.config.width)
    }

    /// Experts of this kind, on a value of fewer columns if the file has such matrices, and the one that all
    /// tokens share. `[tokens, width]`
    fn squared_experts(&mut self, x: Val, layer: usize, style: &ExpertStyle) -> Result<Val, ModelError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let logits = self.linear(x, &name("ffn_gate_inp"), style.count)?;
        let bias = self.optional_vector(name("exp_probs_b.bias"), style.count)?;
        let route = self.graph.route(logits, bias, style.routing)?;
        let latent = self.has(&name("ffn_latent_down.weight"));
        let inner = match latent {
            true => {
                let columns = self.latent_size()?;
                self.linear(x, &name("ffn_latent_down"), columns)?
            }
            false => x,
        };
        let mut mixed = self.plain_experts(inner, route, layer, style, |graph, up| graph.squared_relu(up))?;
        if latent {
            mixed = self.linear(mixed, &name("ffn_latent_up"), self.config.width)?;
        }
        if style.shared_ff == 0 {
            return Ok(mixed);
        }
        let shared = self.squared_mlp(x, [name("ffn_up_shexp"), name("ffn_down_shexp")], style.shared_ff)?;
        Ok(self.graph.add(mixed, shared)?)
    }

    fn latent_size(&self) -> Result<usize, ModelError> {
        let (name, width) = ("moe_latent_size", self.config.width);
        let size = self.keys().usize(name)?;
        if size == 0 || size > width {
            let want = format!("1 to the {width} columns");
            return Err(ModelError::value(self.keys().key(name), size, want));
        }
        Ok(size)
    }
}
