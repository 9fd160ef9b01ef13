//! A graph of some nodes of another one.

use std::collections::HashMap;

use crate::{Graph, Op, Val, Value, WeightId};

/// A graph that takes over nodes of another one, with its own numbers of values and weights.
pub(crate) struct Subgraph<'a> {
    from: &'a Graph,
    /// The graph so far.
    pub(crate) to: Graph,
    /// What each value is in the new graph.
    values: HashMap<Val, Val>,
    weights: HashMap<usize, WeightId>,
}

/// The layer of the KV cache or of the state that an op uses.
pub(crate) enum KeptLayer<'a> {
    Kv(&'a mut usize),
    State(&'a mut usize),
}

impl<'a> Subgraph<'a> {
    /// A graph without nodes that has these weights of another one.
    pub(crate) fn new(from: &'a Graph, weights: &[usize]) -> Subgraph<'a> {
        let mut to = Graph { rotations: from.rotations.clone(), ..Graph::new() };
        let mut ids = HashMap::new();
        for (new, old) in (0..).zip(weights) {
            let weight = from.weights[*old].clone();
            to.weights.push(weight.clone());
            to.by_name.insert(weight.name, WeightId(new));
            ids.insert(*old, WeightId(new));
        }
        Subgraph { from, to, values: HashMap::new(), weights: ids }
    }

    /// The same op on the new values and weights.
    pub(crate) fn copy(&mut self, node: usize) {
        let node_value = self.from.nodes[node].value;
        self.add(node, self.from.nodes[node].op.clone(), node_value);
    }

    /// Adds an op, which reads values and weights of the old graph, in place of an old node.
    pub(crate) fn add(&mut self, node: usize, mut op: Op, value: Value) {
        op.inputs_mut().into_iter().for_each(|v| *v = self.values[v]);
        op.weights_mut().into_iter().for_each(|(id, _)| *id = self.weights[&id.index()]);
        let new = self.to.push(op, value);
        self.values.insert(self.from.val(node), new);
    }

    /// What a node of the old graph is in the new one.
    pub(crate) fn value_of(&self, node: usize) -> Val {
        self.values[&self.from.val(node)]
    }
}

impl Op {
    /// What it keeps after a step, or reads of what was kept.
    pub(crate) fn kept_layer(&mut self) -> Option<KeptLayer<'_>> {
        match self {
            Op::Attend { layer, .. } => Some(KeptLayer::Kv(layer)),
            Op::Delta { layer, .. } | Op::Scan { layer, .. } => Some(KeptLayer::State(layer)),
            Op::Conv { layer, .. } => layer.as_mut().map(KeptLayer::State),
            Op::Embed { .. }
            | Op::AddRow { .. }
            | Op::Norm { .. }
            | Op::Linear { .. }
            | Op::Rope { .. }
            | Op::Apply { .. }
            | Op::Gated { .. }
            | Op::Route { .. }
            | Op::ExpertLinear { .. }
            | Op::Mix { .. }
            | Op::Add { .. }
            | Op::Scale { .. }
            | Op::ScaleColumns { .. }
            | Op::SoftCap { .. }
            | Op::ScaleAdapters { .. }
            | Op::Columns { .. }
            | Op::HeadColumns { .. }
            | Op::JoinHeads { .. }
            | Op::GateRows { .. }
            | Op::Rotate { .. }
            | Op::Outputs { .. }
            | Op::Input { .. }
            | Op::ImageRows { .. }
            | Op::HostExperts { .. }
            | Op::Means { .. } => None,
        }
    }
}
