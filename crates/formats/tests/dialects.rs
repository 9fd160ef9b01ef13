//! Dialects of type ids: recognised from the ids and offsets of a file.

mod common;

use common::{Raw, file, refusal, text};
use tern_formats::{Checkpoint, Value};
use tern_quant::{Dialect, F32, I2_S, MXFP4, PQ2_0, PTQ1_0, Q1_0, Q2_0, Q2_0_G128, Quant, TQ2_0_G128};

/// A model of two matrices and a norm in one format.
fn model(pairs: &[(&str, Value)], quant: &'static Quant) -> Vec<u8> {
    file(pairs, &[("embd", quant, &[256, 40]), ("up", quant, &[256, 24]), ("norm", &F32, &[256])])
}

#[test]
fn each_dialect_is_recognised() {
    let oxi = [("general.quantization_version", text("TQ2_0_G128"))];
    let numeric = [("general.quantization_version", Value::Uint(2)), ("general.file_type", Value::Uint(41))];
    type Case<'a> = (&'static Quant, &'a [(&'a str, Value)], Dialect);
    let cases: [Case<'_>; 9] = [
        (&Q2_0, &[], Dialect::Ggml),
        (&Q2_0, &numeric, Dialect::Ggml),
        (&Q2_0_G128, &[], Dialect::PrismLegacy),
        (&Q2_0_G128, &numeric, Dialect::PrismLegacy),
        (&TQ2_0_G128, &oxi, Dialect::OxiBonsai),
        (&PQ2_0, &[], Dialect::Prism),
        (&PTQ1_0, &[], Dialect::Prism),
        (&I2_S, &[], Dialect::Microsoft),
        (&Q1_0, &[], Dialect::Ggml),
    ];
    for (quant, pairs, dialect) in cases {
        let bytes = model(pairs, quant);
        let read = Checkpoint::from_bytes(bytes.into()).unwrap();
        assert_eq!(read.dialect, dialect, "{}", quant.name);
        let up = &read.tensors["up"];
        assert_eq!(up.quant.name, quant.name);
        assert_eq!(up.data(), common::pattern(1, quant.tensor_bytes(256 * 24).unwrap()));
        assert_eq!(read.tensors["norm"].quant.name, "F32");
    }
}

#[test]
fn the_end_of_the_file_decides_for_a_last_tensor() {
    for (quant, dialect) in [(&Q2_0, Dialect::Ggml), (&Q2_0_G128, Dialect::PrismLegacy)] {
        let bytes = file(&[], &[("norm", &F32, &[256]), ("up", quant, &[256, 24])]);
        assert_eq!(Checkpoint::from_bytes(bytes.into()).unwrap().dialect, dialect);
    }
}

#[test]
fn rows_that_fit_only_one_block_size_decide() {
    let bytes = file(&[], &[("up", &Q2_0, &[64])]);
    assert_eq!(Checkpoint::from_bytes(bytes.into()).unwrap().dialect, Dialect::Ggml);
}

#[test]
fn an_ambiguous_tensor_is_rejected() {
    // 36 and 34 bytes, both padded to 64
    assert_eq!(
        refusal(file(&[], &[("up", &Q2_0, &[128])])),
        "type id 42 is ambiguous: the offsets in the file match 64-weight Q2_0 and 128-weight Q2_0_G128"
    );
}

#[test]
fn offsets_that_match_no_dialect_are_rejected_with_the_numbers() {
    let bytes = Raw::new(3, 2, 0)
        .info("output.weight", &[5120, 32], 42, 0)
        .info("output_norm.weight", &[256], 0, 44000)
        .data(50_000);
    assert_eq!(
        refusal(bytes),
        "type id 42 matches no known layout: \
         as 64-weight Q2_0, tensor `output_norm.weight` has offset 44000, expected 46080; \
         as 128-weight Q2_0_G128, tensor `output_norm.weight` has offset 44000, expected 43520"
    );
    let cut = &model(&[], &Q2_0_G128);
    let cut = cut[..cut.len() - 33].to_vec();
    assert_eq!(
        refusal(cut),
        "type id 42 matches no known layout: \
         as 64-weight Q2_0, tensor `up` has offset 2720, expected 2880; \
         as 128-weight Q2_0_G128, the tensors need 5376 bytes, the file has 5343"
    );
    let ragged = Raw::new(3, 2, 0).info("a", &[192], 42, 0).info("b", &[4], 0, 32).data(96);
    assert_eq!(
        refusal(ragged),
        "type id 42 matches no known layout: \
         as 64-weight Q2_0, tensor `b` has offset 32, expected 64; \
         as 128-weight Q2_0_G128, tensor `a`: rows of 192 weights, want a multiple of 128 for Q2_0_G128"
    );
}

#[test]
fn the_published_offsets_of_a_legacy_file_match() {
    // a 27B file: 5120 x 248320 weights before the norm; only the header and the numbers are built here
    let raw = Raw::new(3, 2, 0)
        .info("output.weight", &[5120, 248_320], 42, 0)
        .info("output_norm.weight", &[5120], 0, 337_715_200)
        .data(0);
    assert_eq!(
        refusal(raw),
        "type id 42 matches no known layout: \
         as 64-weight Q2_0, tensor `output_norm.weight` has offset 337715200, expected 357580800; \
         as 128-weight Q2_0_G128, the tensors need 337735680 bytes, the file has 0"
    );
}

#[test]
fn microsoft_ids_have_their_microsoft_meaning() {
    for (id, name) in [(37, "I8_S"), (38, "TL1")] {
        let bytes = Raw::new(3, 1, 0).info("up", &[256], id, 0).data(4096);
        let want = format!(
            "tensor `up`: type {name} of bitnet.cpp (id {id}) is not supported: convert the model to I2_S"
        );
        assert_eq!(refusal(bytes), want);
    }
    let mxfp4 = [("general.architecture", text("gpt-oss"))];
    let tl2 = [("general.architecture", text("bitnet-b1.58"))];
    assert_eq!(Checkpoint::from_bytes(model(&mxfp4, &MXFP4).into()).unwrap().dialect, Dialect::Ggml);
    assert_eq!(
        refusal(model(&tl2, &MXFP4)),
        "tensor `embd`: type TL2 of bitnet.cpp (id 39) is not supported: convert the model to I2_S"
    );
    let mixed = file(&[], &[("a", &I2_S, &[128, 2]), ("b", &MXFP4, &[32])]);
    assert_eq!(
        refusal(mixed),
        "tensor `b`: type TL2 of bitnet.cpp (id 39) is not supported: convert the model to I2_S"
    );
}

#[test]
fn the_scale_after_an_i2_s_tensor_is_part_of_it() {
    let read = Checkpoint::from_bytes(model(&[], &I2_S).into()).unwrap();
    assert_eq!(read.tensors["embd"].bytes(), 256 * 40 / 4 + 32);
}
