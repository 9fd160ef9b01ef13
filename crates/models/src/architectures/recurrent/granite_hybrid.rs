//! Granite 4 with state: Mamba-2 in most layers and attention in a few, with the factors of
//! Granite, dense or with experts.

use crate::layers::AttentionStyle;
use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static GRANITE_HYBRID: Arch = Arch {
    name: "granitehybrid",
    build,
    synthetic: Synthetic {
        extends: Some(&TINY),
        tensors: &["ffn_gate_shexp.weight"],
        keys: &[("expert_shared_feed_forward_length", Number::Integer(256))],
        embedding_gain: 1.0,
        ..Synthetic::PLAIN
    },
};

static TINY: Synthetic = Synthetic {
    extends: Some(&super::mamba::TINY_LAYERS),
    keys: &[
        ("embedding_scale", Number::Float(2.0)),
        ("residual_scale", Number::Float(1.7)),
        ("attention.scale", Number::Float(0.3)),
        ("logit_scale", Number::Float(0.5)),
        ("rope.scaling.finetuned", Number::Bool(false)),
        ("attention.head_count_kv", Number::Integers(&[0, 2, 0, 2])),
    ],
    ..Synthetic::PLAIN
};

/// Without experts, and with rotated heads.
pub(crate) static DENSE: Synthetic = Synthetic {
    extends: Some(&TINY),
    keys: &[("rope.scaling.finetuned", Number::Bool(true))],
    embedding_gain: 1.0,
    ..Synthetic::PLAIN
};

/// Key and value heads of Granite 4.0 H Tiny: four layers of forty have attention.
const KV_HEADS: [i64; 40] = {
    let mut heads = [0; 40];
    (heads[5], heads[15], heads[25], heads[35]) = (4, 4, 4, 4);
    heads
};

/// The sizes of Granite 4.0 H Tiny.
pub(crate) static SIZES_TINY: Synthetic = Synthetic {
    extends: Some(&GRANITE_HYBRID.synthetic),
    keys: &[
        ("embedding_scale", Number::Float(12.0)),
        ("residual_scale", Number::Float(0.22)),
        ("attention.scale", Number::Float(0.007_812_5)),
        ("logit_scale", Number::Float(6.0)),
        ("attention.head_count_kv", Number::Integers(&KV_HEADS)),
        ("ssm.inner_size", Number::Integer(3072)),
        ("ssm.state_size", Number::Integer(128)),
        ("ssm.time_step_rank", Number::Integer(48)),
        ("ssm.group_count", Number::Integer(1)),
        ("expert_shared_feed_forward_length", Number::Integer(1024)),
    ],
    ..Synthetic::PLAIN
};

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    b.reads_layers = true;
    let mamba = b.mamba()?;
    let style = b.granite_attention()?;
    let heads = b.heads_per_layer()?;
    b.granite_decoder(|b, x, layer| match heads[layer] {
        None => b.mamba_layer(x, layer, &mamba),
        shape => b.attention(x, layer, AttentionStyle { shape, ..style }),
    })
}
