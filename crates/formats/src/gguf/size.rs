//! Bytes of a tensor, from its shape and its format.

use tern_quant::Quant;

use crate::TensorError;

/// Bytes of a tensor of this shape, its tail included.
pub(super) fn size(dims: &[u64], quant: &'static Quant) -> Result<u64, TensorError> {
    let too_large = || TensorError::TooLarge(dims.into());
    let weights = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).ok_or_else(too_large)?;
    usize::try_from(weights).map_err(|_| too_large())?; // rows and columns are counted in usize
    let (cols, block_len) = (dims.first().copied().unwrap_or(1), quant.block_len as u64);
    if cols % block_len != 0 {
        return Err(TensorError::Ragged(cols, block_len, quant.name));
    }
    quant.tensor_bytes(weights).ok_or_else(too_large)
}
