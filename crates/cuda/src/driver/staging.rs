//! Uploads through two pinned buffers: one is filled while the other is copied.

use std::sync::Arc;

use tern_graph::BackendError;

use super::device::Device;
use super::memory::{Event, Memory, Pinned};

type Result<T> = std::result::Result<T, BackendError>;

/// Bytes of a buffer: enough for the copy to reach full speed.
const BUFFER: usize = 32 << 20;

pub(crate) struct Staging {
    device: Arc<Device>,
    /// Each with the event of its last copy; allocated at first use.
    buffers: Vec<(Pinned, Event)>,
}

impl Staging {
    pub(crate) fn new(device: &Arc<Device>) -> Staging {
        Staging { device: Arc::clone(device), buffers: vec![] }
    }

    /// Allocates `bytes`, which `fill(from, piece)` provides piece by piece; pieces
    /// begin at multiples of `step`.
    pub(crate) fn upload(
        &mut self,
        bytes: usize,
        step: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<Memory> {
        let memory = self.device.allocate(bytes)?;
        let piece = (BUFFER / step.max(1)).max(1) * step.max(1);
        for (i, from) in (0..bytes).step_by(piece).enumerate() {
            let len = piece.min(bytes - from);
            let (pinned, copied) = self.buffer(i % 2, len)?;
            copied.wait()?;
            fill(from, &mut pinned.bytes()[..len]);
            memory.write_pinned(from, pinned, len)?;
            copied.record()?;
        }
        Ok(memory)
    }

    /// One of the two buffers, of at least `bytes`.
    fn buffer(&mut self, which: usize, bytes: usize) -> Result<&mut (Pinned, Event)> {
        while self.buffers.len() <= which {
            let buffer = (Pinned::new(&self.device, BUFFER)?, Event::new(&self.device)?);
            self.buffers.push(buffer);
        }
        let buffer = &mut self.buffers[which];
        if buffer.0.bytes().len() < bytes {
            buffer.1.wait()?;
            buffer.0 = Pinned::new(&self.device, bytes)?;
        }
        Ok(buffer)
    }
}
