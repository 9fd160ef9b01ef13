//! The memory of a program's values, as floats and quantized. Programs whose values take the same sizes share
//! it, because a backend runs one step at a time and copies its outputs.

use std::sync::Arc;

use crate::activations::quantized_rows::QuantizedRowsBuffer;
use crate::activations::token_tiles::TokenTilesBuffer;
use crate::memory::lines::Refused;
use crate::memory::shared::Shared;

/// What one slot of the plan holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotSize {
    pub(crate) floats: usize,
    /// Quantized values of few rows and of many, if a linear reads them.
    pub(crate) quantized: Option<[usize; 2]>,
}

/// The slots of a program.
pub(crate) struct ValueMemory {
    sizes: Vec<SlotSize>,
    floats: Vec<Shared<f32>>,
    quantized: Vec<Option<(QuantizedRowsBuffer, TokenTilesBuffer)>>,
}

impl ValueMemory {
    /// Memory of these sizes: that of another program if it has the same.
    pub(crate) fn of<'a>(
        sizes: Vec<SlotSize>,
        mut others: impl Iterator<Item = &'a Arc<ValueMemory>>,
    ) -> Result<Arc<ValueMemory>, Refused> {
        if let Some(other) = others.find(|other| other.sizes == sizes) {
            return Ok(Arc::clone(other));
        }
        let quantized = |size: &SlotSize| match size.quantized {
            None => Ok(None),
            Some([few, many]) => Ok(Some((QuantizedRowsBuffer::new(few)?, TokenTilesBuffer::new(many)?))),
        };
        Ok(Arc::new(ValueMemory {
            floats: sizes.iter().map(|size| Shared::new(size.floats)).collect::<Result<_, _>>()?,
            quantized: sizes.iter().map(quantized).collect::<Result<_, _>>()?,
            sizes,
        }))
    }

    /// The values of a slot.
    pub(crate) fn floats(&self, slot: usize) -> &Shared<f32> {
        &self.floats[slot]
    }

    /// The quantized values of a slot: of few rows, and of many.
    pub(crate) fn quantized(&self, slot: usize) -> Option<&(QuantizedRowsBuffer, TokenTilesBuffer)> {
        self.quantized[slot].as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_the_same_sizes_share_memory() {
        let size = |floats: usize| SlotSize { floats, quantized: Some([floats, 64]) };
        let first = ValueMemory::of(vec![size(64), size(96)], [].iter()).unwrap();
        let same = ValueMemory::of(vec![size(64), size(96)], [&first].into_iter()).unwrap();
        assert!(Arc::ptr_eq(&first, &same));
        let other = ValueMemory::of(vec![size(64)], [&first, &same].into_iter()).unwrap();
        assert_eq!((other.floats(0).len(), other.quantized(0).is_some()), (64, true));
        assert!(!Arc::ptr_eq(&first, &other));
    }
}
