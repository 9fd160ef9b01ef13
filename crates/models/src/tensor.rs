//! Tensors of a checkpoint as rows of weights.

use tern_formats::{Tensor, TensorError};
use tern_graph::{HostTensor, LazyTensor, WeightError};

use crate::ModelError;

/// A checkpoint's tensor, of which nothing is read yet.
pub(crate) fn lazy_tensor(t: &Tensor) -> Result<LazyTensor, ModelError> {
    check_format(t)?;
    let shape = [t.rows(), t.cols()];
    if t.is_mapped() {
        return Ok(HostTensor::new(&t.name, t.quant, shape, t.data())?.into());
    }
    let source = t.clone();
    let make = move || source.read().map_err(|e| not_made(&source.name, &e));
    Ok(LazyTensor::new(&t.name, t.quant, shape, make)?)
}

/// A checkpoint's tensor, read by this call.
pub(crate) fn host_tensor(t: &Tensor) -> Result<HostTensor, ModelError> {
    Ok(lazy_tensor(t)?.make()?)
}

/// Refuses formats that no backend runs.
fn check_format(t: &Tensor) -> Result<(), ModelError> {
    if !t.quant.is_runnable() {
        let text = format!("{}: format {} is known but cannot be run", t.name, t.quant.name);
        return Err(ModelError::Tensor(text));
    }
    Ok(())
}

/// The error of a weight whose tensor of this name cannot be read.
pub(crate) fn not_made(name: &str, error: &TensorError) -> WeightError {
    let name = name.to_string();
    match error {
        TensorError::NoMemory(bytes) => WeightError::NoMemory { name, bytes: *bytes },
        other => WeightError::NotMade { name, reason: other.to_string() },
    }
}
