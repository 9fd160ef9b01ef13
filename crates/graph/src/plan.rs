//! Which values may share memory: each value gets a slot, freed after its last reader.

use crate::Graph;

/// Slots for the values of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Slot of each node's value.
    pub slot: Vec<usize>,
    /// Columns of each slot.
    pub width: Vec<usize>,
    /// Slots whose rows are the step's outputs and not all of its tokens.
    pub outputs_only: Vec<bool>,
}

impl Plan {
    /// Greedy: the best-fitting free slot, widened if need be.
    pub fn new(graph: &Graph) -> Plan {
        let n = graph.nodes.len();
        let mut last_use = vec![n; n];
        for (i, node) in graph.nodes.iter().enumerate() {
            for v in node.op.inputs() {
                last_use[v.index()] = i;
            }
        }
        let mut plan = Plan { slot: Vec::with_capacity(n), width: vec![], outputs_only: vec![] };
        let mut free: Vec<usize> = vec![];
        for (i, node) in graph.nodes.iter().enumerate() {
            let want = node.value.width;
            let fit =
                |s: usize| plan.width[s].abs_diff(want) + if plan.width[s] < want { 1 << 40 } else { 0 };
            let same = |s: &usize| plan.outputs_only[*s] == node.value.outputs_only;
            let best = free.iter().copied().filter(same).min_by_key(|&s| fit(s));
            let slot = match best {
                Some(s) => {
                    free.retain(|&x| x != s);
                    plan.width[s] = plan.width[s].max(want);
                    s
                }
                None => {
                    plan.width.push(want);
                    plan.outputs_only.push(node.value.outputs_only);
                    plan.width.len() - 1
                }
            };
            plan.slot.push(slot);
            // inputs are freed after the result has its slot: an op never writes over what it reads
            let mut inputs = node.op.inputs();
            inputs.sort_unstable();
            inputs.dedup();
            free.extend(inputs.iter().filter(|v| last_use[v.index()] == i).map(|v| plan.slot[v.index()]));
        }
        plan
    }

    /// Values that slot `s` holds in a step of `tokens` of which `outputs` rows are wanted.
    pub fn room(&self, s: usize, tokens: usize, outputs: usize) -> usize {
        self.width[s] * if self.outputs_only[s] { outputs } else { tokens }
    }

    /// Bytes of f32 scratch for such a step.
    pub fn bytes(&self, tokens: usize, outputs: usize) -> usize {
        (0..self.width.len()).map(|s| self.room(s, tokens, outputs) * 4).sum()
    }
}
