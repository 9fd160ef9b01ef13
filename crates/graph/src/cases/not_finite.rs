//! Cases of values that are not finite.

use tern_quant::{FieldType, Quant};

use super::{Case, attend, linear};
use crate::{Attention, GraphError, HostTensor, PageTable, Random, Slice, Step};

/// Input rows with a value that is not finite: their results must not be finite
/// either, and all others must be.
const BAD: [(usize, f32); 4] = [(3, f32::NAN), (9, f32::INFINITY), (14, f32::NEG_INFINITY), (20, f32::NAN)];

/// Sets one value in each of these rows of a float table, each in another column.
fn spoil(table: &mut HostTensor, rows: &[(usize, f32)]) {
    let mut values = table.to_f32();
    for (i, (row, value)) in rows.iter().enumerate() {
        values[row * table.cols() + (37 * i + 5) % table.cols()] = *value;
    }
    *table = HostTensor::from_f32(table.name(), table.rows(), table.cols(), &values);
}

/// NaN and infinities in activations, in the scales of weights, and in keys and values.
pub(super) fn not_finite() -> Result<Vec<Case>, GraphError> {
    let rng = &mut Random::new(6);
    let mut cases = vec![];
    let all: Vec<u32> = (0..21).collect();
    for quant in tern_quant::ALL.iter().filter(|q| q.is_runnable()) {
        let name = quant.name.to_lowercase();
        let mut case = linear(quant, 35, 512, 1)?;
        case.name = format!("linear {name} of values that are not finite");
        spoil(&mut case.weights[0], &BAD);
        let one = |id: u32| Step::all_logits(&[id], 0, vec![0, 1]);
        case.steps = vec![one(3), one(4), one(9), one(14), Step::all_logits(&all, 0, vec![0, 1])];
        cases.push(case);
        for (what, half, float) in [("NaN", 0x7E00u16, f32::NAN), ("infinite", 0x7C00, f32::INFINITY)] {
            let Some((at, bytes)) = scale_of(quant, half, float) else { continue };
            for tokens in [1, 21] {
                let mut case = linear(quant, 35, 512, tokens)?;
                case.name = format!("linear {name} with a scale that is {what}, tokens {tokens}");
                let w = &case.weights[1];
                let mut data = w.data().to_vec();
                data[at..at + bytes.len()].copy_from_slice(&bytes);
                case.weights[1] = HostTensor::new(w.name(), quant, [w.rows(), w.cols()], data.into())?;
                cases.push(case);
            }
        }
    }
    let args = Attention::full(4, 2, 64, 0.1);
    for (name, table, softcap) in
        [("queries", 0, None), ("keys", 1, None), ("values", 2, None), ("keys", 1, Some(5.0))]
    {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut case = attend(Attention { softcap, ..args }, &[1])?;
            let cap = if softcap.is_some() { ", with a soft cap" } else { "" };
            case.name = format!("attend to {name} that are {bad}{cap}");
            spoil(&mut case.weights[table], &[(3, bad)]);
            // two sequences, one of which sees the bad row late, and then a third one on its pages
            let (first, other) = (PageTable::from([0, 2]), PageTable::from([1, 3]));
            let ids =
                |n: usize, rng: &mut Random| (0..n).map(|_| 4 + rng.below(60) as u32).collect::<Vec<_>>();
            case.steps = vec![
                Step::all_logits(&ids(18, rng), 0, first.clone()),
                Step::all_logits(&ids(5, rng), 0, other.clone()),
            ];
            for (i, id) in [6, 3, 7, 8].into_iter().enumerate() {
                case.steps.push(Step {
                    tokens: vec![id, 5],
                    slices: vec![Slice::new(1, 18 + i, first.clone()), Slice::new(1, 5 + i, other.clone())],
                    ..Step::all_logits(&[id, 5], 0, [])
                });
            }
            let mut many = ids(14, rng);
            many[9] = 3;
            case.steps.push(Step::all_logits(&many, 22, vec![0, 2, 4]));
            for (len, position) in [(3, 0), (1, 3), (12, 4), (1, 16), (1, 17)] {
                case.steps.push(Step::all_logits(&ids(len, rng), position, vec![2, 0]));
            }
            cases.push(case);
        }
    }
    Ok(cases)
}

/// Offset and bytes of the first float in a weight's third block, or of the scale after all blocks.
fn scale_of(quant: &Quant, half: u16, float: f32) -> Option<(usize, Vec<u8>)> {
    if quant.tail > 0 {
        return Some((35 * 512 / quant.block_len * quant.block_bytes(), float.to_le_bytes().to_vec()));
    }
    let mut at = 2 * quant.block_bytes();
    for field in quant.fields {
        match field.ty {
            FieldType::F16 => return Some((at, half.to_le_bytes().to_vec())),
            FieldType::BF16 => return Some((at, float.to_bits().to_le_bytes()[2..].to_vec())),
            FieldType::F32 => return Some((at, float.to_le_bytes().to_vec())),
            _ => at += field.bytes(),
        }
    }
    None
}
