//! Lowers the graphs of tests with made-up addresses: no device is needed.

use tern_graph::{Graph, Plan, Work};
use tern_quant::Quant;

use super::fuse::fuse;
use super::fused::work;
use super::{
    Addresses, ArgmaxScratch, AttentionScratch, BatchPhase, KernelConfig, KvAddresses, Lowering, StepPhases,
    TaggedMemory, TaggedValues,
};
use crate::shared::FloatKind;
use crate::weights::{Layout, WeightRef};

/// The phases of a graph, and what their kernels are compiled for.
pub(crate) struct Lowered {
    pub(crate) config: KernelConfig,
    pub(crate) phases: Vec<BatchPhase>,
}

/// Which phases a graph is lowered to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Strategy {
    /// Those of a fused step of one token, with tags.
    FusedStep,
    /// Those of launches.
    Launches,
}

/// Lowers a graph whose matrices have these formats, `None` for floats.
pub(crate) fn lower(
    graph: &Graph,
    format: impl Fn(&str) -> Option<&'static Quant>,
    strategy: Strategy,
) -> Lowered {
    let weights = graph.weights.iter().enumerate().map(|(i, weight)| {
        let at = (i as u64 + 1) << 20;
        match format(&weight.name).filter(|_| weight.rows > 1).and_then(Layout::of) {
            Some(layout) => WeightRef::Records { at, layout, factor: 1.0 },
            None => WeightRef::Floats { at, kind: FloatKind::F32 },
        }
    });
    let weights: Vec<WeightRef> = weights.collect();
    let fused = fuse(graph, |id| match weights[id.index()] {
        WeightRef::Records { layout, .. } => Some(layout),
        WeightRef::Floats { .. } => None,
    });
    let fused = fused.unwrap();
    let work: Vec<Work> = fused.iter().map(|phase| work(graph, phase)).collect();
    let plan = Plan::of(graph, &work);
    let (step, values) = match strategy {
        Strategy::FusedStep => StepPhases::passed(graph, &fused, &plan).unwrap(),
        Strategy::Launches => {
            let values = TaggedValues::of(graph, &fused, &work, &plan);
            (StepPhases { fused, work }, values)
        }
    };
    let addresses = Addresses {
        slots: (1..=plan.width.len() as u64).map(|s| s << 12).collect(),
        weights,
        rope_tables: (0..graph.ropes.len() as u64).map(|t| 0xf000 + 0x100 * t).collect(),
        kv: vec![KvAddresses { keys: 0xa000_0000, values: 0xb000_0000, windowed: false }; graph.kv.len()],
        attention: AttentionScratch { ready: 0xe000, partial: 0xe100, arrivals: 0xe200 },
        argmax: Some(ArgmaxScratch { values: 0xd000, ids: 0xd100 }),
        sampled: 0xd200,
        image_rows: 0xe000,
        state: (0..graph.states.len() as u64).map(|i| 0x9000_0000 + (i << 20)).collect(),
        signs: (0..graph.rotations.len() as u64).map(|i| 0xf800 + 0x100 * i).collect(),
        inputs: 0xff00,
    };
    let tagged = TaggedMemory { values: &values, at: 0xc000_0000, tokens: 1 };
    let tagged = (strategy == Strategy::FusedStep).then_some(tagged);
    let config = KernelConfig { page_len: 32, ..KernelConfig::default() };
    let mut lowering = Lowering { graph, plan: &plan, addresses: &addresses, tagged, config, used_blocks: 0 };
    let phases = lowering.phases(&step.fused).unwrap();
    let barrier = |i: usize| values.barriers.get(i).is_none_or(|b| *b);
    let phases = phases.into_iter().enumerate();
    let phases = phases.map(|(i, phase)| BatchPhase { phase, flags: 0, barrier: barrier(i) }).collect();
    Lowered { config: lowering.config, phases }
}
