//! The kernels of one instruction set: what each of `instruction_sets` provides.

use tern_graph::{Activation, Function, Roles};
use tern_quant::Quant;

use crate::activations::quantized_rows::{QuantizedRowsMut, Rounding};
use crate::activations::token_tiles::{TileRow, TokenTilesMut};
use crate::attention::attend::AttentionKernels;
use crate::dot::LinearKernel;
use crate::recurrent::columns::{ConvToken, StateToken};
use crate::rowwise::Norm;

/// One instruction set's version of every vectorised loop.
///
/// All versions equal the scalar one: exactly if results are defined lane by lane, otherwise to rounding.
#[derive(Clone, Copy)]
pub struct Kernels {
    /// `amx`, `avx512`, `avx2`, `neon` or `scalar`.
    pub name: &'static str,
    /// The row product for a format; `None` if the format cannot be run.
    pub(crate) linear: fn(&'static Quant) -> Option<LinearKernel>,
    /// A row product of weights in f32 that rounds as f32 do, if that of `linear` has fewer bits.
    pub(crate) exact_f32: Option<LinearKernel>,
    pub(crate) attention: AttentionKernels,
    /// `act(gate) * up`
    pub(crate) gated: fn(Activation, gate: &[f32], up: &[f32], out: &mut [f32]),
    /// A function of each value.
    pub(crate) apply: fn(Function, x: &[f32], out: &mut [f32]),
    /// A norm of one group of columns.
    pub(crate) norm: fn(&Norm<'_>, x: &[f32], out: &mut [f32]),
    /// Quantizes activations.
    pub(crate) quantize: fn(x: &[f32], rounding: Rounding, out: QuantizedRowsMut<'_>),
    /// `None` if there are no kernels for tiles of tokens.
    pub(crate) tiles: Option<Tiles>,
    /// One token of a recurrent op, on a block of columns of its state: [`crate::recurrent::advance`]
    pub(crate) advance: fn(state: &mut [f32], token: &StateToken<'_>, out: &mut [f32]),
    /// One token of a convolution: [`crate::recurrent::convolve`]
    pub(crate) convolve: fn(token: &ConvToken<'_>, out: &mut [f32]),
    /// Hadamard transforms of blocks: [`crate::rotation::hadamard`]
    pub(crate) hadamard: fn(x: &mut [f32], block: usize),
    /// `sum(x)` and `sum(x^2)`
    pub(crate) sums: fn(&[f32]) -> (f32, f32),
}

/// How many tokens are quantized in tiles.
#[derive(Clone, Copy)]
pub(crate) struct Tiles {
    /// Number of tokens from which tiles are faster; fewer are quantized row by row.
    pub(crate) from: usize,
    /// Tokens per tile.
    pub(crate) lanes: usize,
    pub(crate) quantize: QuantizeTiles,
}

/// How a tile is filled.
#[derive(Clone, Copy)]
pub(crate) enum QuantizeTiles {
    /// All tokens at once: [`crate::activations::token_tiles::quantize_tile`]
    Whole(fn(x: &[f32], width: usize, rounding: Rounding, start: usize, out: TokenTilesMut<'_>)),
    /// Token by token, by the op that computes the value.
    Rows(fn(x: &[f32], rounding: Rounding, out: &TileRow<'_>)),
}

impl Kernels {
    /// The row product for a weight: as exact as f32 for those in f32 on which a choice of experts depends.
    pub(crate) fn linear_of(&self, quant: &'static Quant, roles: Roles) -> Option<LinearKernel> {
        let exact = self.exact_f32.filter(|_| roles.chooses && quant == &tern_quant::F32);
        exact.or_else(|| (self.linear)(quant))
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}
