//! Every format against recorded results: ggml's for its own types, numpy's for the others.
//!
//! `scripts/oracle/llama/blocks.py` made the files under `golden/`.

use std::fs;
use std::path::PathBuf;

use tern_quant::{ALL, Encode, F16, MXFP4, Quant};

const ROW: usize = 256;

fn golden(name: &str) -> Option<Vec<u8>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    fs::read(path).ok()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&w| f32::from_le_bytes(w)).collect()
}

#[test]
fn decodes_bit_for_bit() {
    for &q in ALL.iter().filter(|q| q.is_runnable()) {
        let file = golden(&format!("{q}.decode")).unwrap_or_else(|| panic!("{q} has no golden"));
        let (size, len) = (q.block_bytes(), q.block_len);
        let count = (file.len() - q.tail) / (size + 4 * len);
        assert!(count > 0 && file.len() == count * (size + 4 * len) + q.tail, "{q}: {} bytes", file.len());
        let (blocks, rest) = file.split_at(count * size);
        let (tail, want) = rest.split_at(q.tail);
        let want = floats(want);
        let mut got = vec![f32::NAN; count * len];
        q.decode(blocks, tail, &mut got);
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let place = (i / len, i % len);
            assert_eq!(got.to_bits(), want.to_bits(), "{q} block, weight {place:?}: {got} is not {want}");
        }
    }
}

/// Compares `got` with a golden by rows. The last row is subnormal floats, which some of
/// ggml's encoders do not expect.
fn same_rows(q: &Quant, file: &str, got: &[u8], last: bool) {
    let want = golden(file).expect("a golden");
    assert_eq!(got.len(), want.len(), "{file}");
    let size = q.row_bytes(ROW).expect("whole blocks");
    let rows = want.len() / size - usize::from(!last);
    for (row, (got, want)) in got.chunks(size).zip(want.chunks(size)).take(rows).enumerate() {
        assert_eq!(got, want, "{file}, row {row}");
    }
}

#[test]
fn encodes_byte_for_byte() {
    let rows = floats(&golden("encode.f32").unwrap());
    let plain = "F16 BF16 Q8_0 TQ1_0 TQ2_0 MXFP4 NVFP4 Q1_0 Q2_0 PQ2_0 PTQ1_0";
    for q in plain.split(' ').chain(SEARCHED.split(' ')).map(|name| tern_quant::by_name(name).unwrap()) {
        let mut got = Vec::new();
        q.encode(&rows, &mut got).unwrap();
        let expects_subnormals = q != &MXFP4 && !SEARCHED.contains(q.name);
        same_rows(q, &format!("{q}.encode"), &got, expects_subnormals);
    }
}

const SEARCHED: &str = "Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS";

#[test]
fn encodes_columns_by_importance_byte_for_byte() {
    let rows = floats(&golden("encode.f32").unwrap());
    let importance = floats(&golden("encode.importance").unwrap());
    for q in ALL.iter().filter(|q| matches!(q.encode, Some(Encode::Searched(_)))) {
        assert!(SEARCHED.split(' ').any(|name| name == q.name), "{q} has no golden");
        let mut got = Vec::new();
        rows.chunks(ROW).for_each(|row| q.encode_row(row, &importance, &mut got).unwrap());
        same_rows(q, &format!("{q}.weighted"), &got, false);
    }
}

#[test]
fn codes_never_panic_where_a_scale_is_not_finite() {
    for &q in ALL {
        if q.codes().is_none() {
            continue;
        }
        let (block, tail) = (vec![0xff; q.block_bytes()], vec![0xff; q.tail]);
        q.decode(&block, &tail, &mut vec![0.0; q.block_len]);
    }
    assert!(decode_one(&F16, &[0x00, 0x7e]).is_nan());
}

fn decode_one(q: &Quant, block: &[u8]) -> f32 {
    let mut out = [0.0];
    q.decode(block, &[], &mut out);
    out[0]
}
