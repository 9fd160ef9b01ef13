//! Device memory of a compiled graph: slots of values, a step's inputs, scratch and sampled tokens.

use std::sync::Arc;

use tern_graph::{BackendError, Graph, KvSize, Op, Plan};

use super::attention_plan::in_cells;
use super::experts::ExpertCounts;
use super::fused_memory::RopeTable;
use super::fused_step::STEP_TOKENS;
use super::inputs::InputKinds;
use super::linear_tiling::recorded_tokens;
use super::strategy::StepSize;
use super::tiled_linears::x_bytes;
use super::{inputs, paged_attention};
use crate::driver::{Device, Memory};
use crate::lower::{Addresses, ArgmaxScratch, AttentionScratch, AttentionShape, Fused, KvAddresses, intern};
use crate::sampling::Sampler;
use crate::shared::FRAGMENT_TOKENS;
use crate::state::Reserved;
use crate::weights::{Layout, Weight};

type Result<T> = std::result::Result<T, BackendError>;

/// Bytes of scratch beside the slots of values, for steps of up to this size.
pub(crate) fn scratch_bytes(graph: &Graph, most: StepSize, device: &Device) -> usize {
    let widest = graph.weights.iter().map(|w| w.cols).max().unwrap_or(0);
    let attention = graph.nodes.iter().filter_map(|n| match &n.op {
        Op::Attend { args, .. } => {
            // as floats for odd heads, as halves
            let queries = args.heads * in_cells(args.head_dim) * most.tokens * (4 + 2);
            Some(queries + paged_attention::most_partial_bytes(args.v_dim, device))
        }
        _ => None,
    });
    let experts = graph.nodes.iter().filter_map(|n| match n.op {
        Op::ExpertLinear { route, weight, .. } => {
            let weight = graph.weight(weight);
            let used = route.map_or(weight.experts, |route| graph.width(route) / 2);
            let counts = ExpertCounts { experts: weight.experts, used };
            let tokens = recorded_tokens(most.tokens);
            Some(
                x_bytes(Layout::chunks(weight.cols), counts.rows(tokens))
                    + counts.bytes(tokens)
                    + counts.logits_bytes(tokens),
            )
        }
        _ => None,
    });
    let x = x_bytes(Layout::chunks(widest), most.tokens).max(experts.max().unwrap_or(0));
    // at most; as floats in each fused step, and in those of several tokens as halves with sums of squares
    let tagged: usize = graph.nodes.iter().map(|n| n.value.width).sum();
    let [rows, several] = [STEP_TOKENS.iter().sum::<usize>(), STEP_TOKENS.len() - 1];
    let tagged = tagged * (4 * rows + several * 3 * FRAGMENT_TOKENS);
    let sampling = Sampler::scratch_bytes(most.outputs, graph.output_width());
    let image_rows = most.tokens * graph.image_width() * 4;
    x + attention.max().unwrap_or(0) + tagged + sampling + image_rows
}

/// All allocations of a program, and their addresses.
pub(super) struct ProgramMemory {
    pub(super) inputs: Memory,
    /// Token ids that the last step sampled, from which the next one may take its tokens.
    pub(super) sampled: Memory,
    pub(super) addresses: Addresses,
    pub(super) ropes: Vec<RopeTable>,
    /// The rows of images that take the place of tokens of a step.
    pub(super) image_rows: Memory,
    slots: Vec<Memory>,
    /// The slot of the last node.
    result: usize,
    _scratch: Vec<Memory>,
}

/// What memory is allocated for.
pub(super) struct Needs<'a> {
    pub(super) graph: &'a Graph,
    pub(super) plan: &'a Plan,
    pub(super) fused: &'a [Fused],
    pub(super) weights: &'a [Arc<Weight>],
    pub(super) reserved: &'a Reserved,
    pub(super) most: StepSize,
}

impl ProgramMemory {
    pub(super) fn new(device: &Arc<Device>, needs: &Needs<'_>) -> Result<ProgramMemory> {
        let Needs { graph, plan, most, .. } = *needs;
        let last = graph.nodes.len() - 1;
        let slots = (0..plan.width.len())
            .map(|s| device.allocate(plan.room(s, most.tokens, most.outputs) * 4))
            .collect::<Result<Vec<_>>>()?;
        let pages = needs.reserved.kv.as_ref().map_or(KvSize::default(), |kv| kv.spec.size());
        let mut attentions = vec![];
        for phase in needs.fused {
            if let Fused::Attend(attend) = phase {
                intern(&mut attentions, attend.args);
            }
        }
        let work = paged_attention::most_words(attentions.len(), device.facts.processors, most.tokens);
        let inputs =
            device.allocate((inputs::reserved_words(most, pages, InputKinds::of(graph)) + work) * 4)?;
        let rows = most.outputs.max(1);
        let sampled = device.allocate(rows.max(most.tokens) * 4)?;
        let mut scratch = vec![];
        let mut allocate = |bytes: usize| -> Result<u64> {
            let memory = device.allocate(bytes)?;
            scratch.push(memory);
            Ok(scratch.last().map_or(0, Memory::pointer))
        };
        let bytes = AttentionBytes::of(needs.fused, device.facts.processors, most.tokens);
        let attention = AttentionScratch {
            ready: allocate(bytes.ready)?,
            partial: allocate(bytes.partial)?,
            arrivals: allocate(bytes.arrivals)?,
        };
        let found = rows * device.facts.processors * 4; // one per row and block
        let argmax = if graph.nodes[last].value.outputs_only {
            Some(ArgmaxScratch { values: allocate(found)?, ids: allocate(found)? })
        } else {
            None
        };
        let tables = graph.ropes.iter().map(|table| device.upload(bytemuck::cast_slice(&rope_words(table))));
        let tables = tables.collect::<Result<Vec<_>>>()?;
        let ropes = tables.iter().zip(&graph.ropes);
        let ropes = ropes.map(|(at, table)| RopeTable {
            at: at.pointer(),
            pairs: table.freqs.len(),
            parted: !table.parts.is_empty(),
        });
        let kv = needs.reserved.kv.iter();
        let kv = kv.flat_map(|kv| kv.memory.iter().enumerate().map(move |(i, m)| (i, m, kv)));
        let kv = kv.map(|(layer, m, kv)| KvAddresses {
            keys: m.keys.pointer(),
            values: m.values.pointer(),
            windowed: kv.spec.is_windowed(layer),
        });
        let state = needs.reserved.state.iter().flat_map(|state| &state.memory);
        let signs = graph.rotations.iter().map(|r| device.upload(bytemuck::cast_slice(&r.signs)));
        let signs = signs.collect::<Result<Vec<_>>>()?;
        let image_rows = device.allocate(most.tokens * graph.image_width() * 4)?;
        let addresses = Addresses {
            slots: slots.iter().map(Memory::pointer).collect(),
            weights: needs.weights.iter().map(|w| w.by_address()).collect(),
            rope_tables: tables.iter().map(Memory::pointer).collect(),
            kv: kv.collect(),
            state: state.map(Memory::pointer).collect(),
            signs: signs.iter().map(Memory::pointer).collect(),
            inputs: inputs.pointer(),
            attention,
            argmax,
            sampled: sampled.pointer(),
            image_rows: image_rows.pointer(),
        };
        let ropes = ropes.collect();
        scratch.extend(tables);
        scratch.extend(signs);
        let result = plan.slot[last];
        Ok(ProgramMemory { inputs, sampled, addresses, ropes, image_rows, slots, result, _scratch: scratch })
    }

    /// The rows of the last node.
    pub(super) fn result(&self) -> &Memory {
        &self.slots[self.result]
    }
}

/// Frequencies, and then the parts of positions if there are several.
fn rope_words(table: &tern_graph::RopeTable) -> Vec<u32> {
    let freqs = table.freqs.iter().map(|freq| freq.to_bits());
    let parts = (0..table.freqs.len()).map(|pair| table.parts.get(pair).map_or(0, |part| u32::from(*part)));
    freqs.chain(parts.filter(|_| !table.parts.is_empty())).collect()
}

/// Bytes of attention's scratch.
#[derive(Default)]
struct AttentionBytes {
    ready: usize,
    partial: usize,
    arrivals: usize,
}

impl AttentionBytes {
    /// For the largest attention of a graph.
    fn of(fused: &[Fused], blocks: usize, max_tokens: usize) -> AttentionBytes {
        let mut most = AttentionBytes::default();
        for phase in fused {
            let Fused::Attend(attend) = phase else { continue };
            let (args, shape) = (&attend.args, AttentionShape::of(&attend.args));
            // a split of each, and one more per block
            let units = blocks + FRAGMENT_TOKENS * args.heads / shape.queries;
            most.ready = most.ready.max(args.heads * args.head_dim * max_tokens * 4);
            most.partial = most.partial.max(units * shape.partial() * 4);
            most.arrivals = most.arrivals.max(FRAGMENT_TOKENS * args.heads * 4);
        }
        most
    }
}
