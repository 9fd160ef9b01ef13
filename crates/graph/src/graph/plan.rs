//! Which values may share memory: each value gets a slot, freed after its last reader.

use crate::{Graph, Val};

/// Slots for the values of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Slot of each node's value.
    pub slot: Vec<usize>,
    /// Columns of each slot.
    pub width: Vec<usize>,
    /// Slots whose rows are the step's outputs instead of all its tokens.
    pub outputs_only: Vec<bool>,
}

/// The values that one unit of work reads and writes: a node, or several fused into one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Values of earlier work, and own values that are read again.
    pub reads: Vec<Val>,
    /// Values that later work may read.
    pub writes: Vec<Val>,
}

impl Plan {
    /// Slots for a graph whose nodes run one after the other.
    pub fn new(graph: &Graph) -> Plan {
        let nodes = graph.nodes.iter().enumerate();
        let work = nodes.map(|(i, n)| Work { reads: n.op.inputs(), writes: vec![Val(i as u32)] });
        Plan::of(graph, &work.collect::<Vec<_>>())
    }

    /// Slots for work on a graph's values, in this order. Values that no work writes have none: `usize::MAX`.
    ///
    /// Greedy: the best-fitting free slot, widened if need be.
    pub fn of(graph: &Graph, work: &[Work]) -> Plan {
        let n = graph.nodes.len();
        let mut last_use = vec![usize::MAX; n]; // a value without a reader is the result: it stays
        for (i, w) in work.iter().enumerate() {
            w.reads.iter().for_each(|v| last_use[v.index()] = i);
        }
        let mut plan = Plan { slot: vec![usize::MAX; n], width: vec![], outputs_only: vec![] };
        let mut free: Vec<usize> = vec![];
        for (i, w) in work.iter().enumerate() {
            for v in &w.writes {
                let value = graph.value(*v);
                let fit = |s: usize| {
                    plan.width[s].abs_diff(value.width)
                        + if plan.width[s] < value.width { 1 << 40 } else { 0 }
                };
                let same = |s: &usize| plan.outputs_only[*s] == value.outputs_only;
                let best = free.iter().copied().filter(same).min_by_key(|&s| fit(s));
                plan.slot[v.index()] = match best {
                    Some(s) => {
                        free.retain(|&x| x != s);
                        plan.width[s] = plan.width[s].max(value.width);
                        s
                    }
                    None => {
                        plan.width.push(value.width);
                        plan.outputs_only.push(value.outputs_only);
                        plan.width.len() - 1
                    }
                };
            }
            // inputs are freed after the results have their slots: no slot is overwritten while it is read
            let mut reads = w.reads.clone();
            reads.sort_unstable();
            reads.dedup();
            free.extend(reads.iter().filter(|v| last_use[v.index()] == i).map(|v| plan.slot[v.index()]));
        }
        plan
    }

    /// Values that slot `s` holds in a step of `tokens` tokens and `outputs` outputs.
    pub fn room(&self, s: usize, tokens: usize, outputs: usize) -> usize {
        self.width[s] * if self.outputs_only[s] { outputs } else { tokens }
    }

    /// Bytes of f32 scratch for such a step.
    pub fn bytes(&self, tokens: usize, outputs: usize) -> usize {
        (0..self.width.len()).map(|s| self.room(s, tokens, outputs) * 4).sum()
    }
}
