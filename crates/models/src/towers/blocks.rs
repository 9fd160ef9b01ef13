//! The parts that towers share: embeddings of patches and transformer blocks without an order.

use tern_graph::{Attention, Function, NormKind, RopeStyle, RopeTable, Val};

use super::positions::{Positions, Resampling};
use super::{KEYS, TowerBuild};
use crate::ModelError;
use crate::tensor::host_tensor;

/// What differs between the blocks of towers.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockStyle {
    pub(super) norm: NormKind,
    /// The function between the two matrices of the MLP.
    pub(super) function: Function,
    /// The rotary table of queries and keys.
    pub(super) rope: Option<usize>,
}

impl TowerBuild<'_> {
    /// Patches times their matrices, plus positions. `[patches, width]`
    pub(super) fn patches(&mut self, resampling: Option<Resampling>) -> Result<Val, ModelError> {
        let (width, columns) = (self.b.config.width, 3 * self.patch * self.patch);
        let patches = self.b.graph.input(0, columns);
        let weight = self.b.graph.matrix("v.patch_embd.weight", width, columns)?;
        let bias = self.b.optional_vector("v.patch_embd.bias".into(), width)?;
        let mut x = self.b.graph.linear_with(patches, weight, None, bias)?;
        if self.b.has("v.patch_embd.weight.1") {
            // the second moment of a film, which is the same picture
            let weight = self.b.graph.matrix("v.patch_embd.weight.1", width, columns)?;
            let y = self.b.graph.linear(patches, weight)?;
            x = self.b.graph.add(x, y)?;
        }
        if let Some(resampling) = resampling {
            let name = "v.position_embd.weight";
            let table = self.checkpoint.tensors.get(name);
            let table = table.ok_or_else(|| ModelError::MissingTensor(name.into()))?;
            if table.cols() != width {
                let found = format!("{}", table.cols());
                return Err(ModelError::shape(name, format!("{width} columns"), found));
            }
            self.positions = Some(Positions::new(host_tensor(table)?.to_f32(), width, resampling)?);
            let added = self.b.graph.input(1, width);
            x = self.b.graph.add(x, added)?;
        }
        Ok(x)
    }

    /// A norm with a weight, and a bias if the file has one.
    pub(super) fn norm(&mut self, x: Val, name: &str, len: usize, kind: NormKind) -> Result<Val, ModelError> {
        let weight = self.b.graph.vector(format!("{name}.weight"), len)?;
        let bias = self.b.optional_vector(format!("{name}.bias"), len)?;
        Ok(self.b.graph.norm_of_kind(x, weight, bias, self.b.config.eps, kind)?)
    }

    /// All blocks: norm, attention of all patches to all, add, norm, MLP, add. `[patches, width]`
    pub(super) fn blocks(&mut self, mut x: Val, style: &BlockStyle) -> Result<Val, ModelError> {
        for layer in 0..self.b.config.layers {
            x = self.block(x, layer, style)?;
        }
        Ok(x)
    }

    fn block(&mut self, x: Val, layer: usize, style: &BlockStyle) -> Result<Val, ModelError> {
        let name = |part: &str| format!("v.blk.{layer}.{part}");
        let (width, ff) = (self.b.config.width, self.b.config.ff);
        let normed = self.norm(x, &name("ln1"), width, style.norm)?;
        let attended = self.attention(normed, layer, style)?;
        let x = self.b.graph.add(x, attended)?;
        let normed = self.norm(x, &name("ln2"), width, style.norm)?;
        let hidden = self.b.linear(normed, &name("ffn_up"), ff)?;
        let hidden = self.b.graph.apply(hidden, style.function);
        let hidden = self.b.linear(hidden, &name("ffn_down"), width)?;
        Ok(self.b.graph.add(x, hidden)?)
    }

    fn attention(&mut self, x: Val, layer: usize, style: &BlockStyle) -> Result<Val, ModelError> {
        let name = |part: &str| format!("v.blk.{layer}.{part}");
        let (heads, kv_heads, dim) = (self.b.config.heads, self.b.config.kv_heads, self.b.config.head_dim);
        let (q_width, kv_width) = (heads * dim, kv_heads * dim);
        let [mut q, mut k, v] = if self.b.has(&name("attn_qkv.weight")) {
            let all = self.b.linear(x, &name("attn_qkv"), q_width + 2 * kv_width)?;
            let parts = [(0, q_width), (q_width, kv_width), (q_width + kv_width, kv_width)];
            let mut part = |i: usize| self.b.graph.columns(all, parts[i].0, parts[i].1);
            [part(0)?, part(1)?, part(2)?]
        } else {
            let mut linear = |part: &str, rows| self.b.linear(x, &name(part), rows);
            [linear("attn_q", q_width)?, linear("attn_k", kv_width)?, linear("attn_v", kv_width)?]
        };
        if let Some(table) = style.rope {
            [q, k] = [
                self.b.graph.rope(q, dim, RopeStyle::Halves, table)?,
                self.b.graph.rope(k, dim, RopeStyle::Halves, table)?,
            ];
        }
        let args =
            Attention { causal: false, ..Attention::full(heads, kv_heads, dim, (dim as f32).powf(-0.5)) };
        let attended = self.b.graph.attend(q, k, v, args)?;
        self.b.linear(attended, &name("attn_out"), self.b.config.width)
    }

    /// Rotations by the row of a patch in the first half of the pairs, and by its column in the second.
    pub(super) fn grid_rope(&mut self, base: f32) -> Result<usize, ModelError> {
        let dim = self.b.config.head_dim;
        if !dim.is_multiple_of(4) {
            return Err(ModelError::value(format!("{KEYS}.attention.head_dim"), dim, "a multiple of 4"));
        }
        let freqs = (0..dim / 2).map(|i| base.powf(-((i % (dim / 4)) as f32) / (dim / 4) as f32)).collect();
        let parts = (0..dim / 2).map(|i| if i < dim / 4 { 1 } else { 2 }).collect();
        Ok(self.b.graph.rope_table(RopeTable { freqs, magnitude: 1.0, parts }))
    }

    /// Ends the encoder: what follows is the projector, which reads its rows joined. `[tokens, width]`
    pub(super) fn projector(&mut self, x: Val, join: super::Join) -> Val {
        let x = self.b.graph.outputs(x);
        let width = self.b.graph.width(x);
        self.encoder = Some(std::mem::take(&mut self.b.graph));
        self.join = join;
        self.b.graph.input(0, join.width(width))
    }

    /// Ends the projector.
    pub(super) fn rows(&mut self, x: Val) {
        self.b.graph.outputs(x);
        self.b.graph.vectors = true;
    }
}
