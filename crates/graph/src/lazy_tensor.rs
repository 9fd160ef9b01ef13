//! A weight whose bytes are made when it is stored: a model that is open has none of them in memory.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use tern_quant::Quant;

use crate::{HostTensor, WeightError};

/// A weight with a known format and shape, whose bytes are there already or are made on
/// request. Cloning shares them.
#[derive(Clone)]
pub struct LazyTensor {
    name: String,
    quant: &'static Quant,
    rows: usize,
    cols: usize,
    bytes: usize,
    source: Source,
}

type Make = dyn Fn() -> Result<Bytes, WeightError> + Send + Sync;

#[derive(Clone)]
enum Source {
    Ready(Bytes),
    Made(Arc<Make>),
}

impl LazyTensor {
    /// A tensor of `[rows, cols]` weights; `make` returns as many bytes as they need. Refuses rows
    /// that are not whole blocks.
    ///
    /// ```
    /// use tern_graph::{LazyTensor, WeightError};
    ///
    /// let tensor = LazyTensor::new("w", &tern_quant::F32, [2, 3], || Ok(vec![0; 24].into()))?;
    /// assert_eq!(tensor.bytes(), 24);
    /// assert_eq!(tensor.make()?.to_f32(), [0.0; 6]);
    /// # Ok::<(), WeightError>(())
    /// ```
    pub fn new(
        name: impl Into<String>,
        quant: &'static Quant,
        [rows, cols]: [usize; 2],
        make: impl Fn() -> Result<Bytes, WeightError> + Send + Sync + 'static,
    ) -> Result<LazyTensor, WeightError> {
        let name = name.into();
        let bytes = HostTensor::bytes_of(&name, quant, [rows, cols])?;
        let Some(bytes) = bytes else {
            return Err(WeightError::TooLarge { name, rows, cols, format: quant.name });
        };
        Ok(LazyTensor { name, quant, rows, cols, bytes, source: Source::Made(Arc::new(make)) })
    }

    /// Name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Format of the blocks.
    pub fn quant(&self) -> &'static Quant {
        self.quant
    }

    /// Rows (outputs of a linear, entries of a table).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Weights per row; a multiple of the format's block length.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of all rows and of the format's tail.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether [`Self::make`] does nothing but return the tensor.
    pub fn is_ready(&self) -> bool {
        matches!(self.source, Source::Ready(_))
    }

    /// The tensor with its bytes, which are made by this call unless they are there already.
    pub fn make(&self) -> Result<HostTensor, WeightError> {
        let data = match &self.source {
            Source::Ready(data) => data.clone(),
            Source::Made(make) => make()?,
        };
        HostTensor::new(&self.name, self.quant, [self.rows, self.cols], data)
    }
}

/// A tensor with its bytes.
impl From<HostTensor> for LazyTensor {
    fn from(tensor: HostTensor) -> LazyTensor {
        LazyTensor {
            name: tensor.name().into(),
            quant: tensor.quant(),
            rows: tensor.rows(),
            cols: tensor.cols(),
            bytes: tensor.data().len(),
            source: Source::Ready(tensor.data().clone()),
        }
    }
}

impl fmt::Debug for LazyTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LazyTensor { name, quant, rows, cols, .. } = self;
        let state = if self.is_ready() { "ready" } else { "to be made" };
        write!(f, "{name}: [{rows}, {cols}] in {}, {state}", quant.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_is_made_when_it_is_requested_and_checked_then() {
        let tensor = |bytes: usize| {
            let make = move || Ok(vec![1; bytes].into());
            LazyTensor::new("w", &tern_quant::Q8_0, [2, 64], make).unwrap()
        };
        let right = tensor(136);
        assert_eq!((right.bytes(), right.is_ready()), (136, false));
        assert_eq!(format!("{right:?}"), "w: [2, 64] in Q8_0, to be made");
        let made = right.make().unwrap();
        assert_eq!(made.data().len(), 136);
        let short = tensor(100).make().unwrap_err();
        assert_eq!(short.to_string(), "w: want 136 bytes for [2, 64] in Q8_0, got 100");
        let ready = LazyTensor::from(made.clone());
        assert!(ready.is_ready() && ready.bytes() == 136);
        // the same bytes, not a copy
        assert_eq!(ready.make().unwrap().data().as_ptr(), made.data().as_ptr());
    }

    #[test]
    fn a_shape_that_cannot_be_is_refused_before_anything_is_made() {
        let refused = |shape| {
            let make = || Err(WeightError::NotMade { name: "w".into(), reason: "made".into() });
            LazyTensor::new("w", &tern_quant::Q8_0, shape, make).unwrap_err().to_string()
        };
        assert_eq!(refused([2, 48]), "w: rows of 48 weights are not whole Q8_0 blocks of 32");
        let large = "w: a tensor of [18446744073709551615, 64] in Q8_0 is too large";
        assert_eq!(refused([usize::MAX, 64]), large);
    }
}
