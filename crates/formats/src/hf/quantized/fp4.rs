//! Four-bit floats: MXFP4 of gpt-oss and NVFP4 of compressed-tensors, exactly as the
//! GGUF formats of these names.
//!
//! Two neighbours share a byte in safetensors; in GGUF files a byte has a weight of each half of a block.

use indexmap::IndexMap;
use tern_quant::{MXFP4, NVFP4};

use super::super::matrix::Matrix;
use super::{Decoded, Parts, count, unexpected};
use crate::FolderError;

/// The codes of neighbours as codes of the two halves of a block.
fn halves(pairs: &[u8], out: &mut Vec<u8>) {
    let code = |i: usize| pairs[i / 2] >> (4 * (i % 2)) & 15;
    out.extend((0..pairs.len()).map(|i| code(i) | code(i + pairs.len()) << 4));
}

pub(super) fn mxfp4(parts: &mut Parts, weights: &mut IndexMap<String, Matrix>) -> Decoded<()> {
    for stem in parts.stems("_blocks") {
        let blocks = parts.take(&format!("{stem}_blocks"))?;
        let (&[experts, rows, each, 16], "U8") = (blocks.shape.as_slice(), blocks.dtype.name) else {
            return Err(unexpected(&blocks, "U8 of [experts, rows, blocks, 16]"));
        };
        let n = count(&[experts, rows, each], &blocks.name)?;
        let scales = parts.take_shaped(&format!("{stem}_scales"), &["U8"], &[experts, rows, each])?;
        let shape = vec![experts, rows, 32 * each];
        weights.insert(
            stem,
            Matrix::made(&MXFP4, shape, move || {
                let mut out = Vec::with_capacity(17 * n);
                for (pairs, scale) in blocks.data.chunks_exact(16).zip(scales.data.iter()) {
                    out.push(*scale);
                    halves(pairs, &mut out);
                }
                out
            }),
        );
    }
    Ok(())
}

/// Weights of a block of NVFP4, and of each of its scales.
const BLOCK: u64 = 64;
const GROUP: u64 = 16;

pub(super) fn nvfp4(parts: &mut Parts, weights: &mut IndexMap<String, Matrix>) -> Decoded<()> {
    for stem in parts.stems(".weight_packed") {
        let name = |part: &str| format!("{stem}.{part}");
        let packed = parts.take(&name("weight_packed"))?;
        let (&[rows, half], "U8") = (packed.shape.as_slice(), packed.dtype.name) else {
            return Err(unexpected(&packed, "U8 of [rows, pairs]"));
        };
        let cols = half.saturating_mul(2);
        let n = count(&[rows, cols], &packed.name)?;
        if !cols.is_multiple_of(BLOCK) {
            return Err(unexpected(&packed, &format!("rows of a multiple of {BLOCK} weights")));
        }
        let scales = parts.take_shaped(&name("weight_scale"), &["F8_E4M3"], &[rows, cols / GROUP])?;
        let global = parts.take(&name("weight_global_scale"))?;
        let divisor = match (global.dtype.name, global.data.first_chunk::<4>()) {
            ("F32", Some(bytes)) if global.data.len() == 4 => f32::from_le_bytes(*bytes),
            _ => return Err(unexpected(&global, "one F32")),
        };
        if !(divisor.is_finite() && divisor > 0.0) {
            let (name, value) = (name("weight_global_scale"), divisor.to_string());
            return Err(FolderError::Scale { name, value }.into());
        }
        drop(parts.take_optional(&name("input_global_scale"))); // for activations in four bits
        let matrix = Matrix::made(&NVFP4, vec![rows, cols], move || {
            let mut out = Vec::with_capacity(n / 64 * 36);
            let blocks = packed.data.chunks_exact(BLOCK as usize / 2);
            for (pairs, scales) in blocks.zip(scales.data.chunks_exact((BLOCK / GROUP) as usize)) {
                out.extend(scales.iter().map(|scale| scale & 0x7f));
                pairs.chunks_exact(GROUP as usize / 2).for_each(|pairs| halves(pairs, &mut out));
            }
            out
        });
        weights.insert(name("weight"), matrix);
        weights.insert(name("scale"), Matrix::vector(vec![1.0 / divisor]));
    }
    Ok(())
}
