//! Cases of rows that are given with the step.

use super::{Case, random_tensor};
use crate::{GraphError, Random};

/// Two inputs, one of which a linear reads, and embeddings.
pub(super) fn inputs() -> Result<Vec<Case>, GraphError> {
    let rng = &mut Random::new(12);
    let mut case = Case::new("inputs".into(), 1e-3);
    let widths = [256, 96];
    let [x, y] = [0, 1].map(|index| case.graph.input(index, widths[index]));
    let w = case.matrix(random_tensor("w", &tern_quant::Q8_0, 96, 256, rng)?)?;
    let z = case.input("z", 96, rng)?;
    let x = case.graph.linear(x, w)?;
    let sum = case.graph.add(x, y)?;
    case.graph.add(sum, z)?;
    case.sequence(&[5, 1, 40], rng);
    for step in &mut case.steps {
        step.inputs = widths.iter().map(|width| rng.normals(width * step.tokens.len(), 1.0)).collect();
    }
    Ok(vec![case])
}
