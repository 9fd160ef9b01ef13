//! The kernels of one instruction set: what each of `instruction_sets` provides.

use tern_graph::Activation;
use tern_quant::Quant;

use crate::activations::quantized_rows::{QuantizedRowsMut, Rounding};
use crate::activations::token_tiles::{TileRow, TokenTilesMut};
use crate::attention::attend::AttentionKernels;
use crate::dot::LinearKernel;

/// One instruction set's version of everything that is worth vectorising.
///
/// All versions agree with the scalar one: exactly where results are defined lane by lane, to rounding elsewhere.
#[derive(Clone, Copy)]
pub struct Kernels {
    /// `amx`, `avx512`, `avx2`, `neon` or `scalar`.
    pub name: &'static str,
    /// The row product for a format; `None` if the format cannot be run.
    pub(crate) linear: fn(&'static Quant) -> Option<LinearKernel>,
    pub(crate) attention: AttentionKernels,
    /// `act(gate) * up`
    pub(crate) gated: fn(Activation, gate: &[f32], up: &[f32], out: &mut [f32]),
    /// To integers.
    pub(crate) quantize: fn(x: &[f32], rounding: Rounding, out: QuantizedRowsMut<'_>),
    /// Tiles of tokens, where there are kernels for them.
    pub(crate) tiles: Option<Tiles>,
    /// `sum(x)` and `sum(x^2)`
    pub(crate) sums: fn(&[f32]) -> (f32, f32),
}

/// How many tokens become one tile of integers.
#[derive(Clone, Copy)]
pub(crate) struct Tiles {
    /// Tokens from which on tiles pay; fewer are quantised row by row.
    pub(crate) from: usize,
    /// Tokens of a tile.
    pub(crate) lanes: usize,
    pub(crate) quantize: QuantizeTiles,
}

/// How a tile is filled.
#[derive(Clone, Copy)]
pub(crate) enum QuantizeTiles {
    /// All tokens at once: [`crate::activations::token_tiles::quantize_tile`]
    Whole(fn(x: &[f32], width: (usize, Rounding), start: usize, out: TokenTilesMut<'_>)),
    /// Token by token, where a value is made.
    Rows(fn(x: &[f32], rounding: Rounding, out: &TileRow<'_>)),
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}
