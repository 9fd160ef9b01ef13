//! Integer products on ARM in NEON, which every aarch64 has: a few rows of weights times a few tokens.
//!
//! A format has a [`Layout`]: how its codes are loaded into registers, and the scales of 256 weights. The
//! loop goes through chunks of 256 columns: scales of weights and activations are multiplied once per chunk,
//! offsets are added once per chunk, and each 32 (or 16) products are multiplied by one factor. Equals
//! `scalar::dot_codes` to rounding.
//!
//! # Safety
//! Every `unsafe` function of this module requires as many rows, tokens and groups as it is
//! given. Every aarch64 has NEON.

mod codebook;
pub(crate) mod floats;
mod layout;
mod layouts;
mod low_bits;

use std::arch::aarch64::*;

use tern_quant::{self as quant, INT_BLOCK, Quant};

use self::codebook::LookedUp;
use self::layout::Layout;
use crate::activations::quantized_rows::{QuantizedRows, SUM_BLOCK};
use crate::dot::portable::floats::{Bf16, F16, F32};
use crate::dot::portable::scalar::Block;
use crate::dot::{IntegerKernel, KernelList, LinearKernel, ROWS, Rows, Workspace, kernel_of};

/// Tokens that share a pass over some rows.
const TOKENS: usize = 4;
/// Groups of 32 columns in a chunk.
const GROUPS: usize = 8;

const fn ints(few: fn(&Rows<'_>, &QuantizedRows<'_>, &mut Workspace, &mut [f32])) -> LinearKernel {
    LinearKernel::Integer(IntegerKernel { few, many: None })
}

pub(crate) static KERNELS: &KernelList = &[
    (&quant::F32, floats::kernel::<F32>()),
    (&quant::F16, floats::kernel::<F16>()),
    (&quant::BF16, floats::kernel::<Bf16>()),
    (&quant::Q1_0, ints(dot_rows::<low_bits::Q1_0>)),
    (&quant::Q2_0, ints(dot_rows::<low_bits::Q2_0>)),
    (&quant::PQ2_0, ints(dot_rows::<low_bits::Pq2_0>)),
    (&quant::Q2_0_G128, ints(dot_rows::<low_bits::Pq2_0>)),
    (&quant::TQ2_0_G128, ints(dot_rows::<low_bits::Tq2_0G128>)),
    (&quant::TQ2_0, ints(dot_rows::<low_bits::Tq2_0>)),
    (&quant::TQ1_0, ints(dot_rows::<low_bits::Tq1_0>)),
    (&quant::PTQ1_0, ints(dot_rows::<low_bits::Ptq1_0>)),
    (&quant::I2_S, ints(dot_rows::<low_bits::I2S>)),
    (&quant::Q4_0, ints(dot_rows::<layouts::Q4_0>)),
    (&quant::Q4_1, ints(dot_rows::<layouts::Q4_1>)),
    (&quant::INT4_32, ints(dot_rows::<layouts::Int4G32>)),
    (&quant::INT4_128, ints(dot_rows::<layouts::Int4G128>)),
    (&quant::Q5_0, ints(dot_rows::<layouts::Q5_0>)),
    (&quant::Q5_1, ints(dot_rows::<layouts::Q5_1>)),
    (&quant::Q8_0, ints(dot_rows::<layouts::Q8_0>)),
    (&quant::Q2_K, ints(dot_rows::<layouts::Q2K>)),
    (&quant::Q3_K, ints(dot_rows::<layouts::Q3K>)),
    (&quant::Q4_K, ints(dot_rows::<layouts::Q4K>)),
    (&quant::Q5_K, ints(dot_rows::<layouts::Q5K>)),
    (&quant::Q6_K, ints(dot_rows::<layouts::Q6K>)),
    (&quant::IQ1_S, ints(dot_rows::<LookedUp<quant::Iq1S>>)),
    (&quant::IQ1_M, ints(dot_rows::<LookedUp<quant::Iq1M>>)),
    (&quant::IQ2_XXS, ints(dot_rows::<LookedUp<quant::Iq2Xxs>>)),
    (&quant::IQ2_XS, ints(dot_rows::<LookedUp<quant::Iq2Xs>>)),
    (&quant::IQ2_S, ints(dot_rows::<LookedUp<quant::Iq2S>>)),
    (&quant::IQ3_XXS, ints(dot_rows::<LookedUp<quant::Iq3Xxs>>)),
    (&quant::IQ3_S, ints(dot_rows::<LookedUp<quant::Iq3S>>)),
    (&quant::IQ4_NL, ints(dot_rows::<layouts::Iq4Nl>)),
    (&quant::IQ4_XS, ints(dot_rows::<layouts::Iq4Xs>)),
    (&quant::MXFP4, ints(dot_rows::<layouts::Mxfp4>)),
    (&quant::NVFP4, ints(dot_rows::<layouts::Nvfp4>)),
];

pub(crate) fn kernel(quant: &'static Quant) -> Option<LinearKernel> {
    kernel_of(KERNELS, ints(general), quant)
}

/// Adds 16 products to eight sums of two.
#[inline(always)]
fn add_products(sums: int16x8_t, codes: int8x16_t, x: int8x16_t) -> int16x8_t {
    // SAFETY: every aarch64 has NEON.
    unsafe { vmlal_high_s8(vmlal_s8(sums, vget_low_s8(codes), vget_low_s8(x)), codes, x) }
}

/// Sums of products with the high and the low plane, together.
#[inline(always)]
fn join(high: int16x8_t, low: int16x8_t) -> int32x4_t {
    // SAFETY: every aarch64 has NEON.
    unsafe { vpadalq_s16(vshlq_n_s32::<8>(vpaddlq_s16(high)), low) }
}

/// Four sums of the products of 16 codes with both planes. Two products stay below 2^15: 2 * 128 * 127.
#[inline(always)]
fn products16(codes: int8x16_t, high: int8x16_t, low: int8x16_t) -> int32x4_t {
    // SAFETY: every aarch64 has NEON.
    let zero = unsafe { vdupq_n_s16(0) };
    join(add_products(zero, codes, high), add_products(zero, codes, low))
}

/// Four sums of the products of 32 codes with both planes.
#[inline(always)]
fn products32(codes: [int8x16_t; 2], high: [int8x16_t; 2], low: [int8x16_t; 2], wide: bool) -> int32x4_t {
    // SAFETY: every aarch64 has NEON.
    unsafe {
        if wide {
            return vaddq_s32(products16(codes[0], high[0], low[0]), products16(codes[1], high[1], low[1]));
        }
        let four =
            |x: [int8x16_t; 2]| add_products(add_products(vdupq_n_s16(0), codes[0], x[0]), codes[1], x[1]);
        join(four(high), four(low))
    }
}

/// 32 bytes from `at` on.
#[inline(always)]
unsafe fn load32(plane: &[i8], at: usize) -> [int8x16_t; 2] {
    // SAFETY: readable by the contract.
    unsafe { [vld1q_s8(plane.as_ptr().add(at)), vld1q_s8(plane.as_ptr().add(at + 16))] }
}

/// The activations of one token in one chunk: vectors as in [`Scales`].
#[derive(Clone, Copy)]
struct Chunk {
    scales: [float32x4_t; 4],
    sums: [float32x4_t; 4],
}

/// `values`, padded with zeros.
#[inline(always)]
fn padded<const N: usize>(values: &[f32]) -> [f32; N] {
    let mut all = [0.0; N];
    all[..values.len()].copy_from_slice(values);
    all
}

#[inline(always)]
fn chunk_of<L: Layout>(x: &QuantizedRows<'_>, token: usize, chunk: usize, groups: usize) -> Chunk {
    let at = token * (x.cols / INT_BLOCK) + chunk * GROUPS;
    let d: [f32; 8] = padded(&x.scales[at..at + groups]);
    // SAFETY: arrays of four vectors have room for 16 values; every aarch64 has NEON.
    unsafe {
        let (d0, d1) = (vld1q_f32(d.as_ptr()), vld1q_f32(d.as_ptr().add(4)));
        if L::HALVES {
            let sums: [f32; 16] = padded(&x.sums16[2 * at..2 * (at + groups)]);
            let scales = [vzip1q_f32(d0, d0), vzip2q_f32(d0, d0), vzip1q_f32(d1, d1), vzip2q_f32(d1, d1)];
            let four = |i: usize| vld1q_f32(sums.as_ptr().add(4 * i));
            Chunk { scales, sums: [four(0), four(1), four(2), four(3)] }
        } else {
            let sums: [f32; 8] = padded(&x.sums32[at..at + groups]);
            let (s0, s1, none) =
                (vld1q_f32(sums.as_ptr()), vld1q_f32(sums.as_ptr().add(4)), vdupq_n_f32(0.0));
            Chunk { scales: [d0, d1, none, none], sums: [s0, s1, none, none] }
        }
    }
}

/// One chunk of a tile: its first byte of weights, the distance between rows, and the tensor's tail.
struct Place<'a> {
    chunk: usize,
    weights: *const u8,
    row_bytes: usize,
    tail: &'a [u8],
}

/// One chunk of `R` rows times `N` tokens.
#[inline(always)]
unsafe fn add_chunk<L: Layout, const R: usize, const N: usize>(
    sums: &mut [[float32x4_t; N]; R],
    x: &QuantizedRows<'_>,
    Place { chunk, weights, row_bytes, tail }: Place<'_>,
    groups: usize,
) {
    let each = L::LEN / 32;
    let vectors = if L::HALVES { 4 } else { 2 };
    // SAFETY: there are `R` rows of `groups` groups, and `x` has at least `N` rows, by the contract; every
    // aarch64 has NEON.
    unsafe {
        let mut chunks = [Chunk { scales: [vdupq_n_f32(0.0); 4], sums: [vdupq_n_f32(0.0); 4] }; N];
        for (n, c) in chunks.iter_mut().enumerate() {
            *c = chunk_of::<L>(x, n, chunk, groups);
        }
        let mut factors = [[[0.0f32; 16]; N]; R];
        for r in 0..R {
            let s = L::scales(weights.add(r * row_bytes), groups, tail);
            for n in 0..N {
                for i in 0..vectors {
                    let factor = vmulq_f32(s.scales[i], chunks[n].scales[i]);
                    vst1q_f32(factors[r][n].as_mut_ptr().add(4 * i), factor);
                    sums[r][n] = vfmaq_f32(sums[r][n], s.offsets[i], chunks[n].sums[i]);
                }
            }
        }
        for g in 0..groups {
            let mut codes = [[vdupq_n_s8(0); 2]; R];
            for (r, codes) in codes.iter_mut().enumerate() {
                let [low, high] = L::codes(weights.add(r * row_bytes + g / each * L::BYTES), g % each);
                *codes = [vreinterpretq_s8_u8(low), vreinterpretq_s8_u8(high)];
            }
            for n in 0..N {
                let at = n * x.cols + (chunk * GROUPS + g) * 32;
                let (high, low) = (load32(x.high, at), load32(x.low, at));
                for r in 0..R {
                    let (codes, factors, sum) = (codes[r], &factors[r][n], &mut sums[r][n]);
                    if L::HALVES {
                        for half in 0..2 {
                            let products = vcvtq_f32_s32(products16(codes[half], high[half], low[half]));
                            *sum = vfmaq_n_f32(*sum, products, factors[2 * g + half]);
                        }
                    } else {
                        let products = vcvtq_f32_s32(products32(codes, high, low, L::WIDE));
                        *sum = vfmaq_n_f32(*sum, products, factors[g]);
                    }
                }
            }
        }
    }
}

/// `R` rows times `N` tokens; `out` is `[R][stride]`.
#[inline(always)]
unsafe fn tile<L: Layout, const R: usize, const N: usize>(
    rows: &[u8],
    tail: &[u8],
    x: &QuantizedRows<'_>,
    out: &mut [f32],
    stride: usize,
) {
    let (whole, rest) = (x.cols / INT_BLOCK / GROUPS, x.cols / INT_BLOCK % GROUPS);
    let row_bytes = x.cols / L::LEN * L::BYTES;
    let place = |chunk: usize| {
        let weights = rows[chunk * (GROUPS * 32 / L::LEN * L::BYTES)..].as_ptr();
        Place { chunk, weights, row_bytes, tail }
    };
    // SAFETY: `rows` holds `R` rows of whole blocks for `x.cols` weights, and `x` at least `N` rows, by the
    // contract; every aarch64 has NEON.
    unsafe {
        let mut sums = [[vdupq_n_f32(0.0); N]; R];
        for chunk in 0..whole {
            // a constant number of groups, so that the loops unroll
            add_chunk::<L, R, N>(&mut sums, x, place(chunk), GROUPS);
        }
        if rest > 0 {
            add_chunk::<L, R, N>(&mut sums, x, place(whole), rest);
        }
        for r in 0..R {
            for n in 0..N {
                out[r * stride + n] = vaddvq_f32(sums[r][n]);
            }
        }
    }
}

/// Some rows times all tokens: tiles of two rows and [`TOKENS`] tokens, then of all rows and one token.
fn dot_rows<L: Layout>(rows: &Rows<'_>, x: &QuantizedRows<'_>, _workspace: &mut Workspace, out: &mut [f32]) {
    let row_bytes = x.cols / L::LEN * L::BYTES;
    let tokens = out.len() / rows.count;
    assert!(rows.blocks.len() == rows.count * row_bytes);
    assert!(x.high.len() >= tokens * x.cols && x.low.len() >= tokens * x.cols);
    let whole = tokens / TOKENS * TOKENS;
    // SAFETY: sizes were checked above.
    unsafe {
        for t in (0..whole).step_by(TOKENS) {
            let x = x.skip(t);
            for (i, pair) in rows.blocks.chunks(2 * row_bytes).enumerate() {
                let out = &mut out[2 * i * tokens + t..];
                if pair.len() == 2 * row_bytes {
                    tile::<L, 2, TOKENS>(pair, rows.tail, &x, out, tokens);
                } else {
                    tile::<L, 1, TOKENS>(pair, rows.tail, &x, out, tokens);
                }
            }
        }
        for t in whole..tokens {
            let x = x.skip(t);
            for (i, part) in rows.blocks.chunks(ROWS * row_bytes).enumerate() {
                let first = i * ROWS;
                if part.len() == ROWS * row_bytes {
                    tile::<L, ROWS, 1>(part, rows.tail, &x, &mut out[first * tokens + t..], tokens);
                    continue;
                }
                for (r, row) in (first..).zip(part.chunks(row_bytes)) {
                    tile::<L, 1, 1>(row, rows.tail, &x, &mut out[r * tokens + t..], tokens);
                }
            }
        }
    }
}

/// Rows of any format times all tokens: unpacks a block and uses it for every token.
fn general(rows: &Rows<'_>, x: &QuantizedRows<'_>, _workspace: &mut Workspace, out: &mut [f32]) {
    let (len, bytes) = (rows.quant.block_len, rows.quant.block_bytes());
    let tokens = out.len() / rows.count;
    assert!(rows.blocks.len() == x.cols / len * bytes * rows.count);
    assert!(x.high.len() >= tokens * x.cols && x.low.len() >= tokens * x.cols);
    let mut block = Block::empty();
    for (row, out) in rows.each().zip(out.chunks_exact_mut(tokens)) {
        for (part, out) in out.chunks_mut(32).enumerate() {
            let x = x.skip(part * 32);
            // SAFETY: sizes were checked above; every aarch64 has NEON.
            unsafe {
                let mut acc = [vdupq_n_f32(0.0); 32];
                let mut shift = [0.0f32; 32];
                for (b, raw) in row.chunks_exact(bytes).enumerate() {
                    block.fill(rows.quant, raw, rows.tail);
                    for i in 0..len / SUM_BLOCK {
                        let codes = vld1q_s8(block.codes[i * SUM_BLOCK..][..SUM_BLOCK].as_ptr());
                        for n in 0..out.len() {
                            let at = n * x.cols + b * len + i * SUM_BLOCK;
                            let (high, low) =
                                (vld1q_s8(x.high.as_ptr().add(at)), vld1q_s8(x.low.as_ptr().add(at)));
                            let factor = block.scales[i] * x.scales[at / INT_BLOCK];
                            let sums = vcvtq_f32_s32(products16(codes, high, low));
                            acc[n] = vfmaq_n_f32(acc[n], sums, factor);
                            shift[n] += block.offsets[i] * x.sums16[at / SUM_BLOCK];
                        }
                    }
                }
                for (n, y) in out.iter_mut().enumerate() {
                    *y = vaddvq_f32(acc[n]) + shift[n];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tern_graph::{Random, cases};
    use tern_quant::{IQ4_NL, Q6_K, Q8_0};

    use super::*;
    use crate::activations::quantized_rows::{self, QuantizedRowsBuffer, Rounding};
    use crate::dot::portable::scalar;

    /// Rows of one format times tokens, by a kernel.
    fn run(kernel: LinearKernel, rows: &Rows<'_>, x: &QuantizedRows<'_>, tokens: usize) -> Vec<f32> {
        let LinearKernel::Integer(kernel) = kernel else { panic!("{} has no integers", rows.quant) };
        let mut out = vec![0.0; rows.count * tokens];
        (kernel.few)(rows, x, &mut Workspace::default(), &mut out);
        out
    }

    fn quantized(x: &[f32]) -> QuantizedRowsBuffer {
        let buffer = QuantizedRowsBuffer::new(x.len()).unwrap();
        // SAFETY: one thread.
        quantized_rows::quantize(x, Rounding { span: INT_BLOCK, low: 8 }, unsafe {
            buffer.part(x.len(), 0, 0, x.len())
        });
        buffer
    }

    #[test]
    fn every_format_has_a_kernel() {
        crate::dot::tests::assert_lists_all(KERNELS, &[]);
    }

    #[test]
    fn results_do_not_depend_on_what_stands_beside_them() {
        let (cols, tokens) = (768, 11);
        let rng = &mut Random::new(3);
        let buffer = quantized(&rng.normals(tokens * cols, 1.0));
        // SAFETY: one thread.
        let x = unsafe { buffer.view(tokens, cols, 8) };
        for quant in tern_quant::ALL.iter().filter(|q| q.codes().is_some()) {
            let w = cases::random_tensor("w", quant, ROWS, cols, rng).unwrap();
            let (blocks, tail) = w.data().split_at(w.data().len() - quant.tail);
            let rows = Rows { quant, count: ROWS, blocks, tail };
            let together = run(kernel(quant).unwrap(), &rows, &x, tokens);
            let off = cases::distance(&run(ints(general), &rows, &x, tokens), &together);
            assert!(off <= 4e-6, "{quant}: {off} from the general way");
            for count in 1..ROWS {
                let part = &blocks[..count * blocks.len() / ROWS];
                let fewer =
                    run(kernel(quant).unwrap(), &Rows { quant, count, blocks: part, tail }, &x, tokens);
                assert_eq!(fewer, together[..count * tokens], "{quant}: {count} rows");
            }
            for (r, blocks) in blocks.chunks(blocks.len() / ROWS).enumerate() {
                for t in 0..tokens {
                    let alone =
                        run(kernel(quant).unwrap(), &Rows { quant, count: 1, blocks, tail }, &x.skip(t), 1);
                    assert_eq!(alone[0], together[r * tokens + t], "{quant}: row {r}, token {t}");
                }
            }
        }
    }

    #[test]
    fn the_largest_codes_do_not_overflow() {
        let mut x = [126.496 / 127.0; 256]; // 126 in the high plane and 127 in the low one
        x.iter_mut().step_by(INT_BLOCK).for_each(|x| *x = 1.0);
        for sign in [1.0, -1.0] {
            let buffer = quantized(&x.map(|x| x * sign));
            // SAFETY: one thread.
            let x = unsafe { buffer.view(1, 256, 8) };
            assert_eq!((x.high[1], x.low[1]), (126 * sign as i8, 127 * sign as i8));
            // the byte with the largest codes, and the offset of the scale
            for (quant, byte, scale) in [(&Q8_0, 0x80, 0), (&Q6_K, 0xFF, 208), (&IQ4_NL, 0x00, 0)] {
                let mut block = vec![byte; quant.block_bytes()];
                block[scale..scale + 2].copy_from_slice(&[0x00, 0x3C]); // one
                let blocks = block.repeat(256 / quant.block_len);
                let rows = Rows { quant, count: 1, blocks: &blocks, tail: &[] };
                let got = run(kernel(quant).unwrap(), &rows, &x, 1)[0];
                let want = run(scalar::kernel(quant).unwrap(), &rows, &x, 1)[0];
                assert!((got - want).abs() <= 1e-6 * want.abs(), "{quant}: {got} for {want}");
            }
        }
    }
}
