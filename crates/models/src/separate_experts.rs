//! Old files with one tensor per expert, `blk.0.ffn_gate.3.weight`: they are joined into one,
//! `blk.0.ffn_gate_exps.weight`.

use tern_formats::{Checkpoint, TensorError};
use tern_graph::{LazyTensor, Weight};

use crate::ModelError;
use crate::tensor::{lazy_tensor, not_made};

/// A tensor of one expert: the name of the tensor that has all of them, and which one it is.
pub(crate) struct ExpertName {
    pub(crate) all: String,
    pub(crate) expert: usize,
}

impl ExpertName {
    /// Parses a name such as `blk.0.ffn_gate.3.weight`.
    pub(crate) fn parse(name: &str) -> Option<ExpertName> {
        let (part, expert) = name.strip_suffix(".weight")?.rsplit_once('.')?;
        let is_expert = ["ffn_gate", "ffn_up", "ffn_down"].iter().any(|matrix| part.ends_with(matrix));
        let all = format!("{part}_exps.weight");
        is_expert.then_some(ExpertName { all, expert: expert.parse().ok()? })
    }
}

/// The experts of a weight, one below the other, if the file has them in separate tensors.
pub(crate) fn stacked(checkpoint: &Checkpoint, w: &Weight) -> Result<Option<LazyTensor>, ModelError> {
    let Some(part) = w.name.strip_suffix("_exps.weight").filter(|_| w.experts > 1) else { return Ok(None) };
    let name = |expert: usize| format!("{part}.{expert}.weight");
    let Some(quant) = checkpoint.tensors.get(&name(0)).map(|t| t.quant) else { return Ok(None) };
    let want = [w.rows / w.experts, w.cols];
    let mut experts = Vec::with_capacity(w.experts);
    for expert in 0..w.experts {
        let differs =
            |want: String, found: String| Err(ModelError::ExpertDiffers { name: name(expert), want, found });
        let source = checkpoint.tensors.get(&name(expert));
        let source = source.ok_or_else(|| ModelError::MissingTensor(name(expert)))?;
        let t = lazy_tensor(source)?;
        if [t.rows(), t.cols()] != want {
            return differs(format!("{want:?}"), format!("{:?}", [t.rows(), t.cols()]));
        }
        if t.quant().name != quant.name || quant.tail > 0 {
            let want = if quant.tail > 0 { "a format with scales in its blocks" } else { quant.name };
            return differs(format!("{want} in all experts"), t.quant().name.into());
        }
        experts.push(source.clone());
    }
    let make = move || {
        let mut data = vec![];
        for expert in &experts {
            let part = expert.read().map_err(|e| not_made(&expert.name, &e))?;
            let bytes = part.len() * experts.len();
            if data.capacity() == 0 && data.try_reserve_exact(bytes).is_err() {
                return Err(not_made(&expert.name, &TensorError::NoMemory(bytes as u64)));
            }
            data.extend_from_slice(&part);
        }
        Ok(data.into())
    };
    Ok(Some(LazyTensor::new(&w.name, quant, [w.rows, w.cols], make)?))
}
