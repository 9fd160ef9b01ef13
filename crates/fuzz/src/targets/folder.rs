//! Folders of safetensors: the files of an input, each after a line `=== NAME`.
//!
//! A section `tensors` has a line per tensor (`BF16 NAME 4 8`) and becomes a well-formed file of
//! zeros, so that changes of names, types and shapes reach what reads them; a section
//! `model.safetensors` is the file itself.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tern_formats::Checkpoint;
use tern_models::Model;
use tern_text::Tokenizer;

use super::Run;
use crate::record::LONGEST;

pub(super) const WORDS: &[&str] = &[
    "\n=== config.json\n",
    "\n=== tokenizer.json\n",
    "\n=== tensors\n",
    "\n=== modules.json\n",
    "\n=== model.safetensors.index.json\n",
    "\"architectures\": [\"LlamaForCausalLM\"], ",
    "\"num_hidden_layers\": 18446744073709551615, ",
    "\"num_attention_heads\": 0, ",
    "\"rope_scaling\": {\"rope_type\": \"yarn\"}, ",
    "\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": -1}, ",
    "\"quantization_config\": {\"quant_method\": \"awq\"}, ",
    "\"quantization_config\": {\"quant_method\": \"fp8\"}, ",
    "\"layer_types\": [\"full_attention\"], ",
    "F32 ",
    "I32 ",
    "U8 ",
    " 0 ",
    " 4294967296 ",
    ".qweight",
    ".scales",
    ".qzeros",
    ".g_idx",
    ".weight_scale",
    "layers.0.",
    "experts.1.",
];

/// Files that an input may have.
const FILES: [&str; 9] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "modules.json",
    "model.safetensors.index.json",
    "1_Pooling/config.json",
    "model.safetensors",
];

/// Bytes of a file of zeros at most.
const MOST: usize = 1 << 22;

/// Where a process writes the files of an input.
fn scratch(process: u32) -> PathBuf {
    std::env::temp_dir().join(format!("tern-fuzz-folder-{process}"))
}

/// Removes what a process has written.
pub(crate) fn remove_scratch(process: u32) {
    let _ = std::fs::remove_dir_all(scratch(process));
}

/// Opens the folder, reads its tensors, and builds its tokenizer and its graph.
pub(super) fn start() -> Run {
    let folder = scratch(std::process::id());
    std::fs::create_dir_all(folder.join("1_Pooling")).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    Box::new(move |input| {
        write(&folder, input);
        let Ok(checkpoint) = Checkpoint::open(&folder) else { return };
        for tensor in checkpoint.tensors.values() {
            assert_eq!(tensor.data().len() as u64, tensor.bytes(), "{}", tensor.name);
        }
        if let Ok(tokenizer) = Tokenizer::from_metadata(&checkpoint.metadata) {
            let ids = tokenizer.encode(" Once upon a time é日🙂\n\n\t<|endoftext|>", true, true);
            tokenizer.decode(&ids, true);
        }
        let _ = Model::open(&checkpoint, Some(64));
    })
}

fn write(folder: &Path, input: &[u8]) {
    for file in FILES {
        let _ = std::fs::remove_file(folder.join(file));
    }
    for (name, bytes) in sections(input) {
        let (name, bytes) = match name {
            b"tensors" => ("model.safetensors", zeros(&String::from_utf8_lossy(bytes))),
            name => match FILES.iter().find(|file| file.as_bytes() == name) {
                Some(file) => (*file, bytes.to_vec()),
                None => continue,
            },
        };
        let path: PathBuf = folder.join(name);
        std::fs::write(&path, bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
}

/// Names and contents.
fn sections(input: &[u8]) -> Vec<(&[u8], &[u8])> {
    let mut found = vec![];
    let mark = b"=== ";
    let starts: Vec<usize> = (0..input.len())
        .filter(|at| input[*at..].starts_with(mark) && (*at == 0 || input[at - 1] == b'\n'))
        .collect();
    for (i, start) in starts.iter().enumerate() {
        let all = &input[start + mark.len()..starts.get(i + 1).copied().unwrap_or(input.len())];
        let end = all.iter().position(|b| *b == b'\n').unwrap_or(all.len());
        found.push((&all[..end], all.get(end + 1..).unwrap_or_default()));
    }
    found
}

/// A safetensors file of these tensors.
fn zeros(lines: &str) -> Vec<u8> {
    let (mut header, mut end) = (Map::new(), 0usize);
    for line in lines.lines() {
        let mut words = line.split(' ');
        let (Some(dtype), Some(name)) = (words.next(), words.next()) else { continue };
        let shape: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        let each = match dtype {
            "F64" | "I64" | "U64" => 8,
            "F32" | "I32" | "U32" => 4,
            "F16" | "BF16" | "I16" | "U16" => 2,
            _ => 1,
        };
        let bytes = shape.iter().try_fold(each, |bytes: u64, n| bytes.checked_mul(*n)).unwrap_or(u64::MAX);
        let bytes = usize::try_from(bytes).unwrap_or(MOST).min(MOST - end.min(MOST));
        header
            .insert(name.into(), json!({"dtype": dtype, "shape": shape, "data_offsets": [end, end + bytes]}));
        end += bytes;
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + end, 0);
    file
}

/// The folders of the fixtures.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/safetensors");
    let listed = std::fs::read_dir(&fixtures).unwrap_or_else(|e| panic!("{}: {e}", fixtures.display()));
    let mut paths: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let seed = |path: PathBuf| {
        let json: Value = serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()?;
        let mut text =
            format!("=== config.json\n{}\n=== tokenizer.json\n{TOKENIZER}\n=== tensors\n", json["config"]);
        for tensor in json["tensors"].as_array()? {
            let shape: Vec<String> = tensor["shape"].as_array()?.iter().map(Value::to_string).collect();
            text += &format!("F32 {} {}\n", tensor["name"].as_str()?, shape.join(" "));
        }
        Some(text.into_bytes()).filter(|seed| seed.len() <= LONGEST)
    };
    paths.into_iter().filter_map(seed).collect()
}

const TOKENIZER: &str = r#"{"added_tokens":[{"id":2,"content":"<end>","special":true}],"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]}}"#;
