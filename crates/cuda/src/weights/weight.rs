//! A weight on the device: records, the one layout that matrices of all formats share, or floats as they are.

use tern_graph::{BackendError, HostTensor, Roles};
use tern_quant::{BF16, Codec, F16, F32};

use super::layout::Layout;
use super::packing::Packing;
use crate::driver::{Memory, Staging};
use crate::shared::FloatKind;

/// Matrices of floats with fewer rows stay floats: the products of a few rows take no time, and they may be
/// part of a fused step.
pub(crate) const FEWEST_PACKED_ROWS: usize = 128;

/// A weight and its memory.
pub(crate) enum Weight {
    Floats {
        memory: Memory,
        kind: FloatKind,
    },
    Records {
        layout: Layout,
        records: Memory,
        /// On all scales and offsets.
        factor: f32,
    },
}

/// A weight by its address.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum WeightRef {
    Floats { at: u64, kind: FloatKind },
    Records { at: u64, layout: Layout, factor: f32 },
}

impl Weight {
    /// Uploads a tensor, repacked on the way if it is a matrix.
    pub(crate) fn store(
        staging: &mut Staging,
        tensor: &HostTensor,
        roles: Roles,
    ) -> Result<Weight, BackendError> {
        let is_float = tensor.quant().is_float();
        let is_matrix = roles.matrix || roles.experts > 0;
        let is_small = roles.experts == 0 && tensor.rows() < FEWEST_PACKED_ROWS;
        // packing reads a whole tensor: only if it is used
        let packs = !is_float || (is_matrix && !roles.vector && !is_small);
        if let Some(packing) = packs.then(|| Packing::new(tensor, roles.experts)).flatten() {
            let tile = packing.tile_bytes();
            let records =
                staging.upload(packing.bytes(), tile, |from, piece| packing.fill(from / tile, piece))?;
            return Ok(Weight::Records { layout: packing.layout, records, factor: packing.factor });
        }
        let floats = [(&F32, FloatKind::F32), (&F16, FloatKind::F16), (&BF16, FloatKind::BF16)];
        let mut floats = floats.into_iter().filter(|(quant, _)| !(is_matrix && is_small) || *quant == &F32);
        if let Some((_, kind)) = floats.find(|(quant, _)| *quant == tensor.quant()) {
            let data = &tensor.data();
            let memory = staging.upload(data.len(), 1, |from, piece| {
                piece.copy_from_slice(&data[from..from + piece.len()]);
            })?;
            return Ok(Weight::Floats { memory, kind });
        }
        if let Codec::Float(read) = tensor.quant().codec {
            // floats that no kernel reads, and small matrices, become f32
            let bytes = tensor.quant().block_bytes();
            let memory = staging.upload(tensor.rows() * tensor.cols() * 4, 4, |from, piece| {
                let floats = tensor.data()[from / 4 * bytes..].chunks_exact(bytes);
                let each = piece.as_chunks_mut::<4>().0.iter_mut().zip(floats);
                each.for_each(|(to, float)| *to = read(float).to_le_bytes());
            })?;
            return Ok(Weight::Floats { memory, kind: FloatKind::F32 });
        }
        Err(BackendError::Unsupported(format!(
            "{}: {} is not supported on GPUs",
            tensor.name(),
            tensor.quant()
        )))
    }

    /// The weight by its address, which is valid as long as `self` lives.
    pub(crate) fn by_address(&self) -> WeightRef {
        match self {
            Weight::Floats { memory, kind } => WeightRef::Floats { at: memory.pointer(), kind: *kind },
            Weight::Records { layout, records, factor } => {
                WeightRef::Records { at: records.pointer(), layout: *layout, factor: *factor }
            }
        }
    }
}
