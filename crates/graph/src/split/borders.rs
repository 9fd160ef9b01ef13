//! Where a graph can be cut between two layers.
//!
//! Border `n` is between the first `n` layers and the rest. A node belongs to the layer of its weights, by
//! their names; nodes without weights between two layers are on the side that lets the fewest columns cross.

use std::ops::RangeInclusive;

use crate::graph::{KeptLayer, Result, fail};
use crate::{Graph, Op};

/// The layer of a weight: `blk.N.` begins its name.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// Nodes of a graph by layer, and how far their values are read.
struct Nodes<'a> {
    graph: &'a Graph,
    /// The first and the last layer of a node's weights.
    layers: Vec<Option<[usize; 2]>>,
    /// The last node that reads each value.
    last_reader: Vec<usize>,
}

impl Graph {
    /// Layers between which it may be cut.
    pub fn layers(&self) -> usize {
        Nodes::of(self).count()
    }

    /// The borders at which it can be cut: after 1 layer, up to all of them.
    pub fn layer_borders(&self) -> Vec<usize> {
        let nodes = Nodes::of(self);
        (1..=nodes.count()).filter(|border| nodes.cut(*border).is_ok()).collect()
    }

    /// The first node after a border.
    pub(super) fn cut(&self, border: usize) -> Result<usize> {
        Nodes::of(self).cut(border)
    }

    /// The values that nodes from `cut` on read of those before it, in order.
    pub(super) fn crossing(&self, cut: usize) -> Vec<usize> {
        Nodes::of(self).crossing(cut).collect()
    }
}

impl Nodes<'_> {
    fn of(graph: &Graph) -> Nodes<'_> {
        let mut last_reader: Vec<usize> = (0..graph.nodes.len()).collect();
        let layers = graph.nodes.iter().enumerate().map(|(at, node)| {
            node.op.inputs().into_iter().for_each(|v| last_reader[v.index()] = at);
            let weights = node.op.weights();
            let layers = weights.iter().filter_map(|(id, _)| layer_of(&graph.weight(*id).name));
            layers.fold(None, |span: Option<[usize; 2]>, n| {
                Some(span.map_or([n, n], |[a, b]| [a.min(n), b.max(n)]))
            })
        });
        let layers = layers.collect();
        Nodes { graph, layers, last_reader }
    }

    fn count(&self) -> usize {
        self.layers.iter().flatten().map(|[_, last]| last + 1).max().unwrap_or(0)
    }

    fn crossing(&self, cut: usize) -> impl Iterator<Item = usize> + '_ {
        (0..cut).filter(move |value| self.last_reader[*value] >= cut)
    }

    /// The place with the fewest columns that cross, out of the places between the layers.
    fn cut(&self, border: usize) -> Result<usize> {
        let columns = |cut: usize| -> usize {
            self.crossing(cut).map(|value| self.graph.nodes[value].value.width).sum()
        };
        let cut = self.between(border)?.min_by_key(|cut| (columns(*cut), *cut));
        let Some(cut) = cut.filter(|cut| *cut < self.graph.nodes.len()) else {
            return fail(format!("a cut after {border} layers: nothing comes after it"));
        };
        let by_output = |value: &usize| self.graph.nodes[*value].value.outputs_only;
        if (0..cut).any(|value| by_output(&value)) {
            return fail(format!("a cut after {border} layers: rows of outputs are chosen before it"));
        }
        self.check_kept(border, cut)?;
        Ok(cut)
    }

    /// The nodes at which the part after a border may begin.
    fn between(&self, border: usize) -> Result<RangeInclusive<usize>> {
        let count = self.count();
        if border == 0 || border > count {
            return fail(format!("a cut after {border} layers: the model has {count}"));
        }
        let nodes = || self.layers.iter().enumerate();
        let last = nodes().rev().find_map(|(at, span)| span.filter(|[first, _]| *first < border).map(|_| at));
        let from = last.map_or(0, |last| last + 1);
        let later = nodes().find_map(|(at, span)| span.filter(|[_, last]| *last >= border).map(|_| at));
        let is_output = |at: &usize| {
            let node = &self.graph.nodes[*at];
            node.value.outputs_only || !node.op.weights().is_empty()
        };
        let to = later.or_else(|| (from..self.graph.nodes.len()).find(is_output));
        let to = to.unwrap_or(self.graph.nodes.len());
        if from > to {
            return fail(format!("a cut after {border} layers: nodes of later layers come before it"));
        }
        Ok(from..=to)
    }

    /// Refuses a cut between ops that use one KV layer or one state, or between those that read images.
    fn check_kept(&self, border: usize, cut: usize) -> Result<()> {
        let mut stored = vec![false; self.graph.kv.len()];
        let mut images = false;
        for (at, node) in self.graph.nodes.iter().enumerate() {
            match node.op.clone().kept_layer() {
                Some(KeptLayer::Kv(layer)) => {
                    let stores = matches!(&node.op, Op::Attend { kv: Some(_), .. });
                    if at < cut {
                        stored[*layer] |= stores;
                    } else if stores {
                        stored[*layer] = false;
                    } else if stored[*layer] {
                        return fail(format!(
                            "a cut after {border} layers: a later layer reads the keys and values of an earlier one"
                        ));
                    }
                }
                Some(KeptLayer::State(_)) | None => {}
            }
            if let Op::ImageRows { .. } = node.op {
                if at >= cut && images {
                    return fail(format!(
                        "a cut after {border} layers: layers before it and after it read the rows of images"
                    ));
                }
                images |= at < cut;
            }
        }
        Ok(())
    }
}
