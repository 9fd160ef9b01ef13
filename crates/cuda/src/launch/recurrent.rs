//! Launches of recurrent phases, and of the norms, gates and rotations around them.

use std::collections::HashMap;

use tern_graph::{BackendError, Step};

use super::strategy::StepSize;
use crate::driver::{Compiler, Grid, Kernel, KernelSource, Source, sizes};
use crate::lower::{intern, passed_factor};
use crate::shared::{
    CONV_THREADS, CONV_TOKENS, ConvArgs, HalfX, Phase, RecurrentArgs, STATE_COLUMNS, STATE_THREADS,
    STATE_TOKENS, TRANSFORM_SPAN, TRANSFORM_THREADS, TransformArgs, TransformLaunch,
};

type Result<T> = std::result::Result<T, BackendError>;

/// Rows of a step from which a block transforms all columns of a row: fewer rows are shared by blocks.
const WHOLE_ROWS: usize = 256;

/// The slices of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct SliceShape {
    /// How many there are, at most.
    pub(super) count: usize,
    /// Whether each has one token.
    pub(super) decode: bool,
}

impl SliceShape {
    pub(super) fn of(step: &Step) -> SliceShape {
        let decode = step.slices.iter().all(|slice| slice.len == 1);
        SliceShape { count: step.slices.len(), decode }
    }

    /// Steps that share recorded launches.
    pub(super) fn recorded(self) -> SliceShape {
        SliceShape { count: self.count.next_power_of_two(), ..self }
    }
}

/// The kernels of a recurrent phase: of any slices, and of slices of one token each.
struct RecurrentKernels {
    prefill: Kernel,
    decode: Kernel,
}

/// Lanes that share the rows of a column; those of a fused step are more.
const LAUNCH_STATE_LANES: usize = 8;

/// How lanes share the rows of a matrix: `Sizes` of `kernels/recurrent/state_matrix.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StateSizes {
    rows: usize,
    /// Lanes that share the rows of a column.
    lanes: usize,
    /// Pieces of four rows that a lane has of a column; the last ones may have no rows.
    quads: usize,
}

impl StateSizes {
    /// Those of a matrix of `rows` rows, with `lanes` lanes for each column.
    pub(super) fn of(rows: usize, lanes: usize) -> StateSizes {
        StateSizes { rows, lanes, quads: rows.div_ceil(4 * lanes) }
    }

    /// Constants of a kernel.
    pub(super) fn constants(self) -> [(&'static str, usize); 3] {
        let StateSizes { rows, lanes, quads } = self;
        [("STATE_ROWS", rows), ("STATE_LANES", lanes), ("STATE_QUADS", quads)]
    }

    fn padded_rows(self) -> usize {
        self.quads * 4 * self.lanes
    }

    /// Bytes of the keys, queries and values of `STATE_TOKENS` tokens, and of five floats of each.
    fn tile_bytes(self) -> usize {
        STATE_TOKENS * (2 * self.padded_rows() + STATE_COLUMNS + 5) * 4
    }
}

/// Which matrices kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct MatrixKind {
    rows: usize,
    delta: bool,
}

impl MatrixKind {
    fn of(a: &RecurrentArgs) -> MatrixKind {
        MatrixKind { rows: a.rows as usize, delta: a.skip == 0 }
    }

    /// Shared memory of a block in prefill: the tokens that pass, and those that are being loaded.
    fn prefill_bytes(self) -> usize {
        2 * StateSizes::of(self.rows, LAUNCH_STATE_LANES).tile_bytes()
    }
}

/// The source of delta rules and scans with matrices of this number of rows.
pub(crate) fn recurrent_source(rows: usize) -> KernelSource {
    let state = StateSizes::of(rows, LAUNCH_STATE_LANES);
    let mut constants = state.constants().to_vec();
    constants.extend([("PADDED_STATE_ROWS", state.padded_rows()), ("STATE_TILE", state.tile_bytes())]);
    KernelSource { source: Source::Recurrent, defines: vec![sizes(&constants)] }
}

/// The kinds of matrices of these phases.
fn kinds(phases: &[Phase]) -> Vec<MatrixKind> {
    let mut kinds = vec![];
    for phase in phases {
        if let Phase::Recurrent(a) = phase {
            intern(&mut kinds, MatrixKind::of(a));
        }
    }
    kinds
}

/// The kernels of recurrent phases and transforms.
#[derive(Default)]
pub(super) struct RecurrentLaunches {
    convolve: Option<RecurrentKernels>,
    matrices: HashMap<MatrixKind, RecurrentKernels>,
    transform: Option<Kernel>,
    inputs: u64,
}

fn missing(what: &str) -> BackendError {
    BackendError::Other(format!("{what}: its kernel was not compiled"))
}

/// The sources without definitions that these phases need.
fn plain_sources(phases: &[Phase]) -> Vec<Source> {
    let mut sources = vec![];
    for phase in phases {
        match phase {
            Phase::Conv(_) => _ = intern(&mut sources, Source::Convolve),
            Phase::Transform(_) => _ = intern(&mut sources, Source::Transform),
            _ => {}
        }
    }
    sources
}

impl RecurrentLaunches {
    /// The kernels that these phases need.
    pub(super) fn sources(phases: &[Phase]) -> Vec<KernelSource> {
        let mut rows = vec![];
        kinds(phases).iter().for_each(|kind| _ = intern(&mut rows, kind.rows));
        let plain = plain_sources(phases).into_iter().map(|source| KernelSource { source, defines: vec![] });
        rows.into_iter().map(recurrent_source).chain(plain).collect()
    }

    pub(super) fn new(compiler: &mut Compiler, phases: &[Phase], inputs: u64) -> Result<RecurrentLaunches> {
        let mut launches = RecurrentLaunches { inputs, ..RecurrentLaunches::default() };
        for kind in kinds(phases) {
            let KernelSource { source, defines } = recurrent_source(kind.rows);
            let module = compiler.module(source, &defines)?;
            let names =
                if kind.delta { ["delta_prefill", "delta_decode"] } else { ["scan_prefill", "scan_decode"] };
            let [prefill, decode] = names.map(|name| module.kernel(name));
            let prefill = prefill?.with_shared_memory(kind.prefill_bytes())?;
            launches.matrices.insert(kind, RecurrentKernels { prefill, decode: decode? });
        }
        for source in plain_sources(phases) {
            let module = compiler.module(source, &[])?;
            match source {
                Source::Convolve => {
                    let [prefill, decode] = ["convolve", "convolve_decode"].map(|name| module.kernel(name));
                    launches.convolve = Some(RecurrentKernels { prefill: prefill?, decode: decode? });
                }
                _ => launches.transform = Some(module.kernel("transform")?),
            }
        }
        Ok(launches)
    }

    /// For steps of up to `tokens` with such slices.
    pub(super) fn convolve(&self, args: &ConvArgs, tokens: usize, slices: SliceShape) -> Result<()> {
        let kernels = self.convolve.as_ref().ok_or_else(|| missing("conv"))?;
        let width = args.width as usize;
        let (kernel, columns, rows) = if slices.decode && args.state != 0 {
            (&kernels.decode, width.div_ceil(2 * CONV_THREADS), tokens)
        } else {
            (&kernels.prefill, width.div_ceil(CONV_THREADS), tokens.div_ceil(CONV_TOKENS))
        };
        let grid = Grid::new(columns, rows, CONV_THREADS);
        // SAFETY: the struct is the kernel's; blocks share all columns and tokens of the
        // step, however many there are.
        unsafe { kernel.launch(grid, args) }
    }

    /// For steps of up to this number of slices.
    pub(super) fn matrices(&self, args: &RecurrentArgs, slices: SliceShape) -> Result<()> {
        let kind = MatrixKind::of(args);
        let kernels = self.matrices.get(&kind).ok_or_else(|| missing("a recurrent layer"))?;
        let (kernel, shared) = match slices.decode {
            true => (&kernels.decode, 0), // its columns stay in registers
            false => (&kernels.prefill, kind.prefill_bytes()),
        };
        let blocks = args.heads as usize * (args.cols as usize).div_ceil(STATE_COLUMNS);
        let grid = Grid { shared, ..Grid::new(blocks, slices.count, STATE_THREADS) };
        // SAFETY: the struct is the kernel's; blocks have all columns of all heads and slices, and leave
        // slices that the step lacks.
        unsafe { kernel.launch(grid, args) }
    }

    /// For steps of up to this size; the value is written as halves if `y_half` has an address. `beside`: the
    /// last launch is independent.
    pub(super) fn transform(
        &self,
        args: &TransformArgs,
        y_half: HalfX,
        size: StepSize,
        beside: bool,
    ) -> Result<()> {
        let rows = if args.outputs_only != 0 { size.outputs } else { size.tokens };
        if rows == 0 {
            return Ok(());
        }
        let kernel = self.transform.as_ref().ok_or_else(|| missing("transform"))?;
        let y_factor = passed_factor(&Phase::Transform(*args));
        let launch = TransformLaunch {
            transform: *args,
            y_half,
            inputs: self.inputs,
            y_factor,
            beside: beside.into(),
        };
        let spans = if rows < WHOLE_ROWS { (args.width as usize).div_ceil(TRANSFORM_SPAN) } else { 1 };
        // SAFETY: the struct is the kernel's; blocks have all spans of all rows, and leave
        // rows that the step lacks.
        unsafe { kernel.launch(Grid::new(rows, spans, TRANSFORM_THREADS), &launch) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_for_each_number_of_rows_and_kind_of_phase() {
        let conv = Phase::Conv(ConvArgs::default());
        let transform = Phase::Transform(TransformArgs::default());
        let matrix = |rows, skip| Phase::Recurrent(RecurrentArgs { rows, skip, ..RecurrentArgs::default() });
        let names = |phases: &[Phase]| {
            let sources = RecurrentLaunches::sources(phases);
            sources.iter().map(|s| format!("{:?} {}", s.source, s.defines.len())).collect::<Vec<_>>()
        };
        assert!(names(&[]).is_empty());
        assert_eq!(names(&[conv, conv]), ["Convolve 0"]);
        let phases = [conv, matrix(128, 0), transform, conv, matrix(64, 0), matrix(128, 1), transform];
        assert_eq!(kinds(&phases).len(), 3);
        assert_eq!(names(&phases), ["Recurrent 1", "Recurrent 1", "Convolve 0", "Transform 0"]);
    }

    #[test]
    fn steps_of_similar_slices_share_launches() {
        let shape = |count, decode| SliceShape { count, decode };
        assert_eq!(shape(5, true).recorded(), shape(8, true));
        assert_ne!(shape(8, false).recorded(), shape(8, true));
        assert_eq!(SliceShape::default().recorded().count, 1);
    }
}
