//! The files of a repository that is a folder of safetensors: configuration, tokenizer, and weights.

use crate::HubError;
use crate::groups::{base, groups};

/// What describes a model. Weights follow them, so that a snapshot with all its weights has these too.
const SMALL: [&str; 12] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors.index.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "hf_quant_config.json",
    "quantize_config.json",
];

/// The ending of weights.
const WEIGHTS: &str = ".safetensors";

/// The files of the model in a folder, weights last; `None` if the repository is no such folder.
pub(crate) fn files(repo: &str, all: &[&str]) -> Result<Option<Vec<String>>, HubError> {
    if !all.contains(&"config.json") {
        return Ok(None);
    }
    let beside = |file: &&&str| !file.contains('/');
    let mut weights: Vec<&str> =
        all.iter().filter(beside).filter(|f| f.ends_with(WEIGHTS)).copied().collect();
    // other names are other forms of the same weights, as `consolidated.safetensors` is
    if weights.iter().any(|file| file.starts_with("model")) {
        weights.retain(|file| file.starts_with("model"));
    }
    if weights.is_empty() {
        return Ok(None);
    }
    let is_small = |file: &&str| SMALL.contains(file) || is_module(file);
    let mut files: Vec<String> = all.iter().filter(|f| is_small(f)).map(|f| f.to_string()).collect();
    files.sort();
    files.extend(all.iter().filter(|f| is_dense(f)).map(|f| f.to_string()));
    for group in groups(weights, WEIGHTS) {
        files.extend(group.complete(repo)?);
    }
    Ok(Some(files))
}

/// The folder of a module of sentence-transformers: `1_Pooling`, `2_Dense`.
fn module(file: &str) -> Option<&str> {
    let (folder, _) = file.split_once('/').filter(|(_, file)| !file.contains('/'))?;
    let (index, kind) = folder.split_once('_')?;
    (!index.is_empty() && index.bytes().all(|b| b.is_ascii_digit())).then_some(kind)
}

fn is_module(file: &str) -> bool {
    module(file).is_some() && base(file) == "config.json"
}

/// Weights of a module.
fn is_dense(file: &str) -> bool {
    module(file) == Some("Dense") && file.ends_with(WEIGHTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(all: &[&str]) -> Option<Vec<String>> {
        files("o/r", all).unwrap()
    }

    #[test]
    fn weights_are_last_and_other_files_are_left_out() {
        let all = [
            "README.md",
            "model.safetensors",
            "consolidated.safetensors",
            "config.json",
            "onnx/model.onnx",
            "original/model.safetensors",
            "pytorch_model.bin",
            "tokenizer.json",
            "2_Dense/model.safetensors",
            "2_Dense/config.json",
            "1_Pooling/config.json",
            "modules.json",
        ];
        let want = [
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "config.json",
            "modules.json",
            "tokenizer.json",
            "2_Dense/model.safetensors",
            "model.safetensors",
        ];
        assert_eq!(chosen(&all).unwrap(), want);
    }

    #[test]
    fn a_folder_needs_a_configuration_and_weights() {
        assert_eq!(chosen(&["model.safetensors"]), None);
        assert_eq!(chosen(&["config.json", "pytorch_model.bin"]), None);
        assert_eq!(chosen(&["config.json", "x.safetensors"]).unwrap(), ["config.json", "x.safetensors"]);
        assert_eq!(chosen(&[]), None);
    }

    #[test]
    fn all_shards_are_required() {
        let all = ["config.json", "model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors"];
        assert_eq!(chosen(&all).unwrap()[1..], [all[2], all[1]]);
        let error = files("o/r", &all[..2]).unwrap_err().to_string();
        assert_eq!(error, "o/r: model-00002-of-00002.safetensors is split into 2 files, found 1");
    }
}
