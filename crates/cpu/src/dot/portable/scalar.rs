//! The general kernels in plain Rust, which every other kernel must equal.

use half::{bf16, f16};
use tern_quant::{self as quant, Codec, Codes, INT_BLOCK, MAX_BLOCK, Quant, Unpacked};

use crate::activations::quantized_rows::{QuantizedRows, SUM_BLOCK};
use crate::dot::{IntegerKernel, KernelList, LinearKernel, Rows, Target, Workspace, kernel_of};

/// Floats, whose widths differ; all codes run [`dot_codes`].
static KERNELS: &KernelList = &[
    (&quant::F32, LinearKernel::F32(|rows, x, _, to| float_rows(rows, x, to, f32::from_le_bytes))),
    (
        &quant::F16,
        LinearKernel::F32(|rows, x, _, to| float_rows(rows, x, to, |b| f16::from_le_bytes(b).to_f32())),
    ),
    (
        &quant::BF16,
        LinearKernel::F32(|rows, x, _, to| float_rows(rows, x, to, |b| bf16::from_le_bytes(b).to_f32())),
    ),
];

pub(crate) fn kernel(quant: &'static Quant) -> Option<LinearKernel> {
    kernel_of(KERNELS, LinearKernel::Integer(IntegerKernel { few: dot_codes, many: None }), quant)
}

/// Floats of any format, read by the format's own function.
pub(crate) const GENERAL_FLOATS: LinearKernel = LinearKernel::F32(|rows, x, _, to| {
    let Codec::Float(read) = rows.quant.codec else { unreachable!("{} is no float", rows.quant) };
    let bytes = rows.quant.block_bytes();
    for (r, row) in rows.each().enumerate() {
        for (t, x) in x.chunks_exact(row.len() / bytes).enumerate() {
            let y: f32 = row.chunks_exact(bytes).zip(x).map(|(w, x)| read(w) * x).sum();
            // SAFETY: no other thread accesses these rows, by the contract.
            unsafe { to.skip(r).write(t, [y].iter()) };
        }
    }
});

/// Eight running sums, so that the compiler can vectorise.
fn float_rows<const BYTES: usize>(
    rows: &Rows<'_>,
    x: &[f32],
    to: &Target<'_>,
    value: impl Fn([u8; BYTES]) -> f32,
) {
    for (r, row) in rows.each().enumerate() {
        let (w8, w_rest) = row.as_chunks::<BYTES>().0.as_chunks::<8>();
        for (t, x) in x.chunks_exact(row.len() / BYTES).enumerate() {
            let mut sums = [0.0f32; 8];
            let (x8, x_rest) = x.as_chunks::<8>();
            for (w, x) in w8.iter().zip(x8) {
                for i in 0..8 {
                    sums[i] += value(w[i]) * x[i];
                }
            }
            let rest: f32 = w_rest.iter().zip(x_rest).map(|(w, x)| value(*w) * x).sum();
            let y = sums.iter().sum::<f32>() + rest;
            // SAFETY: no other thread accesses these rows, by the contract.
            unsafe { to.skip(r).write(t, [y].iter()) };
        }
    }
}

/// One unpacked block, with a scale and an offset per 16 codes for any size of group.
pub(crate) struct Block {
    pub(crate) codes: [i8; MAX_BLOCK],
    pub(crate) scales: [f32; MAX_BLOCK / SUM_BLOCK],
    pub(crate) offsets: [f32; MAX_BLOCK / SUM_BLOCK],
}

impl Block {
    pub(crate) fn empty() -> Block {
        Block { codes: [0; MAX_BLOCK], scales: [0.0; 16], offsets: [0.0; 16] }
    }

    #[inline(always)]
    pub(crate) fn fill(&mut self, quant: &Quant, block: &[u8], tail: &[u8]) {
        let Some(&Codes { group, unpack, .. }) = quant.codes() else { unreachable!("{quant} has no codes") };
        let (n, repeat) = (quant.block_len, group / SUM_BLOCK);
        let groups = n / group;
        let (codes, scales, offsets) =
            (&mut self.codes[..n], &mut self.scales[..groups], &mut self.offsets[..groups]);
        unpack(block, tail, Unpacked { codes, scales, offsets });
        if repeat > 1 {
            for i in (0..n / SUM_BLOCK).rev() {
                self.scales[i] = self.scales[i / repeat];
                self.offsets[i] = self.offsets[i / repeat];
            }
        }
    }
}

fn dot_codes(rows: &Rows<'_>, x: &QuantizedRows<'_>, _workspace: &mut Workspace, out: &mut [f32]) {
    let (len, bytes) = (rows.quant.block_len, rows.quant.block_bytes());
    let tokens = out.len() / rows.count;
    let mut block = Block::empty();
    out.fill(0.0);
    for (row, out) in rows.each().zip(out.chunks_exact_mut(tokens)) {
        for (b, raw) in row.chunks_exact(bytes).enumerate() {
            block.fill(rows.quant, raw, rows.tail);
            for (t, y) in out.iter_mut().enumerate() {
                let at = t * x.cols + b * len;
                for g in 0..len / SUM_BLOCK {
                    let from = at + g * SUM_BLOCK;
                    let planes = x.high[from..].iter().zip(&x.low[from..]);
                    let codes = block.codes[g * SUM_BLOCK..][..SUM_BLOCK].iter().zip(planes);
                    let whole = |(&w, (&h, &l)): (&i8, (&i8, &i8))| {
                        i32::from(w) * (256 * i32::from(h) + i32::from(l))
                    };
                    let sum: i32 = codes.map(whole).sum();
                    let scale = block.scales[g] * x.scales[from / INT_BLOCK];
                    *y += sum as f32 * scale + block.offsets[g] * x.sums16[from / SUM_BLOCK];
                }
            }
        }
    }
}

pub(crate) fn store_f16(x: &[f32], out: &mut [u16]) {
    out.iter_mut().zip(x).for_each(|(o, x)| *o = f16::from_f32(*x).to_bits());
}
