//! Gemma 4: layers of two shapes, keys and values that several layers share, embeddings per layer, and
//! experts beside the MLP.

use tern_graph::{Activation, Gating, ImageOrder, RopeStyle, Val};

use crate::layers::{AttentionStyle, ExpertStyle, HeadShape, QkNorm};
use crate::{Arch, Build, ModelError, Number, Shape, Synthetic};

pub(crate) static GEMMA4: Arch = Arch { name: "gemma4", build, synthetic: SHARED_KV };

/// As E2B and E4B: the last layers have no keys and values, and tokens have an embedding per layer.
const SHARED_KV: Synthetic = Synthetic {
    extends: None,
    has_layer_norms: false,
    tensors: &["ffn_gate.weight", "attn_v.weight"],
    keys: &[
        ("attention.head_count_kv", Number::Integers(&[4, 4, 2, 4, 4, 2])),
        ("attention.sliding_window", Number::Integer(8)),
        ("attention.sliding_window_pattern", Number::PerLayer(&[true, true, false])),
        ("attention.key_length_swa", Number::Integer(32)),
        ("attention.value_length_swa", Number::Integer(32)),
        ("attention.shared_kv_layers", Number::Integer(3)),
        ("rope.dimension_count_swa", Number::Integer(32)),
        ("rope.freq_base_swa", Number::Float(1e3)),
        ("embedding_length_per_layer_input", Number::Integer(32)),
        ("feed_forward_length", Number::Integers(&[512, 512, 512, 768, 768, 768])),
        ("final_logit_softcapping", Number::Float(30.0)),
    ],
    constants,
    // scores have no factor, and the logits of a router are divided by the root of the width
    means: &[("attn_q_norm.weight", 0.15), ("ffn_gate_inp.scale", 16.0)],
    embedding_gain: 1.0,
    rotated: None,
};

/// As the 26B: experts beside the MLP, and keys that are values too.
pub(crate) static WITH_EXPERTS: Synthetic = Synthetic {
    tensors: &["ffn_gate.weight", "ffn_gate_inp.weight", "ffn_gate_up_exps.weight", "ffn_down_exps.scale"],
    keys: &[
        ("attention.head_count_kv", Number::Integers(&[4, 4, 2, 4, 4, 2])),
        ("attention.sliding_window", Number::Integer(8)),
        ("attention.sliding_window_pattern", Number::PerLayer(&[true, true, false])),
        ("attention.key_length_swa", Number::Integer(32)),
        ("attention.value_length_swa", Number::Integer(32)),
        ("rope.dimension_count_swa", Number::Integer(32)),
        ("rope.freq_base_swa", Number::Float(1e3)),
        ("embedding_length_per_layer_input", Number::Integer(0)),
        ("final_logit_softcapping", Number::Float(30.0)),
    ],
    ..SHARED_KV
};

/// The 26B-A4B itself, but with matrices of values in all layers.
pub(crate) static SIZES_26B: Synthetic = Synthetic {
    tensors: &[
        "ffn_gate.weight",
        "attn_v.weight",
        "ffn_gate_inp.weight",
        "ffn_gate_up_exps.weight",
        "ffn_down_exps.scale",
    ],
    keys: &[
        (
            "attention.head_count_kv",
            Number::Integers(&[
                8, 8, 8, 8, 8, 2, 8, 8, 8, 8, 8, 2, 8, 8, 8, 8, 8, 2, 8, 8, 8, 8, 8, 2, 8, 8, 8, 8, 8, 2,
            ]),
        ),
        ("attention.sliding_window_pattern", Number::PerLayer(&[true, true, true, true, true, false])),
        ("attention.key_length_swa", Number::Integer(256)),
        ("attention.value_length_swa", Number::Integer(256)),
        ("rope.dimension_count_swa", Number::Integer(256)),
        ("rope.freq_base_swa", Number::Float(1e4)),
        ("embedding_length_per_layer_input", Number::Integer(0)),
        ("final_logit_softcapping", Number::Float(30.0)),
    ],
    ..SHARED_KV
};

/// A quarter of the pairs of global layers is rotated, and layers have different scales.
fn constants(name: &str, shape: &Shape) -> Option<Vec<f32>> {
    let layer =
        |name: &str| name.strip_prefix("blk.")?.strip_suffix(".layer_output_scale.weight")?.parse().ok();
    match name {
        "rope_freqs.weight" => {
            let pairs = shape.head_dim / 2;
            Some((0..pairs).map(|i| if i < pairs / 4 { 1.0 } else { 1e30 }).collect())
        }
        name => layer(name).map(|layer: u16| vec![0.7 + 0.1 * f32::from(layer % 4)]),
    }
}

/// The last layers, which use the keys and values of earlier ones; at most one less than all.
const SHARED_LAYERS: &str = "attention.shared_kv_layers";

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let (layers, width) = (b.config.layers, b.config.width);
    let attention = attention_styles(b)?;
    let ff = b.sizes_per_layer("feed_forward_length", 1 << 24)?;
    let experts = b.optional_expert_style(Gating::Softmax, true)?;
    let experts = experts.map(|e| ExpertStyle { activation: Activation::GeluTanh, ..e });
    if experts.is_some() && !(0..layers).any(|layer| has_experts(b, layer)) {
        return Err(ModelError::MissingTensor("blk.0.ffn_gate_inp.weight".into()));
    }
    let mut x = b.embed((width as f32).sqrt())?;
    let per_layer = b.per_layer_inputs(x)?;
    for layer in 0..layers {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let y = b.norm(x, &name("attn_norm"), width)?;
        let y = b.attention(y, layer, attention[layer])?;
        let y = b.norm(y, &name("post_attention_norm"), width)?;
        x = b.graph.add(x, y)?;
        let y = b.norm(x, &name("ffn_norm"), width)?;
        let names = ["ffn_gate", "ffn_up", "ffn_down"].map(name);
        let mut y = b.gated_mlp_of(y, names, ff[layer], Activation::GeluTanh, None)?;
        if let Some(experts) = experts.filter(|_| has_experts(b, layer)) {
            y = b.beside_experts(x, y, layer, &experts)?;
        }
        let y = b.norm(y, &name("post_ffw_norm"), width)?;
        x = b.graph.add(x, y)?;
        if let Some(inputs) = per_layer {
            x = b.add_layer_input(x, inputs, layer)?;
        }
        if let Some(scale) = b.values(&name("layer_output_scale.weight")) {
            let [scale] = scale[..] else {
                let found = format!("[{}]", scale.len());
                return Err(ModelError::shape(name("layer_output_scale.weight"), "[1]", found));
            };
            x = b.graph.scale(x, scale);
        }
    }
    let logits = b.head(x)?;
    b.softcap_logits(logits)
}

/// Whether a layer has experts, or a part of them.
fn has_experts(b: &Build<'_>, layer: usize) -> bool {
    ["ffn_gate_inp", "ffn_down_exps"].iter().any(|part| b.has(&format!("blk.{layer}.{part}.weight")))
}

/// The attention of each layer.
fn attention_styles(b: &mut Build<'_>) -> Result<Vec<AttentionStyle>, ModelError> {
    let layers = b.config.layers;
    let is_local = b.listed_local_layers()?;
    let heads = b.sizes_per_layer("attention.head_count", 1 << 14)?;
    let kv_heads = b.sizes_per_layer("attention.head_count_kv", 1 << 14)?;
    let base = b.keys().f32("rope.freq_base")?;
    let local_base = b.keys().optional_f32("rope.freq_base_swa")?.unwrap_or(base);
    let local_dim = b.keys().usize("attention.key_length_swa")?;
    let dims = [
        (("attention.key_length", b.config.head_dim), ("attention.value_length", b.config.v_dim)),
        (
            ("attention.key_length_swa", local_dim),
            ("attention.value_length_swa", b.keys().usize("attention.value_length_swa")?),
        ),
    ];
    for ((key_name, key), (value_name, value)) in dims {
        if key != value || key == 0 || key > 1 << 14 {
            let [key_name, value_name] = [key_name, value_name].map(|name| b.keys().key(name));
            let (found, most) = (format!("{key} and `{value_name}` is {value}"), 1 << 14);
            return Err(ModelError::value(key_name, found, format!("the same, 1 to {most}")));
        }
    }
    let local_pairs = b.keys().optional_usize("rope.dimension_count_swa")?.unwrap_or(local_dim);
    if local_pairs > local_dim || !local_pairs.is_multiple_of(2) {
        return Err(ModelError::RopeDims { dims: local_pairs, head_dim: local_dim });
    }
    let window = b.window()?;
    if is_local.contains(&false) && !b.has("rope_freqs.weight") {
        return Err(ModelError::MissingTensor("rope_freqs.weight".into()));
    }
    let (global, local) = (b.rope_table(base)?, b.plain_rope_table(local_base, local_pairs)?);
    let shared = b.keys().optional_usize(SHARED_LAYERS)?.unwrap_or(0);
    let Some(own) = layers.checked_sub(shared).filter(|own| *own > 0) else {
        let want = format!("less than the {layers} layers");
        return Err(ModelError::value(b.keys().key(SHARED_LAYERS), shared, want));
    };
    // the sizes without inputs per layer were trained with images that are seen whole
    let whole = b.keys().optional_usize("embedding_length_per_layer_input")?.unwrap_or(0) == 0;
    let images = if b.sees && whole { ImageOrder::Whole } else { ImageOrder::Sequence };
    let style = |layer: usize| {
        let is_local_layer = is_local[layer];
        let head_dim = if is_local_layer { local_dim } else { b.config.head_dim };
        let shape = HeadShape { heads: heads[layer], kv_heads: kv_heads[layer], head_dim, v_dim: head_dim };
        if !shape.heads.is_multiple_of(shape.kv_heads) {
            let HeadShape { heads, kv_heads, .. } = shape;
            return Err(ModelError::Heads { heads, kv_heads, layer: Some(layer) });
        }
        let kv_of = if layer < own {
            None
        } else {
            let alike = (0..own).rev().find(|earlier| is_local[*earlier] == is_local_layer);
            let none = || ModelError::NoSharedKeys { layer, window: is_local_layer, own };
            Some(alike.ok_or_else(none)?)
        };
        let table = if is_local_layer { local } else { global };
        Ok(AttentionStyle {
            shape: Some(shape),
            window: is_local_layer.then_some(window),
            images: if is_local_layer { images } else { ImageOrder::Sequence },
            norms_values: true,
            kv_of,
            ..AttentionStyle::full(RopeStyle::Halves, table, QkNorm::Heads, 1.0)
        })
    };
    (0..layers).map(style).collect()
}

impl Build<'_> {
    /// One size per layer, all within 1 and `most`.
    fn sizes_per_layer(&mut self, name: &str, most: usize) -> Result<Vec<usize>, ModelError> {
        self.reads_layers = true;
        let sizes = self.keys().usize_per_layer(name, self.config.layers)?;
        let sizes = sizes.ok_or_else(|| self.missing(name))?;
        match sizes.iter().position(|size| *size == 0 || *size > most) {
            None => Ok(sizes),
            Some(layer) => {
                let (key, value, want) = (self.keys().key(name), sizes[layer], format!("1 to {most}"));
                Err(ModelError::LayerValue { key, layer, value, want })
            }
        }
    }

    /// What each layer gets from the tokens themselves, if the model has such inputs: a row of a second
    /// table, and a projection of the embeddings. `[tokens, layers * columns]`
    fn per_layer_inputs(&mut self, embeddings: Val) -> Result<Option<Val>, ModelError> {
        let name = "embedding_length_per_layer_input";
        let columns = self.keys().optional_usize(name)?.unwrap_or(0);
        if columns > MAX_LAYER_INPUT {
            let want = format!("0 to {MAX_LAYER_INPUT}");
            return Err(ModelError::value(self.keys().key(name), columns, want));
        }
        if columns == 0 {
            return Ok(None);
        }
        let all = self.config.layers * columns;
        let table = self.graph.matrix("per_layer_token_embd.weight", self.config.vocab, all)?;
        let rows = self.graph.embed(table, (columns as f32).sqrt());
        let projected = self.linear(embeddings, "per_layer_model_proj", all)?;
        let projected = self.graph.scale(projected, 1.0 / (self.config.width as f32).sqrt());
        let projected = self.norm(projected, "per_layer_proj_norm", columns)?;
        let sum = self.graph.add(projected, rows)?;
        Ok(Some(self.graph.scale(sum, std::f32::consts::FRAC_1_SQRT_2)))
    }

    /// Adds a layer's part of these inputs, gated by the residual stream.
    fn add_layer_input(&mut self, x: Val, inputs: Val, layer: usize) -> Result<Val, ModelError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let columns = self.graph.width(inputs) / self.config.layers;
        let gate = self.linear(x, &name("inp_gate"), columns)?;
        let input = self.graph.columns(inputs, layer * columns, columns)?;
        let gated = self.graph.gated(gate, input, Activation::GeluTanh)?;
        let y = self.linear(gated, &name("proj"), self.config.width)?;
        let y = self.norm(y, &name("post_norm"), self.config.width)?;
        Ok(self.graph.add(x, y)?)
    }

    /// The normalised result of the MLP plus that of experts, which read the residual stream
    /// `x` through separate norms.
    fn beside_experts(
        &mut self,
        x: Val,
        mlp: Val,
        layer: usize,
        experts: &ExpertStyle,
    ) -> Result<Val, ModelError> {
        let (width, eps) = (self.config.width, self.config.eps);
        let name = |part: &str| format!("blk.{layer}.{part}");
        let mlp = self.norm(mlp, &name("post_ffw_norm_1"), width)?;
        let weight = self.graph.vector(name("ffn_gate_inp.scale"), width)?;
        let normed = self.graph.norm(x, weight, eps)?;
        let router = self.graph.matrix(name("ffn_gate_inp.weight"), experts.count, width)?;
        let logits = self.graph.linear(normed, router)?;
        let logits = self.graph.scale(logits, 1.0 / (width as f32).sqrt());
        let route = self.graph.route(logits, None, experts.routing)?;
        let y = self.norm(x, &name("pre_ffw_norm_2"), width)?;
        let y = self.chosen_experts(y, route, layer, experts)?;
        let y = self.norm(y, &name("post_ffw_norm_2"), width)?;
        Ok(self.graph.add(mlp, y)?)
    }
}

/// More columns of a layer's input than any model has.
const MAX_LAYER_INPUT: usize = 1 << 16;
