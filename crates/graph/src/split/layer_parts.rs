//! Cuts a graph into parts of consecutive layers, each a graph for one device.

use std::collections::BTreeSet;

use crate::graph::{KeptLayer, Result, Subgraph, fail};
use crate::{Graph, Op, Roles, Val, Value};

/// Consecutive layers of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerPart {
    /// From the values that cross the border before it ([`Op::Input`]) to those that cross the border after
    /// it, side by side and for every token of a step; the last part ends like the whole graph.
    pub graph: Graph,
    /// The index of each of its weights in the whole graph.
    pub weights: Vec<usize>,
    /// How its ops read each of its weights.
    pub roles: Vec<Roles>,
    /// The index of each of its KV layers in the whole graph.
    pub kv: Vec<usize>,
    /// The index of each of its state layers in the whole graph.
    pub states: Vec<usize>,
}

impl Graph {
    /// Cuts it after these numbers of layers, see [`Graph::layer_borders`]. A weight that several parts read
    /// is one of each.
    pub fn split_layers(&self, borders: &[usize]) -> Result<Vec<LayerPart>> {
        if !borders.is_sorted_by(|a, b| a < b) {
            return fail(format!("cuts after {borders:?} layers: each must be after the one before"));
        }
        let cuts: Vec<usize> = borders.iter().map(|border| self.cut(*border)).collect::<Result<_>>()?;
        let starts = [0].into_iter().chain(cuts.iter().copied());
        let ends = cuts.iter().copied().chain([self.nodes.len()]);
        let roles = self.roles();
        starts.zip(ends).map(|(start, end)| self.part(start, end, &roles)).collect()
    }

    fn part(&self, start: usize, end: usize, roles: &[Roles]) -> Result<LayerPart> {
        let read = self.nodes[start..end].iter().flat_map(|node| node.op.weights());
        let weights: BTreeSet<usize> = read.map(|(id, _)| id.index()).collect();
        let weights: Vec<usize> = weights.into_iter().collect();
        let (mut kv, mut states) = (vec![], vec![]);
        let mut part = Subgraph::new(self, &weights);
        part.to.ropes.clone_from(&self.ropes);
        for (index, value) in self.crossing(start).into_iter().enumerate() {
            part.add(value, Op::Input { index }, self.nodes[value].value);
        }
        for at in start..end {
            let mut op = self.nodes[at].op.clone();
            match op.kept_layer() {
                Some(KeptLayer::Kv(layer)) => *layer = place(*layer, &mut kv),
                Some(KeptLayer::State(layer)) => *layer = place(*layer, &mut states),
                None => {}
            }
            part.add(at, op, self.nodes[at].value);
        }
        if end < self.nodes.len() {
            let crossing: Vec<Val> =
                self.crossing(end).into_iter().map(|value| part.value_of(value)).collect();
            let joined = crossing.into_iter().reduce(|before, value| {
                let width = part.to.width(before) + part.to.width(value);
                let op = Op::JoinHeads { a: before, b: value, heads: 1 };
                part.to.push(op, Value { width, outputs_only: false })
            });
            let Some(joined) = joined else {
                return fail("a cut that no value crosses".into());
            };
            part.to.outputs(joined);
        }
        let mut graph = part.to;
        graph.vectors = self.vectors || end < self.nodes.len();
        graph.kv = kv.iter().map(|layer| self.kv[*layer]).collect();
        graph.states = states.iter().map(|layer| self.states[*layer]).collect();
        // what is computed here may decide the choice of experts in a later part
        let own = graph.roles().into_iter().zip(&weights);
        let roles = own.map(|(own, w)| Roles { chooses: roles[*w].chooses, ..own }).collect();
        Ok(LayerPart { graph, weights, roles, kv, states })
    }
}

/// The number of a layer among those that are used, in order of use.
fn place(layer: usize, used: &mut Vec<usize>) -> usize {
    used.iter().position(|of| *of == layer).unwrap_or_else(|| {
        used.push(layer);
        used.len() - 1
    })
}
