//! The parts that decoders share: attention and the gated MLP of one layer.

use tern_graph::{Activation, Attention, RopeStyle, Val};

use crate::{Build, ModelError};

/// What differs between the attentions of decoders.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionStyle {
    /// How heads are rotated.
    pub(crate) rope: RopeStyle,
    /// The rotary table of this layer.
    pub(crate) table: usize,
    /// Each query and key head is normalised before it is rotated.
    pub(crate) qk_norm: bool,
    /// Factor on the scores.
    pub(crate) scale: f32,
    /// Keys visible to a query, itself included.
    pub(crate) window: Option<usize>,
}

impl Build<'_> {
    /// The style of a decoder whose layers are all alike, with full attention.
    pub(crate) fn uniform_style(
        &mut self,
        rope: RopeStyle,
        base: f32,
        qk_norm: bool,
    ) -> Result<AttentionStyle, ModelError> {
        let (table, scale) = (self.rope_table(base)?, self.attention_scale()?);
        Ok(AttentionStyle { rope, table, qk_norm, scale, window: None })
    }

    /// The file's `attention.scale`, or `1 / sqrt(head_dim)`.
    pub(crate) fn attention_scale(&self) -> Result<f32, ModelError> {
        let own = self.keys().optional_f32("attention.scale")?;
        Ok(own.filter(|s| *s != 0.0).unwrap_or(1.0 / (self.config.head_dim as f32).sqrt()))
    }

    /// Attention of one layer on a normalised value. `[tokens, width]`
    pub(crate) fn attention(
        &mut self,
        x: Val,
        layer: usize,
        style: AttentionStyle,
    ) -> Result<Val, ModelError> {
        let c = self.config.clone();
        let (q_width, k_width, v_width) =
            (c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.v_dim);
        let name = |part: &str| format!("blk.{layer}.{part}");
        let [q, k, v] = if self.has(&name("attn_qkv.weight")) {
            let all = self.linear(x, &name("attn_qkv"), q_width + k_width + v_width)?;
            [
                self.graph.columns(all, 0, q_width)?,
                self.graph.columns(all, q_width, k_width)?,
                self.graph.columns(all, q_width + k_width, v_width)?,
            ]
        } else {
            [
                self.linear(x, &name("attn_q"), q_width)?,
                self.linear(x, &name("attn_k"), k_width)?,
                self.linear(x, &name("attn_v"), v_width)?,
            ]
        };
        let [q, k] = if style.qk_norm {
            [self.norm(q, &name("attn_q_norm"), c.head_dim)?, self.norm(k, &name("attn_k_norm"), c.head_dim)?]
        } else {
            [q, k]
        };
        let q = self.graph.rope(q, c.head_dim, style.rope, style.table)?;
        let k = self.graph.rope(k, c.head_dim, style.rope, style.table)?;
        let args = Attention {
            heads: c.heads,
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
            v_dim: c.v_dim,
            scale: style.scale,
            window: style.window,
            softcap: self.keys().optional_f32("attn_logit_softcapping")?.filter(|cap| *cap != 0.0),
        };
        let out = self.graph.attend(q, k, v, args)?;
        self.linear(out, &name("attn_output"), c.width)
    }

    /// The gated MLP of one layer on a normalised value; gate and up may be one tensor. `[tokens, width]`
    pub(crate) fn gated_mlp(&mut self, x: Val, layer: usize, act: Activation) -> Result<Val, ModelError> {
        let (width, ff) = (self.config.width, self.config.ff);
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (gate, up) = if self.has(&name("ffn_gate.weight")) {
            (self.linear(x, &name("ffn_gate"), ff)?, self.linear(x, &name("ffn_up"), ff)?)
        } else if self.rows(&name("ffn_up.weight")) == Some(ff) {
            return Err(ModelError::Tensor(format!("{} is missing", name("ffn_gate.weight"))));
        } else {
            let both = self.linear(x, &name("ffn_up"), 2 * ff)?; // [gate; up]
            (self.graph.columns(both, 0, ff)?, self.graph.columns(both, ff, ff)?)
        };
        let hidden = self.graph.gated(gate, up, act)?;
        self.linear(hidden, &name("ffn_down"), width)
    }

    /// A decoder whose layers are norm, attention, add, norm, gated MLP, add.
    pub(crate) fn pre_norm_decoder(&mut self, style: AttentionStyle) -> Result<(), ModelError> {
        let width = self.config.width;
        let mut x = self.embed(1.0)?;
        for layer in 0..self.config.layers {
            let normed = self.norm(x, &format!("blk.{layer}.attn_norm"), width)?;
            let attended = self.attention(normed, layer, style)?;
            x = self.graph.add(x, attended)?;
            let normed = self.norm(x, &format!("blk.{layer}.ffn_norm"), width)?;
            let hidden = self.gated_mlp(normed, layer, Activation::Silu)?;
            x = self.graph.add(x, hidden)?;
        }
        self.head(x)?;
        Ok(())
    }
}
