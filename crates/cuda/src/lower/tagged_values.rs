//! Values passed between thread blocks of the fused step without a grid barrier, and the phases that need a
//! barrier all the same.
//!
//! The lowest bit of each float of such a value is a tag of its step (`kernels/base/tagged.cuh`). Each value
//! has its own memory, written once per step: no block can take a float of the step before for one of this
//! step, nor overwrite a float that another block still reads.

use tern_graph::{Graph, Plan, Val, Work};

use super::fused::{Fused, resolve_view};

pub(crate) struct TaggedValues {
    /// Where each value begins, in floats of one row; `None` if it has no tags.
    begin: Vec<Option<usize>>,
    /// Floats of one row of all of them.
    width: usize,
    /// For each phase: whether all blocks wait for each other before it.
    pub(crate) barriers: Vec<bool>,
}

impl TaggedValues {
    /// Tags what phases write that can, if only phases read it that can. `work` is what
    /// the phases read and write.
    pub(crate) fn of(graph: &Graph, fused: &[Fused], work: &[Work], plan: &Plan) -> TaggedValues {
        let (mut written, mut read_untagged) =
            (vec![false; graph.nodes.len()], vec![false; graph.nodes.len()]);
        for (phase, work) in fused.iter().zip(work) {
            let tags = Tags::of(graph, phase);
            if tags.writes {
                work.writes.iter().for_each(|v| written[v.index()] = true);
            }
            if !tags.reads {
                work.reads.iter().for_each(|v| read_untagged[v.index()] = true);
            }
        }
        if let Some(result) = written.last_mut() {
            *result = false;
        }
        let mut width = 0;
        let begins = graph.nodes.iter().enumerate().map(|(i, node)| {
            let begin = width;
            // output rows differ from step to step: rows that a step does not write would keep old tags
            let tagged = written[i] && !read_untagged[i] && !node.value.outputs_only;
            width += if tagged { node.value.width.next_multiple_of(4) } else { 0 };
            tagged.then_some(begin)
        });
        let begin: Vec<_> = begins.collect();
        // slots of untagged values that a block may still read or write
        let mut busy = vec![];
        let barriers = work.iter().map(|work| {
            let untagged = work.reads.iter().chain(&work.writes).filter(|v| begin[v.index()].is_none());
            let slots: Vec<usize> = untagged.map(|v| plan.slot[v.index()]).collect();
            let barrier = slots.iter().any(|s| busy.contains(s));
            if barrier {
                busy.clear();
            }
            busy.extend(slots);
            barrier
        });
        let barriers = barriers.collect();
        TaggedValues { begin, width, barriers }
    }

    /// Bytes for steps of up to `tokens`.
    pub(crate) fn bytes(&self, tokens: usize) -> usize {
        self.width * tokens * 4
    }

    /// Whether a value, or the value that it is a part of, has tags.
    pub(crate) fn has(&self, graph: &Graph, v: Val) -> bool {
        self.begin[resolve_view(graph, v).0.index()].is_some()
    }

    /// The offset of a value in memory for `tokens`, in bytes; `None` if it has no tags.
    pub(crate) fn offset(&self, value: usize, tokens: usize) -> Option<u64> {
        self.begin[value].map(|begin| (begin * tokens * 4) as u64)
    }
}

/// Whether the kernel of a phase reads and writes tags.
struct Tags {
    reads: bool,
    writes: bool,
}

impl Tags {
    fn of(graph: &Graph, phase: &Fused) -> Tags {
        match phase {
            Fused::Linear(_) | Fused::Attend(_) | Fused::Route(_) => Tags { reads: true, writes: true },
            Fused::Conv(_) | Fused::Recurrent(_) | Fused::Transform(_) => Tags { reads: true, writes: true },
            Fused::JoinHeads { .. } | Fused::ImageRows { .. } => Tags { reads: true, writes: true },
            Fused::FloatLinear(l) if l.has_few_rows(graph) => Tags { reads: true, writes: true },
            Fused::Embed { .. } => Tags { reads: false, writes: true },
            // other phases read and write values without tags, behind a barrier
            _ => Tags { reads: false, writes: false },
        }
    }
}

#[cfg(test)]
mod tests {
    use tern_quant::Q1_0;

    use super::*;
    use crate::lower::fuse::fuse;
    use crate::lower::fused::work;
    use crate::lower::test_graphs::decoder;
    use crate::weights::Layout;

    /// How many values are tagged, and the phases with a barrier.
    fn of(graph: &Graph, floats: &str) -> (usize, Vec<usize>) {
        let fused = fuse(graph, |id| Layout::of(&Q1_0).filter(|_| graph.weight(id).name != floats)).unwrap();
        let work: Vec<Work> = fused.iter().map(|phase| work(graph, phase)).collect();
        let tagged = TaggedValues::of(graph, &fused, &work, &Plan::of(graph, &work));
        let offsets: Vec<u64> = (0..graph.nodes.len()).filter_map(|v| tagged.offset(v, 4)).collect();
        assert!(offsets.iter().all(|at| at % 16 == 0 && (*at as usize) < tagged.bytes(4)));
        let barriers = tagged.barriers.iter().enumerate().filter(|(_, barrier)| **barrier);
        (offsets.len(), barriers.map(|(i, _)| i).collect())
    }

    #[test]
    fn a_decoder_tags_all_values_and_needs_no_barrier() {
        // the embedding, q, k, v, the result of attention, x twice, and the value between gate and down
        assert_eq!(of(&decoder(), ""), (8, vec![]));
    }

    #[test]
    fn values_of_a_float_matrix_need_barriers() {
        // phases: embed, q k v, attend, o, gate and up, down alone, its residual, the head; the residual
        // reads the result of o
        assert_eq!(of(&decoder(), "down"), (5, vec![4, 5, 6, 7]));
    }
}
