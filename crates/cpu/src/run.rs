//! One thread's share of one step.

use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};

use tern_graph::{KeysAndValues, Op, RoutingWorkspace, Step, TableRow, Val, sigmoid, softcap};
use tern_quant::INT_BLOCK;

use crate::activations::gathered_rows::GatheredRows;
use crate::attention::attend::{Attend, AttendWorkspace, Block};
use crate::attention::attend_plan::{AttendPlan, AttendTile};
use crate::dot::Workspace;
use crate::experts::parts::PartsByExpert;
use crate::kernels::{Kernels, QuantizeTiles, Tiles};
use crate::phases::{Cut, Link, Work, width};
use crate::program::{Compiled, MAX_SPAN};
use crate::recurrent::columns::RecurrentScratch;
use crate::rotation::rotate as rotate_basis;
use crate::rowwise::{Norm, rotate, rotation};
use crate::threads::{Task, Whose, Worker};

/// Columns of a row that a thread takes at a time in elementwise ops.
const PIECE: usize = 8 * MAX_SPAN;
/// Tokens whose keys and values are stored at a time by one thread: tokens of a page share cache lines.
const STORE_TOKENS: usize = 32;

/// A step in flight: what all threads read.
pub(crate) struct Run<'a> {
    pub(crate) program: &'a Compiled,
    pub(crate) kernels: &'a Kernels,
    pub(crate) step: &'a Step,
    pub(crate) plan: &'a AttendPlan,
    /// One per thread.
    pub(crate) workspaces: &'a [Mutex<Scratch>],
    /// A node whose op could not be run; the step fails.
    pub(crate) refused: OnceLock<usize>,
}

impl Run<'_> {
    /// Runs this thread's share of all phases.
    ///
    /// Every `unsafe` below relies on one argument: threads write disjoint parts, and there is a barrier
    /// between two chains if one accesses what the other writes.
    pub(crate) fn work(&self, worker: &Worker<'_>) {
        let mut workspace = self.workspaces[worker.index].lock().unwrap_or_else(PoisonError::into_inner);
        let workspace = &mut *workspace;
        workspace.unpacked.reads(None);
        workspace.parts.forget();
        workspace.gathered.forget();
        let phases = self.program.phases(self.step.tokens.len(), self.step.outputs.len());
        let mut index = 0;
        for phase in phases {
            for whose in [Whose::Own, Whose::Others] {
                for (i, chain) in phase.iter().enumerate() {
                    let task = |items, unit, most| Task { index: index + i, items, unit, most };
                    let share = |items, unit, most| worker.share(task(items, unit, most), whose);
                    match chain.cut {
                        Cut::Alone => self.alone(chain.links[0], workspace, |items| share(items, 1, 1)),
                        Cut::Columns => self.columns(&chain.links, workspace, share),
                        Cut::Experts { .. } => self.experts(&chain.links, workspace, share),
                        Cut::Rows => self.runs(&chain.links, None, workspace, share),
                        Cut::Runs(run) => self.runs(&chain.links, Some(run), workspace, share),
                    }
                }
            }
            index += phase.len();
            worker.barrier();
        }
    }

    /// Work that is split by its op.
    fn alone<I: Iterator<Item = Range<usize>>>(
        &self,
        link: Link,
        workspace: &mut Scratch,
        share: impl Fn(usize) -> I,
    ) {
        match (link.work, &self.program.graph.nodes[link.node].op) {
            (Work::Rotations(table), _) => self.rotations(table, share(self.plan.tokens.len())),
            (Work::QuantizeTiles, _) => self.quantize_tiles(link.node, share),
            (Work::Compute, Op::Attend { .. }) => self.attend(link, &mut workspace.attend, share),
            (Work::Compute, Op::Conv { .. } | Op::Delta { .. } | Op::Scan { .. }) => {
                self.recurrent(link, &mut workspace.recurrent, share);
            }
            (Work::StoreKv | Work::Quantize | Work::Compute, _) => self.refuse(link.node),
        }
    }

    /// Makes the step fail: there is no implementation of a node's op for the cut of its chain.
    pub(crate) fn refuse(&self, node: usize) {
        self.refused.get_or_init(|| node);
    }

    /// Ops on runs of columns of single rows, or on whole rows.
    fn runs<I: Iterator<Item = Range<usize>>>(
        &self,
        links: &[Link],
        run: Option<usize>,
        workspace: &mut Scratch,
        share: impl Fn(usize, usize, usize) -> I,
    ) {
        let graph = &self.program.graph;
        let each = |link: &Link| run.unwrap_or(width(graph, *link));
        let first = &links[0];
        let in_row = width(graph, *first) / each(first);
        let stores = links.iter().any(|l| l.work == Work::StoreKv);
        let unit = if stores { STORE_TOKENS * in_row } else { (PIECE / each(first)).max(1) };
        for range in share(self.rows(first.node) * in_row, unit, unit) {
            for link in links {
                self.run(*link, range.start * each(link), range.len() * each(link), &mut workspace.rows);
            }
        }
    }

    /// One link on `len` columns from index `at` on, counted through all rows.
    pub(crate) fn run(&self, link: Link, at: usize, len: usize, workspace: &mut RowScratch) {
        match link.work {
            Work::StoreKv => self.store_kv(link, at, len, &mut workspace.halves),
            Work::Quantize => self.quantize(link.node, at, len),
            Work::Compute => self.compute(link, at, len, &mut workspace.routing),
            Work::Rotations(_) | Work::QuantizeTiles => self.refuse(link.node),
        }
    }

    /// The node's op on `len` columns from index `at` on.
    fn compute(&self, link: Link, at: usize, len: usize, workspace: &mut RoutingWorkspace) {
        let node = &self.program.graph.nodes[link.node];
        let width = node.value.width;
        let rows = || at / width..(at + len) / width;
        match &node.op {
            Op::Embed { table, scale } => self.finish(link, at, len, |out| {
                for (row, out) in rows().zip(out.chunks_exact_mut(width)) {
                    self.program.weight(*table).decode_row(self.step.tokens[row] as usize, out);
                    out.iter_mut().for_each(|x| *x *= scale);
                }
            }),
            Op::AddRow { x, table, row } => self.finish(link, at, len, |out| {
                let x = self.read(*x, at, len).chunks_exact(width);
                for ((token, out), x) in rows().zip(out.chunks_exact_mut(width)).zip(x) {
                    let (slice, position) = self.plan.tokens[token];
                    let row = match row {
                        TableRow::Position => position,
                        TableRow::First => 0,
                        TableRow::Type => self.step.slices[slice].type_at(position),
                    };
                    self.program.weight(*table).decode_row(row, out);
                    out.iter_mut().zip(x).for_each(|(o, x)| *o += x);
                }
            }),
            Op::Apply { x, function } => self.finish(link, at, len, |out| {
                (self.kernels.apply)(*function, self.read(*x, at, len), out);
            }),
            Op::Norm { x, len: group, weight, bias, eps, kind } => {
                let [weight, bias] = [weight, bias].map(|id| id.map(|id| self.program.vector(id)));
                self.finish(link, at, len, |out| {
                    let groups = self.read(*x, at, len).chunks_exact(*group);
                    for (i, (x, out)) in groups.zip(out.chunks_exact_mut(*group)).enumerate() {
                        // one weight for all groups, or one per group of a row
                        let weight = weight.map(|w| &w[(at + i * group) % w.len()..][..*group]);
                        (self.kernels.norm)(&Norm { weight, bias, eps: *eps, kind: *kind }, x, out);
                    }
                });
            }
            Op::Rope { x, head_dim, style, table } => self.finish(link, at, len, |out| {
                let turns = self.program.graph.ropes[*table].freqs.len() * 2;
                let heads = self.read(*x, at, len).chunks_exact(*head_dim);
                for (i, (head, out)) in heads.zip(out.chunks_exact_mut(*head_dim)).enumerate() {
                    let row = (at + i * head_dim) / width;
                    // SAFETY: see `work`.
                    let turn = unsafe { self.program.rotations[*table].get(row * turns..(row + 1) * turns) };
                    rotate(head, *style, turn, out);
                }
            }),
            Op::Gated { gate, up, act } => self.finish(link, at, len, |out| {
                (self.kernels.gated)(*act, self.read(*gate, at, len), self.read(*up, at, len), out);
            }),
            Op::Add { a, b } => self.finish(link, at, len, |out| {
                let (a, b) = (self.read(*a, at, len), self.read(*b, at, len));
                out.iter_mut().zip(a.iter().zip(b)).for_each(|(o, (a, b))| *o = a + b);
            }),
            Op::Scale { x, by } => self.finish(link, at, len, |out| {
                out.iter_mut().zip(self.read(*x, at, len)).for_each(|(o, x)| *o = x * by);
            }),
            Op::ScaleColumns { x, by } => self.finish(link, at, len, |out| {
                let (by, x) = (self.program.vector(*by), self.read(*x, at, len));
                for (out, x) in out.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
                    out.iter_mut().zip(x.iter().zip(by)).for_each(|(o, (x, by))| *o = x * by);
                }
            }),
            Op::SoftCap { x, cap } => self.finish(link, at, len, |out| {
                out.iter_mut().zip(self.read(*x, at, len)).for_each(|(o, x)| *o = softcap(*x, *cap));
            }),
            Op::ScaleAdapters { x, rank } => self.finish(link, at, len, |out| {
                let outputs_only = node.value.outputs_only;
                for (i, (out, x)) in (at..).zip(out.iter_mut().zip(self.read(*x, at, len))) {
                    let (row, adapter) = (i / width, i % width / rank);
                    let token = if outputs_only { self.step.outputs[row].row } else { row };
                    let scale = self.step.slices[self.plan.tokens[token].0].adapters.scale(adapter);
                    // values of other adapters may not be finite
                    *out = if scale == 0.0 { 0.0 } else { x * scale };
                }
            }),
            Op::Columns { x, start, .. } => self.finish(link, at, len, |out| {
                let from = self.program.graph.width(*x);
                for (row, out) in rows().zip(out.chunks_exact_mut(width)) {
                    out.copy_from_slice(self.read(*x, row * from + start, width));
                }
            }),
            Op::HeadColumns { x, every, start, len: part } => self.finish(link, at, len, |out| {
                let from = self.program.graph.width(*x);
                for (row, out) in rows().zip(out.chunks_exact_mut(width)) {
                    let heads = self.read(*x, row * from, from).chunks_exact(*every);
                    let parts = heads.zip(out.chunks_exact_mut(*part));
                    parts.for_each(|(head, out)| out.copy_from_slice(&head[*start..start + part]));
                }
            }),
            Op::JoinHeads { a, b, heads } => self.finish(link, at, len, |out| {
                let [a_width, b_width] = [*a, *b].map(|v| self.program.graph.width(v));
                for (row, out) in rows().zip(out.chunks_exact_mut(width)) {
                    let a = self.read(*a, row * a_width, a_width).chunks_exact(a_width / heads);
                    let b = self.read(*b, row * b_width, b_width).chunks_exact(b_width / heads);
                    for (out, (a, b)) in out.chunks_exact_mut(width / heads).zip(a.zip(b)) {
                        out[..a.len()].copy_from_slice(a);
                        out[a.len()..].copy_from_slice(b);
                    }
                }
            }),
            Op::Outputs { x } => self.finish(link, at, len, |out| {
                for (row, out) in rows().zip(out.chunks_exact_mut(width)) {
                    out.copy_from_slice(self.read(*x, self.step.outputs[row].row * width, width));
                }
            }),
            Op::Means { x } => self.finish(link, at, len, |out| {
                for (row, out) in rows().zip(out.chunks_exact_mut(width)) {
                    let last = self.step.outputs[row].row;
                    let position = self.plan.tokens[last].1; // sequences are whole
                    out.fill(0.0);
                    for x in
                        self.read(*x, (last - position) * width, (position + 1) * width).chunks_exact(width)
                    {
                        out.iter_mut().zip(x).for_each(|(o, x)| *o += x);
                    }
                    out.iter_mut().for_each(|o| *o /= (position + 1) as f32);
                }
            }),
            Op::Route { logits, bias, args } => self.finish(link, at, len, |out| {
                let (from, bias) = (self.program.graph.width(*logits), bias.map(|b| self.program.vector(b)));
                for (row, out) in rows().zip(out.chunks_exact_mut(width)) {
                    args.choose(self.read(*logits, row * from, from), bias, workspace, out);
                }
            }),
            Op::Mix { x, route } => self.finish(link, at, len, |out| {
                let used = self.program.graph.width(*route) / 2;
                for (row, out) in rows().zip(out.chunks_exact_mut(width)) {
                    let weights = self.read(*route, (2 * row + 1) * used, used);
                    let parts = self.read(*x, row * used * width, used * width).chunks_exact(width);
                    out.fill(0.0);
                    for (part, weight) in parts.zip(weights) {
                        out.iter_mut().zip(part).for_each(|(o, x)| *o += weight * x);
                    }
                }
            }),
            Op::Input { index } => self.finish(link, at, len, |out| {
                out.copy_from_slice(&self.step.inputs[*index][at..at + len]);
            }),
            Op::ImageRows { x, start, adds } => self.finish(link, at, len, |out| {
                let x = self.read(*x, at, len).chunks_exact(width);
                for ((token, out), x) in rows().zip(out.chunks_exact_mut(width)).zip(x) {
                    let (slice, position) = self.plan.tokens[token];
                    out.copy_from_slice(x);
                    let row = self.step.slices[slice].images.row(position).filter(|row| !row.is_empty());
                    if let Some(row) = row.map(|row| &row[*start..][..width]) {
                        out.iter_mut().zip(row).for_each(|(o, r)| *o = if *adds { *o + r } else { *r });
                    }
                }
            }),
            Op::GateRows { x, gate } => self.finish(link, at, len, |out| {
                for (row, out) in rows().zip(out.chunks_exact_mut(width)) {
                    let gate = sigmoid(self.read(*gate, row, 1)[0]);
                    out.iter_mut().zip(self.read(*x, row * width, width)).for_each(|(o, x)| *o = x * gate);
                }
            }),
            Op::Rotate { x, rotation, inverse } => self.finish(link, at, len, |out| {
                let (rotation, x) = (&self.program.graph.rotations[*rotation], self.read(*x, at, len));
                rotate_basis(rotation, *inverse, self.kernels.hadamard, (at, x), out);
            }),
            // linears are split by columns, and attention and recurrent ops by themselves; all experts are in
            // the memory of the host
            Op::Linear { .. }
            | Op::ExpertLinear { .. }
            | Op::Attend { .. }
            | Op::Conv { .. }
            | Op::Delta { .. }
            | Op::Scan { .. }
            | Op::HostExperts { .. } => self.refuse(link.node),
        }
    }

    fn attend<I: Iterator<Item = Range<usize>>>(
        &self,
        link: Link,
        workspace: &mut AttendWorkspace,
        share: impl Fn(usize) -> I,
    ) {
        let (Op::Attend { q, layer, args, sinks, .. }, Some(kv)) =
            (&self.program.graph.nodes[link.node].op, &self.program.kv)
        else {
            return self.refuse(link.node);
        };
        let sinks = sinks.map(|s| self.program.vector(s));
        let attend = Attend { kernels: self.kernels.attention, kv, layer: *layer, args, sinks };
        // with few groups of heads, each head is one item
        let (group, blocks) = (args.heads / args.kv_heads, &self.plan.blocks);
        let shared = blocks.len() * args.kv_heads >= self.workspaces.len();
        let heads = if shared { group } else { 1 };
        let each = args.heads / heads;
        for item in share(blocks.len() * each).flatten() {
            let (AttendTile { slice, rows, cut }, head) = (&blocks[item / each], item % each * heads);
            let block = Block {
                slice: &self.step.slices[*slice],
                position: self.plan.tokens[rows.start].1,
                tokens: rows.len(),
                heads: head..head + heads,
            };
            let query = |token: usize, head: usize| {
                self.read(*q, ((rows.start + token) * args.heads + head) * args.head_dim, args.head_dim)
            };
            let cut = cut.as_ref().map(|cut| (cut, &self.plan.parts));
            // SAFETY: see `work`; every run of a head is one item.
            if !unsafe { attend.attend(&block, cut, query, workspace) } {
                continue;
            }
            for (i, results) in workspace.results.chunks_exact(args.v_dim).enumerate() {
                let at = (rows.start + i / heads) * args.heads + head + i % heads;
                self.finish(link, at * args.v_dim, args.v_dim, |out| out.copy_from_slice(results));
            }
        }
    }

    /// Rows of a node's value in this step.
    pub(crate) fn rows(&self, node: usize) -> usize {
        let outputs_only = self.program.graph.nodes[node].value.outputs_only;
        if outputs_only { self.step.outputs.len() } else { self.step.tokens.len() }
    }

    /// Part of a value that an earlier task wrote.
    pub(crate) fn read(&self, v: Val, at: usize, len: usize) -> &[f32] {
        // SAFETY: see `work`.
        unsafe { self.program.value(v.index()).get(at..at + len) }
    }

    /// Fills part of a link's value, and quantizes it if the link says so.
    pub(crate) fn finish(&self, link: Link, at: usize, len: usize, fill: impl FnOnce(&mut [f32])) {
        // SAFETY: see `work`.
        fill(unsafe { self.program.value(link.node).get_mut(at..at + len) });
        if link.with_ints {
            self.quantize(link.node, at, len);
        }
    }

    fn quantize(&self, node: usize, at: usize, len: usize) {
        let (Some((ints, lanes)), Some(rounding)) = (self.program.ints(node), self.program.roundings[node])
        else {
            return self.refuse(node);
        };
        let width = self.program.graph.nodes[node].value.width;
        let tiles = self.kernels.tiles.filter(|_| self.program.is_many(self.rows(node)));
        let mut from = at;
        while from < at + len {
            let (row, col) = (from / width, from % width);
            let part = (width - col).min(at + len - from);
            // SAFETY: see `work`; linears of integer formats have rows that are multiples of 32.
            unsafe {
                let x = self.program.value(node).get(from..from + part);
                match tiles {
                    Some(Tiles { quantize: QuantizeTiles::Rows(quantize), .. }) => {
                        quantize(x, rounding, &lanes.row(rounding.low, width, row, col, part));
                    }
                    _ => (self.kernels.quantize)(x, rounding, ints.part(width, row, col, part)),
                }
            }
            from += part;
        }
    }

    fn quantize_tiles<I: Iterator<Item = Range<usize>>>(&self, node: usize, share: impl Fn(usize) -> I) {
        let (
            Some((_, to)),
            Some(Tiles { lanes, quantize: QuantizeTiles::Whole(quantize), .. }),
            Some(rounding),
        ) = (self.program.ints(node), self.kernels.tiles, self.program.roundings[node])
        else {
            return self.refuse(node);
        };
        let (rows, width) = (self.rows(node), self.program.graph.nodes[node].value.width);
        let blocks = width / INT_BLOCK;
        for block in share(rows.div_ceil(lanes) * blocks).flatten() {
            let (first, start) = (block / blocks * lanes, block % blocks * INT_BLOCK);
            // SAFETY: see `work`.
            unsafe {
                let x = self.program.value(node).get(first * width..rows.min(first + lanes) * width);
                let part = to.part(block..block + 1, lanes);
                quantize(x, width, rounding, start, part);
            }
        }
    }

    fn rotations(&self, table: usize, share: impl Iterator<Item = Range<usize>>) {
        let freqs = &self.program.graph.ropes[table];
        let n = freqs.freqs.len() * 2;
        for row in share.flatten() {
            // SAFETY: see `work`.
            let out = unsafe { self.program.rotations[table].get_mut(row * n..(row + 1) * n) };
            let (slice, position) = self.plan.tokens[row];
            rotation(freqs, self.step.slices[slice].images.turns(position), out);
        }
    }

    /// Stores heads of keys, `len` columns from index `at` on, and the same heads of values.
    fn store_kv(&self, link: Link, at: usize, len: usize, workspace: &mut Vec<u16>) {
        let (Op::Attend { kv: Some(KeysAndValues { k, v }), layer, args, .. }, Some(kv)) =
            (&self.program.graph.nodes[link.node].op, &self.program.kv)
        else {
            return self.refuse(link.node);
        };
        let attend = Attend { kernels: self.kernels.attention, kv, layer: *layer, args, sinks: None };
        for item in at / args.head_dim..(at + len) / args.head_dim {
            let (row, head) = (item / args.kv_heads, item % args.kv_heads);
            let (slice, position) = self.plan.tokens[row];
            let key = self.read(*k, item * args.head_dim, args.head_dim);
            let value = self.read(*v, item * args.v_dim, args.v_dim);
            // SAFETY: see `work`; positions of a step are all different.
            unsafe { attend.store(&self.step.slices[slice], position, head, key, value, workspace) }
        }
    }
}

/// A thread's workspace, which is kept from step to step.
#[derive(Default)]
pub(crate) struct Scratch {
    attend: AttendWorkspace,
    pub(crate) rows: RowScratch,
    pub(crate) unpacked: Workspace,
    pub(crate) parts: PartsByExpert,
    pub(crate) gathered: GatheredRows,
    recurrent: RecurrentScratch,
}

/// The part of it for ops on rows.
#[derive(Default)]
pub(crate) struct RowScratch {
    halves: Vec<u16>,
    routing: RoutingWorkspace,
}
