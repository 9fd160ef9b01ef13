//! A weight on the device: codes in the one layout that all integer formats share, or floats as they are.

use std::sync::Arc;

use tern_graph::{BackendError, HostTensor};
use tern_quant::{BF16, F16, F32};

use crate::driver::{Device, Memory};
use crate::layout::{Layout, Packed};

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
        codes: Memory,
        high: Option<Memory>,
        scales: Memory,
        offsets: Option<Memory>,
        factor: f32,
    },
}

impl Weight {
    /// Uploads a tensor, repacked on the way.
    pub(crate) fn store(device: &Arc<Device>, tensor: &HostTensor) -> Result<Weight, BackendError> {
        let floats = [(&F32, FloatKind::F32), (&F16, FloatKind::F16), (&BF16, FloatKind::BF16)];
        if let Some((_, kind)) = floats.into_iter().find(|(quant, _)| *quant == tensor.quant) {
            return Ok(Weight::Floats { memory: device.upload(&tensor.data)?, kind });
        }
        let refused = || BackendError(format!("{}: {} is not run on the GPU", tensor.name, tensor.quant));
        let packed = Packed::new(tensor).ok_or_else(refused)?;
        let some = |words: &[u32]| if words.is_empty() { Ok(None) } else { upload(device, words).map(Some) };
        Ok(Weight::Codes {
            layout: packed.layout,
            codes: upload(device, &packed.codes)?,
            high: some(&packed.high)?,
            scales: upload(device, &packed.scales)?,
            offsets: some(&packed.offsets)?,
            factor: packed.factor,
        })
    }

    /// Where the floats of a vector are; none if it is in codes or halves.
    pub(crate) fn vector(&self) -> Option<u64> {
        match self {
            Weight::Floats { memory, kind: FloatKind::F32 } => Some(memory.pointer()),
            _ => None,
        }
    }
}

fn upload(device: &Arc<Device>, words: &[u32]) -> Result<Memory, BackendError> {
    // SAFETY: any bytes are bytes, and the slice covers exactly these words.
    let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), size_of_val(words)) };
    device.upload(bytes)
}
