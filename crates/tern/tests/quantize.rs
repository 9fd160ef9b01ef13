//! Quantizing against llama.cpp, which gives every tensor the same format and the same bytes, and
//! files that are read back.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};
use tern::formats::gguf::Writer;
use tern::formats::quantize::{ImportanceMatrix, Keep, Quantization, RECIPES, Recipe};
use tern::formats::{Checkpoint, Conversion, Metadata, Value};
use tern::models::{Synth, plain_tokenizer};
use tern::quant::{F16, F32, Q4_K, Q5_0, Q8_0, Quant};

/// What llama.cpp wrote (`scripts/oracle/llama/tensor_formats.py`): formats in the order of the file, as
/// runs, and a hash of all bytes.
#[derive(Deserialize)]
struct Golden {
    formats: Vec<(String, usize)>,
    sha256: String,
}

fn recipe(name: &str) -> Quantization<'static> {
    Quantization { recipe: Recipe::named(name).unwrap(), pure: false, keep: &[], importance: None }
}

fn quantized(source: &Checkpoint, quantization: &Quantization<'_>) -> Checkpoint {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("quantized.gguf");
    let conversion = quantization.conversion(source, &quantization.formats(source));
    let written = Conversion { threads: 2, ..conversion }.write(source, &path, &mut |_| ()).unwrap();
    assert_eq!(written.bytes, path.metadata().unwrap().len());
    Checkpoint::open(&path).unwrap()
}

fn synthetic(spec: &str) -> Checkpoint {
    let (shape, quant) = Synth::parse(spec).unwrap();
    let mut file = vec![];
    let mut synth = Synth::new(&shape, quant, None).unwrap();
    synth.write(&plain_tokenizer(shape.vocab), &mut file, |_, _| ()).unwrap();
    Checkpoint::from_bytes(file.into()).unwrap()
}

/// The layer of a tensor; none is before the first one.
fn block_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// The importance that the recorder gives columns: 0.25 to 1.25, exact in f32.
fn importance(source: &Checkpoint) -> ImportanceMatrix {
    let matrices: Vec<_> =
        source.tensors.values().filter(|t| t.name.starts_with("blk.") && t.rows() > 1).collect();
    let mut writer = Writer::new(Metadata::default());
    for tensor in &matrices {
        writer.declare(&format!("{}.in_sum2", tensor.name), &F32, &[tensor.cols() as u64, 1]).unwrap();
        writer.declare(&format!("{}.counts", tensor.name), &F32, &[1, 1]).unwrap();
    }
    let value = |i: usize| ((i * 40503) & 0xffff) as f32 / 65536.0 + 0.25;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("imatrix.gguf");
    let mut file = std::fs::File::create(&path).unwrap();
    let data = |i: usize, out: &mut dyn std::io::Write| match i % 2 {
        0 => (0..matrices[i / 2].cols()).try_for_each(|i| out.write_all(&value(i).to_le_bytes())),
        _ => out.write_all(&1f32.to_le_bytes()),
    };
    writer.write_to(&mut file, data).unwrap();
    ImportanceMatrix::open(&path).unwrap()
}

#[test]
fn files_of_smollm2_have_the_bytes_of_llama_cpp() {
    compare_with_llama_cpp("smollm2-135m-instruct-q4_1.gguf");
}

#[test]
fn files_of_gemma_have_the_bytes_of_llama_cpp() {
    compare_with_llama_cpp("gemma-3-270m-q4_k_m.gguf");
}

/// Quantizes the model in each recorded way.
fn compare_with_llama_cpp(model: &str) {
    let path = std::env::var_os("TERN_TEST_DATA").map(|data| PathBuf::from(data).join(model));
    let Some(path) = path.filter(|path| path.exists()) else {
        println!("skipped: {model} is missing (TERN_TEST_DATA)");
        return;
    };
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/quantized.json");
    let mut goldens: BTreeMap<String, BTreeMap<String, Golden>> =
        serde_json::from_str(&std::fs::read_to_string(goldens).unwrap()).unwrap();
    let source = Checkpoint::open(&path).unwrap();
    let importance = importance(&source);
    for (name, want) in goldens.remove(model).unwrap() {
        let quantization = match name.strip_suffix("+imatrix") {
            Some(name) => Quantization { importance: Some(&importance), ..recipe(name) },
            None => recipe(&name),
        };
        let file = quantized(&source, &quantization);
        let mut formats: Vec<(String, usize)> = vec![];
        let mut hash = Sha256::new();
        let mut tensors: Vec<_> = file.tensors.values().collect();
        // as llama.cpp orders them
        tensors.sort_by_key(|tensor| (block_of(&tensor.name), tensor.name.clone()));
        for tensor in tensors {
            hash.update(tensor.data());
            match formats.last_mut() {
                Some((format, count)) if format == tensor.quant.name => *count += 1,
                _ => formats.push((tensor.quant.name.into(), 1)),
            }
        }
        assert_eq!(formats, want.formats, "{name}");
        let hash: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hash, want.sha256, "{name}: other bytes");
    }
}

#[test]
fn every_recipe_writes_a_model_that_opens() {
    let source = synthetic("tiny-qwen3:f16");
    for recipe in RECIPES {
        let file = quantized(&source, &self::recipe(recipe.name));
        tern::models::Model::open(&file, None).unwrap();
        assert_eq!(file.tensors.len(), source.tensors.len(), "{}", recipe.name);
        let norm = &file.tensors["output_norm.weight"];
        assert_eq!(norm.quant, source.tensors["output_norm.weight"].quant, "{}", recipe.name);
        let number = file.metadata.get("general.file_type").cloned();
        assert_eq!(number, recipe.file_type.map(Value::Uint), "{}", recipe.name);
    }
}

#[test]
fn patterns_choose_formats_and_pure_chooses_one() {
    let source = synthetic("tiny-qwen3:f16");
    let keep = |pattern: &str, format| Keep { pattern: pattern.into(), format };
    let keep = [keep("blk.0.*", &F16), keep("*.attn_v.weight", &Q8_0)];
    let file = quantized(&source, &Quantization { keep: &keep, ..recipe("Q4_K_S") });
    let format = |name: &str| file.tensors[name].quant;
    assert_eq!(format("blk.0.attn_v.weight"), &F16 as &Quant);
    assert_eq!(format("blk.1.attn_v.weight"), &Q8_0 as &Quant);
    let pure = quantized(&source, &Quantization { pure: true, ..recipe("Q4_K_M") });
    let matrices = pure.tensors.values().filter(|tensor| tensor.rows() > 1);
    let fits = |cols: usize| if cols.is_multiple_of(256) { &Q4_K } else { &Q5_0 };
    matrices.for_each(|tensor| assert_eq!(tensor.quant, fits(tensor.cols()), "{}", tensor.name));
}
