//! Rows of weights on their way from a folder to a checkpoint: rearrangements that are
//! done when the rows are read.

use std::sync::Arc;

use bytes::Bytes;
use tern_quant::Quant;

use crate::Tensor;
use crate::safetensors::{Dtype, Entry};

/// Weights in a format. The shape has the slowest dimension first. Cloning shares the bytes.
#[derive(Clone)]
pub(crate) struct Matrix {
    pub(crate) quant: &'static Quant,
    pub(crate) shape: Vec<u64>,
    rows: Rows,
}

#[derive(Clone)]
enum Rows {
    Mapped(Bytes),
    Made(Arc<dyn Fn() -> Vec<u8> + Send + Sync>),
}

/// The format of a dtype that can be used as it is.
pub(crate) fn float_format(dtype: Dtype) -> Option<&'static Quant> {
    match dtype.name {
        "F32" => Some(&tern_quant::F32),
        "F16" => Some(&tern_quant::F16),
        "BF16" => Some(&tern_quant::BF16),
        _ => None,
    }
}

impl Matrix {
    /// A tensor of floats; `None` for another dtype.
    pub(crate) fn of(entry: &Entry) -> Option<Matrix> {
        let quant = float_format(entry.dtype)?;
        Some(Matrix { quant, shape: entry.shape.clone(), rows: Rows::Mapped(entry.data.clone()) })
    }

    /// Rows in a format, made by a function that returns all bytes of the shape.
    pub(crate) fn made(
        quant: &'static Quant,
        shape: Vec<u64>,
        make: impl Fn() -> Vec<u8> + Send + Sync + 'static,
    ) -> Matrix {
        Matrix { quant, shape, rows: Rows::Made(Arc::new(make)) }
    }

    /// A vector of f32 values.
    pub(crate) fn vector(values: Vec<f32>) -> Matrix {
        let shape = vec![values.len() as u64];
        Matrix::made(&tern_quant::F32, shape, move || values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// Weights per row.
    pub(crate) fn cols(&self) -> usize {
        self.shape.last().map_or(1, |n| *n as usize)
    }

    /// All rows.
    pub(crate) fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product::<u64>() as usize
    }

    /// Whether weights are plain floats.
    pub(crate) fn is_float(&self) -> bool {
        self.quant.is_float()
    }

    /// The same weights in another shape of as many.
    pub(crate) fn reshaped(self, shape: Vec<u64>) -> Matrix {
        debug_assert_eq!(self.shape.iter().product::<u64>(), shape.iter().product::<u64>());
        Matrix { shape, ..self }
    }

    /// The bytes of all rows.
    pub(crate) fn data(&self) -> Bytes {
        match &self.rows {
            Rows::Mapped(bytes) => bytes.clone(),
            Rows::Made(make) => make().into(),
        }
    }

    fn row_bytes(&self) -> usize {
        self.cols() / self.quant.block_len * self.quant.block_bytes()
    }

    /// All weights decoded.
    pub(crate) fn values(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows().max(1) * self.cols()];
        self.quant.decode(&self.data(), &[], &mut out);
        out
    }

    /// The rows `order[0]`, `order[1]`, ... of this matrix. A vector has one element per row.
    pub(crate) fn gathered(self, order: Vec<u32>) -> Matrix {
        let vector = self.shape.len() == 1;
        let n = if vector { self.quant.block_bytes() } else { self.row_bytes() };
        let shape =
            if vector { vec![order.len() as u64] } else { vec![order.len() as u64, self.cols() as u64] };
        let (quant, source) = (self.quant, self);
        Matrix::made(quant, shape, move || {
            let data = source.data();
            let mut out = Vec::with_capacity(order.len() * n);
            order.iter().for_each(|row| out.extend_from_slice(&data[*row as usize * n..][..n]));
            out
        })
    }

    /// The columns `order[0]`, `order[1]`, ... of each row of floats.
    pub(crate) fn gathered_columns(self, order: Vec<u32>) -> Matrix {
        debug_assert!(self.is_float());
        let n = self.quant.block_bytes();
        let mut shape = self.shape.clone();
        if let Some(cols) = shape.last_mut() {
            *cols = order.len() as u64;
        }
        let (quant, source) = (self.quant, self);
        Matrix::made(quant, shape, move || {
            let (data, row_bytes) = (source.data(), source.row_bytes());
            let mut out = Vec::with_capacity(source.rows() * order.len() * n);
            for row in data.chunks_exact(row_bytes) {
                order.iter().for_each(|col| out.extend_from_slice(&row[*col as usize * n..][..n]));
            }
            out
        })
    }

    /// The last two dimensions of floats exchanged.
    pub(crate) fn transposed(self) -> Matrix {
        debug_assert!(self.is_float() && self.shape.len() >= 2);
        let mut shape = self.shape.clone();
        let len = shape.len();
        shape.swap(len - 1, len - 2);
        let (rows, cols, n) = (shape[len - 1] as usize, shape[len - 2] as usize, self.quant.block_bytes());
        let (quant, source) = (self.quant, self);
        Matrix::made(quant, shape, move || {
            let data = source.data();
            let mut out = Vec::with_capacity(data.len());
            for matrix in data.chunks_exact(rows * cols * n) {
                for col in 0..cols {
                    (0..rows).for_each(|row| out.extend_from_slice(&matrix[(row * cols + col) * n..][..n]));
                }
            }
            out
        })
    }

    /// Each weight replaced, in f32.
    pub(crate) fn mapped(self, change: fn(f32) -> f32) -> Matrix {
        let (shape, source) = (self.shape.clone(), self);
        Matrix::made(&tern_quant::F32, shape, move || {
            source.values().into_iter().flat_map(|v| change(v).to_le_bytes()).collect()
        })
    }

    /// Each row of floats times its factor, in f32.
    pub(crate) fn rows_times(self, factors: Vec<f32>) -> Matrix {
        debug_assert!(self.is_float() && factors.len() == self.rows());
        let (shape, source) = (self.shape.clone(), self);
        Matrix::made(&tern_quant::F32, shape, move || {
            let values = source.values();
            let rows = values.chunks_exact(source.cols()).zip(&factors);
            rows.flat_map(|(row, by)| row.iter().flat_map(move |v| (v * by).to_le_bytes())).collect()
        })
    }

    /// The same weights in f32.
    pub(crate) fn in_f32(self) -> Matrix {
        if self.quant == &tern_quant::F32 { self } else { self.mapped(|v| v) }
    }

    /// Matrices of the same shape and format one after the other, in a new slowest dimension.
    pub(crate) fn stacked(parts: Vec<Matrix>) -> Option<Matrix> {
        let (quant, mut shape) = (parts.first()?.quant, parts.first()?.shape.clone());
        if parts.iter().any(|part| part.quant != quant || part.shape != shape) {
            return None;
        }
        shape.insert(0, parts.len() as u64);
        Some(Matrix::made(quant, shape, move || parts.iter().flat_map(|part| part.data()).collect()))
    }

    /// Rows from `start` on, `count` of them.
    pub(crate) fn row_range(self, start: usize, count: usize) -> Matrix {
        self.gathered((start as u32..(start + count) as u32).collect())
    }

    /// The tensor of this name.
    pub(crate) fn into_tensor(self, name: String) -> Tensor {
        let mut dims: Vec<u64> = self.shape.iter().rev().copied().collect();
        if dims.is_empty() {
            dims.push(1);
        }
        match self.rows {
            Rows::Mapped(bytes) => Tensor::mapped(name, self.quant, dims, bytes),
            Rows::Made(make) => {
                let weights = dims.iter().product::<u64>();
                let bytes = weights / self.quant.block_len as u64 * self.quant.block_bytes() as u64;
                Tensor::computed(name, self.quant, dims, bytes, move || make())
            }
        }
    }
}
