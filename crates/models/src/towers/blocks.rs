//! The parts that towers share: embeddings of patches and transformer blocks without an order.

use tern_graph::{
    Activation, Attention, Function, ImageOrder, NormKind, RopeStyle, RopeTable, TableRow, Val,
};

use super::positions::{Positions, Resampling};
use super::{KEYS, TowerBuild};
use crate::ModelError;
use crate::tensor::host_tensor;

/// What differs between the blocks of towers. Norms, gates and factors that only some have are seen from the
/// tensors of the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockStyle {
    pub(super) norm: NormKind,
    /// The function of the MLP.
    pub(super) function: Mlp,
    /// How queries and keys are rotated.
    pub(super) rotation: Rotation,
    /// Factor on the scores, if it is not one over the root of the columns of a head.
    pub(super) scale: Option<f32>,
    /// Values are normalised, without weights.
    pub(super) norms_values: bool,
    /// Which layers see the whole picture: those before the end of a run of this length see their window.
    pub(super) run: Option<usize>,
}

impl BlockStyle {
    /// Blocks of SigLIP.
    pub(super) const SIGLIP: BlockStyle = BlockStyle {
        norm: NormKind::Layer,
        function: Mlp::GeluTanh,
        rotation: Rotation::None,
        scale: None,
        norms_values: false,
        run: None,
    };
}

/// The function of an MLP, which is gated if the file has a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mlp {
    Gelu,
    GeluTanh,
    GeluQuick,
    Silu,
}

impl Mlp {
    /// What a file's keys say: `gelu` is the one of the two forms of GELU that the model was trained with.
    pub(super) fn of_keys(t: &TowerBuild<'_>, gelu: Mlp) -> Result<Mlp, ModelError> {
        let metadata = &t.checkpoint.metadata;
        let is = |key: &str| metadata.optional_bool(key).map(|value| value == Some(true));
        Ok(match () {
            () if is("clip.use_silu")? => Mlp::Silu,
            () if is("clip.use_gelu")? => gelu,
            () => Mlp::GeluQuick,
        })
    }
}

/// How the heads of queries and keys are rotated.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rotation {
    /// Not at all.
    None,
    /// All pairs by one table.
    Heads(RopeStyle, usize),
    /// Each half of a head by its own table.
    HalvesOfHeads([usize; 2]),
}

impl TowerBuild<'_> {
    /// Patches times their matrices, plus positions. `[patches, width]`
    pub(super) fn patches(&mut self, resampling: Option<Resampling>) -> Result<Val, ModelError> {
        let columns = 3 * self.patch * self.patch;
        let patches = self.b.graph.input(0, columns);
        let x = self.embedded(patches)?;
        self.add_positions(x, resampling)
    }

    /// Patches times their matrices. `[patches, width]`
    pub(super) fn embedded(&mut self, patches: Val) -> Result<Val, ModelError> {
        let (width, columns) = (self.b.config.width, self.b.graph.width(patches));
        let weight = self.b.graph.matrix("v.patch_embd.weight", width, columns)?;
        let bias = self.b.optional_vector("v.patch_embd.bias".into(), width)?;
        let mut x = self.b.graph.linear_with(patches, weight, None, bias)?;
        if self.b.has("v.patch_embd.weight.1") {
            // the second moment of a film, which is the same picture
            let weight = self.b.graph.matrix("v.patch_embd.weight.1", width, columns)?;
            let y = self.b.graph.linear(patches, weight)?;
            x = self.b.graph.add(x, y)?;
        }
        Ok(x)
    }

    /// Plus learned positions. A file with the embedding of a class has its position before the others.
    pub(super) fn add_positions(
        &mut self,
        x: Val,
        resampling: Option<Resampling>,
    ) -> Result<Val, ModelError> {
        let Some(resampling) = resampling else { return Ok(x) };
        let width = self.b.config.width;
        let mut table = self.floats("v.position_embd.weight", width)?;
        if self.b.has("v.class_embd") {
            let mut class = self.floats("v.class_embd", width)?;
            class.iter_mut().zip(table.drain(..width)).for_each(|(class, position)| *class += position);
            if self.b.has("v.patch_embd.bias") {
                // the row of the class is one of patches without pixels
                let bias = self.floats("v.patch_embd.bias", width)?;
                class.iter_mut().zip(bias).for_each(|(class, bias)| *class -= bias);
            }
            self.class = Some(class);
        }
        self.positions = Some(Positions::new(table, width, resampling)?);
        let added = self.b.graph.input(1, width);
        Ok(self.b.graph.add(x, added)?)
    }

    /// All values of a table of this many columns.
    fn floats(&self, name: &str, columns: usize) -> Result<Vec<f32>, ModelError> {
        let table =
            self.checkpoint.tensors.get(name).ok_or_else(|| ModelError::MissingTensor(name.into()))?;
        if table.cols() != columns || table.rows() == 0 {
            return Err(ModelError::shape(name, format!("{columns} columns"), format!("{}", table.cols())));
        }
        Ok(host_tensor(table)?.to_f32())
    }

    /// A norm with a weight, and a bias if the file has one.
    pub(super) fn norm(&mut self, x: Val, name: &str, len: usize, kind: NormKind) -> Result<Val, ModelError> {
        self.norm_with(x, name, len, kind, self.b.config.eps)
    }

    /// The same with its own epsilon.
    pub(super) fn norm_with(
        &mut self,
        x: Val,
        name: &str,
        len: usize,
        kind: NormKind,
        eps: f32,
    ) -> Result<Val, ModelError> {
        let weight = self.b.graph.vector(format!("{name}.weight"), len)?;
        let bias = self.b.optional_vector(format!("{name}.bias"), len)?;
        Ok(self.b.graph.norm_of_kind(x, weight, bias, eps, kind)?)
    }

    /// The same if the file has it.
    pub(super) fn optional_norm(&mut self, x: Val, name: &str, kind: NormKind) -> Result<Val, ModelError> {
        if !self.b.has(&format!("{name}.weight")) {
            return Ok(x);
        }
        self.norm(x, name, self.b.graph.width(x), kind)
    }

    /// A linear whose input and result have bounds, if the file has such.
    pub(super) fn linear(&mut self, x: Val, name: &str, rows: usize) -> Result<Val, ModelError> {
        let x = self.clamped(x, name, "input")?;
        let y = self.b.linear(x, name, rows)?;
        self.clamped(y, name, "output")
    }

    fn clamped(&mut self, x: Val, name: &str, side: &str) -> Result<Val, ModelError> {
        let mut bound = |end: &str| -> Result<Option<f32>, ModelError> {
            let name = format!("{name}.{side}_{end}");
            match self.b.values(&name).as_deref() {
                None => Ok(None),
                Some([one]) => Ok(Some(*one)),
                Some(many) => Err(ModelError::shape(name, "[1]", format!("[{}]", many.len()))),
            }
        };
        match (bound("min")?, bound("max")?) {
            (None, None) => Ok(x),
            (low, high) => {
                let (low, high) = (low.unwrap_or(f32::NEG_INFINITY), high.unwrap_or(f32::INFINITY));
                Ok(self.b.graph.apply(x, Function::Clamp(low, high)))
            }
        }
    }

    /// All blocks: norm, attention of all patches to all, add, norm, MLP, add. `[patches, width]`
    pub(super) fn blocks(&mut self, x: Val, style: &BlockStyle) -> Result<Val, ModelError> {
        Ok(self.blocks_with(x, style, &[])?.0)
    }

    /// The same, with the results of some layers.
    pub(super) fn blocks_with(
        &mut self,
        mut x: Val,
        style: &BlockStyle,
        keep: &[usize],
    ) -> Result<(Val, Vec<Val>), ModelError> {
        let mut kept = vec![];
        for layer in 0..self.b.config.layers {
            x = self.block(x, layer, style)?;
            kept.extend(keep.contains(&layer).then_some(x));
        }
        Ok((x, kept))
    }

    fn block(&mut self, x: Val, layer: usize, style: &BlockStyle) -> Result<Val, ModelError> {
        let name = |part: &str| format!("v.blk.{layer}.{part}");
        let width = self.b.config.width;
        let normed = self.norm(x, &name("ln1"), width, style.norm)?;
        let y = self.attention(normed, layer, style)?;
        let y = self.scaled(y, &name("ls1"))?;
        let y = self.optional_norm(y, &name("attn_post_norm"), style.norm)?;
        let x = self.b.graph.add(x, y)?;
        let normed = self.norm(x, &name("ln2"), width, style.norm)?;
        let y = self.mlp(normed, layer, style.function)?;
        let y = self.optional_norm(y, &name("ffn_post_norm"), style.norm)?;
        let y = self.scaled(y, &name("ls2"))?;
        let x = self.b.graph.add(x, y)?;
        self.scaled(x, &name("out_scale"))
    }

    /// Each column times its factor, if the file has them.
    fn scaled(&mut self, x: Val, name: &str) -> Result<Val, ModelError> {
        match self.b.optional_vector(format!("{name}.weight"), self.b.graph.width(x))? {
            Some(by) => Ok(self.b.graph.scale_columns(x, by)?),
            None => Ok(x),
        }
    }

    fn mlp(&mut self, x: Val, layer: usize, function: Mlp) -> Result<Val, ModelError> {
        let name = |part: &str| format!("v.blk.{layer}.{part}");
        let (width, ff) = (self.b.config.width, self.b.config.ff);
        let [up, down] = self.mlp_names(layer);
        let up = self.linear(x, &up, ff)?;
        let hidden = if self.b.has(&name("ffn_gate.weight")) {
            let gate = self.linear(x, &name("ffn_gate"), ff)?;
            let activation = match function {
                Mlp::Gelu => Activation::Gelu,
                Mlp::GeluTanh => Activation::GeluTanh,
                Mlp::Silu => Activation::Silu,
                Mlp::GeluQuick => {
                    return Err(ModelError::value("clip.use_gelu", "missing", "true with a gate"));
                }
            };
            self.b.graph.gated(gate, up, activation)?
        } else {
            match function {
                Mlp::Gelu => self.b.graph.apply(up, Function::Gelu),
                Mlp::GeluTanh => self.b.graph.apply(up, Function::GeluTanh),
                Mlp::GeluQuick => self.b.graph.apply(up, Function::GeluQuick),
                Mlp::Silu => return Err(ModelError::MissingTensor(name("ffn_gate.weight"))),
            }
        };
        self.linear(hidden, &down, width)
    }

    /// The names of the matrices of an MLP, which old files have exchanged.
    fn mlp_names(&self, layer: usize) -> [String; 2] {
        let names = ["ffn_up", "ffn_down"].map(|part| format!("v.blk.{layer}.{part}"));
        let exchanged = self.b.rows(&format!("{}.weight", names[0])) == Some(self.b.config.width)
            && self.b.config.width != self.b.config.ff;
        if exchanged {
            let [up, down] = names;
            [down, up]
        } else {
            names
        }
    }

    fn attention(&mut self, x: Val, layer: usize, style: &BlockStyle) -> Result<Val, ModelError> {
        let name = |part: &str| format!("v.blk.{layer}.{part}");
        let (heads, kv_heads, dim) = (self.b.config.heads, self.b.config.kv_heads, self.b.config.head_dim);
        let (q_width, kv_width) = (heads * dim, kv_heads * dim);
        let [mut q, mut k, mut v] = if self.b.has(&name("attn_qkv.weight")) {
            let all = self.linear(x, &name("attn_qkv"), q_width + 2 * kv_width)?;
            let parts = [(0, q_width), (q_width, kv_width), (q_width + kv_width, kv_width)];
            let mut part = |i: usize| self.b.graph.columns(all, parts[i].0, parts[i].1);
            [part(0)?, part(1)?, part(2)?]
        } else {
            let mut linear = |part: &str, rows| self.linear(x, &name(part), rows);
            [linear("attn_q", q_width)?, linear("attn_k", kv_width)?, linear("attn_v", kv_width)?]
        };
        for (x, norm) in [(&mut q, name("attn_q_norm")), (&mut k, name("attn_k_norm"))] {
            // of each head, or of all together
            if let Some(rows) = self.columns_of(&format!("{norm}.weight")) {
                let len = if rows == dim { dim } else { self.b.graph.width(*x) };
                *x = self.norm(*x, &norm, len, style.norm)?;
            }
        }
        if style.norms_values {
            v = self.b.graph.plain_norm(v, dim, self.b.config.eps)?;
        }
        [q, k] = [self.rotated(q, style.rotation)?, self.rotated(k, style.rotation)?];
        let in_window = style.run.is_some_and(|run| !(layer + 1).is_multiple_of(run));
        let args = Attention {
            causal: false,
            images: if in_window { ImageOrder::Alone } else { ImageOrder::Sequence },
            ..Attention::full(heads, kv_heads, dim, style.scale.unwrap_or((dim as f32).powf(-0.5)))
        };
        let attended = self.b.graph.attend(q, k, v, args)?;
        self.linear(attended, &name("attn_out"), self.b.config.width)
    }

    fn columns_of(&self, name: &str) -> Option<usize> {
        self.checkpoint.tensors.get(name).map(|tensor| tensor.cols())
    }

    fn rotated(&mut self, x: Val, rotation: Rotation) -> Result<Val, ModelError> {
        let dim = self.b.config.head_dim;
        Ok(match rotation {
            Rotation::None => x,
            Rotation::Heads(style, table) => self.b.graph.rope(x, dim, style, table)?,
            Rotation::HalvesOfHeads(tables) => {
                let heads = self.b.graph.width(x) / dim;
                let mut half = |i: usize| -> Result<Val, ModelError> {
                    let x = self.b.graph.head_columns(x, dim, i * (dim / 2), dim / 2)?;
                    Ok(self.b.graph.rope(x, dim / 2, RopeStyle::Halves, tables[i])?)
                };
                let [first, second] = [half(0)?, half(1)?];
                self.b.graph.join_heads(first, second, heads)?
            }
        })
    }

    /// Refuses heads whose columns cannot be divided among rows and columns of an image.
    fn quarter_of_head(&self) -> Result<usize, ModelError> {
        let dim = self.b.config.head_dim;
        if !dim.is_multiple_of(4) {
            return Err(ModelError::value(format!("{KEYS}.attention.head_dim"), dim, "a multiple of 4"));
        }
        Ok(dim / 4)
    }

    /// Rotations by the row of a patch in the first half of the pairs, and by its column in the second, with
    /// the same frequencies.
    pub(super) fn grid_rope(&mut self, base: f32) -> Result<Rotation, ModelError> {
        let quarter = self.quarter_of_head()?;
        let freqs = (0..2 * quarter).map(|i| base.powf(-((i % quarter) as f32) / quarter as f32)).collect();
        let parts = (0..2 * quarter).map(|i| if i < quarter { 1 } else { 2 }).collect();
        let table = self.b.graph.rope_table(RopeTable { freqs, magnitude: 1.0, parts });
        Ok(Rotation::Heads(RopeStyle::Halves, table))
    }

    /// The same with every other frequency for rows, and the others for columns, of neighbouring columns.
    pub(super) fn alternating_rope(&mut self, base: f32) -> Result<Rotation, ModelError> {
        let quarter = self.quarter_of_head()?;
        let freq = |i: usize| base.powf(-((2 * (i % quarter) + i / quarter) as f32) / (2 * quarter) as f32);
        let parts = (0..2 * quarter).map(|i| if i < quarter { 1 } else { 2 }).collect();
        let freqs = (0..2 * quarter).map(freq).collect();
        let table = self.b.graph.rope_table(RopeTable { freqs, magnitude: 1.0, parts });
        Ok(Rotation::Heads(RopeStyle::Interleaved, table))
    }

    /// Rotations by the column of a patch in the first half of each head, and by its row in the second.
    pub(super) fn halves_rope(&mut self, base: f32) -> Result<Rotation, ModelError> {
        let quarter = self.quarter_of_head()?;
        let tables = [2, 1].map(|part| {
            let freqs = (0..quarter).map(|i| base.powf(-(i as f32) / quarter as f32)).collect();
            let parts = vec![part; quarter];
            self.b.graph.rope_table(RopeTable { freqs, magnitude: 1.0, parts })
        });
        Ok(Rotation::HalvesOfHeads(tables))
    }

    /// `(x - bias) * scale`, if the file has both.
    pub(super) fn standardized(&mut self, x: Val) -> Result<Val, ModelError> {
        let width = self.b.graph.width(x);
        let Some(scale) = self.b.optional_vector("v.std_scale".into(), width)? else { return Ok(x) };
        let bias = self.b.graph.vector("v.std_bias", width)?;
        let x = self.b.graph.scale(x, -1.0);
        let x = self.b.graph.add_row(x, bias, TableRow::First)?;
        let x = self.b.graph.scale(x, -1.0);
        Ok(self.b.graph.scale_columns(x, scale)?)
    }

    /// Ends the encoder: what follows is the projector, which reads its rows joined. `[tokens, width]`
    pub(super) fn projector(&mut self, x: Val, join: super::Join) -> Val {
        let x = self.b.graph.outputs(x);
        let width = self.b.graph.width(x);
        self.encoder = Some(std::mem::take(&mut self.b.graph));
        self.join = join;
        self.b.graph.input(0, join.width(width))
    }

    /// A linear with as many rows as the file has.
    pub(super) fn last_linear(&mut self, x: Val, name: &str) -> Result<Val, ModelError> {
        let weight = format!("{name}.weight");
        let rows = self.b.rows(&weight).ok_or(ModelError::MissingTensor(weight))?;
        self.linear(x, name, rows)
    }

    /// Two linears with a function between them.
    pub(super) fn two_linears(&mut self, x: Val, names: [&str; 2]) -> Result<Val, ModelError> {
        let x = self.last_linear(x, names[0])?;
        let x = self.b.graph.apply(x, Function::Gelu);
        self.last_linear(x, names[1])
    }

    /// Ends the projector.
    pub(super) fn rows(&mut self, x: Val) {
        self.b.graph.outputs(x);
        self.b.graph.vectors = true;
    }
}
