//! The logits of a model's routers as its result: what its choices of experts are compared by.

use std::ops::Range;

use tern_graph::{Graph, GraphError, Op, Routing, RoutingWorkspace, WeightId};

use crate::Model;

/// A graph whose rows are the logits of another one's routers, side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct RouterLogits {
    /// The graph. It declares the same weights.
    pub graph: Graph,
    /// The routers, in order.
    pub routers: Vec<Router>,
}

/// How one router chooses, and where its logits are in a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Router {
    /// How it chooses.
    pub routing: Routing,
    /// What is added to the scores that choose.
    pub bias: Option<WeightId>,
    /// Columns of its logits.
    pub columns: Range<usize>,
}

impl Model {
    /// The model up to its last router, with the logits of all routers as its result; none if it has no router. Only routers
    /// with a row per token count.
    pub fn router_logits(&self) -> Result<Option<RouterLogits>, GraphError> {
        let (mut graph, mut routers, mut joined) = (self.graph.clone(), vec![], None);
        let (mut width, mut end) = (0, 0);
        for (at, node) in self.graph.nodes.iter().enumerate() {
            let Op::Route { logits, bias, args } = node.op else { continue };
            let value = self.graph.nodes[logits.index()].value;
            if value.outputs_only {
                continue;
            }
            let columns = width..width + value.width;
            (width, end) = (columns.end, at);
            routers.push((logits, Router { routing: args, bias, columns }));
        }
        graph.nodes.truncate(end);
        for (logits, _) in &routers {
            joined = Some(match joined {
                Some(joined) => graph.join_heads(joined, *logits, 1)?,
                None => *logits,
            });
        }
        let Some(joined) = joined else { return Ok(None) };
        graph.outputs(joined);
        graph.vectors = false;
        let routers = routers.into_iter().map(|(_, router)| router).collect();
        Ok(Some(RouterLogits { graph, routers }))
    }
}

impl Router {
    /// The experts that it chooses for a row of logits of all routers, in order of their ids.
    pub fn choice(&self, row: &[f32], bias: Option<&[f32]>) -> Vec<usize> {
        let mut out = vec![0.0; 2 * self.routing.used];
        self.routing.choose(&row[self.columns.clone()], bias, &mut RoutingWorkspace::default(), &mut out);
        let mut ids: Vec<usize> = out[..self.routing.used].iter().map(|id| *id as usize).collect();
        ids.sort_unstable();
        ids
    }
}
