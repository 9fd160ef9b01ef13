//! The inputs of a model's linears as its result: what the importance of columns is measured from.

use std::ops::Range;

use crate::graph::{Result, fail};
use crate::{Graph, Op, Val, WeightId};

/// A graph whose rows are the inputs of another one's linears, side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearInputs {
    /// The graph. It declares the same weights.
    pub graph: Graph,
    /// Where the inputs of each linear are, in the order of the linears.
    pub inputs: Vec<LinearInput>,
}

/// Where the input of one linear is in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearInput {
    /// The weight that is multiplied with it.
    pub weight: WeightId,
    /// Columns of the input: those of the weight, or one part of as many columns per expert that was chosen.
    pub columns: Range<usize>,
    /// Columns of the ids of the experts that were chosen. Without any, part `i` belongs to matrix `i`.
    pub chosen: Option<Range<usize>>,
}

impl Graph {
    /// The model up to the input of its last linear, with the inputs of all linears as its result. Only those
    /// with a row per token count: the matrix after the last layer reads the rows that a step requests.
    ///
    /// Rows are joined by ops that every backend has, so that there is one way to
    /// observe a model on all devices.
    pub fn linear_inputs(&self) -> Result<LinearInputs> {
        let (mut graph, mut inputs) = (self.clone(), vec![]);
        let mut joined: Vec<Val> = vec![];
        let mut width = 0;
        let mut starts: Vec<usize> = vec![];
        let mut place = |x: Val| {
            let at = joined.iter().position(|other| *other == x).unwrap_or_else(|| {
                joined.push(x);
                starts.push(width);
                width += self.width(x);
                joined.len() - 1
            });
            starts[at]
        };
        for node in &self.nodes {
            let (x, route, weight) = match node.op {
                Op::Linear { x, weight, .. } => (x, None, weight),
                Op::ExpertLinear { x, route, weight, .. } => (x, route, weight),
                _ => continue,
            };
            if self.value(x).outputs_only {
                continue;
            }
            let start = place(x);
            let chosen = route.map(|route| {
                let start = place(route);
                start..start + self.width(route) / 2
            });
            inputs.push(LinearInput { weight, columns: start..start + self.width(x), chosen });
        }
        let Some(last) = joined.iter().max() else { return fail("the model has no linears".into()) };
        graph.nodes.truncate(last.index() + 1);
        while joined.len() > 1 {
            let pairs = joined.chunks(2).map(|pair| match *pair {
                [a, b] => graph.join_heads(a, b, 1),
                _ => Ok(pair[0]),
            });
            joined = pairs.collect::<Result<_>>()?;
        }
        graph.outputs(joined[0]);
        Ok(LinearInputs { graph, inputs })
    }
}

impl LinearInput {
    /// The parts of a row that each matrix of the weight reads: its number, and the columns of the row.
    pub fn parts<'a>(
        &'a self,
        graph: &Graph,
        row: &'a [f32],
    ) -> impl Iterator<Item = (usize, &'a [f32])> + use<'a> {
        let cols = graph.weight(self.weight).cols;
        let x = &row[self.columns.clone()];
        let parts = x.len() / cols;
        let chosen = self.chosen.as_ref().map(|columns| &row[columns.clone()]);
        (0..chosen.map_or(parts, <[f32]>::len)).map(move |i| {
            let matrix = chosen.map_or(i, |ids| ids[i] as usize);
            // experts share their input or have one part each
            (matrix, &x[if parts == 1 { 0 } else { i * cols }..][..cols])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Activation, Backend, Bindings, Gating, HostTensor, Reference, Routing, Step, StepOutput};

    /// A layer of experts after a linear, in whose rows each value is known.
    fn experts() -> Result<Graph> {
        let mut g = Graph::new();
        let embed = g.matrix("embed", 4, 32)?;
        let router = g.matrix("router", 3, 32)?;
        let (up, down) = (g.experts("up", 3, 64, 32)?, g.experts("down", 3, 32, 64)?);
        let head = g.matrix("head", 4, 32)?;
        let x = g.embed(embed, 1.0);
        let logits = g.linear(x, router)?;
        let gating = Gating::Softmax;
        let routing = Routing { used: 2, gating, groups: None, renormalise: true, scale: 1.0 };
        let route = g.route(logits, None, routing)?;
        let h = g.expert_linear(x, Some(route), up)?;
        let h = g.gated(h, h, Activation::Product)?;
        let h = g.expert_linear(h, Some(route), down)?;
        let x = g.mix(h, route)?;
        let x = g.outputs(x);
        g.linear(x, head)?;
        Ok(g)
    }

    fn run(graph: &Graph, tensors: &[HostTensor], tokens: &[u32]) -> StepOutput {
        let mut backend = Reference::default();
        let roles = graph.roles();
        let weights: Vec<_> =
            tensors.iter().zip(roles).map(|(tensor, roles)| backend.store(tensor, roles).unwrap()).collect();
        let bindings = Bindings { weights: &weights, kv: None, state: None, max_tokens: 8, max_outputs: 8 };
        let program = backend.compile(graph, &bindings).unwrap();
        let ticket = backend.submit(program, Step::all_logits(tokens, 0, vec![])).unwrap();
        backend.collect(ticket).unwrap()
    }

    #[test]
    fn rows_hold_the_inputs_of_all_linears_but_the_last() {
        let graph = experts().unwrap();
        let LinearInputs { graph: observed, inputs } = graph.linear_inputs().unwrap();
        let names: Vec<_> = inputs.iter().map(|i| graph.weight(i.weight).name.as_str()).collect();
        assert_eq!(names, ["router", "up", "down"]);
        assert_eq!(inputs[0].columns, inputs[1].columns, "one value is joined once");
        assert_eq!(observed.output_width(), 32 + 4 + 2 * 64);
        let mut random = crate::Random::new(7);
        let tensors: Vec<_> = graph
            .weights
            .iter()
            .map(|w| HostTensor::from_f32(&w.name, w.rows, w.cols, &random.normals(w.rows * w.cols, 1.0)))
            .collect();
        for row in run(&observed, &tensors, &[0, 1, 2, 3]).rows {
            let row = row.logits.unwrap();
            let ids: Vec<_> = inputs[2].parts(&graph, &row).map(|(expert, _)| expert).collect();
            assert!(ids.len() == 2 && ids[0] != ids[1] && ids.iter().all(|id| *id < 3), "{ids:?}");
            let up: Vec<_> = inputs[1].parts(&graph, &row).collect();
            assert_eq!(up.iter().map(|(expert, _)| *expert).collect::<Vec<_>>(), ids);
            assert!(
                up.iter().all(|(_, x)| *x == &row[..32]),
                "experts share the input of their first linear"
            );
            // what an expert's second linear reads is the square of what its first one computes
            for (expert, part) in inputs[2].parts(&graph, &row) {
                let weights = tensors[2].to_f32();
                for (i, part) in part.iter().enumerate() {
                    let weights = &weights[(expert * 64 + i) * 32..][..32];
                    let want: f32 = weights.iter().zip(&row).map(|(w, x)| w * x).sum();
                    assert!(
                        (part - want * want).abs() < 1e-4 * (want * want).max(1.0),
                        "expert {expert}, column {i}: {part}, {want}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_graph_without_linears_is_refused() {
        let mut graph = Graph::new();
        let embed = graph.matrix("embed", 4, 32).unwrap();
        let x = graph.embed(embed, 1.0);
        graph.outputs(x);
        assert_eq!(graph.linear_inputs().unwrap_err().to_string(), "the model has no linears");
    }
}
