//! Attention with latent keys and values: all heads read one narrow row per token.

use tern_graph::{Attention, Val};

use super::attention_style::{AttentionStyle, Latent};
use crate::{Build, ModelError};

impl Build<'_> {
    /// Queries are multiplied with the matrix of keys, and results with that of values, so that the row of a
    /// token is a key and, without its rotated columns, a value. `[tokens, width]`
    pub(crate) fn latent_attention(
        &mut self,
        x: Val,
        layer: usize,
        style: AttentionStyle,
        latent: Latent,
    ) -> Result<Val, ModelError> {
        let (heads, width, rotated) = (self.config.heads, self.config.width, self.config.rope_dims);
        let Latent { rank, plain, v_dim, q_rank } = latent;
        let name = |part: &str| format!("blk.{layer}.{part}");
        let q = match q_rank {
            Some(q_rank) => {
                let q = self.linear(x, &name("attn_q_a"), q_rank)?;
                let q = self.norm(q, &name("attn_q_a_norm"), q_rank)?;
                self.linear(q, &name("attn_q_b"), heads * (plain + rotated))?
            }
            None => self.linear(x, &name("attn_q"), heads * (plain + rotated))?,
        };
        let q_plain = self.graph.head_columns(q, plain + rotated, 0, plain)?; // [tokens, heads * plain]
        let k_b = self.graph.experts(name("attn_k_b.weight"), heads, rank, plain)?;
        let q_plain = self.graph.expert_linear(q_plain, None, k_b)?; // [tokens, heads * rank]
        let mut q_rotated = self.graph.head_columns(q, plain + rotated, plain, rotated)?;
        let row = self.linear(x, &name("attn_kv_a_mqa"), rank + rotated)?;
        let value = self.graph.columns(row, 0, rank)?;
        let value = self.norm(value, &name("attn_kv_a_norm"), rank)?;
        let mut k_rotated = self.graph.columns(row, rank, rotated)?;
        if let Some(table) = style.table {
            q_rotated = self.graph.rope(q_rotated, rotated, style.rope, table)?;
            k_rotated = self.graph.rope(k_rotated, rotated, style.rope, table)?;
        }
        let q = self.graph.join_heads(q_plain, q_rotated, heads)?; // [tokens, heads * (rank + rotated)]
        let k = self.graph.join_heads(value, k_rotated, 1)?;
        let args = Attention {
            v_dim: rank,
            window: style.window,
            temperature: style.temperature,
            ..Attention::full(heads, 1, rank + rotated, style.scale)
        };
        let out = self.graph.attend(q, k, value, args)?;
        let v_b = self.graph.experts(name("attn_v_b.weight"), heads, v_dim, rank)?;
        let out = self.graph.expert_linear(out, None, v_b)?; // [tokens, heads * v_dim]
        self.linear(out, &name("attn_output"), width)
    }
}
