//! A weight on the device: codes in the one layout that all integer formats share, or floats as they are.

use tern_graph::{BackendError, HostTensor};
use tern_quant::{BF16, F16, F32};

use super::layout::{Layout, Packing};
use crate::driver::{Memory, Staging};

/// How floats are written; the numbers are the kernels'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FloatKind {
    F32 = 0,
    F16 = 1,
    BF16 = 2,
}

pub(crate) enum Weight {
    Floats {
        memory: Memory,
        kind: FloatKind,
    },
    Codes {
        layout: Layout,
        records: Memory,
        /// On all scales and offsets.
        factor: f32,
    },
}

impl Weight {
    /// Uploads a tensor, repacked on the way.
    pub(crate) fn store(staging: &mut Staging, tensor: &HostTensor) -> Result<Weight, BackendError> {
        let floats = [(&F32, FloatKind::F32), (&F16, FloatKind::F16), (&BF16, FloatKind::BF16)];
        if let Some((_, kind)) = floats.into_iter().find(|(quant, _)| *quant == tensor.quant) {
            let data = &tensor.data;
            let memory = staging.upload(data.len(), 1, |from, piece| {
                piece.copy_from_slice(&data[from..from + piece.len()]);
            })?;
            return Ok(Weight::Floats { memory, kind });
        }
        let refused =
            || BackendError::Unsupported(format!("{}: {} is not run on the GPU", tensor.name, tensor.quant));
        let packing = Packing::new(tensor).ok_or_else(refused)?;
        let tile = packing.tile_bytes();
        let records =
            staging.upload(packing.bytes(), tile, |from, piece| packing.fill(from / tile, piece))?;
        Ok(Weight::Codes { layout: packing.layout, records, factor: packing.factor })
    }

    /// Where the floats of a vector are; none if it is in codes or halves.
    pub(crate) fn vector(&self) -> Option<u64> {
        match self {
            Weight::Floats { memory, kind: FloatKind::F32 } => Some(memory.pointer()),
            _ => None,
        }
    }
}
