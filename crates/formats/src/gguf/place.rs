//! Locating each tensor's bytes in the file: bounds, alignment, overlap.

use bytes::Bytes;
use tern_quant::Dialect;

use super::{Header, dialect::resolve, size::size};
use crate::{FormatError, Tensor, TensorError};

/// All tensors of a file as slices of it.
pub(crate) fn place(header: &Header, dialect: Dialect, file: &Bytes) -> Result<Vec<Tensor>, FormatError> {
    let mut tensors = Vec::with_capacity(header.infos.len());
    let mut spans = Vec::with_capacity(header.infos.len()); // (start, end, name)
    for info in &header.infos {
        let wrong = |e| FormatError::Tensor(info.name.clone(), e);
        let quant = resolve(info.type_id, dialect).map_err(wrong)?;
        let bytes = size(&info.dims, quant).map_err(wrong)?;
        if info.offset % header.alignment != 0 {
            return Err(wrong(TensorError::Misaligned(info.offset, header.alignment)));
        }
        let end = match info.offset.checked_add(bytes) {
            Some(end) if end <= header.data_len => end,
            _ => return Err(wrong(TensorError::OutOfBounds(info.offset, bytes, header.data_len))),
        };
        spans.push((info.offset, end, info.name.as_str()));
        // both ends are inside the file, whose length is a usize
        let range = (header.data_start + info.offset) as usize..(header.data_start + end) as usize;
        tensors.push(Tensor::mapped(info.name.clone(), quant, info.dims.clone(), file.slice(range)));
    }
    spans.sort_unstable();
    for pair in spans.windows(2) {
        let ((_, end, first), (start, _, second)) = (pair[0], pair[1]);
        if start < end {
            return Err(FormatError::Overlap(first.into(), second.into(), end, start));
        }
    }
    Ok(tensors)
}
