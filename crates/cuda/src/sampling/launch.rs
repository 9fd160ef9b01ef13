//! Chooses tokens on the device: the sampler's kernels, their room, and what a step's rows want.

use std::sync::Arc;

use tern_graph::{BackendError, Sample, Step};

use super::args::{Rows, SampleRoom, draws, pack};
use crate::driver::{Compiler, Device, Grid, Kernel, Memory, Source};
use crate::shared::SAMPLE_THREADS;

type Result<T> = std::result::Result<T, BackendError>;

/// The most rows that one launch chooses for: room for one row of a large vocabulary is more than a megabyte.
const ROWS_AT_ONCE: usize = 8;

pub(crate) struct Chooser {
    device: Arc<Device>,
    best: Kernel,
    draw: Kernel,
    room: SampleRoom,
    scratch: Memory,
    /// What the rows want; grows when masks and penalties do not fit.
    words: Memory,
    width: usize,
}

impl Chooser {
    pub(crate) fn new(
        device: &Arc<Device>,
        compiler: &mut Compiler,
        rows: usize,
        width: usize,
    ) -> Result<Chooser> {
        let module = compiler.module(Source::Sample, &[])?;
        let room = SampleRoom::new(rows.clamp(1, ROWS_AT_ONCE), width);
        Ok(Chooser {
            device: Arc::clone(device),
            best: module.kernel("sample_best")?,
            draw: module.kernel("sample_draw")?,
            room,
            scratch: device.allocate(room.bytes())?,
            words: device.allocate(1 << 16)?,
            width,
        })
    }

    /// Chooses for every row of a step whose logits are on their way. Waits for the rows' masks.
    pub(crate) fn choose(&mut self, step: &Step, logits: u64, chosen: u64) -> Result<()> {
        let words = pack(step.outputs.iter().map(|o| o.sample.as_ref()), self.width);
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        if bytes.len() > self.words.len() {
            self.device.wait()?; // a step that is still under way may read the old ones
            self.words = self.device.allocate(bytes.len().next_power_of_two())?;
        }
        self.words.write(0, &bytes)?;
        let rows = Rows { logits, stride: self.width, words: self.words.pointer(), chosen };
        for first in (0..step.outputs.len()).step_by(self.room.rows) {
            let part = &step.outputs[first..(first + self.room.rows).min(step.outputs.len())];
            let args = self.room.args(self.scratch.pointer(), &rows, first);
            let grid = Grid::new(self.room.blocks(), part.len(), SAMPLE_THREADS);
            // SAFETY: the struct is the kernels'; the scratch has room for so many rows.
            unsafe {
                self.best.launch(grid, &args)?;
                if part.iter().any(|o| o.sample.as_ref().is_some_and(draws)) {
                    self.draw.launch(grid, &args)?;
                }
            }
        }
        Ok(())
    }
}

/// The best token is all that is wanted: nothing changes the logits.
pub(crate) fn is_plain(sample: &Sample) -> bool {
    sample.params.is_greedy() && !sample.changes_logits()
}
