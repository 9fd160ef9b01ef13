//! The logits and choices of a model's routers as its result: what its choices of experts are compared by.

use std::ops::Range;

use tern_graph::{Graph, GraphError, Op, Routing, WeightId};

use crate::Model;

/// A graph whose rows are the logits and the choices of another one's routers, side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct RouterLogits {
    /// The graph. It declares the same weights.
    pub graph: Graph,
    /// The routers, in order.
    pub routers: Vec<Router>,
}

/// One router, and where its logits and its choice are in a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Router {
    /// How it chooses.
    pub routing: Routing,
    /// What is added to the scores that choose.
    pub bias: Option<WeightId>,
    /// Columns of its logits.
    pub logits: Range<usize>,
    /// Columns of the ids of the experts that it chose.
    pub chosen: Range<usize>,
}

impl Model {
    /// The model up to its last router, with the logits and choices of all routers as its result; none if it
    /// has no router. Only routers with a row per token count.
    pub fn router_logits(&self) -> Result<Option<RouterLogits>, GraphError> {
        let (mut graph, mut routers, mut joined) = (self.graph.clone(), vec![], vec![]);
        let (mut width, mut end) = (0, 0);
        for (at, node) in self.graph.nodes.iter().enumerate() {
            let Op::Route { logits, bias, args } = node.op else { continue };
            let value = self.graph.nodes[logits.index()].value;
            if value.outputs_only {
                continue;
            }
            let start = width + value.width;
            routers.push(Router {
                routing: args,
                bias,
                logits: width..start,
                chosen: start..start + args.used,
            });
            joined.extend([logits, self.graph.val(at)]);
            (width, end) = (start + node.value.width, at + 1);
        }
        graph.nodes.truncate(end);
        let mut rest = joined.into_iter();
        let Some(mut row) = rest.next() else { return Ok(None) };
        for value in rest {
            row = graph.join_heads(row, value, 1)?;
        }
        graph.outputs(row);
        graph.vectors = false;
        Ok(Some(RouterLogits { graph, routers }))
    }
}

impl Router {
    /// The experts that were chosen in a row, in order of their ids.
    pub fn choice(&self, row: &[f32]) -> Vec<usize> {
        let mut ids: Vec<usize> = row[self.chosen.clone()].iter().map(|id| *id as usize).collect();
        ids.sort_unstable();
        ids
    }
}
