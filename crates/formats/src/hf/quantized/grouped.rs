//! Integer codes with a scale per group of columns: GPTQ, AWQ, compressed-tensors and MLX.

use indexmap::IndexMap;

use super::super::config::Config;
use super::super::matrix::{Matrix, float_format};
use super::codes::{Codes, Group, Values, Zeros};
use super::{Decoded, Parts, count, unexpected, weight_of};
use crate::FolderError;
use crate::safetensors::Entry;

/// Unsigned words of a tensor.
fn word(data: &[u8], i: usize) -> u32 {
    data.get(4 * i..4 * i + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// `bits` bits from bit `at` on of a sequence of words, which may cross into the next one.
fn bits_at(data: &[u8], first: usize, stride: usize, at: usize, bits: u32) -> u32 {
    let (i, shift) = (at / 32, at as u32 % 32);
    let low = u64::from(word(data, first + i * stride));
    let high = if shift + bits > 32 { u64::from(word(data, first + (i + 1) * stride)) } else { 0 };
    ((low | high << 32) >> shift) as u32 & ((1u32 << bits) - 1)
}

/// A function that decodes one float of a tensor.
fn floats(entry: &Entry) -> Decoded<impl Fn(usize) -> f32 + Send + Sync + 'static + use<>> {
    let format = float_format(entry.dtype).ok_or_else(|| unexpected(entry, "F16, BF16 or F32"))?;
    let (data, n) = (entry.data.clone(), entry.dtype.bytes as usize);
    Ok(move |i: usize| {
        let mut value = [0.0];
        format.decode(&data[i * n..][..n], &[], &mut value);
        value[0]
    })
}

/// The number of bits of a method.
fn bits(q: &Config, allowed: &[u64]) -> Decoded<u32> {
    let bits = q.usize("bits")?;
    match allowed.contains(&bits) {
        true => Ok(bits as u32),
        false => Err(q.wrong("bits", &format!("one of {allowed:?}"))),
    }
}

/// Columns per group: all columns for -1.
fn group_size(q: &Config, cols: u64) -> Decoded<u64> {
    match q.get("group_size").and_then(serde_json::Value::as_i64) {
        Some(-1) => Ok(cols),
        Some(size) if size > 0 => Ok(size as u64),
        _ => Err(q.wrong("group_size", "-1 or the columns of a group")),
    }
}

pub(super) fn gptq(q: &Config, parts: &mut Parts, weights: &mut IndexMap<String, Matrix>) -> Decoded<()> {
    let bits = bits(q, &[2, 4, 8])?;
    if q.get("dynamic").is_some_and(|d| d.as_object().is_some_and(|d| !d.is_empty())) {
        return Err(q.wrong("dynamic", "no overrides per layer"));
    }
    // in the first version one is subtracted from each zero point of a word, with a borrow from the next
    let ones = u32::MAX / ((1u32 << bits) - 1);
    let plus = match q.optional_str("checkpoint_format")? {
        None | Some("gptq") => ones,
        Some("gptq_v2") => 0,
        Some(_) => return Err(q.wrong("checkpoint_format", "gptq or gptq_v2")),
    };
    for stem in parts.stems(".qweight") {
        let name = |part: &str| format!("{stem}.{part}");
        let qweight = parts.take(&name("qweight"))?;
        let (&[words, rows], "I32") = (qweight.shape.as_slice(), qweight.dtype.name) else {
            return Err(unexpected(&qweight, "I32 of [words, rows]"));
        };
        let cols = words.saturating_mul(32) / u64::from(bits);
        count(&[rows, cols], &qweight.name)?;
        let size = group_size(q, cols)?;
        let groups = cols.div_ceil(size);
        let zeros =
            parts.take_shaped(&name("qzeros"), &["I32"], &[groups, (rows * u64::from(bits)).div_ceil(32)])?;
        let scales = parts.take_shaped(&name("scales"), &["F16", "BF16", "F32"], &[groups, rows])?;
        let order: Vec<u32> = match parts.take_optional(&name("g_idx")) {
            Some(order) if order.shape == [cols] && order.dtype.name == "I32" => {
                (0..cols as usize).map(|i| word(&order.data, i)).collect()
            }
            Some(order) => return Err(unexpected(&order, &format!("I32 [{cols}]"))),
            None => (0..cols).map(|col| (col / size) as u32).collect(),
        };
        if let Some(group) = order.iter().find(|g| u64::from(**g) >= groups) {
            let (name, why) = (name("g_idx"), format!("group {group} of {groups}"));
            return Err(FolderError::TensorNotSupported { name, why }.into());
        }
        let codes =
            Codes { rows: rows as usize, cols: cols as usize, bits, groups: order, count: groups as usize };
        let (rows, groups) = (rows as usize, groups as usize);
        let width = (rows * bits as usize).div_ceil(32);
        let middle = 1u32 << (bits - 1);
        let zero = move |row: usize, group: usize| {
            let at = row * bits as usize;
            let word = word(&zeros.data, group * width + at / 32).wrapping_add(plus);
            word >> (at % 32) & ((1u32 << bits) - 1)
        };
        let symmetric = (0..groups).all(|group| (0..rows).all(|row| zero(row, group) == middle));
        let scale = floats(&scales)?;
        let data = qweight.data.clone();
        let values = Values {
            code: move |row: usize, col: usize| bits_at(&data, row, rows, col * bits as usize, bits),
            group: move |row: usize, group: usize| {
                Group::with_point(scale(group * rows + row), zero(row, group))
            },
        };
        weights.insert(weight_of(&stem), codes.into_matrix(Zeros::of(symmetric), &scales, values));
    }
    Ok(())
}

/// The column of each four bits of a word of AWQ, from the lowest on.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

pub(super) fn awq(q: &Config, parts: &mut Parts, weights: &mut IndexMap<String, Matrix>) -> Decoded<()> {
    bits(q, &[4])?;
    if !matches!(q.optional_str("version")?, None | Some("gemm" | "GEMM")) {
        return Err(q.wrong("version", "gemm"));
    }
    let mut slot = [0; 8];
    AWQ_ORDER.iter().enumerate().for_each(|(at, column)| slot[*column] = at);
    for stem in parts.stems(".qweight") {
        let name = |part: &str| format!("{stem}.{part}");
        let qweight = parts.take(&name("qweight"))?;
        let (&[cols, words], "I32") = (qweight.shape.as_slice(), qweight.dtype.name) else {
            return Err(unexpected(&qweight, "I32 of [columns, words]"));
        };
        let rows = words.saturating_mul(8);
        count(&[rows, cols], &qweight.name)?;
        let size = group_size(q, cols)?;
        let groups = cols.div_ceil(size);
        let zeros = parts.take_shaped(&name("qzeros"), &["I32"], &[groups, words])?;
        let scales = parts.take_shaped(&name("scales"), &["F16", "BF16", "F32"], &[groups, rows])?;
        let (rows, words) = (rows as usize, words as usize);
        let order = (0..cols).map(|col| (col / size) as u32).collect();
        let codes = Codes { rows, cols: cols as usize, bits: 4, groups: order, count: groups as usize };
        let nibble = move |data: &[u8], line: usize, row: usize| {
            word(data, line * words + row / 8) >> (4 * slot[row % 8]) & 15
        };
        let symmetric =
            (0..groups as usize).all(|group| (0..rows).all(|row| nibble(&zeros.data, group, row) == 8));
        let scale = floats(&scales)?;
        let values = Values {
            code: move |row: usize, col: usize| nibble(&qweight.data, col, row),
            group: move |row: usize, group: usize| {
                Group::with_point(scale(group * rows + row), nibble(&zeros.data, group, row))
            },
        };
        weights.insert(weight_of(&stem), codes.into_matrix(Zeros::of(symmetric), &scales, values));
    }
    Ok(())
}

/// compressed-tensors `pack-quantized`: codes plus their middle, packed along columns.
pub(super) fn packed(parts: &mut Parts, weights: &mut IndexMap<String, Matrix>) -> Decoded<()> {
    for stem in parts.stems(".weight_packed") {
        let name = |part: &str| format!("{stem}.{part}");
        let packed = parts.take(&name("weight_packed"))?;
        let shape = parts.take_shaped(&name("weight_shape"), &["I64", "I32"], &[2])?;
        let sizes = shape.data.chunks_exact(shape.dtype.bytes as usize);
        // a negative one is larger than any that is stored
        let sizes = sizes.map(|n| n.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte)));
        let [rows, cols] = sizes.collect::<Vec<_>>()[..] else { return Err(unexpected(&shape, "two sizes")) };
        count(&[rows, cols], &packed.name)?;
        let (&[found, words], "I32") = (packed.shape.as_slice(), packed.dtype.name) else {
            return Err(unexpected(&packed, "I32 of [rows, words]"));
        };
        // the words of a row say how many bits a code has
        let bits = [4u64, 8, 2, 1].into_iter().find(|bits| words == (cols * bits).div_ceil(32));
        let Some(bits) = bits.filter(|_| found == rows) else {
            return Err(unexpected(&packed, &format!("{rows} rows of {cols} codes of 1, 2, 4 or 8 bits")));
        };
        if parts.entries.get(&name("weight_g_idx")).is_some() {
            let (name, why) = (name("weight_g_idx"), "orders of columns are not supported".into());
            return Err(FolderError::TensorNotSupported { name, why }.into());
        }
        let scales = parts.take(&name("weight_scale"))?;
        let (rows, cols, bits) = (rows as usize, cols as usize, bits as u32);
        let groups = match scales.shape.as_slice() {
            [n, groups] if *n == rows as u64 && *groups > 0 && (cols as u64).is_multiple_of(*groups) => {
                *groups as usize
            }
            _ => return Err(unexpected(&scales, &format!("[{rows}, groups of {cols} columns]"))),
        };
        let (points, words_of_rows) = (name("weight_zero_point"), (rows * bits as usize).div_ceil(32));
        let zeros = match parts.entries.get(&points) {
            Some(_) => Some(parts.take_shaped(&points, &["I32"], &[words_of_rows as u64, groups as u64])?),
            None => None,
        };
        let order = (0..cols).map(|col| (col / (cols / groups)) as u32).collect();
        let codes = Codes { rows, cols, bits, groups: order, count: groups };
        let (symmetric, scale, words) = (zeros.is_none(), floats(&scales)?, words as usize);
        let values = Values {
            code: move |row: usize, col: usize| {
                bits_at(&packed.data, row * words, 1, col * bits as usize, bits)
            },
            group: move |row: usize, group: usize| {
                let zero = match &zeros {
                    Some(zeros) => bits_at(&zeros.data, group, groups, row * bits as usize, bits),
                    None => 1 << (bits - 1),
                };
                Group::with_point(scale(row * groups + group), zero)
            },
        };
        weights.insert(weight_of(&stem), codes.into_matrix(Zeros::of(symmetric), &scales, values));
    }
    Ok(())
}

/// MLX: codes packed along columns, a scale and an offset per group.
pub(super) fn mlx(q: &Config, parts: &mut Parts, weights: &mut IndexMap<String, Matrix>) -> Decoded<()> {
    let bits = bits(q, &[1, 2, 4, 8])?;
    if !matches!(q.optional_str("mode")?, None | Some("affine")) {
        return Err(q.wrong("mode", "affine"));
    }
    for stem in parts.stems(".scales") {
        let name = |part: &str| format!("{stem}.{part}");
        let (scales, biases) = (parts.take(&name("scales"))?, parts.take(&name("biases"))?);
        let packed = parts.take(&name("weight"))?;
        let (&[rows, words], "U32") = (packed.shape.as_slice(), packed.dtype.name) else {
            return Err(unexpected(&packed, "U32 of [rows, words]"));
        };
        let cols = words.saturating_mul(32) / u64::from(bits);
        count(&[rows, cols], &packed.name)?;
        let size = group_size(q, cols)?;
        let groups = cols / size;
        for entry in [&scales, &biases] {
            if entry.shape != [rows, groups] || groups * size != cols {
                return Err(unexpected(entry, &format!("[{rows}, {groups}]")));
            }
        }
        let (rows, words, groups) = (rows as usize, words as usize, groups as usize);
        let order = (0..cols).map(|col| (col / size) as u32).collect();
        let codes = Codes { rows, cols: cols as usize, bits, groups: order, count: groups };
        let (scale, bias) = (floats(&scales)?, floats(&biases)?);
        let values = Values {
            code: move |row: usize, col: usize| {
                bits_at(&packed.data, row * words, 1, col * bits as usize, bits)
            },
            group: move |row: usize, group: usize| {
                let at = row * groups + group;
                Group { scale: scale(at), point: 0, offset: bias(at) }
            },
        };
        weights.insert(weight_of(&stem), codes.into_matrix(Zeros::Offsets, &scales, values));
    }
    Ok(())
}
