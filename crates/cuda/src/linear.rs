//! The linear kernel for codes: what it is compiled for, and how it is launched.

use tern_graph::BackendError;

use crate::args::LinearArgs;
use crate::compiler::{Compiler, Source};
use crate::driver::{DeviceFacts, Kernel};
use crate::layout::{Layout, TILE};

type Result<T> = std::result::Result<T, BackendError>;

/// Activations are taken this much smaller into halves, so that the largest outliers fit.
const X_SCALE: f32 = 1.0 / 64.0;
/// Warps of a block.
const WARPS: usize = 8;

/// A linear kernel and what its blocks take.
pub(crate) struct LinearKernel {
    kernel: Kernel,
    /// Tiles of rows.
    tiles: usize,
    /// Tokens.
    columns: usize,
    shared: Shared,
}

/// Shared memory of a linear kernel's block, in bytes.
#[derive(Clone, Copy)]
struct Shared {
    token: usize,
    starts: usize,
    least: usize,
}

impl Shared {
    fn bytes(self, tokens: usize) -> usize {
        (tokens * self.token + self.starts).max(self.least)
    }
}

impl LinearKernel {
    /// For `columns * 8` tokens at a time.
    pub(crate) fn new(
        compiler: &mut Compiler,
        device: &DeviceFacts,
        layout: &Layout,
        (rows, chunks): (usize, usize),
        columns: usize,
    ) -> Result<LinearKernel> {
        let tiles = rows.div_ceil(TILE);
        let each = [4, 2].into_iter().find(|each| columns == 1 && tiles / each >= 2 * device.processors);
        let each = each.unwrap_or(if columns == 1 { 1 } else { 2 });
        let groups = layout.groups();
        let sums = if layout.offsets { 2 } else { 1 };
        let shared = |slice: usize| Shared {
            token: (slice * 64 + 16) * 4,
            starts: slice * groups * sums * columns * 8 * 4,
            // the shares of the warps use the same room in the end
            least: WARPS * each * TILE * columns * 8 * 4,
        };
        let room = device.shared_memory.saturating_sub(1024);
        let fits = |slice: &usize| shared(*slice).bytes(columns * 8) <= room;
        let slice = (1..=chunks).rev().find(fits).unwrap_or(1);
        let shared = shared(slice);
        let all = linear_defines(layout, rows, chunks, columns, each, slice);
        let kernel = compiler.kernel(Source::Linear, "linear", &all)?;
        let kernel = kernel.with_shared_memory(shared.bytes(columns * 8))?;
        Ok(LinearKernel { kernel, tiles: each, columns: columns * 8, shared })
    }

    /// # Safety
    ///
    /// As for [`Kernel::launch`].
    pub(crate) unsafe fn launch(&self, tiles: usize, tokens: usize, args: &LinearArgs) -> Result<()> {
        let grid = (tiles.div_ceil(self.tiles), tokens.div_ceil(self.columns));
        let shared = self.shared.bytes(tokens.min(self.columns));
        // SAFETY: by the caller.
        unsafe { self.kernel.launch_with(grid, WARPS * 32, shared, args) }
    }
}

/// What a kernel that reads codes is compiled for.
pub(crate) fn defines(layout: &Layout, chunks: usize) -> Vec<(&'static str, String)> {
    vec![
        ("CHUNKS", chunks.to_string()),
        ("BITS", layout.bits.to_string()),
        ("HIGH", layout.high.to_string()),
        ("GROUP", layout.group.to_string()),
        ("OFFSETS", i32::from(layout.offsets).to_string()),
        ("ZERO", format!("{:?}f", layout.zero)),
    ]
}

/// What a linear kernel is compiled for: `columns * 8` tokens and `tiles` tiles a block, `slice` chunks of x at a time.
pub(crate) fn linear_defines(
    layout: &Layout,
    rows: usize,
    chunks: usize,
    columns: usize,
    tiles: usize,
    slice: usize,
) -> Vec<(&'static str, String)> {
    let mut all = defines(layout, chunks);
    all.extend([
        ("ROWS", rows.to_string()),
        ("TILES", tiles.to_string()),
        ("WARPS", WARPS.to_string()),
        ("COLUMNS", columns.to_string()),
        ("SLICE", slice.to_string()),
        ("XSCALE", format!("{X_SCALE:?}f")),
    ]);
    all
}
