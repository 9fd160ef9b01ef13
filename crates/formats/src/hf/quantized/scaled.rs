//! Eight-bit weights with scales of tensors, rows or square blocks, and bitsandbytes.
//!
//! FP8 and four-bit codebooks are decoded to F16, integers with a scale per row are Q8_0 with
//! that scale rounded to f16.

use indexmap::IndexMap;
use tern_quant::{F16, Q8_0};

use super::super::config::Config;
use super::super::matrix::{Matrix, float_format};
use super::codes::half;
use super::{Decoded, Parts, count, unexpected, weight_of};
use crate::FolderError;
use crate::safetensors::Entry;

/// Scales of activations, which are computed in more bits here.
const ACTIVATIONS: [&str; 4] = ["input_scale", "activation_scale", "k_scale", "v_scale"];

/// The values of all bytes as FP8 with this many bits of mantissa; those that are not numbers stay so.
fn fp8(mantissa: u32) -> [f32; 256] {
    let (bias, bits) = if mantissa == 3 { (7, 4) } else { (15, 5) };
    std::array::from_fn(|byte| {
        let byte = byte as u32;
        let (exponent, fraction) = (byte >> mantissa & ((1 << bits) - 1), byte & ((1 << mantissa) - 1));
        let sign = if byte >> 7 == 1 { -1.0f32 } else { 1.0 };
        let step = 1.0 / (1u32 << mantissa) as f32;
        let top = exponent == (1 << bits) - 1;
        let size = match exponent {
            _ if mantissa == 3 && top && fraction == 7 => f32::NAN,
            _ if mantissa == 2 && top => {
                if fraction == 0 {
                    f32::INFINITY
                } else {
                    f32::NAN
                }
            }
            0 => fraction as f32 * step * 2f32.powi(1 - bias),
            _ => (1.0 + fraction as f32 * step) * 2f32.powi(exponent as i32 - bias),
        };
        sign * size
    })
}

/// Where the scale of a weight is: rows and columns that share one.
struct Grid {
    values: Vec<f32>,
    rows: usize,
    cols: usize,
    /// Scales per row of the grid.
    width: usize,
}

impl Grid {
    /// The scales of a `[rows, cols]` matrix: one, one per row, or those of blocks.
    fn new(entry: &Entry, [rows, cols]: [u64; 2], block: Option<[u64; 2]>) -> Decoded<Grid> {
        let format = float_format(entry.dtype).ok_or_else(|| unexpected(entry, "F32, F16 or BF16"))?;
        let mut values = vec![0.0; entry.data.len() / entry.dtype.bytes as usize];
        format.decode(&entry.data, &[], &mut values);
        let n = values.len() as u64;
        let (height, width) = match (block, entry.shape.as_slice()) {
            (Some([r, c]), [a, b]) if r > 0 && c > 0 && *a == rows.div_ceil(r) && *b == cols.div_ceil(c) => {
                (r, c)
            }
            (_, [] | [1] | [1, 1]) => (rows, cols),
            (None, [a] | [a, 1]) if *a == rows => (1, cols),
            (None, [a, b]) if *a == rows && *b > 0 && cols.is_multiple_of(*b) => (1, cols / b),
            _ => return Err(unexpected(entry, &format!("scales of a matrix of [{rows}, {cols}]"))),
        };
        let across = cols.div_ceil(width);
        debug_assert_eq!(n, rows.div_ceil(height) * across);
        Ok(Grid { values, rows: height as usize, cols: width as usize, width: across as usize })
    }

    fn of(&self, row: usize, col: usize) -> f32 {
        self.values[row / self.rows * self.width + col / self.cols]
    }
}

/// A matrix of FP8 or int8 with its scales.
fn decoded(entry: Entry, grid: Grid) -> Decoded<Matrix> {
    let &[rows, cols] = entry.shape.as_slice() else { return Err(unexpected(&entry, "a matrix")) };
    let n = count(&[rows, cols], &entry.name)?;
    let (height, width) = (rows as usize, cols as usize);
    let is_int = entry.dtype.name == "I8";
    if is_int && width.is_multiple_of(32) && grid.cols.is_multiple_of(32) {
        return Ok(Matrix::made(&Q8_0, vec![rows, cols], move || {
            let mut out = Vec::with_capacity(n / 32 * 34);
            for (i, block) in entry.data.chunks_exact(32).enumerate() {
                out.extend(half(grid.of(i * 32 / width, i * 32 % width)));
                out.extend_from_slice(block);
            }
            out
        }));
    }
    let table: [f32; 256] = match entry.dtype.name {
        "I8" => std::array::from_fn(|byte| f32::from(byte as u8 as i8)),
        "F8_E4M3" => fp8(3),
        "F8_E5M2" => fp8(2),
        _ => return Err(unexpected(&entry, "F8_E4M3, F8_E5M2 or I8")),
    };
    Ok(Matrix::made(&F16, vec![rows, cols], move || {
        let mut out = Vec::with_capacity(2 * n);
        for row in 0..height {
            let line = &entry.data[row * width..][..width];
            line.iter().enumerate().for_each(|(col, byte)| {
                out.extend(half(table[usize::from(*byte)] * grid.of(row, col)));
            });
        }
        out
    }))
}

/// FP8 of DeepSeek and Qwen: scales of square blocks, or one per tensor.
pub(super) fn blocks(q: &Config, parts: &mut Parts, weights: &mut IndexMap<String, Matrix>) -> Decoded<()> {
    let block = match q.optional_usizes("weight_block_size")?.as_deref() {
        Some([rows, cols]) => Some([*rows, *cols]),
        Some(_) => return Err(q.wrong("weight_block_size", "rows and columns")),
        None => None,
    };
    scales_of(parts, weights, &["weight_scale_inv", "weight_scale"], block)
}

/// compressed-tensors with eight bits: a scale per tensor, row or group.
pub(super) fn per_channel(parts: &mut Parts, weights: &mut IndexMap<String, Matrix>) -> Decoded<()> {
    if let Some(stem) = parts.stems(".weight_zero_point").first() {
        let (name, why) =
            (format!("{stem}.weight_zero_point"), "zero points of eight bits are not supported".into());
        return Err(FolderError::TensorNotSupported { name, why }.into());
    }
    scales_of(parts, weights, &["weight_scale"], None)
}

fn scales_of(
    parts: &mut Parts,
    weights: &mut IndexMap<String, Matrix>,
    scales: &[&str],
    block: Option<[u64; 2]>,
) -> Decoded<()> {
    for kind in scales {
        for stem in parts.stems(&format!(".{kind}")) {
            let scale = parts.take(&format!("{stem}.{kind}"))?;
            let weight = parts.take(&weight_of(&stem))?;
            let &[rows, cols] = weight.shape.as_slice() else { return Err(unexpected(&weight, "a matrix")) };
            count(&[rows, cols], &weight.name)?;
            let grid = Grid::new(&scale, [rows, cols], block)?;
            ACTIVATIONS.iter().for_each(|part| drop(parts.take_optional(&format!("{stem}.{part}"))));
            weights.insert(weight_of(&stem), decoded(weight, grid)?);
        }
    }
    Ok(())
}

/// The facts of a four-bit tensor of bitsandbytes.
struct FourBits {
    shape: [u64; 2],
    block: usize,
    nested_block: usize,
    nested_offset: f32,
}

impl FourBits {
    fn parse(state: &Entry) -> Decoded<FourBits> {
        let wrong = || unexpected(state, "U8 of JSON with shape and blocksize");
        if state.dtype.name != "U8" {
            return Err(wrong());
        }
        let json: serde_json::Value = serde_json::from_slice(&state.data).map_err(|_| wrong())?;
        let shape: Option<Vec<u64>> =
            json["shape"].as_array().and_then(|s| s.iter().map(serde_json::Value::as_u64).collect());
        let shape = shape.and_then(|s| <[u64; 2]>::try_from(s).ok()).ok_or_else(wrong)?;
        let size = |key: &str| json[key].as_u64().filter(|n| (1..1 << 20).contains(n)).map(|n| n as usize);
        Ok(FourBits {
            shape,
            block: size("blocksize").ok_or_else(wrong)?,
            nested_block: size("nested_blocksize").unwrap_or(256),
            nested_offset: json["nested_offset"].as_f64().unwrap_or(0.0) as f32,
        })
    }
}

pub(super) fn bitsandbytes(parts: &mut Parts, weights: &mut IndexMap<String, Matrix>) -> Decoded<()> {
    for stem in parts.stems(".SCB") {
        let scale = parts.take(&format!("{stem}.SCB"))?;
        let weight = parts.take(&weight_of(&stem))?;
        drop(parts.take_optional(&format!("{stem}.weight_format")));
        let &[rows, cols] = weight.shape.as_slice() else { return Err(unexpected(&weight, "a matrix")) };
        count(&[rows, cols], &weight.name)?;
        let mut grid = Grid::new(&scale, [rows, cols], None)?;
        grid.values.iter_mut().for_each(|value| *value /= 127.0);
        weights.insert(weight_of(&stem), decoded(weight, grid)?);
    }
    for kind in ["nf4", "fp4"] {
        for stem in parts.stems(&format!(".weight.quant_state.bitsandbytes__{kind}")) {
            let facts =
                FourBits::parse(&parts.take(&format!("{stem}.weight.quant_state.bitsandbytes__{kind}"))?)?;
            let matrix = four_bits(&stem, &facts, parts)?;
            weights.insert(weight_of(&stem), matrix);
        }
    }
    Ok(())
}

fn four_bits(stem: &str, facts: &FourBits, parts: &mut Parts) -> Decoded<Matrix> {
    let name = |part: &str| format!("{stem}.weight{part}");
    let n = count(&facts.shape, &name(""))?;
    let weight = parts.take(&name(""))?;
    if weight.dtype.name != "U8" || weight.data.len() != n.div_ceil(2) {
        return Err(unexpected(&weight, &format!("U8 of {} bytes", n.div_ceil(2))));
    }
    let blocks = n.div_ceil(facts.block);
    let floats = |entry: &Entry, want: usize| -> Decoded<Vec<f32>> {
        let format =
            float_format(entry.dtype).filter(|_| entry.data.len() == want * entry.dtype.bytes as usize);
        let format = format.ok_or_else(|| unexpected(entry, &format!("{want} floats")))?;
        let mut values = vec![0.0; want];
        format.decode(&entry.data, &[], &mut values);
        Ok(values)
    };
    let map = floats(&parts.take(&name(".quant_map"))?, 16)?;
    let absmax = parts.take(&name(".absmax"))?;
    let scales = match absmax.dtype.name {
        "U8" if absmax.data.len() == blocks => {
            let nested = floats(&parts.take(&name(".nested_absmax"))?, blocks.div_ceil(facts.nested_block))?;
            let nested_map = floats(&parts.take(&name(".nested_quant_map"))?, 256)?;
            let scale = |(i, code): (usize, &u8)| {
                nested_map[usize::from(*code)] * nested[i / facts.nested_block] + facts.nested_offset
            };
            absmax.data.iter().enumerate().map(scale).collect()
        }
        _ => floats(&absmax, blocks)?,
    };
    let block = facts.block;
    Ok(Matrix::made(&F16, facts.shape.to_vec(), move || {
        // the first of two weights is in the upper half of a byte
        let code = |i: usize| usize::from(weight.data[i / 2] >> (4 * (1 - i % 2)) & 15);
        (0..n).flat_map(|i| half(map[code(i)] * scales[i / block])).collect()
    }))
}
