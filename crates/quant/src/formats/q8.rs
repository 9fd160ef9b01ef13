//! Q8_0: 32 signed bytes under one scale.

use crate::bits::{bytes, f16_at, put_f16, sized};
use crate::encoding::rounding::{farthest, inverse, truncate};
use crate::{Codec, Codes, Dialect, Encode, Field, FieldType, NO_OFFSET, Quant, Unpacked};

/// `w = d * byte`. Encodes as ggml does.
pub static Q8_0: Quant = Quant {
    name: "Q8_0",
    gguf_id: Some(8),
    dialect: Dialect::Ggml,
    block_len: 32,
    fields: &[Field::new("d", FieldType::F16, 1), Field::new("qs", FieldType::I8, 32)],
    tail: 0,
    codec: Codec::Codes(Codes::new(32, unpack)),
    encode: Some(Encode::Plain(encode)),
};

fn unpack(block: &[u8], _tail: &[u8], out: Unpacked<'_>) {
    let codes: &mut [i8; 32] = sized(out.codes);
    *codes = bytes::<32>(block, 2).map(|byte| byte as i8);
    out.scales[0] = f16_at(block, 0);
    out.offsets[0] = NO_OFFSET;
}

fn encode(weights: &[f32], block: &mut [u8]) {
    let d = farthest(weights).abs() / 127.0;
    let id = inverse(d);
    put_f16(block, 0, d);
    for (byte, &w) in block[2..].iter_mut().zip(weights) {
        *byte = truncate((w * id).round()) as u8;
    }
}
