//! The read bandwidth of the GPU's memory, which bounds decoding.

use std::sync::Arc;
use std::time::Instant;

use tern_graph::BackendError;

use crate::driver::{Compiler, Device, Grid, Source};
use crate::shared::BandwidthArgs;

/// Bytes that are read: many times the size of the caches.
const BYTES: usize = 2 << 30;
/// Launches per measurement, so that launching and waiting do not count.
const TIMES: usize = 8;

/// Bytes per second; the best of a few measurements.
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
            // SAFETY: the struct is the kernel's, and it reads only `bytes` of the allocation.
            unsafe { kernel.launch(grid, &args)? };
        }
        device.wait()?;
        best = best.max((bytes * TIMES) as f64 / start.elapsed().as_secs_f64());
    }
    Ok(best)
}
