//! Files of recorded models, whose values are made of their names.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;

use serde_json::{Value, json};

/// The values of a tensor, as the recorders make them.
pub(crate) fn values(seed: &str, count: u64, gain: f32, offset: f32) -> impl Iterator<Item = f32> {
    let seed = seed.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (0..count).map(move |i| {
        let x = seed.wrapping_add(i).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let x = x ^ (x >> 31);
        let unit = (x >> 40) as f32 / (1u32 << 23) as f32 - 1.0;
        offset + gain * unit
    })
}

/// Writes recorded tensors to a safetensors file, in this dtype.
pub(crate) fn write_tensors(path: &Path, tensors: &Value, dtype: &str) {
    let (mut header, mut data) = (serde_json::Map::new(), vec![]);
    for tensor in tensors.as_array().unwrap() {
        let name = tensor["name"].as_str().unwrap();
        let count: u64 = tensor["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).product();
        let (gain, offset) =
            (tensor["gain"].as_f64().unwrap() as f32, tensor["offset"].as_f64().unwrap() as f32);
        let start = data.len();
        for value in values(tensor["seed"].as_str().unwrap_or(name), count, gain, offset) {
            match dtype {
                "F32" => data.extend(value.to_le_bytes()),
                _ => data.extend(&value.to_le_bytes()[2..]), // BF16, rounded down
            }
        }
        let range = [start, data.len()];
        header
            .insert(name.into(), json!({ "dtype": dtype, "shape": tensor["shape"], "data_offsets": range }));
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    std::fs::write(path, file).unwrap();
}

/// Writes a recorded model to a folder, with weights in this dtype.
pub(crate) fn write_folder(folder: &Path, recorded: &Value, dtype: &str) {
    std::fs::write(folder.join("config.json"), recorded["config"].to_string()).unwrap();
    std::fs::write(folder.join("tokenizer.json"), tokenizer().to_string()).unwrap();
    write_tensors(&folder.join("model.safetensors"), &recorded["tensors"], dtype);
}

/// The smallest tokenizer of bytes.
pub(crate) fn tokenizer() -> Value {
    json!({
        "added_tokens": [{ "id": 2, "content": "<end>", "special": true }],
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "use_regex": true },
        "model": { "type": "BPE", "vocab": { "a": 0, "b": 1 }, "merges": [] },
    })
}

/// Whole numbers of a recording.
pub(crate) fn numbers(recorded: &Value, key: &str) -> Vec<usize> {
    recorded[key].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect()
}

/// The recorded rows of logits.
pub(crate) fn logits(recorded: &Value) -> Vec<Vec<f32>> {
    let row = |row: &Value| row.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
    recorded["logits"].as_array().unwrap().iter().map(row).collect()
}

/// The largest difference, in parts of the largest logit.
pub(crate) fn error(got: &[Vec<f32>], want: &[Vec<f32>]) -> f32 {
    let largest = want.iter().flatten().fold(0.0f32, |most, x| most.max(x.abs()));
    let each = got.iter().flatten().zip(want.iter().flatten());
    each.map(|(got, want)| (got - want).abs()).fold(0.0, f32::max) / largest
}
