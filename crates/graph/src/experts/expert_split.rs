//! Cuts the experts of some layers out of a graph: the device runs the rest, and each piece
//! is a graph for the host.

use std::collections::BTreeSet;

use crate::graph::{Result, Subgraph, fail};
use crate::{Graph, Op, Val};

/// The experts of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertPiece {
    /// From x (input 0) and the logits of the router (input 1) to the sum of the chosen experts.
    pub graph: Graph,
    /// The index of each of its weights in the whole graph.
    pub weights: Vec<usize>,
}

/// A graph in two parts.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertSplit {
    /// The whole graph with [`Op::HostExperts`] in place of the pieces, which are
    /// numbered from `first_piece` on.
    pub device: Graph,
    /// The index of each weight of the device in the whole graph.
    pub device_weights: Vec<usize>,
    /// The experts of the first layers that have some.
    pub pieces: Vec<ExpertPiece>,
}

/// The nodes of a layer's experts: those between a route and its mix that depend on the route.
struct Block {
    /// In order; the last one is the mix.
    nodes: BTreeSet<usize>,
    x: Val,
    logits: Val,
}

impl Graph {
    /// Layers whose experts can be cut out.
    pub fn expert_layers(&self) -> usize {
        blocks(self).len()
    }

    /// Cuts out the experts of the first `layers` layers that have some; their pieces are
    /// numbered from `first_piece` on.
    pub fn split_experts(&self, layers: usize, first_piece: usize) -> Result<ExpertSplit> {
        let mut blocks = blocks(self);
        if layers > blocks.len() {
            let most = blocks.len();
            return fail(format!(
                "experts of {layers} layers for the host: the model has {most} such layers"
            ));
        }
        blocks.truncate(layers);
        let pieces: Vec<ExpertPiece> = blocks.iter().map(|block| piece(self, block)).collect();
        let used: BTreeSet<usize> = pieces.iter().flat_map(|piece| piece.weights.iter().copied()).collect();
        let cut = |node: usize| blocks.iter().position(|block| block.nodes.contains(&node));
        let rest = (0..self.nodes.len()).filter(|node| cut(*node).is_none());
        let read: BTreeSet<usize> =
            rest.flat_map(|node| self.nodes[node].op.weights()).map(|(id, _)| id.index()).collect();
        // weights that nothing reads stay: another graph of the same model may read them
        let device_weights: Vec<usize> =
            (0..self.weights.len()).filter(|w| !used.contains(w) || read.contains(w)).collect();
        let mut builder = Subgraph::new(self, &device_weights);
        builder.to.ropes.clone_from(&self.ropes);
        builder.to.kv.clone_from(&self.kv);
        builder.to.states.clone_from(&self.states);
        for node in 0..self.nodes.len() {
            match cut(node) {
                None => builder.copy(node),
                Some(index) if blocks[index].nodes.last() == Some(&node) => {
                    let Block { x, logits, .. } = blocks[index];
                    let op = Op::HostExperts { x, logits, piece: first_piece + index };
                    builder.add(node, op, self.nodes[node].value);
                }
                Some(_) => {}
            }
        }
        Ok(ExpertSplit { device: builder.to, device_weights, pieces })
    }
}

/// The experts of all layers that can be cut out, in order.
fn blocks(graph: &Graph) -> Vec<Block> {
    (0..graph.nodes.len()).filter_map(|node| block(graph, node)).collect()
}

/// The block of a route. `None` if other nodes read its values, or if it reads other
/// values than x and logits.
fn block(graph: &Graph, route: usize) -> Option<Block> {
    let Op::Route { logits, .. } = graph.nodes[route].op else { return None };
    let is_mix = |node: &usize| match graph.nodes[*node].op {
        Op::Mix { route: of, .. } => of.index() == route,
        _ => false,
    };
    let mix = (route..graph.nodes.len()).find(is_mix)?;
    let reads = |node: usize| graph.nodes[node].op.inputs().into_iter().map(Val::index);
    // nodes that depend on the route, and of these the ones that the mix depends on
    let mut after = BTreeSet::from([route]);
    for node in route + 1..=mix {
        if reads(node).any(|v| after.contains(&v)) {
            after.insert(node);
        }
    }
    let mut nodes = BTreeSet::from([mix]);
    for node in (route..=mix).rev() {
        if nodes.contains(&node) {
            nodes.extend(reads(node).filter(|v| after.contains(v)));
        }
    }
    let inner = |node: &usize| *node != mix && nodes.contains(node);
    let leaks = (0..graph.nodes.len()).any(|node| !nodes.contains(&node) && reads(node).any(|v| inner(&v)));
    let by_token = nodes.iter().all(|node| {
        let needs_step = matches!(
            graph.nodes[*node].op,
            Op::Attend { .. } | Op::Rope { .. } | Op::ImageRows { .. } | Op::Outputs { .. }
        );
        !needs_step && !graph.nodes[*node].value.outputs_only
    });
    let outer: BTreeSet<usize> =
        nodes.iter().flat_map(|node| reads(*node)).filter(|v| !nodes.contains(v)).collect();
    let mut others = outer.iter().filter(|v| **v != logits.index());
    let (x, none) = (others.next()?, others.next());
    (!leaks && by_token && none.is_none() && graph.width(graph.val(*x)) == graph.nodes[mix].value.width)
        .then(|| Block { x: graph.val(*x), logits, nodes })
}

fn piece(graph: &Graph, block: &Block) -> ExpertPiece {
    let ids = block.nodes.iter().flat_map(|node| graph.nodes[*node].op.weights());
    let weights: Vec<usize> = ids.map(|(id, _)| id.index()).collect::<BTreeSet<_>>().into_iter().collect();
    let mut builder = Subgraph::new(graph, &weights);
    for (index, value) in [block.x, block.logits].into_iter().enumerate() {
        builder.add(value.index(), Op::Input { index }, graph.value(value));
    }
    block.nodes.iter().for_each(|node| builder.copy(*node));
    ExpertPiece { graph: builder.to, weights }
}
