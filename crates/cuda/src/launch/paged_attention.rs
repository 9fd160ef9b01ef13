//! Attention of many tokens: its kernels, its scratch, the work lists of a step, and its launches.

use std::sync::Arc;

use tern_graph::{BackendError, Step};

use super::attention_plan::{
    AttentionPlan, AttentionTiles, DECODE_ROWS, MOST_PREFILL_ROWS, PagedShape, TileKind, WorkList, in_cells,
    most_items, most_partials, value_parts,
};
use crate::driver::{Compiler, Device, Grid, Kernel, KernelSource, Memory, Source};
use crate::kv::Kv;
use crate::lower::intern;
use crate::shared::{
    AttendArgs, HalfX, ImageOrder, KvCell, MOST_HEAD_DIM, MOST_VALUE_COLS, PagedAttendArgs, Phase, WORK_AT,
};

type Result<T> = std::result::Result<T, BackendError>;

/// Warps of a block that makes heads; each has one.
const HEADS_WARPS: usize = 8;
/// Lists begin at multiples of 16 bytes.
const LIST_ALIGN: usize = 4;

/// What the kernels of an attention phase are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelShape {
    pub(crate) head_dim: usize,
    pub(crate) v_dim: usize,
    /// Query heads of a key head.
    pub(crate) group: usize,
    pub(crate) capped: bool,
    /// Scores decrease with the distance of the key.
    pub(crate) sloped: bool,
    /// Tokens of an image see each other.
    pub(crate) images: bool,
    pub(crate) cells: KvCell,
    pub(crate) page_len: usize,
    /// Whether no bit depends on how keys are shared.
    pub(crate) reproducible: bool,
}

impl KernelShape {
    fn of(a: &AttendArgs, kv: &Kv, reproducible: bool) -> KernelShape {
        KernelShape {
            head_dim: a.head_dim as usize,
            v_dim: a.v_dim as usize,
            group: (a.heads / a.kv_heads) as usize,
            capped: a.softcap > 0.0,
            sloped: a.alibi > 0.0,
            images: image_order(a) != ImageOrder::Sequence,
            cells: kv.cells,
            page_len: kv.spec.page_len,
            reproducible,
        }
    }

    /// Tiles for a device whose blocks may have `shared_memory`: two blocks fit on a multiprocessor.
    fn tiles(&self, shared_memory: usize) -> AttentionTiles {
        let bytes = if self.cells == KvCell::Half { 2 } else { 1 };
        let most = ((shared_memory + 1024) / 2 - 1024).max(99 << 10).min(shared_memory);
        AttentionTiles::of(self.head_dim, self.v_dim, bytes, most, self.reproducible)
    }

    /// Whether a block with so much shared memory has space for a tile, with all heads of a token.
    fn fits(&self, shared_memory: usize) -> bool {
        let tiles = self.tiles(shared_memory);
        self.group <= tiles.prefill_rows && tiles.prefill_shared.max(tiles.decode_shared) <= shared_memory
    }

    pub(crate) fn source(&self, shared_memory: usize) -> KernelSource {
        let tiles = self.tiles(shared_memory);
        let KernelShape { head_dim, v_dim, group, capped, sloped, images, cells, page_len, .. } = self;
        let defines = vec![
            ("PAGE_LEN", page_len.to_string()),
            ("HEAD_DIM", head_dim.to_string()),
            ("V_DIM", v_dim.to_string()),
            ("V_PART", tiles.v_part.to_string()),
            ("QUERY_GROUP", group.to_string()),
            ("CAPPED", capped.to_string()),
            ("SLOPED", sloped.to_string()),
            ("IMAGES", images.to_string()),
            ("CELLS", (*cells as i32).to_string()),
            ("PREFILL_WARPS", tiles.prefill_warps.to_string()),
            ("PREFILL_ROWS", tiles.prefill_rows.to_string()),
            ("PREFILL_KEYS", tiles.prefill_keys.to_string()),
            ("PREFILL_SHARED", tiles.prefill_shared.to_string()),
            ("DECODE_WARPS", tiles.decode_warps.to_string()),
            ("DECODE_STAGES", tiles.decode_stages.to_string()),
            ("DECODE_SHARED", tiles.decode_shared.to_string()),
        ];
        KernelSource { source: Source::PagedAttention, defines }
    }
}

/// The kernels of one shape.
struct ShapeKernels {
    shape: KernelShape,
    tiles: AttentionTiles,
    make_heads: Kernel,
    decode: Kernel,
    prefill: Kernel,
}

/// What an attention phase launches.
#[derive(Clone, Copy, Debug)]
struct PlannedPhase {
    /// Its index among the kernels of shapes.
    kernels: usize,
    /// Its index among the plans.
    plan: usize,
    scales: KvScales,
}

/// Keys and values of bytes: the scales of one layer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KvScales {
    pub(crate) keys: u64,
    pub(crate) values: u64,
}

/// What attention is built for.
pub(super) struct PagedConfig<'a> {
    pub(super) kv: &'a Kv,
    pub(super) inputs: u64,
    pub(super) max_tokens: usize,
}

/// A plan for all phases of one shape and window.
struct Planned {
    shape: PagedShape,
    plan: AttentionPlan,
}

pub(super) struct PagedAttention {
    kernels: Vec<ShapeKernels>,
    plans: Vec<Planned>,
    /// One entry per attention phase.
    phases: Vec<PlannedPhase>,
    q: Memory,
    partial: [Memory; 2],
    arrivals: [Memory; 2],
    inputs: u64,
}

fn attends(phases: &[Phase]) -> impl Iterator<Item = &AttendArgs> {
    phases.iter().filter_map(|phase| if let Phase::Attend(a) = phase { Some(a) } else { None })
}

/// What tokens of an image see of it.
fn image_order(a: &AttendArgs) -> ImageOrder {
    let orders = [ImageOrder::Sequence, ImageOrder::Whole, ImageOrder::Alone];
    orders.into_iter().find(|order| *order as i32 == a.images).unwrap_or(ImageOrder::Sequence)
}

/// Whether the kernels can run all attention phases: heads are read with 16-byte loads, and a tile has all
/// heads of a token.
pub(super) fn fits(device: &Device, phases: &[Phase], kv: &Kv) -> bool {
    let whole = |n: i32| n % 4 == 0 && n <= MOST_VALUE_COLS as i32;
    let wide = |n: i32, part: usize| n % part as i32 == 0 && n <= MOST_HEAD_DIM as i32;
    let aligned = |at: u64, stride: i64| at.is_multiple_of(16) && stride % 4 == 0;
    let memory = device.facts.shared_memory;
    kv.spec.page_len.is_multiple_of(16)
        && attends(phases).all(|a| {
            let views = [&a.q.x, &a.k.x, &a.v];
            let wide = wide(a.head_dim, 16) && wide(a.v_dim, MOST_VALUE_COLS);
            let narrow = whole(a.head_dim) && whole(a.v_dim);
            let group = a.heads / a.kv_heads;
            (narrow && group <= 64 || wide && group <= 32)
                && views.iter().all(|v| aligned(v.at, v.stride))
                && KernelShape::of(a, kv, device.arithmetic.reproducible).fits(memory)
        })
}

/// Bytes of the results of splits at most.
pub(super) fn most_partial_bytes(v_dim: usize, device: &Device) -> usize {
    let most = |kind| most_partials(device.facts.processors, kind, device.arithmetic.reproducible);
    let rows = most(TileKind::Prefill) * MOST_PREFILL_ROWS + most(TileKind::Decode) * DECODE_ROWS;
    rows * (in_cells(v_dim) + 2) * 4
}

/// Words of work lists that a step of up to `tokens` may need after its inputs.
pub(super) fn most_words(attentions: usize, processors: usize, tokens: usize) -> usize {
    let lists = 2 * attentions;
    lists + lists * (WorkList::words(most_items(tokens, processors)) + LIST_ALIGN) + LIST_ALIGN
}

impl PagedAttention {
    /// The kernels of these phases.
    pub(super) fn sources(device: &Device, phases: &[Phase], kv: &Kv) -> Vec<KernelSource> {
        let memory = device.facts.shared_memory;
        let mut shapes: Vec<KernelShape> = vec![]; // most models have one, in every layer
        for a in attends(phases) {
            intern(&mut shapes, KernelShape::of(a, kv, device.arithmetic.reproducible));
        }
        shapes.iter().map(|shape| shape.source(memory)).collect()
    }

    pub(super) fn new(
        device: &Arc<Device>,
        compiler: &mut Compiler,
        phases: &[Phase],
        config: &PagedConfig<'_>,
    ) -> Result<PagedAttention> {
        let mut kernels: Vec<ShapeKernels> = vec![];
        let mut plans: Vec<Planned> = vec![];
        let mut launched = vec![];
        let (mut q, mut partial) = (0, [0; 2]);
        for a in attends(phases) {
            let shape = KernelShape::of(a, config.kv, device.arithmetic.reproducible);
            let tiles = shape.tiles(device.facts.shared_memory);
            let known = kernels.iter().position(|k| k.shape == shape);
            let kernel = known.unwrap_or(kernels.len());
            if known.is_none() {
                kernels.push(ShapeKernels::new(compiler, shape, device.facts.shared_memory)?);
            }
            let paged = PagedShape {
                kv_heads: a.kv_heads as usize,
                group: shape.group,
                window: a.window as usize,
                after: a.after as usize,
                images: image_order(a),
                prefill_rows: tiles.prefill_rows,
                reproducible: device.arithmetic.reproducible,
                value_parts: value_parts(shape.v_dim),
                processors: device.facts.processors,
            };
            let plan = plans.iter().position(|p| p.shape == paged).unwrap_or(plans.len());
            if plan == plans.len() {
                plans.push(Planned { shape: paged, plan: AttentionPlan::default() });
            }
            q = q.max(a.heads as usize * in_cells(shape.head_dim) * config.max_tokens * 2);
            for (bytes, kind) in partial.iter_mut().zip([TileKind::Decode, TileKind::Prefill]) {
                let results = most_partials(paged.processors, kind, device.arithmetic.reproducible);
                *bytes = (*bytes).max(results * paged.rows(kind) * (in_cells(shape.v_dim) + 2) * 4);
            }
            launched.push(PlannedPhase { kernels: kernel, plan, scales: config.kv.scales_of(a.keys) });
        }
        let most = most_partials(device.facts.processors, TileKind::Decode, device.arithmetic.reproducible);
        let counters = if plans.is_empty() { 0 } else { most * 4 };
        Ok(PagedAttention {
            kernels,
            plans,
            phases: launched,
            q: device.allocate(q)?,
            partial: [device.allocate(partial[0])?, device.allocate(partial[1])?],
            arrivals: [device.allocate(counters)?, device.allocate(counters)?],
            inputs: config.inputs,
        })
    }

    /// Plans a step, and appends its work lists to its inputs.
    pub(super) fn plan(&mut self, step: &Step, words: &mut Vec<u32>) {
        let table = words.len();
        words[WORK_AT] = table as u32;
        words.resize(table + 2 * self.plans.len(), 0);
        for (i, Planned { shape, plan }) in self.plans.iter_mut().enumerate() {
            plan.plan(&step.slices, shape);
            for (n, list) in [&plan.decode, &plan.prefill].into_iter().enumerate() {
                words.resize(words.len().next_multiple_of(LIST_ALIGN), 0);
                words[table + 2 * i + n] = words.len() as u32;
                list.write(words);
            }
        }
    }

    /// Work items of the planned step: of decode tiles and of prefill tiles.
    pub(super) fn items(&self) -> [usize; 2] {
        let most = |list: fn(&AttentionPlan) -> &WorkList| {
            self.plans.iter().map(|p| list(&p.plan).items.len()).max()
        };
        [most(|plan| &plan.decode).unwrap_or(0), most(|plan| &plan.prefill).unwrap_or(0)]
    }

    /// Launches the attention phase of this index, for steps of up to `tokens` with up to
    /// `items` of work of each kind.
    pub(super) fn launch(
        &self,
        index: usize,
        a: &AttendArgs,
        y_half: HalfX,
        tokens: usize,
        items: [usize; 2],
    ) -> Result<()> {
        let PlannedPhase { kernels, plan, scales } = self.phases[index];
        let (kernels, planned) = (&self.kernels[kernels], &self.plans[plan]);
        let args = PagedAttendArgs {
            attend: *a,
            q: self.q.pointer(),
            y_half,
            key_scales: scales.keys,
            value_scales: scales.values,
            inputs: self.inputs,
            ..PagedAttendArgs::default()
        };
        let stored = if a.v.at == 0 { 0 } else { a.kv_heads };
        let heads = ((a.heads + stored) as usize).div_ceil(HEADS_WARPS);
        let grid = Grid {
            shared: 36 * in_cells(kernels.shape.head_dim),
            ..Grid::new(tokens, heads, HEADS_WARPS * 32)
        };
        // SAFETY: the struct is the kernel's; there is a block for some heads of each token.
        unsafe { kernels.make_heads.launch(grid, &args)? };
        let tiles = &kernels.tiles;
        let launches = [
            (TileKind::Decode, &kernels.decode, tiles.decode_warps * 32, tiles.decode_shared),
            (TileKind::Prefill, &kernels.prefill, tiles.prefill_warps * 32, tiles.prefill_shared),
        ];
        for (i, (kind, kernel, threads, shared)) in launches.into_iter().enumerate() {
            if items[i] == 0 {
                continue;
            }
            let args = PagedAttendArgs {
                partial: self.partial[i].pointer(),
                arrivals: self.arrivals[i].pointer(),
                list: (2 * plan + i) as i32,
                ..args
            };
            let grid = Grid { shared, ..Grid::new(items[i], planned.shape.blocks_per_item(kind), threads) };
            // SAFETY: the struct is the kernel's; its scratch has space for the splits of any plan.
            unsafe { kernel.launch(grid, &args)? };
        }
        Ok(())
    }
}

impl ShapeKernels {
    fn new(compiler: &mut Compiler, shape: KernelShape, shared_memory: usize) -> Result<ShapeKernels> {
        let KernelSource { source, defines } = shape.source(shared_memory);
        let module = compiler.module(source, &defines)?;
        let tiles = shape.tiles(shared_memory);
        Ok(ShapeKernels {
            shape,
            tiles,
            make_heads: module
                .kernel("make_heads_half")?
                .with_shared_memory(36 * in_cells(shape.head_dim))?,
            decode: module.kernel("attend_decode")?.with_shared_memory(tiles.decode_shared)?,
            prefill: module.kernel("attend_prefill")?.with_shared_memory(tiles.prefill_shared)?,
        })
    }
}
