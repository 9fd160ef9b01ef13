//! Formats known by name and size only, so that a file that holds them can still be read and listed.

use crate::FieldType::{F16, F32, I8 as S8, I16 as S16};
use crate::{Codec, Dialect, Field, FieldType, Quant};

const fn named(name: &'static str, id: u32, block_len: usize, fields: &'static [Field]) -> Quant {
    Quant {
        name,
        gguf_id: Some(id),
        dialect: Dialect::Ggml,
        block_len,
        fields,
        tail: 0,
        codec: Codec::Named,
        encode: None,
    }
}

const fn f(name: &'static str, ty: FieldType, count: usize) -> Field {
    Field::new(name, ty, count)
}

/// ggml's activations for the formats of 32 weights with a minimum.
pub static Q8_1: Quant = named("Q8_1", 9, 32, &[f("d", F16, 1), f("s", F16, 1), f("qs", S8, 32)]);

/// ggml's activations for the formats of 256 weights.
pub static Q8_K: Quant = named("Q8_K", 15, 256, &[f("d", F32, 1), f("qs", S8, 256), f("bsums", S16, 16)]);

/// Plain signed bytes.
pub static I8: Quant = named("I8", 24, 1, &[f("v", S8, 1)]);

/// Plain 16-bit integers.
pub static I16: Quant = named("I16", 25, 1, &[f("v", S16, 1)]);

/// Plain 32-bit integers.
pub static I32: Quant = named("I32", 26, 1, &[f("v", FieldType::I32, 1)]);

/// Plain 64-bit integers.
pub static I64: Quant = named("I64", 27, 1, &[f("v", FieldType::I64, 1)]);

/// IEEE doubles.
pub static F64: Quant = named("F64", 28, 1, &[f("v", FieldType::F64, 1)]);
