//! Layers with a gated delta rule instead of attention: a convolution over queries, keys and values, the
//! rule, a gated norm.

use tern_graph::{Activation, DeltaRule, DeltaWeights, KeyHeads, Val};

use crate::{Build, ModelError};

/// The sizes of such layers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaNet {
    /// Taps of the convolution.
    pub(crate) taps: usize,
    /// Heads.
    pub(crate) rule: DeltaRule,
}

/// As large as any model's, with room.
const MAX_HEADS: usize = 1 << 12;
const MAX_DIM: usize = 1 << 12;

impl Build<'_> {
    /// The sizes that metadata gives.
    pub(crate) fn delta_net(&self, key_heads: KeyHeads) -> Result<DeltaNet, ModelError> {
        let keys = self.keys();
        let size = |name: &str, most: usize| {
            let size = keys.usize(name)?;
            if size == 0 || size > most {
                return Err(ModelError::value(keys.key(name), size, format!("1 to {most}")));
            }
            Ok(size)
        };
        let taps = size("ssm.conv_kernel", MAX_DIM)?;
        let (k_heads, v_heads) =
            (size("ssm.group_count", MAX_HEADS)?, size("ssm.time_step_rank", MAX_HEADS)?);
        let (k_dim, inner) = (size("ssm.state_size", MAX_DIM)?, size("ssm.inner_size", MAX_HEADS * MAX_DIM)?);
        if inner != v_heads * k_dim {
            let want = format!("{v_heads} heads of {k_dim} columns");
            return Err(ModelError::value(keys.key("ssm.inner_size"), inner, want));
        }
        let rule = DeltaRule { k_heads, v_heads, k_dim, v_dim: k_dim, eps: self.config.eps, key_heads };
        Ok(DeltaNet { taps, rule })
    }

    /// Which layers have the rule: those of a list, or all but the last of each run.
    pub(crate) fn recurrent_layers(&self) -> Result<Vec<bool>, ModelError> {
        let (keys, layers) = (self.keys(), self.config.layers);
        if let Some(listed) = keys.bool_per_layer("attention.recurrent_layers", layers)? {
            return Ok(listed);
        }
        let interval = keys.optional_usize("full_attention_interval")?.unwrap_or(4);
        if interval == 0 {
            return Err(ModelError::value(keys.key("full_attention_interval"), 0, "1 or more"));
        }
        Ok((0..layers).map(|layer| !(layer + 1).is_multiple_of(interval)).collect())
    }

    /// The layer on a normalised value, with its decays and strengths before their
    /// functions. `[tokens, width]`
    pub(crate) fn delta_layer(
        &mut self,
        x: Val,
        layer: usize,
        net: &DeltaNet,
        [decay, beta]: [Val; 2],
    ) -> Result<Val, ModelError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let DeltaNet { taps, rule } = net;
        let inner = rule.v_heads * rule.v_dim;
        let qkv = self.linear(x, &name("attn_qkv"), rule.width())?;
        let z = self.linear(x, &name("attn_gate"), inner)?;
        let conv = self.graph.matrix(name("ssm_conv1d.weight"), rule.width(), *taps)?;
        let qkv = self.graph.conv(qkv, conv, None, true)?;
        let rate = self.graph.vector(name("ssm_a"), rule.v_heads)?;
        let weights = DeltaWeights { rate, bias: self.graph.vector(name("ssm_dt.bias"), rule.v_heads)? };
        let out = self.graph.delta(qkv, decay, beta, weights, *rule)?;
        let out = self.norm(out, &name("ssm_norm"), rule.v_dim)?;
        let out = self.graph.gated(z, out, Activation::Silu)?;
        self.linear(out, &name("ssm_out"), self.config.width)
    }
}
