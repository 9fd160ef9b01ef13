//! Linears that `scripts/oracle/transformers/linears.py` recorded: the decoded weights are those of the
//! libraries that write them.

use std::path::{Path, PathBuf};

use super::*;
use crate::safetensors;

/// The error that a method may have, in parts of the largest weight: 0 where the format is exact.
const METHODS: &[(&str, &str, f32)] = &[
    ("awq", "INT4_32", 0.0),
    ("awq-128", "INT4_128", 0.0),
    ("bitnet", "Q2_0", 1e-7),
    ("bitnet-auto", "Q2_0", 0.0),
    ("bnb-fp4", "F16", 5e-4),
    ("bnb-int8", "Q8_0", 5e-4),
    ("bnb-nf4", "F16", 5e-4),
    ("bnb-nf4-nested", "F16", 5e-4),
    ("float8-channel", "F16", 5e-4),
    ("fp8-blocks", "F16", 5e-4),
    ("fp8-tensor", "F16", 5e-4),
    ("gptq-128", "INT4_128", 0.0),
    ("gptq-8", "Q8_0", 0.0),
    ("gptq-desc-act", "F16", 5e-4),
    ("gptq-sym", "Q4_0", 0.0),
    ("gptq-v2", "INT4_32", 0.0),
    ("gptq-zeros", "INT4_32", 0.0),
    ("int8-channel", "Q8_0", 0.0),
    ("mlx-2", "Q4_1", 1e-7),
    ("mlx-4", "Q4_1", 1e-7),
    ("mlx-8", "F16", 5e-4),
    ("mxfp4", "MXFP4", 0.0),
    ("nvfp4", "NVFP4", 1e-6),
    ("packed-int4", "Q4_0", 0.0),
    ("packed-int4-128", "INT4_128", 0.0),
    ("packed-int4-128-zeros", "INT4_128", 0.0),
    ("packed-int4-zeros", "INT4_32", 0.0),
    ("packed-int8", "Q8_0", 0.0),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/quantized")
}

/// The tensors of a fixture and its configuration.
fn recorded(name: &str) -> (IndexMap<String, Entry>, Config) {
    let bytes = std::fs::read(folder().join(format!("{name}.safetensors"))).unwrap();
    let entries = safetensors::read(&bytes.into()).unwrap();
    let config = Config::read(&folder(), &format!("{name}.json")).unwrap().unwrap();
    (entries.into_iter().map(|entry| (entry.name.clone(), entry)).collect(), config)
}

#[test]
fn weights_are_those_of_the_libraries() {
    let mut wrong = vec![];
    for (name, format, most) in METHODS {
        let (mut entries, config) = recorded(name);
        let expected = Matrix::of(&entries.shift_remove("expected").unwrap()).unwrap();
        let weights = weights(entries, &config).unwrap();
        let matrix = weights.get("linear.weight").or_else(|| weights.get("linear")).unwrap();
        let factor = weights.get("linear.scale").map_or(1.0, |scale| scale.values()[0]);
        assert_eq!(matrix.shape, expected.shape, "{name}");
        let want = expected.values();
        let largest = want.iter().fold(0.0f32, |most, w| most.max(w.abs()));
        let each = matrix.values().into_iter().zip(want);
        let off = each.map(|(got, want)| (got * factor - want).abs()).fold(0.0, f32::max) / largest;
        println!("{name}: {} off by {off:.1e}", matrix.quant);
        if matrix.quant.name != *format || off.is_nan() || off > *most {
            wrong.push(format!("{name}: {} off by {off:.1e}, want {format} and {most:.1e}", matrix.quant));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let files = std::fs::read_dir(folder()).unwrap().count();
    assert_eq!(files, 2 * METHODS.len(), "every fixture is listed");
}

/// A tensor that is missing, cut or of another dtype is an error, never a panic.
#[test]
fn damaged_linears_are_refused() {
    for (name, ..) in METHODS {
        let (mut entries, config) = recorded(name);
        entries.shift_remove("expected");
        for part in entries.keys().cloned().collect::<Vec<_>>() {
            let mut without = entries.clone();
            without.shift_remove(&part);
            let mut cut = entries.clone();
            let entry = cut.get_mut(&part).unwrap();
            if let Some(first) = entry.shape.first_mut().filter(|n| **n > 1) {
                let each = entry.data.len() / *first as usize;
                *first -= 1;
                entry.data = entry.data.slice(..entry.data.len() - each);
            }
            let mut other = entries.clone();
            other.get_mut(&part).unwrap().dtype = safetensors::DTYPES[7]; // I64
            for damaged in [without, cut, other] {
                if let Ok(weights) = weights(damaged, &config) {
                    weights.values().for_each(|matrix| drop(matrix.data()));
                }
            }
        }
    }
}

/// Tensors whose bytes are not used.
const UNUSED: [&str; 2] = ["weight_format", "input_global_scale"];

#[test]
fn tensors_of_another_dtype_are_refused_by_name() {
    let dtype = |name: &str| *safetensors::DTYPES.iter().find(|dtype| dtype.name == name).unwrap();
    let mut read = vec![];
    for (method, ..) in METHODS {
        let (mut entries, config) = recorded(method);
        entries.shift_remove("expected");
        for part in entries.keys().cloned().collect::<Vec<_>>() {
            let mut other = entries.clone();
            let entry = other.get_mut(&part).unwrap();
            entry.dtype = match entry.dtype.bytes {
                _ if UNUSED.iter().any(|unused| part.ends_with(unused)) => continue,
                8 => dtype("F64"),
                4 => dtype(if entry.dtype.name == "I32" { "U32" } else { "I32" }),
                2 => dtype("U16"),
                _ => dtype("BOOL"),
            };
            match weights(other, &config) {
                Ok(_) => read.push(format!("{method}: {part}")),
                Err(e) => assert!(e.to_string().contains(&part), "{method}: {part}: {e}"),
            }
        }
    }
    assert!(read.is_empty(), "read as what they are not: {read:?}");
}

#[test]
fn zero_points_are_packed_words() {
    let (mut entries, config) = recorded("packed-int4-zeros");
    let zeros = entries.get_mut("linear.weight_zero_point").unwrap();
    zeros.dtype = *safetensors::DTYPES.iter().find(|dtype| dtype.name == "F32").unwrap();
    let shape = format!("{:?}", zeros.shape);
    assert_eq!(
        weights(entries, &config).err().unwrap().to_string(),
        format!("tensor `linear.weight_zero_point`: want I32 {shape}, file has F32 {shape}")
    );
}

#[test]
fn unknown_methods_are_refused_by_name() {
    let config = |text: &str| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), format!("{{\"quantization_config\": {text}}}"))
            .unwrap();
        Config::read(folder.path(), "config.json").unwrap().unwrap()
    };
    let error = |text: &str| weights(IndexMap::new(), &config(text)).err().unwrap().to_string();
    assert_eq!(
        error(r#"{"quant_method": "aqlm"}"#),
        "config.json: quantization_config: `quant_method`: want gptq, awq, compressed-tensors, fp8, mxfp4, bitsandbytes or bitnet, file has \"aqlm\""
    );
    assert_eq!(
        error(r#"{"quant_method": "gptq", "bits": 3}"#),
        "config.json: quantization_config: `bits`: want one of [2, 4, 8], file has 3"
    );
}
