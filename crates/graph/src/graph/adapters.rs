//! Low-rank adapters (LoRA): linears that also add `scale * B (A x)`, for the adapters of each sequence.
//!
//! The matrices of all adapters of a linear are stacked, with one rank for all: `A` has the rows of one
//! adapter after those of another, and `B` the columns. Between the two, [`Op::ScaleAdapters`] multiplies the
//! columns of each adapter by the scale with which the row's sequence uses it, so that sequences with
//! different adapters and with none share a step.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::graph::{Result, fail};
use crate::{Graph, HostTensor, Op, Val, Weight, WeightId};

/// The adapters that a sequence uses: the scale of each, by its number. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct AdapterScales(Option<Arc<[f32]>>);

impl AdapterScales {
    /// No adapter.
    pub const NONE: AdapterScales = AdapterScales(None);

    /// Scales by the number of the adapter; 0 if it is not used.
    pub fn new(scales: &[f32]) -> AdapterScales {
        let used = scales.iter().rposition(|scale| *scale != 0.0).map_or(0, |last| last + 1);
        AdapterScales((used > 0).then(|| scales[..used].iter().map(|scale| scale + 0.0).collect()))
    }

    /// Whether no adapter is used.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Scales up to the last adapter that is used.
    pub fn scales(&self) -> &[f32] {
        self.0.as_deref().unwrap_or_default()
    }

    /// The scale of an adapter, 0 if it is not used.
    #[inline]
    pub fn scale(&self, adapter: usize) -> f32 {
        self.scales().get(adapter).copied().unwrap_or(0.0)
    }

    fn bits(&self) -> impl Iterator<Item = u32> + '_ {
        self.scales().iter().map(|scale| scale.to_bits())
    }
}

impl PartialEq for AdapterScales {
    fn eq(&self, other: &AdapterScales) -> bool {
        self.bits().eq(other.bits())
    }
}

impl Eq for AdapterScales {}

impl Hash for AdapterScales {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bits().for_each(|bits| bits.hash(state));
    }
}

/// A linear that adapters change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdaptedLinear {
    /// The name of its weight.
    pub weight: String,
    /// Rows of `A` and columns of `B` of each adapter; those of a smaller rank end with zeros.
    pub rank: usize,
}

impl AdaptedLinear {
    /// The name of the stacked `A` of all adapters. `[adapters * rank, cols(weight)]`
    pub fn a(&self) -> String {
        format!("{}.lora_a", self.weight)
    }

    /// The name of the stacked `B`. `[rows(weight), adapters * rank]`
    pub fn b(&self) -> String {
        format!("{}.lora_b", self.weight)
    }
}

/// Adapters of a model, for its graph.
#[derive(Clone, Debug, Default)]
pub struct AdapterSet {
    /// How many there are.
    pub count: usize,
    /// The linears that at least one of them changes.
    pub linears: Vec<AdaptedLinear>,
    /// The stacked `A` and `B` of each linear, in order.
    pub tensors: Vec<HostTensor>,
}

impl AdapterSet {
    /// Bytes of all matrices.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.data().len() as u64).sum()
    }
}

impl Graph {
    /// The same model with `adapters` adapters on some of its linears. Its first weights are those of this
    /// graph; the others are [`AdaptedLinear::a`] and [`AdaptedLinear::b`] of each linear, in order.
    pub fn with_adapters(&self, adapters: usize, linears: &[AdaptedLinear]) -> Result<Graph> {
        let mut graph = Graph { nodes: vec![], ..self.clone() };
        let mut low_rank: Vec<(WeightId, LowRank)> = vec![];
        for linear in linears {
            let Some(&id) = self.by_name.get(&linear.weight) else {
                return fail(format!("{}: the model has no such weight", linear.weight));
            };
            let Weight { rows, cols, .. } = *self.weight(id);
            let a = graph.matrix(linear.a(), adapters * linear.rank, cols)?;
            let b = graph.matrix(linear.b(), rows, adapters * linear.rank)?;
            low_rank.push((id, LowRank { a, b, rank: linear.rank }));
        }
        let mut values: Vec<Val> = vec![]; // of this graph's nodes in the new one
        let mut pending: Vec<Pending> = vec![];
        for (at, node) in self.nodes.iter().enumerate() {
            // as late as possible: linears that share an input, and then all that adapters add to them
            if node.op.inputs().iter().any(|v| pending.iter().any(|p| p.node == v.index())) {
                graph.expand(&mut pending, &mut values)?;
            }
            let mut op = node.op.clone();
            op.inputs_mut().into_iter().for_each(|v| *v = values[v.index()]);
            values.push(graph.push(op, node.value));
            let Op::Linear { x, weight, .. } = node.op else { continue };
            let Some(&(_, LowRank { a, b, rank })) = low_rank.iter().find(|(id, _)| *id == weight) else {
                continue;
            };
            let t = graph.linear(values[self.unrotated(x).index()], a)?; // [.., adapters * rank]
            let t = graph.scale_adapters(t, rank)?;
            pending.push(Pending { node: at, t, b });
        }
        graph.expand(&mut pending, &mut values)?;
        Ok(graph)
    }

    /// Adds `B t` to the values that adapters change.
    fn expand(&mut self, pending: &mut Vec<Pending>, values: &mut [Val]) -> Result<()> {
        for Pending { node, t, b } in pending.drain(..) {
            let change = self.linear(t, b)?;
            values[node] = self.add(values[node], change)?;
        }
        Ok(())
    }

    /// See [`Op::ScaleAdapters`].
    pub fn scale_adapters(&mut self, x: Val, rank: usize) -> Result<Val> {
        if rank == 0 || !self.width(x).is_multiple_of(rank) {
            return fail(format!("scale_adapters: rank {rank} on a value of {} columns", self.width(x)));
        }
        Ok(self.push(Op::ScaleAdapters { x, rank }, self.value(x)))
    }

    /// What a rotated linear reads, before its rotation: adapters are stored in the model's own basis.
    fn unrotated(&self, x: Val) -> Val {
        match self.nodes[x.index()].op {
            Op::Rotate { x, inverse: false, .. } => x,
            _ => x,
        }
    }

    /// Adapters that the graph has.
    pub fn adapters(&self) -> usize {
        let counts = self.nodes.iter().filter_map(|node| match node.op {
            Op::ScaleAdapters { rank, .. } => Some(node.value.width / rank),
            _ => None,
        });
        counts.min().unwrap_or(0)
    }
}

#[derive(Clone, Copy)]
struct LowRank {
    a: WeightId,
    b: WeightId,
    rank: usize,
}

/// A linear whose adapters are not added yet.
struct Pending {
    node: usize,
    t: Val,
    b: WeightId,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Activation;

    #[test]
    fn scales_without_an_adapter_are_none() {
        assert!(AdapterScales::new(&[]).is_empty() && AdapterScales::new(&[0.0, -0.0]).is_empty());
        let some = AdapterScales::new(&[0.0, 0.5, 0.0]);
        assert_eq!((some.scales(), some.scale(1), some.scale(7)), (&[0.0, 0.5][..], 0.5, 0.0));
        assert_eq!(AdapterScales::new(&[-0.0, 0.5]), some);
        assert_ne!(AdapterScales::new(&[0.5]), some);
    }

    #[test]
    fn linears_of_one_input_are_adapted_together() {
        let mut g = Graph::new();
        let table = g.matrix("embed", 9, 8).unwrap();
        let [gate, up] = ["gate", "up"].map(|name| g.matrix(name, 16, 8).unwrap());
        let head = g.matrix("head", 9, 16).unwrap();
        let x = g.embed(table, 1.0);
        let (a, b) = (g.linear(x, gate).unwrap(), g.linear(x, up).unwrap());
        let h = g.gated(a, b, Activation::Silu).unwrap();
        let h = g.outputs(h);
        g.linear(h, head).unwrap();
        let on = |weight: &str, rank| AdaptedLinear { weight: weight.into(), rank };
        let adapted = g.with_adapters(3, &[on("gate", 2), on("up", 4), on("head", 2)]).unwrap();
        let names: Vec<_> = adapted.nodes.iter().map(|n| n.op.name()).collect();
        let twice = |name| [name, "linear", "scale_adapters"];
        let want = [&["embed"][..], &twice("linear"), &twice("linear"), &["linear", "add", "linear", "add"]];
        let want = [want.concat(), vec!["gated", "outputs"], twice("linear").to_vec(), vec!["linear", "add"]];
        assert_eq!(names, want.concat());
        assert_eq!(adapted.weights[..4], g.weights[..]);
        let shapes: Vec<_> = adapted.weights[4..].iter().map(|w| (w.name.as_str(), w.shape())).collect();
        assert_eq!(shapes[0], ("gate.lora_a", "[6, 8]".into()));
        assert_eq!(shapes[5], ("head.lora_b", "[9, 6]".into()));
        assert_eq!((adapted.adapters(), g.adapters()), (3, 0));
        assert_eq!(adapted.output_width(), 9);
        let missing = g.with_adapters(1, &[on("down", 2)]).unwrap_err();
        assert_eq!(missing.to_string(), "down: the model has no such weight");
        assert!(g.with_adapters(1, &[on("up", 0)]).is_err());
    }
}
