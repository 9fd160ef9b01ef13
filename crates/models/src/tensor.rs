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
    let (rows, cols) = (t.rows(), t.cols());
    Ok(HostTensor { name: t.name.clone(), quant: t.quant, rows, cols, data: t.data.clone() })
}
