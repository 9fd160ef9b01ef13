//! Samples tokens on the device: the kernels, their scratch, and the parameters of a step's rows.

use std::sync::Arc;

use tern_graph::{BackendError, Sample, Step};

use super::args::{Rows, SampleScratch, draws, pack};
use crate::driver::{Compiler, Device, Grid, Kernel, Memory, Source};
use crate::shared::SAMPLE_THREADS;

type Result<T> = std::result::Result<T, BackendError>;

/// Rows of one launch at most: scratch for one row of a large vocabulary is more than a megabyte.
const ROWS_AT_ONCE: usize = 128;

pub(crate) struct Sampler {
    device: Arc<Device>,
    best: Kernel,
    draw: Kernel,
    scratch: SampleScratch,
    memory: Memory,
    /// Parameters of the rows; grows when masks and penalties do not fit.
    words: Memory,
    width: usize,
}

impl Sampler {
    pub(crate) fn new(
        device: &Arc<Device>,
        compiler: &mut Compiler,
        rows: usize,
        width: usize,
    ) -> Result<Sampler> {
        let module = compiler.module(Source::Sample, &[])?;
        let scratch = SampleScratch::new(rows.clamp(1, ROWS_AT_ONCE), width);
        Ok(Sampler {
            device: Arc::clone(device),
            best: module.kernel("sample_best")?,
            draw: module.kernel("sample_draw")?,
            scratch,
            memory: device.allocate(scratch.bytes())?,
            words: device.allocate(1 << 16)?,
            width,
        })
    }

    /// Bytes of its scratch, for steps of up to `outputs` rows.
    pub(crate) fn scratch_bytes(outputs: usize, width: usize) -> usize {
        SampleScratch::new(outputs.clamp(1, ROWS_AT_ONCE), width).bytes()
    }

    /// Samples for each row of a step whose logits have been submitted. Waits for the rows' masks.
    pub(crate) fn sample(&mut self, step: &Step, logits: u64, chosen: u64) -> Result<()> {
        let words = pack(step.outputs.iter().map(|o| o.sample.as_ref()), self.width);
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        if bytes.len() > self.words.len() {
            self.device.wait()?; // a step in flight may read the old ones
            self.words = self.device.allocate(bytes.len().next_power_of_two())?;
        }
        self.words.write(0, &bytes)?;
        let rows = Rows { logits, stride: self.width, words: self.words.pointer(), chosen };
        for first in (0..step.outputs.len()).step_by(self.scratch.rows) {
            let part = &step.outputs[first..(first + self.scratch.rows).min(step.outputs.len())];
            let args = self.scratch.args(self.memory.pointer(), &rows, first);
            let grid = Grid::new(self.scratch.blocks(), part.len(), SAMPLE_THREADS);
            // SAFETY: the struct is the kernels'; the scratch has space for this many rows.
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

/// Whether the best token is requested and nothing changes the logits: argmax has found it.
pub(crate) fn is_plain(sample: &Sample) -> bool {
    sample.params.is_greedy() && !sample.changes_logits()
}
