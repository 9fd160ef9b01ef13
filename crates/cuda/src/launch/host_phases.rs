//! What the host does between the launches of a step (`lower/host_phases.rs`).

use std::sync::{Arc, PoisonError};

use tern_graph::{BackendError, HostOpsHandle, HostRows, Step};

use crate::driver::{Device, Event, Pinned};
use crate::lower::{HostOp, HostStep};

type Result<T> = std::result::Result<T, BackendError>;

/// The host phases of a program, and the pinned memory through which rows travel.
pub(super) struct HostPhases {
    steps: Vec<HostStep<HostOp>>,
    ops: Option<HostOpsHandle>,
    /// Rows that were sent: x, and then logits.
    sent: Pinned,
    /// Recorded after the copies to `sent`.
    arrived: Event,
    /// Rows that are received.
    received: Pinned,
    /// Columns of what is in `sent`.
    widths: [usize; 2],
    /// Input rows of the step that was planned last.
    inputs: Vec<Vec<f32>>,
    device: Arc<Device>,
}

/// Bytes of a float.
const FLOAT: usize = 4;

impl HostPhases {
    /// `None` if the host has nothing to do.
    pub(super) fn new(
        device: &Arc<Device>,
        steps: Vec<HostStep<HostOp>>,
        ops: Option<HostOpsHandle>,
        max_tokens: usize,
    ) -> Result<Option<HostPhases>> {
        if steps.is_empty() {
            return Ok(None);
        }
        let columns = steps.iter().map(|step| match step.op {
            HostOp::Write { .. } => [0, 0],
            HostOp::Send { x, logits } => [x.width + logits.width, 0],
            HostOp::Receive { to, .. } => [0, to.width],
        });
        let [sent, received] = columns.fold([0, 0], |most, columns| [0, 1].map(|i| most[i].max(columns[i])));
        if received > 0 && ops.is_none() {
            return Err(BackendError::Invalid("host_experts: no ops of the host are set".into()));
        }
        Ok(Some(HostPhases {
            steps,
            ops,
            sent: Pinned::new(device, sent * max_tokens * FLOAT)?,
            arrived: Event::new(device)?,
            received: Pinned::new(device, received * max_tokens * FLOAT)?,
            widths: [0, 0],
            inputs: vec![],
            device: Arc::clone(device),
        }))
    }

    /// Kernel phases before each host phase.
    pub(super) fn cuts(&self) -> Vec<usize> {
        self.steps.iter().map(|step| step.after).collect()
    }

    /// Takes the input rows of the next step.
    pub(super) fn plan(&mut self, step: &Step) {
        self.inputs.clone_from(&step.inputs);
    }

    /// Runs host phase `index` for a step of `tokens` tokens.
    pub(super) fn run(&mut self, index: usize, tokens: usize) -> Result<()> {
        match self.steps[index].op {
            HostOp::Write { index, to } => {
                let rows = self.inputs.get(index).map_or(&[][..], Vec::as_slice);
                if rows.len() != tokens * to.width {
                    let (want, got) = (tokens * to.width, rows.len());
                    let message = format!("input {index}: want {want} values, got {got}");
                    return Err(BackendError::Invalid(message));
                }
                // SAFETY: the value has a row of this width for every token of the largest step.
                unsafe { self.device.write_at(to.at, bytemuck::cast_slice(rows)) }
            }
            HostOp::Send { x, logits } => {
                self.widths = [x.width, logits.width];
                let bytes = self.widths.map(|width| tokens * width * FLOAT);
                // SAFETY: as above. Nothing reads the memory now: rows are received before others are sent.
                unsafe {
                    self.sent.copy_from(0, x.at, bytes[0])?;
                    self.sent.copy_from(bytes[0], logits.at, bytes[1])?;
                }
                self.arrived.record()
            }
            HostOp::Receive { piece, to } => {
                let Some(ops) = &self.ops else { return Ok(()) };
                self.arrived.wait()?; // the last copy from `received` is done too
                let [x, logits] = self.widths.map(|width| tokens * width);
                let rows: &[f32] = bytemuck::cast_slice(&*self.sent.bytes());
                let rows = HostRows { tokens, x: &rows[..x], logits: &rows[x..x + logits] };
                let bytes = tokens * to.width * FLOAT;
                let out: &mut [f32] = bytemuck::cast_slice_mut(&mut self.received.bytes()[..bytes]);
                ops.lock().unwrap_or_else(PoisonError::into_inner).compute(piece, rows, out)?;
                // SAFETY: as above.
                unsafe { self.received.copy_to(to.at, bytes) }
            }
        }
    }
}
