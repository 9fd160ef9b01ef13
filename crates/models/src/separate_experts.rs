//! Old files with one tensor per expert, `blk.0.ffn_gate.3.weight`: they are copied into one, `blk.0.ffn_gate_exps.weight`.

use tern_formats::Checkpoint;
use tern_graph::{HostTensor, Weight};

use crate::ModelError;
use crate::tensor::host_tensor;

/// A tensor of one expert: the name of the tensor that has all of them, and which one it is.
pub(crate) struct ExpertName {
    pub(crate) all: String,
    pub(crate) expert: usize,
}

impl ExpertName {
    /// Of `blk.0.ffn_gate.3.weight`.
    pub(crate) fn parse(name: &str) -> Option<ExpertName> {
        let (part, expert) = name.strip_suffix(".weight")?.rsplit_once('.')?;
        let is_expert = ["ffn_gate", "ffn_up", "ffn_down"].iter().any(|matrix| part.ends_with(matrix));
        let all = format!("{part}_exps.weight");
        is_expert.then_some(ExpertName { all, expert: expert.parse().ok()? })
    }
}

/// The experts of a weight, one below the other, if the file has them in separate tensors.
pub(crate) fn stacked(checkpoint: &Checkpoint, w: &Weight) -> Result<Option<HostTensor>, ModelError> {
    let Some(part) = w.name.strip_suffix("_exps.weight").filter(|_| w.experts > 1) else { return Ok(None) };
    let name = |expert: usize| format!("{part}.{expert}.weight");
    let Some(quant) = checkpoint.tensors.get(&name(0)).map(|t| t.quant) else { return Ok(None) };
    let want = [w.rows / w.experts, w.cols];
    let mut data = vec![];
    for expert in 0..w.experts {
        let fail = |text: String| Err(ModelError::Tensor(format!("{}{text}", name(expert))));
        let Some(t) = checkpoint.tensors.get(&name(expert)) else { return fail(" is missing".into()) };
        let t = host_tensor(t)?;
        if [t.rows(), t.cols()] != want {
            return fail(format!(": want {want:?}, file has {:?}", [t.rows(), t.cols()]));
        }
        if t.quant().name != quant.name || quant.tail > 0 {
            let want = if quant.tail > 0 { "a format with scales in its blocks" } else { quant.name };
            return fail(format!(": want {want} in all experts, file has {}", t.quant().name));
        }
        data.reserve_exact(t.data().len() * (w.experts - expert));
        data.extend_from_slice(t.data());
    }
    Ok(Some(HostTensor::new(&w.name, quant, [w.rows, w.cols], data.into())?))
}
