//! One thread's share of one step.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use tern_graph::{NormKind, Op, Step, Val, WeightId};
use tern_quant::INT_BLOCK;

use crate::attend::{Attend, AttendRoom, Block};
use crate::dot::{IntsKernel, LinearKernel, PANEL, PANELS, PackedRoom, ROWS, Room, Rows, Target};
use crate::kernels::{Kernels, QuantizeTiles, Tiles};
use crate::lanes::Line;
use crate::places::Places;
use crate::program::{Compiled, MAX_SPAN, Task, Work};
use crate::rowwise::{Norm, rotate, rotation};
use crate::threads::Worker;

/// Columns of one row that one thread takes at a time in elementwise ops.
const PIECE: usize = 8 * MAX_SPAN;
/// Bytes of weights that one thread takes at a time.
const LINEAR_BYTES: usize = 64 * 1024;
/// Tokens that share a pass over a thread's rows of weights.
const LINEAR_TOKENS: usize = 32;
/// Tokens whose keys and values one thread stores at a time: tokens of a page share lines of memory.
const STORE_TOKENS: usize = 32;

/// A step in flight: everything threads read.
pub(crate) struct Run<'a> {
    pub(crate) program: &'a Compiled,
    pub(crate) kernels: &'a Kernels,
    pub(crate) step: &'a Step,
    pub(crate) places: &'a Places,
    /// What each thread works in.
    pub(crate) rooms: &'a [Mutex<Scratch>],
}

impl Run<'_> {
    /// Does this thread's share of all tasks.
    ///
    /// Every `unsafe` below rests on one argument: tasks hand out disjoint parts of what they write, and the
    /// compiled program has a barrier wherever a task touches what another one wrote or still reads.
    pub(crate) fn work(&self, worker: &Worker<'_>) {
        let Some(room) = self.rooms.get(worker.index) else { return };
        let mut room = room.lock().unwrap_or_else(PoisonError::into_inner);
        let room = &mut *room;
        let tasks = self.program.tasks(self.step.tokens.len(), self.step.outputs.len());
        for (i, task) in tasks.iter().enumerate() {
            if task.barrier {
                worker.barrier();
            }
            let share = |items, grain| worker.share(&self.program.taken[i], items, grain);
            match task.work {
                Work::Rotations(table) => self.rotations(table, share(self.places.tokens.len(), 1)),
                Work::StoreKv => {
                    self.store_kv(task, &mut room.halves, share(self.places.tokens.len(), STORE_TOKENS));
                }
                Work::Quantize => {
                    let width = self.program.graph.nodes[task.node].value.width;
                    share(self.rows(task.node), 1)
                        .flatten()
                        .for_each(|row| self.quantize(task.node, row * width, width));
                }
                Work::QuantizeTiles => self.quantize_tiles(task.node, share),
                Work::Compute => self.compute(task, room, share),
            }
        }
    }

    fn compute<I: Iterator<Item = Range<usize>>>(
        &self,
        task: &Task,
        room: &mut Scratch,
        share: impl Fn(usize, usize) -> I,
    ) {
        let (node, rows) = (&self.program.graph.nodes[task.node], self.rows(task.node));
        let width = node.value.width;
        match &node.op {
            Op::Embed { table, scale } => {
                for row in share(rows, 1).flatten() {
                    self.finish(task, row * width, width, |out| {
                        self.program.weight(*table).decode_row(self.step.tokens[row] as usize, out);
                        out.iter_mut().for_each(|x| *x *= scale);
                    });
                }
            }
            Op::Norm { x, weight, bias, eps, kind } => {
                let norm = self.norm(*weight, *bias, *eps, *kind);
                let group = norm.weight.len();
                // whole rows where spans of integers may reach over groups
                let span = self.program.roundings[task.node].map_or(1, |r| r.span);
                let unit = if task.with_ints && !group.is_multiple_of(span) { width } else { group };
                for item in share(rows * width / unit, 1).flatten() {
                    let from = self.read(*x, item * unit, unit);
                    self.finish(task, item * unit, unit, |out| {
                        for (out, x) in out.chunks_exact_mut(group).zip(from.chunks_exact(group)) {
                            norm.apply(self.kernels, x, out);
                        }
                    });
                }
            }
            Op::Linear { x, weight, scale, bias } => {
                let w = self.program.weight(*weight);
                let many = self.program.is_many(rows);
                let packed = matches!(self.program.kernels[task.node], Some(LinearKernel::Packed(_)));
                let unit = match (packed, many) {
                    (true, _) => 2 * PANEL,
                    (false, false) => ROWS,
                    _ => PANEL,
                };
                let even = w.rows.div_ceil(self.rooms.len() * 4).next_multiple_of(unit);
                // panels are best taken several at a time, where there are enough of them
                let least = if packed { PANELS * PANEL } else { unit };
                let grain =
                    (LINEAR_BYTES / w.row_bytes().max(1)).next_multiple_of(least).max(least).min(even);
                room.unpacked.packed.has_tables = false;
                for range in share(w.rows, grain) {
                    self.linear(task.node, (*x, *weight), (*scale, *bias), &mut room.unpacked, range);
                }
            }
            Op::Rope { x, head_dim, style, table } => {
                let pairs = self.program.graph.ropes[*table].freqs.len();
                for item in share(rows * width / head_dim, 4).flatten() {
                    let row = item * head_dim / width;
                    // SAFETY: see `work`.
                    let turn =
                        unsafe { self.program.rotations[*table].get(row * pairs * 2..(row + 1) * pairs * 2) };
                    let head = self.read(*x, item * head_dim, *head_dim);
                    self.finish(task, item * head_dim, *head_dim, |out| rotate(head, *style, turn, out));
                }
            }
            Op::Attend { q, layer, args, .. } => {
                let Some(kv) = &self.program.kv else { return };
                let attend = Attend { kernels: self.kernels, kv, layer: *layer, args };
                // where groups are few, each head goes alone
                let group = args.heads / args.kv_heads;
                let shared = self.places.blocks.len() * args.kv_heads >= self.rooms.len();
                let heads = if shared { group } else { 1 };
                let each = args.heads / heads;
                for item in share(self.places.blocks.len() * each, 1).flatten() {
                    let (slice, rows) = &self.places.blocks[item / each];
                    let head = item % each * heads;
                    let block = Block {
                        slice: &self.step.slices[*slice],
                        position: self.places.tokens[rows.start].1,
                        tokens: rows.len(),
                        heads: head..head + heads,
                    };
                    let query = |token: usize, head: usize| {
                        self.read(
                            *q,
                            ((rows.start + token) * args.heads + head) * args.head_dim,
                            args.head_dim,
                        )
                    };
                    // SAFETY: see `work`.
                    unsafe { attend.attend(&block, query, &mut room.attend) };
                    for (i, results) in room.attend.results.chunks_exact(args.v_dim).enumerate() {
                        let at = (rows.start + i / heads) * args.heads + head + i % heads;
                        self.finish(task, at * args.v_dim, args.v_dim, |out| out.copy_from_slice(results));
                    }
                }
            }
            Op::Gated { gate, up, act } => self.pieces(task, share, |at, out| {
                let (g, u) = (self.read(*gate, at, out.len()), self.read(*up, at, out.len()));
                (self.kernels.gated)(*act, g, u, out);
            }),
            Op::Add { a, b } => self.pieces(task, share, |at, out| {
                let (a, b) = (self.read(*a, at, out.len()), self.read(*b, at, out.len()));
                out.iter_mut().zip(a.iter().zip(b)).for_each(|(o, (a, b))| *o = a + b);
            }),
            Op::Scale { x, by } => self.pieces(task, share, |at, out| {
                let x = self.read(*x, at, out.len());
                out.iter_mut().zip(x).for_each(|(o, x)| *o = x * by);
            }),
            Op::SoftCap { x, cap } => self.pieces(task, share, |at, out| {
                let x = self.read(*x, at, out.len());
                out.iter_mut().zip(x).for_each(|(o, x)| *o = cap * (x / cap).tanh());
            }),
            Op::Columns { x, start, len } => {
                let from = self.program.graph.width(*x);
                for row in share(rows, 1).flatten() {
                    let x = self.read(*x, row * from + start, *len);
                    self.finish(task, row * len, *len, |out| out.copy_from_slice(x));
                }
            }
            Op::Outputs { x } => {
                for row in share(rows, 1).flatten() {
                    let x = self.read(*x, self.step.outputs[row].row * width, width);
                    self.finish(task, row * width, width, |out| out.copy_from_slice(x));
                }
            }
        }
    }

    /// Rows of a node's value in this step.
    pub(crate) fn rows(&self, node: usize) -> usize {
        let outputs_only = self.program.graph.nodes[node].value.outputs_only;
        if outputs_only { self.step.outputs.len() } else { self.step.tokens.len() }
    }

    /// Part of a value that an earlier task made.
    fn read(&self, v: Val, at: usize, len: usize) -> &[f32] {
        // SAFETY: see `work`.
        unsafe { self.program.value(v.index()).get(at..at + len) }
    }

    /// Fills part of the task's value, and quantises it where wanted.
    fn finish(&self, task: &Task, at: usize, len: usize, fill: impl FnOnce(&mut [f32])) {
        // SAFETY: see `work`.
        fill(unsafe { self.program.value(task.node).get_mut(at..at + len) });
        if task.with_ints {
            self.quantize(task.node, at, len);
        }
    }

    fn quantize(&self, node: usize, at: usize, len: usize) {
        let (Some((ints, lanes)), Some(rounding)) = (self.program.ints(node), self.program.roundings[node])
        else {
            return;
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
                        quantize(x, rounding, &lanes.row((width, rounding.low), row, col, part));
                    }
                    _ => (self.kernels.quantize)(x, rounding, ints.part(width, row, col, part)),
                }
            }
            from += part;
        }
    }

    fn quantize_tiles<I: Iterator<Item = Range<usize>>>(
        &self,
        node: usize,
        share: impl Fn(usize, usize) -> I,
    ) {
        let (Some((_, to)), Some(tiles)) = (self.program.ints(node), self.kernels.tiles) else { return };
        let (QuantizeTiles::Whole(quantize), Some(rounding)) = (tiles.quantize, self.program.roundings[node])
        else {
            return;
        };
        let (rows, width) = (self.rows(node), self.program.graph.nodes[node].value.width);
        let blocks = width / INT_BLOCK;
        for block in share(rows.div_ceil(tiles.lanes) * blocks, 1).flatten() {
            let (first, start) = (block / blocks * tiles.lanes, block % blocks * INT_BLOCK);
            // SAFETY: see `work`.
            unsafe {
                let x = self.program.value(node).get(first * width..rows.min(first + tiles.lanes) * width);
                let part = to.part(block..block + 1, tiles.lanes);
                quantize(x, (width, rounding), start, part);
            }
        }
    }

    /// Elementwise work on runs of columns of all rows.
    fn pieces<I: Iterator<Item = Range<usize>>>(
        &self,
        task: &Task,
        share: impl Fn(usize, usize) -> I,
        fill: impl Fn(usize, &mut [f32]),
    ) {
        let total = self.rows(task.node) * self.program.graph.nodes[task.node].value.width;
        for range in share(total, PIECE) {
            self.finish(task, range.start, range.len(), |out| fill(range.start, out));
        }
    }

    fn norm(&self, weight: WeightId, bias: Option<WeightId>, eps: f32, kind: NormKind) -> Norm<'_> {
        let bias = bias.map(|b| self.program.vector(b));
        Norm { weight: self.program.vector(weight), bias, eps, kind }
    }

    fn rotations(&self, table: usize, share: impl Iterator<Item = Range<usize>>) {
        let freqs = &self.program.graph.ropes[table];
        let n = freqs.freqs.len() * 2;
        for row in share.flatten() {
            // SAFETY: see `work`.
            let out = unsafe { self.program.rotations[table].get_mut(row * n..(row + 1) * n) };
            rotation(freqs, self.places.tokens[row].1, out);
        }
    }

    fn store_kv(&self, task: &Task, room: &mut Vec<u16>, share: impl Iterator<Item = Range<usize>>) {
        let Op::Attend { k, v, layer, args, .. } = &self.program.graph.nodes[task.node].op else { return };
        let Some(kv) = &self.program.kv else { return };
        let attend = Attend { kernels: self.kernels, kv, layer: *layer, args };
        for row in share.flatten() {
            let (slice, position) = self.places.tokens[row];
            let slice = &self.step.slices[slice];
            for head in 0..args.kv_heads {
                let item = row * args.kv_heads + head;
                let key = self.read(*k, item * args.head_dim, args.head_dim);
                let value = self.read(*v, item * args.v_dim, args.v_dim);
                // SAFETY: see `work`; positions of a step are all different.
                unsafe { attend.store(slice, position, head, (key, value), room) }
            }
        }
    }

    /// Some rows of weights against all rows of `x`.
    fn linear(
        &self,
        node: usize,
        (x, weight): (Val, WeightId),
        (scale, bias): (Option<WeightId>, Option<WeightId>),
        room: &mut Room,
        range: Range<usize>,
    ) {
        let program = self.program;
        let (w, rows) = (program.weight(weight), self.rows(node));
        let scale = scale.map_or(1.0, |s| program.vector(s)[0]);
        let bias = bias.map(|b| program.vector(b));
        let (out, tail) = (program.value(node), w.tail());
        let panel = |r: usize| {
            let count = PANEL.min(range.end - r);
            Rows { quant: w.quant, count, blocks: w.rows(r..r + count), tail }
        };
        let (kernel, ints) = (program.kernels[node], program.ints(x.index()));
        let low = program.roundings[x.index()].map_or(8, |r| r.low);
        let to = |r: usize| Target { out, stride: w.rows, first: r, scale, bias: bias.map(|b| &b[r..]) };
        if let (Some(LinearKernel::Ints(IntsKernel { many: Some(dot), .. })), Some((_, tiles)), true) =
            (kernel, ints, program.is_many(rows))
        {
            // SAFETY: see `work`; no two threads share a row of weights.
            let x = unsafe { tiles.view(rows, w.cols, low) };
            for r in range.clone().step_by(PANEL) {
                dot(&panel(r), &x, room, &to(r));
            }
            return;
        }
        if let (Some(LinearKernel::Packed(kernel)), Some((ints, tiles))) = (kernel, ints) {
            // SAFETY: see `work`; no two threads share a row of weights.
            let dot = |panels: &[Line], rows_of: usize, room: &mut PackedRoom, to: &Target<'_>| unsafe {
                match kernel.many {
                    Some(many) if program.is_many(rows) => {
                        many(panels, rows_of, &tiles.view(rows, w.cols, low), room, to);
                    }
                    _ => (kernel.few)(panels, rows_of, &ints.view(rows, w.cols, low), room, to),
                }
            };
            for r in range.clone().step_by(PANELS * PANEL) {
                let end = range.end.min(r + PANELS * PANEL);
                let panels = r / PANEL..end.div_ceil(PANEL);
                if let Some(packed) = program.packed(weight) {
                    // SAFETY: packed at load.
                    let panels = unsafe { packed.panels(panels) };
                    dot(panels, end - r, &mut room.packed, &to(r));
                    continue;
                }
                let each = (kernel.lines)(w.cols);
                let mut made = std::mem::take(&mut room.packed.panels);
                made.clear();
                made.resize(panels.len() * each, Line::default());
                for (i, made) in made.chunks_exact_mut(each).enumerate() {
                    (kernel.pack)(&panel(r + i * PANEL), w.cols, made);
                }
                dot(&made, end - r, &mut room.packed, &to(r));
                room.packed.panels = made;
            }
            return;
        }
        let mut results = [0.0f32; PANEL * LINEAR_TOKENS];
        for first in (0..rows).step_by(LINEAR_TOKENS) {
            let tokens = LINEAR_TOKENS.min(rows - first);
            for r in range.clone().step_by(PANEL) {
                let tile = panel(r);
                let results = &mut results[..tile.count * tokens]; // [count, tokens]
                match (kernel, ints) {
                    (Some(LinearKernel::Ints(kernel)), Some((ints, _))) => {
                        // SAFETY: see `work`.
                        let x = unsafe { ints.view(rows, w.cols, low) };
                        (kernel.few)(&tile, &x.skip(first), room, results);
                    }
                    (Some(LinearKernel::F32(dot)), _) => {
                        dot(&tile, self.read(x, first * w.cols, tokens * w.cols), results);
                    }
                    _ => return,
                }
                for t in 0..tokens {
                    // SAFETY: see `work`; no two threads share a row of weights.
                    unsafe { to(r).write(first + t, results[t..].iter().step_by(tokens)) };
                }
            }
        }
    }
}

/// What a thread works in, from step to step.
#[derive(Default)]
pub(crate) struct Scratch {
    attend: AttendRoom,
    halves: Vec<u16>,
    unpacked: Room,
}
