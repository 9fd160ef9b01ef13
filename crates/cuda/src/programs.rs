//! Programs for people and their editors: one for each source, in shapes of no model in particular.

mod folder;

use crate::driver::{KernelSource, Source};
use crate::launch::{
    FusedMemory, KernelKey, KernelShape, Limits, Ring, RopeTable, linear_source, recurrent_source,
};
use crate::lower::{AttentionShape, KernelConfig, LinearShape, PartShape, linear_defines};
use crate::shared::{KvCell, Phase, RecurrentArgs, RouteArgs};
use crate::weights::Layout;

pub use folder::{WrittenPrograms, write_programs};

/// Blocks of a launch, and shared memory of a block: those of an H200.
const BLOCKS: usize = 132;
const SHARED_MEMORY: usize = 227 << 10;
const LIMITS: Limits = Limits {
    processors: BLOCKS,
    shared_memory: SHARED_MEMORY,
    clusters: true,
    warpgroups: true,
    reproducible: false,
    bytes: true,
};
/// Heads, and the matrices of recurrent layers.
const HEAD_DIM: usize = 128;
const STATE_ROWS: usize = 128;

/// A program for each source: each file of `kernels` is in one.
pub(crate) fn typical() -> Vec<KernelSource> {
    let formats = [&tern_quant::Q4_K, &tern_quant::PQ2_0, &tern_quant::Q1_0];
    let formats = formats.iter().filter_map(|quant| Layout::of(quant)).collect();
    let heads = AttentionShape { head_dim: HEAD_DIM, v_dim: HEAD_DIM, queries: 4, capped: false };
    let config = KernelConfig { formats, attentions: vec![heads], page_len: 32 };
    let key = KernelKey {
        format: 0,
        tokens: 128,
        row_warps: 8,
        segments: 1,
        gated: 1,
        experts: false,
        bytes: false,
    };
    let attention = KernelShape {
        head_dim: HEAD_DIM,
        v_dim: HEAD_DIM,
        group: 4,
        capped: false,
        sloped: false,
        images: false,
        cells: KvCell::Half,
        page_len: 32,
        reproducible: false,
    };
    let plain = [Source::Experts, Source::Convolve, Source::Transform, Source::Sample, Source::Bandwidth];
    let launches = KernelSource { source: Source::PhaseLaunches, defines: config.defines() };
    let mut programs = vec![
        fused_step(&config, 1),
        fused_step(&config, 8),
        launches,
        linear_source(&config, key, &LIMITS),
        linear_source(&config, KernelKey { format: 1, bytes: true, ..key }, &LIMITS),
        attention.source(SHARED_MEMORY),
        recurrent_source(STATE_ROWS),
    ];
    programs.extend(plain.map(|source| KernelSource { source, defines: vec![] }));
    programs
}

/// The fused step of up to `tokens`, with a linear of each format; that of one token also has
/// experts and recurrent layers.
fn fused_step(config: &KernelConfig, tokens: usize) -> KernelSource {
    let recurrent = RecurrentArgs { rows: STATE_ROWS as i32, ..RecurrentArgs::default() };
    let phases = [Phase::Route(RouteArgs::default()), Phase::Recurrent(recurrent)];
    let (source, phases) =
        if tokens == 1 { (Source::FusedStep, &phases[..]) } else { (Source::FusedBatch, &[][..]) };
    let ropes = [RopeTable { at: 0, pairs: HEAD_DIM / 2, parted: false }];
    let memory = FusedMemory::new(config, phases, &ropes, tokens, BLOCKS);
    let linear = |format| LinearShape::new(4096, 1, &[PartShape { format, rows: 4096 }]);
    let linears: Vec<LinearShape> = (0..config.formats.len()).map(|format| linear(format as i32)).collect();
    let ring = Ring { slot: 16 * 1280, slots: 8 };
    let defines = [config.defines(), memory.defines(ring), linear_defines(&linears, BLOCKS)].concat();
    KernelSource { source, defines }
}
