//! Values that the blocks of a step of a few tokens hand on without a barrier: which they are, and which phases wait for
//! all blocks all the same.
//!
//! Every float of such a value carries a mark of its step (`kernels/tagged.cuh`), so each has memory of its own, written
//! once a step: nobody can take last step's float for this one's, nor write over what another block still reads.

use tern_graph::{Graph, Plan, Work};

use super::fuse::Fused;

pub(crate) struct Exchange {
    /// Where each value begins, in floats of one row; none if it is not handed on.
    at: Vec<Option<usize>>,
    /// Floats of one row of all of them.
    width: usize,
    /// Phases before which all blocks wait for each other.
    pub(crate) waits: Vec<bool>,
}

impl Exchange {
    /// What linears and attention make and nobody else reads. `work` is what the phases read and make.
    pub(crate) fn of(graph: &Graph, fused: &[Fused], work: &[Work], plan: &Plan) -> Exchange {
        let knows_marks = |phase: &Fused| matches!(phase, Fused::Linear(_) | Fused::Attend { .. });
        let (mut made, mut read_by_others) = (vec![false; graph.nodes.len()], vec![false; graph.nodes.len()]);
        for (phase, work) in fused.iter().zip(work) {
            if knows_marks(phase) || matches!(phase, Fused::Embed { .. }) {
                work.writes.iter().for_each(|v| made[v.index()] = true);
            }
            if !knows_marks(phase) {
                work.reads.iter().for_each(|v| read_by_others[v.index()] = true);
            }
        }
        if let Some(result) = made.last_mut() {
            *result = false;
        }
        let mut width = 0;
        let places = graph.nodes.iter().enumerate().map(|(i, node)| {
            let at = width;
            // rows that are only wanted now and then would bear old marks
            let here = made[i] && !read_by_others[i] && !node.value.outputs_only;
            width += if here { node.value.width.next_multiple_of(4) } else { 0 };
            here.then_some(at)
        });
        let at: Vec<_> = places.collect();
        // of what has no marks: slots that someone may still be busy with
        let mut busy = vec![];
        let waits = work.iter().map(|work| {
            let all = work.reads.iter().chain(&work.writes).filter(|v| at[v.index()].is_none());
            let slots: Vec<usize> = all.map(|v| plan.slot[v.index()]).collect();
            let waits = slots.iter().any(|s| busy.contains(s));
            if waits {
                busy.clear();
            }
            busy.extend(slots);
            waits
        });
        let waits = waits.collect();
        Exchange { at, width, waits }
    }

    /// Bytes for steps of so many tokens.
    pub(crate) fn bytes(&self, tokens: usize) -> usize {
        self.width * tokens * 4
    }

    /// Where a value begins in memory for so many tokens, in bytes.
    pub(crate) fn place(&self, value: usize, tokens: usize) -> Option<u64> {
        self.at[value].map(|at| (at * tokens * 4) as u64)
    }
}

#[cfg(test)]
mod tests {
    use tern_quant::Q1_0;

    use super::*;
    use crate::lower::fuse::{fuse, tests::decoder, work};
    use crate::weights::Layout;

    /// Values that are handed on, and phases that wait.
    fn of(graph: &Graph, floats: &str) -> (usize, Vec<usize>) {
        let fused = fuse(graph, |id| Layout::of(&Q1_0).filter(|_| graph.weight(id).name != floats));
        let work: Vec<Work> = fused.iter().map(|phase| work(graph, phase)).collect();
        let exchange = Exchange::of(graph, &fused, &work, &Plan::of(graph, &work));
        let places: Vec<u64> = (0..graph.nodes.len()).filter_map(|v| exchange.place(v, 4)).collect();
        assert!(places.iter().all(|at| at % 16 == 0 && (*at as usize) < exchange.bytes(4)));
        let waits = exchange.waits.iter().enumerate().filter(|(_, waits)| **waits);
        (places.len(), waits.map(|(i, _)| i).collect())
    }

    #[test]
    fn a_decoder_hands_everything_on_and_waits_for_nobody() {
        // the embedding, q, k, v, what attention makes, x twice, and between gate and down
        assert_eq!(of(&decoder(), ""), (8, vec![]));
    }

    #[test]
    fn what_a_matrix_of_floats_reads_or_makes_is_waited_for() {
        // phases: embed, q k v, attend, o, gate and up, down by itself, its sum, the head; the sum reads what o makes
        assert_eq!(of(&decoder(), "down"), (5, vec![4, 5, 6, 7]));
    }
}
