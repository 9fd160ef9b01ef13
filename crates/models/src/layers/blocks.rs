//! The parts that decoders share: attention and the gated MLP of one layer.

use tern_formats::Value;
use tern_graph::{Activation, Attention, Function, Pooling, RopeStyle, Temperature, Val};

use super::attention_style::{AttentionStyle, Gate, HeadShape, QkNorm};
use super::experts::ExpertStyle;
use crate::{Build, Config, ModelError};

impl Build<'_> {
    /// The style of a decoder whose layers are all alike, with full attention.
    pub(crate) fn uniform_style(
        &mut self,
        rope: RopeStyle,
        base: f32,
        qk_norm: QkNorm,
    ) -> Result<AttentionStyle, ModelError> {
        let (table, scale) = (self.rope_table(base)?, self.attention_scale()?);
        Ok(AttentionStyle::full(rope, table, qk_norm, scale))
    }

    /// The file's `attention.scale`, or `1 / sqrt(head_dim)`.
    pub(crate) fn attention_scale(&self) -> Result<f32, ModelError> {
        let own = self.keys().optional_f32("attention.scale")?;
        Ok(own.filter(|s| *s != 0.0).unwrap_or(1.0 / (self.config.head_dim as f32).sqrt()))
    }

    /// The window of local layers.
    pub(crate) fn window(&self) -> Result<usize, ModelError> {
        let window = self.keys().usize("attention.sliding_window")?;
        if window == 0 {
            return Err(ModelError::value(self.keys().key("attention.sliding_window"), 0, "1 or more"));
        }
        Ok(window)
    }

    /// Which layers have a window, as the file lists them.
    pub(crate) fn listed_local_layers(&self) -> Result<Vec<bool>, ModelError> {
        let pattern = "attention.sliding_window_pattern";
        self.keys().bool_per_layer(pattern, self.config.layers)?.ok_or_else(|| self.missing(pattern))
    }

    /// Which layers have a window: those that the file lists, or all but the last of each run of `length`.
    pub(crate) fn local_layers(&self, length: usize) -> Result<Vec<bool>, ModelError> {
        let (keys, layers, name) = (self.keys(), self.config.layers, "attention.sliding_window_pattern");
        if let Some(Value::Bools(_)) = keys.metadata.get(&keys.key(name)) {
            return self.listed_local_layers();
        }
        match keys.usizes(name)?.as_deref() {
            // 0 for full attention
            Some(listed) if listed.len() > 1 => {
                let listed = keys.usize_per_layer(name, layers)?.unwrap_or_default();
                Ok(listed.into_iter().map(|kind| kind != 0).collect())
            }
            Some([0]) => Err(ModelError::value(keys.key(name), 0, "1 or more")),
            Some([length]) => Ok((0..layers).map(|layer| !ends_run(layer, *length)).collect()),
            _ => Ok((0..layers).map(|layer| !ends_run(layer, length)).collect()),
        }
    }

    /// How scores grow with the position, if the file says so.
    pub(crate) fn temperature(&self) -> Result<Option<Temperature>, ModelError> {
        let keys = self.keys();
        let scale = keys.optional_f32("attention.temperature_scale")?;
        let Some(scale) = scale.filter(|scale| *scale != 0.0) else { return Ok(None) };
        let name = "rope.scaling.original_context_length";
        let length = keys.usize(name)?;
        if length == 0 {
            return Err(ModelError::value(keys.key(name), 0, "1 or more"));
        }
        Ok(Some(Temperature { scale, length }))
    }

    /// The logits times the file's factor, if it has one.
    pub(crate) fn scale_logits(&mut self, logits: Val) -> Result<Val, ModelError> {
        let factor = self.keys().optional_f32("logit_scale")?.filter(|factor| *factor != 0.0);
        Ok(factor.map_or(logits, |factor| self.graph.scale(logits, factor)))
    }

    /// The soft cap of the logits, if the file has one.
    pub(crate) fn softcap_logits(&mut self, logits: Val) -> Result<(), ModelError> {
        if let Some(cap) = self.keys().optional_f32("final_logit_softcapping")?.filter(|cap| *cap != 0.0) {
            self.graph.softcap(logits, cap);
        }
        Ok(())
    }

    /// Attention of one layer on a normalised value. `[tokens, width]`
    pub(crate) fn attention(
        &mut self,
        x: Val,
        layer: usize,
        style: AttentionStyle,
    ) -> Result<Val, ModelError> {
        if let Some(latent) = style.latent {
            return self.latent_attention(x, layer, style, latent);
        }
        let HeadShape { heads, kv_heads, head_dim, v_dim } = self.head_shape(style);
        let name = |part: &str| format!("blk.{layer}.{part}");
        let args = Attention {
            heads,
            kv_heads,
            head_dim,
            v_dim,
            scale: style.scale,
            causal: style.causal,
            window: style.window,
            softcap: self.keys().optional_f32("attn_logit_softcapping")?.filter(|cap| *cap != 0.0),
            temperature: style.temperature,
            alibi: None,
            images: style.images,
        };
        let mut gate = None;
        let mut out = if let Some(kv_layer) = style.kv_of {
            let q = self.linear(x, &name("attn_q"), heads * head_dim)?;
            let [q] = self.ready_heads([(q, name("attn_q_norm"))], style)?;
            self.ignore_keys_and_values(layer);
            self.graph.attend_to(q, kv_layer, args)?
        } else {
            let [mut q, k, v] = self.queries_keys_values(x, layer, style)?;
            match style.gate {
                Some(Gate::Queries) => {
                    gate = Some(self.graph.head_columns(q, 2 * head_dim, head_dim, head_dim)?);
                    q = self.graph.head_columns(q, 2 * head_dim, 0, head_dim)?;
                }
                Some(Gate::Columns) => gate = Some(self.linear(x, &name("attn_gate"), heads * v_dim)?),
                None => {}
            }
            let heads = [(q, name("attn_q_norm")), (k, name("attn_k_norm"))];
            let [q, k] = self.ready_heads(heads, style)?;
            let sinks = match style.sinks {
                true => Some(self.graph.vector(name("attn_sinks.weight"), args.heads)?),
                false => None,
            };
            self.graph.attend_with(q, k, v, args, sinks)?
        };
        if let Some(gate) = gate {
            out = self.graph.gated(gate, out, Activation::Sigmoid)?;
        }
        if style.value_scale != 1.0 {
            out = self.graph.scale(out, style.value_scale);
        }
        if let Some(norm) = style.sub_norm {
            out = self.norm(out, &name(norm), heads * v_dim)?;
        }
        self.linear(out, &name("attn_output"), self.config.width)
    }

    /// The heads of each layer; `None` for layers without key and value heads, which have no attention.
    pub(crate) fn heads_per_layer(&self) -> Result<Vec<Option<HeadShape>>, ModelError> {
        let Config { layers, head_dim, v_dim, heads, .. } = self.config;
        let name = "attention.head_count_kv";
        let kv_heads = self.keys().usize_per_layer(name, layers)?.ok_or_else(|| self.missing(name))?;
        let shape = |kv_heads: usize| match kv_heads {
            0 => Ok(None),
            kv_heads if heads.is_multiple_of(kv_heads) => {
                Ok(Some(HeadShape { heads, kv_heads, head_dim, v_dim }))
            }
            _ => Err(ModelError::Heads { heads, kv_heads, layer: None }),
        };
        kv_heads.into_iter().map(shape).collect()
    }

    fn head_shape(&self, style: AttentionStyle) -> HeadShape {
        let Config { heads, kv_heads, head_dim, v_dim, .. } = self.config;
        style.shape.unwrap_or(HeadShape { heads, kv_heads, head_dim, v_dim })
    }

    /// Queries and keys before their norms and rotations, and values.
    fn queries_keys_values(
        &mut self,
        x: Val,
        layer: usize,
        style: AttentionStyle,
    ) -> Result<[Val; 3], ModelError> {
        let HeadShape { heads, kv_heads, head_dim, v_dim } = self.head_shape(style);
        let q_width = heads * head_dim * if style.gate == Some(Gate::Queries) { 2 } else { 1 };
        let (k_width, v_width) = (kv_heads * head_dim, kv_heads * v_dim);
        let name = |part: &str| format!("blk.{layer}.{part}");
        if self.has(&name("attn_qkv.weight")) {
            let all = self.linear(x, &name("attn_qkv"), q_width + k_width + v_width)?;
            return Ok([
                self.graph.columns(all, 0, q_width)?,
                self.graph.columns(all, q_width, k_width)?,
                self.graph.columns(all, q_width + k_width, v_width)?,
            ]);
        }
        let q = self.linear(x, &name("attn_q"), q_width)?;
        let k = self.linear(x, &name("attn_k"), k_width)?;
        if !style.norms_values {
            return Ok([q, k, self.linear(x, &name("attn_v"), v_width)?]);
        }
        let v = if self.has(&name("attn_v.weight")) { self.linear(x, &name("attn_v"), v_width)? } else { k };
        Ok([q, k, self.graph.plain_norm(v, v_dim, self.config.eps)?])
    }

    /// Queries and keys before their norms and rotations, and values, of layers that are all alike.
    pub(crate) fn heads_of(&mut self, x: Val, layer: usize) -> Result<[Val; 3], ModelError> {
        let style =
            AttentionStyle { table: None, ..AttentionStyle::full(RopeStyle::Halves, 0, QkNorm::None, 1.0) };
        self.queries_keys_values(x, layer, style)
    }

    /// Heads of queries and keys with their norms, given by name, and rotations.
    fn ready_heads<const N: usize>(
        &mut self,
        mut heads: [(Val, String); N],
        style: AttentionStyle,
    ) -> Result<[Val; N], ModelError> {
        let head_dim = self.head_shape(style).head_dim;
        if matches!(style.qk_norm, QkNorm::Heads | QkNorm::Rows) {
            for (x, norm) in &mut heads {
                let len = if style.qk_norm == QkNorm::Rows { self.graph.width(*x) } else { head_dim };
                *x = self.norm(*x, norm, len)?;
            }
        }
        if let Some(table) = style.table {
            for (x, _) in &mut heads {
                *x = self.graph.rope(*x, head_dim, style.rope, table)?;
            }
        }
        if style.qk_norm == QkNorm::RotatedHeads {
            for (x, norm) in &mut heads {
                *x = self.norm(*x, norm, head_dim)?;
            }
        }
        Ok(heads.map(|(x, _)| x))
    }

    /// Some files have matrices for keys and values in layers that do not use them.
    fn ignore_keys_and_values(&mut self, layer: usize) {
        let names = ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"]
            .map(|part| format!("blk.{layer}.{part}"));
        let unused: Vec<_> = names.into_iter().filter(|name| self.has(name)).collect();
        self.consumed.extend(unused);
    }

    /// The gated MLP of one layer on a normalised value; gate and up may be one tensor. `[tokens, width]`
    pub(crate) fn gated_mlp(&mut self, x: Val, layer: usize, style: &LayerStyle) -> Result<Val, ModelError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let names = ["ffn_gate", "ffn_up", "ffn_down"].map(name);
        self.gated_mlp_of(x, names, self.config.ff, style.activation, style.sub_norm.map(name))
    }

    /// The same with these names of gate, up and down, `ff` columns inside, and a norm
    /// of them if it has a name.
    pub(crate) fn gated_mlp_of(
        &mut self,
        x: Val,
        [gate, up, down]: [String; 3],
        ff: usize,
        act: Activation,
        sub_norm: Option<String>,
    ) -> Result<Val, ModelError> {
        let missing = format!("{gate}.weight");
        let (gate, up) = if self.has(&missing) {
            (self.linear(x, &gate, ff)?, self.linear(x, &up, ff)?)
        } else if self.rows(&format!("{up}.weight")) == Some(ff) {
            return Err(ModelError::MissingTensor(missing));
        } else {
            let both = self.linear(x, &up, 2 * ff)?; // [gate; up]
            (self.graph.columns(both, 0, ff)?, self.graph.columns(both, ff, ff)?)
        };
        let mut hidden = self.graph.gated(gate, up, act)?;
        if let Some(norm) = sub_norm {
            hidden = self.norm(hidden, &norm, ff)?;
        }
        self.linear(hidden, &down, self.config.width)
    }

    /// The MLP of one layer: experts, the one without a gate, or the gated one.
    fn mlp(&mut self, x: Val, layer: usize, style: &LayerStyle) -> Result<Val, ModelError> {
        match (&style.experts, style.ungated) {
            (Some(experts), _) if layer >= experts.first_layer => self.expert_mlp(x, layer, experts),
            (_, Some(ungated)) => {
                let up = self.linear(x, &format!("blk.{layer}.ffn_up"), self.config.ff)?;
                let hidden = match ungated {
                    Ungated::Relu2 => self.graph.squared_relu(up)?,
                    Ungated::GeluTanh => self.graph.apply(up, Function::GeluTanh),
                };
                self.linear(hidden, &format!("blk.{layer}.ffn_down"), self.config.width)
            }
            _ => self.gated_mlp(x, layer, style),
        }
    }

    /// A decoder whose layers are norm, attention, add, norm, gated MLP, add.
    pub(crate) fn pre_norm_decoder(&mut self, style: AttentionStyle) -> Result<(), ModelError> {
        self.decoder(&LayerStyle::PRE_NORM, |_| style)?;
        Ok(())
    }

    /// A decoder, with the attention of each layer. Returns the logits.
    pub(crate) fn decoder(
        &mut self,
        layers: &LayerStyle,
        attention: impl Fn(usize) -> AttentionStyle,
    ) -> Result<Val, ModelError> {
        self.decoder_of(layers, |b, x, layer| b.attention(x, layer, attention(layer)))
    }

    /// The layers of a decoder as an encoder, whose rows become vectors.
    pub(crate) fn encoder(
        &mut self,
        layers: &LayerStyle,
        attention: impl Fn(usize) -> AttentionStyle,
        pooling: Pooling,
    ) -> Result<(), ModelError> {
        let x = self.layers(layers, |b, x, layer| b.attention(x, layer, attention(layer)))?;
        let x = self.norm(x, "output_norm", self.config.width)?;
        self.pooled(x, pooling)
    }

    /// A decoder, with attention or what a layer has instead of it, on normalised values. Returns the logits.
    pub(crate) fn decoder_of(
        &mut self,
        layers: &LayerStyle,
        mixer: impl Fn(&mut Self, Val, usize) -> Result<Val, ModelError>,
    ) -> Result<Val, ModelError> {
        let x = self.layers(layers, mixer)?;
        self.head(x)
    }

    /// The embeddings and all layers. `[tokens, width]`
    pub(crate) fn layers(
        &mut self,
        layers: &LayerStyle,
        mixer: impl Fn(&mut Self, Val, usize) -> Result<Val, ModelError>,
    ) -> Result<Val, ModelError> {
        let (width, eps) = (self.config.width, self.config.eps);
        let mut x = self.embed(layers.embedding_scale)?;
        if layers.norms_embeddings {
            x = self.graph.plain_norm(x, width, eps)?;
        }
        for layer in 0..self.config.layers {
            let mut normed = x;
            for half in 0..2 {
                if half == 0 || !layers.parallel {
                    normed = self.norm_of_half(x, layer, half, layers.norms_before)?;
                }
                let y =
                    if half == 0 { mixer(self, normed, layer)? } else { self.mlp(normed, layer, layers)? };
                let mut y = match (layers.norms_after, layers.eps_after) {
                    (Some(names), Some(eps)) => {
                        self.rms_norm(y, &format!("blk.{layer}.{}", names[half]), width, eps)?
                    }
                    (names, _) => self.norm_of_half(y, layer, half, names)?,
                };
                if layers.residual_scale != 1.0 {
                    y = self.graph.scale(y, layers.residual_scale);
                }
                x = self.graph.add(x, y)?;
            }
            if self.sees && layer < layers.image_features {
                x = self.graph.image_rows(x, self.config.width * (1 + layer), true)?;
            }
        }
        Ok(x)
    }

    /// The norm of a half of a layer, attention (0) or the MLP (1), if it has one.
    fn norm_of_half(
        &mut self,
        x: Val,
        layer: usize,
        half: usize,
        names: Option<[&str; 2]>,
    ) -> Result<Val, ModelError> {
        match names {
            Some(names) => self.norm(x, &format!("blk.{layer}.{}", names[half]), self.config.width),
            None => Ok(x),
        }
    }
}

/// Whether a layer is the last one of a run of `length` layers, which then differs from those before it.
pub(crate) fn ends_run(layer: usize, length: usize) -> bool {
    (layer + 1).is_multiple_of(length)
}

/// What differs between the layers of decoders, beside attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerStyle {
    /// Factor on the embeddings.
    pub(crate) embedding_scale: f32,
    /// Factor on what is added to the residual stream.
    pub(crate) residual_scale: f32,
    /// Names of the norms before attention and before the MLP.
    pub(crate) norms_before: Option<[&'static str; 2]>,
    /// Names of the norms of the results of attention and of the MLP.
    pub(crate) norms_after: Option<[&'static str; 2]>,
    /// Epsilon of those norms, if it is not that of the others.
    pub(crate) eps_after: Option<f32>,
    /// The embeddings are normalised, without weights.
    pub(crate) norms_embeddings: bool,
    /// The MLP reads the same norm as attention, beside it.
    pub(crate) parallel: bool,
    /// The activation of the MLP.
    pub(crate) activation: Activation,
    /// Experts instead of the MLP.
    pub(crate) experts: Option<ExpertStyle>,
    /// A norm inside the MLP, of the columns that its last matrix reads.
    pub(crate) sub_norm: Option<&'static str>,
    /// The function of an MLP without a gate.
    pub(crate) ungated: Option<Ungated>,
    /// The first layers, after which features of images are added to the rows of images.
    pub(crate) image_features: usize,
}

/// The function between the two matrices of an MLP without a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ungated {
    /// The square of a ReLU.
    Relu2,
    /// GELU in its tanh form.
    GeluTanh,
}

impl LayerStyle {
    /// Norms before attention and the MLP.
    pub(crate) const PRE_NORM: LayerStyle = LayerStyle {
        embedding_scale: 1.0,
        residual_scale: 1.0,
        norms_before: Some(["attn_norm", "ffn_norm"]),
        norms_after: None,
        eps_after: None,
        norms_embeddings: false,
        parallel: false,
        activation: Activation::Silu,
        experts: None,
        sub_norm: None,
        ungated: None,
        image_features: 0,
    };
    /// Norms before and after them.
    pub(crate) const BOTH_NORMS: LayerStyle =
        LayerStyle { norms_after: Some(["post_attention_norm", "post_ffw_norm"]), ..LayerStyle::PRE_NORM };
    /// Norms after them.
    pub(crate) const POST_NORM: LayerStyle = LayerStyle { norms_before: None, ..LayerStyle::BOTH_NORMS };
}
