//! ModernBERT: norms before attention and MLP, rotations, and windows in both
//! directions in two layers of three.

use tern_graph::{Activation, Attention, Function, Pooling, RopeStyle};

use crate::{Arch, Build, ModelError, Number, Synthetic, VectorKind};

pub(crate) static MODERN_BERT: Arch = Arch {
    name: "modern-bert",
    build,
    synthetic: Synthetic {
        tensors: &["attn_qkv.weight"],
        keys: &[
            ("pooling_type", Number::Integer(1)),
            ("attention.sliding_window", Number::Integer(16)),
            ("rope.freq_base_swa", Number::Float(1e3)),
        ],
        ..super::bert::ENCODER
    },
};

/// Every third layer has full attention, the first one first.
const PATTERN: usize = 3;
/// What a classifier reads, as `pooling_type` numbers it: the mean of all tokens, or the first one.
const CLASSIFIED_MEAN: usize = 1;
const CLASSIFIED_FIRST: usize = 2;
/// Rotation base of the layers with a window, if the file has no key for it.
const LOCAL_ROPE_BASE: f32 = 10_000.0;

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let c = b.config.clone();
    let keys = b.keys();
    let base = keys.f32("rope.freq_base")?;
    let local_base = keys.optional_f32("rope.freq_base_swa")?.unwrap_or(LOCAL_ROPE_BASE);
    let pattern = keys.optional_usize("attention.sliding_window_pattern")?.unwrap_or(PATTERN).max(1);
    let activation = match keys.optional_str("hidden_activation")? {
        None | Some("gelu" | "geglu") => Activation::Gelu,
        Some("silu" | "swiglu") => Activation::Silu,
        Some(other) => {
            return Err(ModelError::name(keys.key("hidden_activation"), other, "gelu or silu"));
        }
    };
    let window = b.window()?;
    let (global, local) = (b.rope_table(base)?, b.plain_rope_table(local_base, c.rope_dims)?);
    let embedded = b.embed(1.0)?;
    let mut x = b.layer_norm(embedded, "token_embd_norm", c.width)?;
    for layer in 0..c.layers {
        let name = |part: &str| format!("blk.{layer}.{part}");
        // the embeddings are normalised already: the first layer has no norm
        let normed = match layer {
            0 => x,
            _ => b.layer_norm(x, &name("attn_norm"), c.width)?,
        };
        let [q, k, v] = b.heads_of(normed, layer)?;
        let full = layer.is_multiple_of(pattern);
        let table = if full { global } else { local };
        let (q, k) = (
            b.graph.rope(q, c.head_dim, RopeStyle::Halves, table)?,
            b.graph.rope(k, c.head_dim, RopeStyle::Halves, table)?,
        );
        let plain = Attention::full(c.heads, c.kv_heads, c.head_dim, 1.0 / (c.head_dim as f32).sqrt());
        let args = Attention { causal: false, window: Some(window).filter(|_| !full), ..plain };
        let out = b.graph.attend(q, k, v, args)?;
        let out = b.linear(out, &name("attn_output"), c.width)?;
        x = b.graph.add(x, out)?;
        let normed = b.layer_norm(x, &name("ffn_norm"), c.width)?;
        let names = ["ffn_gate", "ffn_up", "ffn_down"].map(name);
        let mlp = b.gated_mlp_of(normed, names, c.ff, activation, None)?;
        x = b.graph.add(x, mlp)?;
    }
    let x = b.layer_norm(x, "output_norm", c.width)?;
    if b.vectors_of_file()?.is_none_or(|vectors| vectors.kind == VectorKind::Embedding) {
        return b.pooled(x, Pooling::Mean);
    }
    let key = "classifier.pooling_type";
    let pooling = match b.keys().optional_usize(key)?.unwrap_or(CLASSIFIED_MEAN) {
        CLASSIFIED_MEAN => Pooling::Mean,
        CLASSIFIED_FIRST => Pooling::Cls,
        other => {
            return Err(ModelError::value(b.keys().key(key), other, "1 or 2"));
        }
    };
    let x = b.pooled_rows(x, pooling)?;
    b.classifier(x, pooling, Function::Gelu)
}
