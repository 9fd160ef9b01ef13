//! The rows of one expert, gathered from a value and quantized for its kernel.
//!
//! Each thread gathers for itself: it computes most experts alone, and gate and up read the same rows.

use tern_graph::{Graph, Op, Val};

use crate::activations::quantized_rows::{QuantizedRowsBuffer, Rounding};
use crate::activations::token_tiles::{MAX_TILE_TOKENS, TokenTilesBuffer};
use crate::kernels::{Kernels, QuantizeTiles};
use crate::memory::lines::Refused;
use crate::product::Activations;

/// Rows of an expert that are computed at a time: enough to read its weights seldom, and
/// few enough for the caches.
pub(crate) const EXPERT_ROWS: usize = 128;

/// Which rows are gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GatherKey {
    pub(crate) x: Val,
    /// One row, or those of an expert from its part `first` on.
    pub(crate) rows: GatheredSet,
    pub(crate) form: Form,
}

/// One row by index, or rows of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GatheredSet {
    Row(usize),
    Expert { route: Option<Val>, expert: usize, first: usize },
}

/// The form in which a kernel reads activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Floats,
    Rows,
    Tiles,
}

/// A thread's gathered rows.
#[derive(Default)]
pub(crate) struct GatheredRows {
    buffers: Option<(QuantizedRowsBuffer, TokenTilesBuffer)>,
    /// Rows as they are: of a tile, or all of them for kernels of floats.
    floats: Vec<f32>,
    values: usize,
    key: Option<GatherKey>,
    /// Counts what was gathered, from 1 on.
    number: usize,
}

/// Activations that a graph's experts read at a time.
fn values(graph: &Graph, max_tokens: usize) -> usize {
    let cols = graph.nodes.iter().filter_map(|node| match node.op {
        Op::ExpertLinear { weight, .. } => Some(graph.weight(weight).cols),
        _ => None,
    });
    cols.max().unwrap_or(0) * max_tokens.min(EXPERT_ROWS).next_multiple_of(MAX_TILE_TOKENS)
}

impl GatheredRows {
    /// Bytes of memory per thread for a graph.
    pub(crate) fn bytes(graph: &Graph, max_tokens: usize) -> u64 {
        let values = values(graph, max_tokens);
        (QuantizedRowsBuffer::bytes(values) + TokenTilesBuffer::bytes(values) + 4 * values) as u64
    }

    /// Memory for the experts of one more graph.
    pub(crate) fn reserve(&mut self, graph: &Graph, max_tokens: usize) -> Result<(), Refused> {
        let values = values(graph, max_tokens);
        if values > self.values {
            self.buffers = Some((QuantizedRowsBuffer::new(values)?, TokenTilesBuffer::new(values)?));
            self.floats.reserve_exact(values - self.floats.len());
            self.values = values;
        }
        Ok(())
    }

    /// Forgets the rows: all values of the next step are new.
    pub(crate) fn forget(&mut self) {
        self.key = None;
    }

    /// The number of the current rows.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Gathers `count` rows of `cols` columns, unless they are here already.
    pub(crate) fn gather<'a>(
        &mut self,
        key: GatherKey,
        (count, cols): (usize, usize),
        rounding: Rounding,
        kernels: &Kernels,
        row: impl Fn(usize) -> &'a [f32],
    ) {
        if self.key == Some(key) {
            return;
        }
        (self.key, self.number) = (Some(key), self.number + 1);
        let Some((rows, tiles)) = &self.buffers else { return };
        match (key.form, kernels.tiles.map(|t| (t.quantize, t.lanes))) {
            (Form::Floats, _) => {
                self.floats.clear();
                (0..count).for_each(|i| self.floats.extend_from_slice(row(i)));
            }
            // SAFETY (all of this function): the buffers are this thread's.
            (Form::Tiles, Some((QuantizeTiles::Rows(quantize), _))) => {
                for i in 0..count {
                    // SAFETY: as above.
                    quantize(row(i), rounding, &unsafe { tiles.row(rounding.low, cols, i, 0, cols) });
                }
            }
            (Form::Tiles, Some((QuantizeTiles::Whole(quantize), lanes))) => {
                let blocks = cols / tern_quant::INT_BLOCK;
                for first in (0..count).step_by(lanes) {
                    self.floats.clear();
                    (first..count.min(first + lanes)).for_each(|i| self.floats.extend_from_slice(row(i)));
                    for block in 0..blocks {
                        let at = first / lanes * blocks + block;
                        // SAFETY: as above.
                        let part = unsafe { tiles.part(at..at + 1, lanes) };
                        quantize(&self.floats, cols, rounding, block * tern_quant::INT_BLOCK, part);
                    }
                }
            }
            (Form::Rows, _) | (Form::Tiles, None) => {
                for i in 0..count {
                    // SAFETY: as above.
                    (kernels.quantize)(row(i), rounding, unsafe { rows.part(cols, i, 0, cols) });
                }
            }
        }
    }

    /// The rows as a kernel reads them.
    pub(crate) fn view(&self, form: Form, count: usize, cols: usize, low: u32) -> Option<Activations<'_>> {
        let (rows, tiles) = self.buffers.as_ref()?;
        // SAFETY: the buffers are this thread's, which writes them in `gather` only.
        Some(unsafe {
            match form {
                Form::Floats => Activations::Floats(&self.floats[..count * cols]),
                Form::Rows => Activations::Rows(rows.view(count, cols, low)),
                Form::Tiles => Activations::Tiles(tiles.view(count, cols, low)),
            }
        })
    }
}
