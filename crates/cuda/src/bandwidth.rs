//! How fast this GPU reads its memory: what decoding is measured against.

use std::sync::Arc;
use std::time::Instant;

use tern_graph::BackendError;

use crate::driver::{Compiler, Device, Grid, Source};
use crate::shared::BandwidthArgs;

/// Bytes that are read: many times what the caches hold.
const BYTES: usize = 2 << 30;
/// Times in a row, so that starting and waiting do not count.
const TIMES: usize = 8;

/// Bytes a second; the best of a few tries.
pub(crate) fn measure(device: &Arc<Device>, compiler: &mut Compiler) -> Result<f64, BackendError> {
    let (free, _) = device.memory()?;
    let bytes = BYTES.min(free as usize / 2) / (1 << 20) * (1 << 20);
    let (memory, sums) = (device.allocate(bytes)?, device.allocate(16)?);
    let kernel = compiler.module(Source::Bandwidth, &[])?.kernel("read_all")?;
    let args = BandwidthArgs { from: memory.pointer(), count: bytes as u64 / 16, to: sums.pointer() };
    let grid = Grid::new(device.facts.processors * 2, 1, 1024);
    let mut best = 0f64;
    for _ in 0..4 {
        device.wait()?;
        let start = Instant::now();
        for _ in 0..TIMES {
            // SAFETY: the arguments are the kernel's, and it reads no more than there is.
            unsafe { kernel.launch(grid, &args)? };
        }
        device.wait()?;
        best = best.max((bytes * TIMES) as f64 / start.elapsed().as_secs_f64());
    }
    Ok(best)
}
