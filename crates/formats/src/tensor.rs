//! One tensor of a model: its shape, its format, and its bytes, in the mapped file or computed from it.

use std::sync::Arc;

use bytes::Bytes;
use tern_quant::Quant;

use crate::TensorError;

/// One tensor: a shape, a format, and the bytes.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The name in GGUF files, `blk.0.attn_q.weight`.
    pub name: String,
    /// The format of its blocks.
    pub quant: &'static Quant,
    /// GGUF order: `dims[0]` is the fastest, the K of a matrix product. Never empty; no dimension is zero.
    pub dims: Vec<u64>,
    data: Data,
}

/// All blocks of a tensor and the format's tail.
#[derive(Clone)]
enum Data {
    /// A slice of the file.
    Mapped(Bytes),
    /// Another arrangement of the file's bytes: made when it is read, so that opening a model reads nothing.
    Computed(u64, Arc<dyn Fn() -> Vec<u8> + Send + Sync>),
}

impl std::fmt::Debug for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Data::Mapped(bytes) => write!(f, "{} mapped bytes", bytes.len()),
            Data::Computed(bytes, _) => write!(f, "{bytes} computed bytes"),
        }
    }
}

impl Tensor {
    /// A tensor whose bytes are a slice of a file.
    pub(crate) fn mapped(name: String, quant: &'static Quant, dims: Vec<u64>, data: Bytes) -> Tensor {
        Tensor { name, quant, dims, data: Data::Mapped(data) }
    }

    /// A tensor of `bytes` bytes that are made when they are read.
    pub(crate) fn computed(
        name: String,
        quant: &'static Quant,
        dims: Vec<u64>,
        bytes: u64,
        make: impl Fn() -> Vec<u8> + Send + Sync + 'static,
    ) -> Tensor {
        Tensor { name, quant, dims, data: Data::Computed(bytes, Arc::new(make)) }
    }

    /// Weights per row: `dims[0]`.
    pub fn cols(&self) -> usize {
        self.dims.first().map_or(1, |&k| k as usize)
    }

    /// Rows: the product of all other dimensions.
    pub fn rows(&self) -> usize {
        self.dims.iter().skip(1).product::<u64>() as usize
    }

    /// Bytes of the data.
    pub fn bytes(&self) -> u64 {
        match &self.data {
            Data::Mapped(bytes) => bytes.len() as u64,
            Data::Computed(bytes, _) => *bytes,
        }
    }

    /// Whether its bytes are a slice of the file; otherwise [`Self::data`] computes them.
    pub fn is_mapped(&self) -> bool {
        matches!(self.data, Data::Mapped(_))
    }

    /// All blocks and the format's tail: a slice of the file, or computed by this call. There is no alignment
    /// guarantee, so read it bytewise.
    pub fn data(&self) -> Bytes {
        match &self.data {
            Data::Mapped(bytes) => bytes.clone(),
            Data::Computed(_, make) => make().into(),
        }
    }

    /// The same as [`Self::data`], with an error if the system refuses the memory for computed bytes, or if
    /// there are others than the shape needs.
    pub fn read(&self) -> Result<Bytes, TensorError> {
        let Data::Computed(bytes, make) = &self.data else { return Ok(self.data()) };
        // what computes the bytes allocates as many, and cannot return a refusal
        let mut probe = Vec::<u8>::new();
        let refused = probe.try_reserve_exact(usize::try_from(*bytes).unwrap_or(usize::MAX));
        refused.map_err(|_| TensorError::NoMemory(*bytes))?;
        drop(std::hint::black_box(probe));
        let data = make();
        if data.len() as u64 != *bytes {
            return Err(TensorError::Computed(*bytes, data.len() as u64));
        }
        Ok(data.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computed_bytes_of_another_number_are_refused() {
        let tensor = |bytes, made: usize| {
            let make = move || vec![0; made];
            Tensor::computed("w".into(), &tern_quant::F32, vec![2], bytes, make).read()
        };
        assert_eq!(tensor(8, 8).map(|data| data.len()), Ok(8));
        assert_eq!(tensor(8, 4), Err(TensorError::Computed(8, 4)));
        assert_eq!(tensor(u64::MAX, 4), Err(TensorError::NoMemory(u64::MAX)));
    }
}
