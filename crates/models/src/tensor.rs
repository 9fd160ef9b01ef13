//! Tensors of a checkpoint as rows of weights.

use tern_formats::Tensor;
use tern_graph::HostTensor;

use crate::ModelError;

/// A view of a checkpoint's tensor; nothing is read yet.
pub(crate) fn host_tensor(t: &Tensor) -> Result<HostTensor, ModelError> {
    if !t.quant.is_runnable() {
        let text = format!("{}: format {} is known but cannot be run", t.name, t.quant.name);
        return Err(ModelError::Tensor(text));
    }
    Ok(HostTensor::new(&t.name, t.quant, [t.rows(), t.cols()], t.data())?)
}
