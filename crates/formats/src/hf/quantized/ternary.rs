//! BitNet: codes of -1, 0 and 1, four rows in a byte, and one scale per tensor, exactly as
//! ternary blocks and a scale.

use indexmap::IndexMap;
use tern_quant::{Q2_0, Quant, TQ2_0};

use super::super::config::Config;
use super::super::matrix::{Matrix, float_format};
use super::{Decoded, Parts, count, unexpected};

pub(super) fn bitnet(q: &Config, parts: &mut Parts, weights: &mut IndexMap<String, Matrix>) -> Decoded<()> {
    // one class of linears multiplies with the scale, the other divides by it
    let divides = match q.optional_str("linear_class")? {
        Some("autobitlinear") => false,
        None | Some("bitlinear") => true,
        Some(_) => return Err(q.wrong("linear_class", "bitlinear or autobitlinear")),
    };
    if q.optional_bool("use_rms_norm")? == Some(true) {
        return Err(q.wrong("use_rms_norm", "false"));
    }
    for stem in parts.stems(".weight_scale") {
        let scale = parts.take(&format!("{stem}.weight_scale"))?;
        let Some(format) = float_format(scale.dtype).filter(|_| scale.data.len() as u64 == scale.dtype.bytes)
        else {
            return Err(unexpected(&scale, "one float"));
        };
        let mut value = [0.0];
        format.decode(&scale.data, &[], &mut value);
        let factor = if divides { 1.0 / value[0] } else { value[0] };
        let packed = parts.take(&format!("{stem}.weight"))?;
        let (&[quarter, cols], "U8") = (packed.shape.as_slice(), packed.dtype.name) else {
            return Err(unexpected(&packed, "U8 of [rows / 4, columns]"));
        };
        let rows = quarter.saturating_mul(4);
        count(&[rows, cols], &packed.name)?;
        let format: &'static Quant = if cols.is_multiple_of(256) { &TQ2_0 } else { &Q2_0 };
        if !cols.is_multiple_of(format.block_len as u64) {
            return Err(unexpected(&packed, &format!("rows of a multiple of {} weights", format.block_len)));
        }
        let (quarter, width) = (quarter as usize, cols as usize);
        let matrix = Matrix::made(format, vec![rows, cols], move || {
            let mut out = vec![];
            let mut weights = vec![0.0; width];
            for row in 0..4 * quarter {
                let line = &packed.data[row % quarter * width..][..width];
                for (weight, byte) in weights.iter_mut().zip(line) {
                    *weight = f32::from(byte >> (2 * (row / quarter)) & 3) - 1.0;
                }
                // rows are whole blocks of a format with an encoder
                let _ = format.encode(&weights, &mut out);
            }
            out
        });
        weights.insert(format!("{stem}.weight"), matrix);
        weights.insert(format!("{stem}.scale"), Matrix::vector(vec![factor]));
    }
    Ok(())
}
