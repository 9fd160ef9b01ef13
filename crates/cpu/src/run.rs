//! One thread's share of one step.

use std::ops::Range;

use tern_graph::{NormKind, Op, Slice, Step, Val, WeightId};
use tern_quant::INT_BLOCK;

use crate::attend::Attend;
use crate::dot::{LinearKernel, ROWS, ROWS_A_CALL, Rows};
use crate::kernels::Kernels;
use crate::program::{Compiled, Task, Work};
use crate::rowwise::{Norm, rotate, rotation};
use crate::threads::Worker;

/// Columns of one row that one thread takes at a time in elementwise ops; a multiple of 32.
const PIECE: usize = 1024;
/// Bytes of weights that one thread takes at a time.
const LINEAR_BYTES: usize = 64 * 1024;
/// Tokens that share a pass over a thread's rows of weights.
const LINEAR_TOKENS: usize = 32;

/// A step in flight: everything threads read.
pub(crate) struct Run<'a> {
    pub(crate) program: &'a Compiled,
    pub(crate) kernels: &'a Kernels,
    pub(crate) step: &'a Step,
    /// Slice and position of every token.
    pub(crate) places: Vec<(&'a Slice, usize)>,
    pub(crate) threads: usize,
}

impl Run<'_> {
    /// Does this thread's share of all tasks.
    ///
    /// Every `unsafe` below rests on one argument: tasks hand out disjoint parts of what they write, and the
    /// compiled program has a barrier wherever a task touches what another one wrote or still reads.
    pub(crate) fn work(&self, worker: &Worker<'_>) {
        let mut scores = Vec::new();
        for (i, task) in self.program.tasks.iter().enumerate() {
            if task.barrier {
                worker.barrier();
            }
            let share = |items, grain| worker.share(&self.program.taken[i], items, grain);
            match task.work {
                Work::Rotations(table) => self.rotations(table, share(self.places.len(), 1)),
                Work::StoreKv => self.store_kv(task, share(self.places.len(), 1)),
                Work::Quantize => {
                    let width = self.program.graph.nodes[task.node].value.width;
                    share(self.rows(task.node), 1)
                        .flatten()
                        .for_each(|row| self.quantize(task.node, row * width, width));
                }
                Work::Compute => self.compute(task, &mut scores, share),
            }
        }
    }

    fn compute<I: Iterator<Item = Range<usize>>>(
        &self,
        task: &Task,
        scores: &mut Vec<f32>,
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
                // whole rows where blocks of integers may reach over groups
                let unit = if task.with_ints && !group.is_multiple_of(INT_BLOCK) { width } else { group };
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
                let even = w.rows.div_ceil(self.threads * 4).next_multiple_of(ROWS);
                let grain = (LINEAR_BYTES / w.row_bytes().max(1)).max(ROWS).next_multiple_of(ROWS).min(even);
                for range in share(w.rows, grain) {
                    self.linear(task.node, (*x, *weight), (*scale, *bias), range);
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
                for item in share(rows * args.heads, 1).flatten() {
                    let (row, head) = (item / args.heads, item % args.heads);
                    let (slice, position) = self.places[row];
                    let query = self.read(*q, item * args.head_dim, args.head_dim);
                    self.finish(task, item * args.v_dim, args.v_dim, |out| {
                        // SAFETY: see `work`.
                        unsafe { attend.attend(slice, position, (head, query), scores, out) }
                    });
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
        let Some(ints) = self.program.ints(node) else { return };
        // SAFETY: see `work`; linears of integer formats have rows that are multiples of 32.
        unsafe { (self.kernels.quantize)(self.program.value(node).get(at..at + len), ints.part(at, len)) }
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
            rotation(freqs, self.places[row].1, out);
        }
    }

    fn store_kv(&self, task: &Task, share: impl Iterator<Item = Range<usize>>) {
        let Op::Attend { k, v, layer, args, .. } = &self.program.graph.nodes[task.node].op else { return };
        let Some(kv) = &self.program.kv else { return };
        let attend = Attend { kernels: self.kernels, kv, layer: *layer, args };
        for row in share.flatten() {
            let (slice, position) = self.places[row];
            for head in 0..args.kv_heads {
                let item = row * args.kv_heads + head;
                let key = self.read(*k, item * args.head_dim, args.head_dim);
                let value = self.read(*v, item * args.v_dim, args.v_dim);
                // SAFETY: see `work`; positions of a step are all different.
                unsafe { attend.store(slice, position, head, key, value) }
            }
        }
    }

    /// Some rows of weights against all rows of `x`.
    fn linear(
        &self,
        node: usize,
        (x, weight): (Val, WeightId),
        (scale, bias): (Option<WeightId>, Option<WeightId>),
        range: Range<usize>,
    ) {
        let program = self.program;
        let (w, rows) = (program.weight(weight), self.rows(node));
        let scale = scale.map_or(1.0, |s| program.vector(s)[0]);
        let bias = bias.map(|b| program.vector(b));
        let (out, tail) = (program.value(node), w.tail());
        let mut room = [0.0f32; ROWS_A_CALL * LINEAR_TOKENS];
        for first in (0..rows).step_by(LINEAR_TOKENS) {
            let tokens = LINEAR_TOKENS.min(rows - first);
            for r in range.clone().step_by(ROWS_A_CALL) {
                let count = ROWS_A_CALL.min(range.end - r);
                let tile = Rows { quant: w.quant, count, blocks: w.rows(r..r + count), tail };
                let results = &mut room[..count * tokens]; // [count, tokens]
                match (program.kernels[node], program.ints(x.index())) {
                    (Some(LinearKernel::Ints(dot)), Some(ints)) => {
                        // SAFETY: see `work`.
                        let x = unsafe { ints.view(rows, w.cols) };
                        dot(&tile, &x.skip(first), results);
                    }
                    (Some(LinearKernel::F32(dot)), _) => {
                        dot(&tile, self.read(x, first * w.cols, tokens * w.cols), results);
                    }
                    _ => return,
                }
                for (row, results) in (r..).zip(results.chunks_exact(tokens)) {
                    let shift = bias.map_or(0.0, |b| b[row]);
                    for (t, y) in results.iter().enumerate() {
                        // SAFETY: see `work`; no two threads share a row of weights.
                        unsafe { out.set((first + t) * w.rows + row, y * scale + shift) };
                    }
                }
            }
        }
    }
}
