//! Folders of safetensors: what a small one opens as, and one sentence for each way in which it can be wrong.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};
use tern_formats::{Checkpoint, FileKind, FolderExport, Value as Key};

/// The tensors of a Llama of one layer: 8 columns, 2 heads, 1 key head.
const TENSORS: [(&str, &[u64]); 12] = [
    ("model.embed_tokens.weight", &[4, 8]),
    ("model.norm.weight", &[8]),
    ("lm_head.weight", &[4, 8]),
    ("model.layers.0.input_layernorm.weight", &[8]),
    ("model.layers.0.post_attention_layernorm.weight", &[8]),
    ("model.layers.0.self_attn.q_proj.weight", &[8, 8]),
    ("model.layers.0.self_attn.k_proj.weight", &[4, 8]),
    ("model.layers.0.self_attn.v_proj.weight", &[4, 8]),
    ("model.layers.0.self_attn.o_proj.weight", &[8, 8]),
    ("model.layers.0.mlp.gate_proj.weight", &[16, 8]),
    ("model.layers.0.mlp.up_proj.weight", &[16, 8]),
    ("model.layers.0.mlp.down_proj.weight", &[8, 16]),
];

fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
        "vocab_size": 4, "rope_theta": 10000.0, "eos_token_id": [2, 1],
    })
}

fn tokenizer() -> Value {
    json!({
        "added_tokens": [{ "id": 2, "content": "</s>", "special": true }, { "id": 3, "content": "<x>", "special": false }],
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "▁" },
            { "type": "Replace", "pattern": { "String": " " }, "content": "▁" },
        ] },
        "model": { "type": "BPE", "byte_fallback": true, "vocab": { "a": 0, "▁a": 1, "<0x0A>": 4 }, "merges": ["▁ a"] },
    })
}

/// A safetensors file: element `i` of a tensor is `i` in BF16.
fn safetensors(tensors: &[(&str, &[u64])]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), vec![]);
    for (name, shape) in tensors {
        let start = data.len();
        for i in 0..shape.iter().product::<u64>() {
            data.extend(&(i as f32).to_le_bytes()[2..]);
        }
        header.insert(
            (*name).into(),
            json!({ "dtype": "BF16", "shape": shape, "data_offsets": [start, data.len()] }),
        );
    }
    with_header(&Value::Object(header).to_string(), &data)
}

fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

fn folder() -> TempDir {
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("config.json"), config().to_string()).unwrap();
    fs::write(folder.path().join("tokenizer.json"), tokenizer().to_string()).unwrap();
    fs::write(folder.path().join("model.safetensors"), safetensors(&TENSORS)).unwrap();
    folder
}

/// A header of empty tensors.
fn empty_tensors(count: usize) -> String {
    let entry = r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
    let entries: Vec<String> = (0..count).map(|i| format!("\"{i}\":{entry}")).collect();
    format!("{{{}}}", entries.join(","))
}

/// The error of a folder, without its path.
fn refusal(folder: &Path) -> String {
    let text = Checkpoint::open(folder).unwrap_err().to_string();
    let inside = text.replace(&format!("{}/", folder.display()), "");
    inside.replace(&format!("{}: ", folder.display()), "")
}

#[test]
fn a_folder_has_the_keys_and_tensors_of_a_gguf_file() {
    let folder = folder();
    fs::write(folder.path().join("chat_template.jinja"), "{{ messages }}").unwrap();
    fs::write(
        folder.path().join("tokenizer_config.json"),
        json!({ "eos_token": "</s>", "tokenizer_class": "LlamaTokenizerFast" }).to_string(),
    )
    .unwrap();
    let model = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(model.files[0].kind, FileKind::Safetensors);
    let key = |name: &str| model.metadata.get(name).cloned();
    assert_eq!(key("general.architecture"), Some(Key::String("llama".into())));
    assert_eq!(key("llama.attention.head_count_kv"), Some(Key::Uint(1)));
    assert_eq!(key("llama.rope.dimension_count"), Some(Key::Uint(4)));
    assert_eq!(key("tokenizer.ggml.model"), Some(Key::String("llama".into())));
    assert_eq!(key("tokenizer.ggml.token_type"), Some(Key::Ints(vec![1, 1, 3, 4, 6])));
    assert_eq!(key("tokenizer.ggml.scores"), Some(Key::Floats(vec![-1.0, 0.0, -1.0, -1.0, -1.0])));
    assert_eq!(key("tokenizer.ggml.eos_token_id"), Some(Key::Uint(2)));
    assert_eq!(key("tokenizer.ggml.eot_token_id"), Some(Key::Uint(1)));
    assert_eq!(key("tokenizer.ggml.add_bos_token"), Some(Key::Bool(true)));
    assert_eq!(key("tokenizer.chat_template"), Some(Key::String("{{ messages }}".into())));
    assert_eq!(model.tensors.len(), TENSORS.len());
    let (q, norm) = (&model.tensors["blk.0.attn_q.weight"], &model.tensors["blk.0.attn_norm.weight"]);
    assert_eq!((q.quant.name, norm.quant.name, norm.bytes()), ("BF16", "F32", 32));
    // pairs of a head become neighbours: rows 0 2 1 3 of each head
    let first = |row: usize| f32::from_le_bytes([0, 0, q.data()[row * 16], q.data()[row * 16 + 1]]);
    assert_eq!([0, 1, 2, 3, 4, 5].map(first), [0.0, 16.0, 8.0, 24.0, 32.0, 48.0]);
}

#[test]
fn shards_are_found_by_their_index() {
    let folder = folder();
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    let map: serde_json::Map<String, Value> = TENSORS
        .iter()
        .enumerate()
        .map(|(i, (name, _))| ((*name).into(), json!(format!("part-{}.safetensors", i % 2))))
        .collect();
    let parts = [0, 1].map(|part| TENSORS.iter().skip(part).step_by(2).copied().collect::<Vec<_>>());
    fs::write(folder.path().join("model.safetensors.index.json"), json!({ "weight_map": map }).to_string())
        .unwrap();
    fs::write(folder.path().join("part-0.safetensors"), safetensors(&parts[0])).unwrap();
    assert_eq!(
        refusal(folder.path()),
        "the file part-1.safetensors is missing: model.safetensors.index.json names it"
    );
    fs::write(folder.path().join("part-1.safetensors"), safetensors(&parts[1])).unwrap();
    assert_eq!(Checkpoint::open(folder.path()).unwrap().files.len(), 2);
    fs::write(folder.path().join("part-1.safetensors"), safetensors(&parts[1][1..])).unwrap();
    let missing = "part-1.safetensors: tensor `model.norm.weight` is missing: model.safetensors.index.json has it in this file";
    assert_eq!(refusal(folder.path()), missing);
}

#[test]
fn wrong_configurations_are_refused_in_one_sentence() {
    let folder = folder();
    let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
    for (key, value, want) in [
        (
            "architectures",
            json!(["BloomForCausalLM"]),
            "config.json: architecture BloomForCausalLM is not supported",
        ),
        ("architectures", json!(null), "config.json: `architectures` is missing"),
        ("hidden_size", json!("8"), "config.json: `hidden_size`: want a whole number, file has \"8\""),
        ("hidden_size", json!(null), "config.json: `hidden_size` is missing"),
        (
            "num_attention_heads",
            json!(0),
            "tensor `layers.0.self_attn.q_proj.weight` has 8 rows: want 0 heads of an even number of columns",
        ),
        (
            "num_attention_heads",
            json!(3),
            "tensor `layers.0.self_attn.q_proj.weight` has 8 rows: want 3 heads of an even number of columns",
        ),
        (
            "rope_scaling",
            json!({ "type": "magic" }),
            "config.json: rope_scaling: `rope_type`: want default, linear, llama3, yarn or longrope, file has nothing",
        ),
    ] {
        let mut config = config();
        config["head_dim"] = json!(4);
        config[key] = value;
        write("config.json", &config.to_string());
        assert_eq!(refusal(folder.path()), want);
    }
    write("config.json", "{");
    assert!(refusal(folder.path()).starts_with("config.json is not a JSON object: "));
    write("config.json", &config().to_string());
    write("tokenizer.json", "[]");
    assert_eq!(refusal(folder.path()), "tokenizer.json has no model, which is not supported");
    let mut odd = tokenizer();
    odd["normalizer"] = json!({ "type": "Lowercase" });
    write("tokenizer.json", &odd.to_string());
    assert_eq!(
        refusal(folder.path()),
        "tokenizer.json has the normalizer {\"type\":\"Lowercase\"}, which is not supported"
    );
    fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    assert_eq!(
        refusal(folder.path()),
        "the folder has no tokenizer.json: save the tokenizer with `transformers` to make one"
    );
}

#[test]
fn wrong_files_are_refused_in_one_sentence() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let whole = safetensors(&TENSORS);
    let small = |dtype: &str, shape: &str, range: &str, data: usize| {
        let header =
            format!("{{\"t\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":{range}}}}}");
        with_header(&header, &vec![0; data])
    };
    let extra: Vec<_> =
        TENSORS.iter().copied().chain([("model.layers.0.extra.weight", &[1u64] as &[u64])]).collect();
    for (bytes, want) in [
        (vec![], "model.safetensors: the file has 0 bytes: want at least 8 for the length of its header"),
        (
            vec![255; 9],
            "model.safetensors: the header has 18446744073709551615 bytes: want at most 1 in a file of 9",
        ),
        (
            with_header("[]", &[]),
            "model.safetensors: the header is not a JSON object: invalid type: sequence, expected a map at line 1 column 0",
        ),
        (
            whole[..whole.len() - 2].to_vec(),
            "model.safetensors: tensor `model.layers.0.mlp.down_proj.weight`: bytes 1072 to 1328 exceed the 1326 bytes of data in the file",
        ),
        (
            [&whole[..], &[0, 0]].concat(),
            "model.safetensors: the tensors have 1328 bytes, the file has 1330 of data",
        ),
        (
            small("F4", "[2]", "[0,1]", 1),
            "model.safetensors: tensor `t`: dtype F4 is unknown: want one of F64, F32, F16, BF16, F8_E4M3, F8_E5M2, F8_E8M0, I64, I32, I16, I8, U64, U32, U16, U8, BOOL",
        ),
        (
            small("F32", "[2]", "[0,4]", 4),
            "model.safetensors: tensor `t`: shape [2] of F32 needs 8 bytes, the file has 4",
        ),
        (
            small("F32", "[4294967296,4294967296]", "[0,0]", 0),
            "model.safetensors: tensor `t`: shape [4294967296, 4294967296] of F32 needs too many bytes, the file has 0",
        ),
        (
            small("F32", "[1]", "[4,8]", 8),
            "model.safetensors: tensor `t` starts at byte 4 of the data: want 0, without gaps or overlaps",
        ),
        (small("F32", "[0]", "[0,0]", 0), "tensor `t`: shape [0] has a zero dimension"),
        (small("I64", "[1]", "[0,8]", 8), "tensor `t` has dtype I64: want F32, F16 or BF16"),
        (
            safetensors(&extra),
            "tensor `layers.0.extra.weight` is unexpected in a folder of LlamaForCausalLM: results without it would be wrong",
        ),
    ] {
        fs::write(&path, bytes).unwrap();
        assert_eq!(refusal(folder.path()), want);
    }
}

/// Any change of any file gives a model or an error, and what opens can be read.
#[test]
fn damaged_folders_open_or_are_refused() {
    let folder = folder();
    let files = ["config.json", "tokenizer.json", "model.safetensors"];
    let (mut state, mut opened) = (1u64, 0);
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for round in 0..1200 {
        let path = folder.path().join(files[round % 3]);
        let whole = fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        for _ in 0..=random(3) {
            let at = random(bytes.len().min(2500));
            match random(4) {
                0 => bytes[at] = random(256) as u8,
                1 => bytes[at] = b"0123456789,:[]{}\"e-"[random(19)],
                2 => drop(bytes.drain(at..(at + 1 + random(8)).min(bytes.len()))),
                _ => drop(bytes.splice(at..at, b"9999999"[..1 + random(7)].iter().copied())),
            }
        }
        fs::write(&path, &bytes).unwrap();
        if let Ok(model) = Checkpoint::open(folder.path()) {
            opened += 1;
            for tensor in model.tensors.values() {
                assert_eq!(tensor.data().len() as u64, tensor.bytes(), "{}", tensor.name);
            }
        }
        fs::write(&path, &whole).unwrap();
    }
    assert!(opened > 50, "{opened} opened");
}

#[test]
fn modules_of_sentence_transformers_are_part_of_the_model() {
    let folder = folder();
    let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
    let module = |kind: &str, path: &str| json!({ "type": format!("sentence_transformers.models.{kind}"), "path": path });
    for path in ["1_Pooling", "2_Dense", "3_Dense"] {
        fs::create_dir(folder.path().join(path)).unwrap();
    }
    let dense = |rows: u64, activation: &str| {
        json!({ "in_features": 8, "out_features": rows, "bias": true, "activation_function": activation })
            .to_string()
    };
    let identity = "torch.nn.modules.linear.Identity";
    write(
        "modules.json",
        &json!([
            module("Transformer", ""),
            module("Pooling", "1_Pooling"),
            module("Dense", "2_Dense"),
            module("Dense", "3_Dense"),
            module("Normalize", "4_Normalize"),
        ])
        .to_string(),
    );
    write(
        "1_Pooling/config.json",
        &json!({ "pooling_mode_cls_token": false, "pooling_mode_lasttoken": true }).to_string(),
    );
    write("2_Dense/config.json", &dense(6, identity));
    write("3_Dense/config.json", &dense(3, identity));
    let linear = |rows: u64| safetensors(&[("linear.weight", &[rows, 8]), ("linear.bias", &[rows])]);
    fs::write(folder.path().join("2_Dense/model.safetensors"), linear(6)).unwrap();
    fs::write(folder.path().join("3_Dense/model.safetensors"), linear(3)).unwrap();
    let model = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(model.metadata.get("llama.pooling_type"), Some(&Key::Uint(3)));
    assert_eq!(model.metadata.get("llama.dense_3_feat_out"), Some(&Key::Uint(3)));
    assert_eq!(model.tensors["dense_2.weight"].dims, [8, 6]);
    assert_eq!(model.tensors["dense_3.bias"].dims, [3]);

    write("1_Pooling/config.json", &json!({ "pooling_mode": "mean" }).to_string());
    let model = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(model.metadata.get("llama.pooling_type"), Some(&Key::Uint(1)));

    for (file, text, want) in [
        (
            "1_Pooling/config.json",
            json!({ "pooling_mode_max_tokens": true }).to_string(),
            "1_Pooling/config.json: pooling pooling_mode_max_tokens: want one of mean, cls and lasttoken",
        ),
        (
            "1_Pooling/config.json",
            json!({ "pooling_mode": ["mean", "max"] }).to_string(),
            "1_Pooling/config.json: pooling mean, max: want one of mean, cls and lasttoken",
        ),
        (
            "2_Dense/config.json",
            dense(6, "torch.nn.modules.activation.Tanh"),
            "config.json: `activation_function`: want Identity, file has \"torch.nn.modules.activation.Tanh\"",
        ),
        ("2_Dense/config.json", dense(7, identity), "tensor `linear.weight`: want [7, 8], file has [6, 8]"),
        (
            "2_Dense/config.json",
            "{}".into(),
            "config.json: `activation_function`: want Identity, file has nothing",
        ),
        (
            "modules.json",
            json!([module("Pooling", "../x")]).to_string(),
            "modules.json: `path`: want the name of a folder, file has ../x",
        ),
        (
            "modules.json",
            json!([module("Pooling", "5_Pooling")]).to_string(),
            "the folder has no 5_Pooling/config.json",
        ),
        (
            "modules.json",
            json!([module("WordWeights", "1_WordWeights")]).to_string(),
            "modules.json: module WordWeights is not supported",
        ),
        (
            "modules.json",
            json!([module("Dense", "2_Dense"), module("Dense", "3_Dense"), module("Dense", "2_Dense")])
                .to_string(),
            "modules.json: want at most 2 of Dense",
        ),
        (
            "modules.json",
            "{}".into(),
            "modules.json: want a list of modules: invalid type: map, expected a sequence at line 1 column 0",
        ),
    ] {
        let path = folder.path().join(file);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, text).unwrap();
        assert_eq!(refusal(folder.path()), want);
        fs::write(&path, whole).unwrap();
    }
    fs::remove_file(folder.path().join("2_Dense/model.safetensors")).unwrap();
    assert_eq!(refusal(folder.path()), "the folder has no 2_Dense/model.safetensors");
}

#[test]
fn an_index_cannot_name_files_elsewhere() {
    let folder = folder();
    for file in ["../model.safetensors", "/etc/passwd", "a\\b"] {
        let index = json!({ "weight_map": { "x": file } }).to_string();
        fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
        let want = "model.safetensors.index.json: `x`: want the name of a file beside it";
        assert_eq!(refusal(folder.path()), want);
    }
}

#[test]
fn the_number_of_rounded_matrices_is_a_key() {
    let folder = folder();
    assert_eq!(Checkpoint::open(folder.path()).unwrap().metadata.get(tern_formats::ROUNDED), None);
    let mut config = config();
    config["quantization_config"] = json!({ "quant_method": "fp8" });
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), vec![]);
    let gates = ["mlp.gate_proj", "mlp.up_proj"].map(|part| format!("model.layers.0.{part}.weight"));
    let scales = gates.clone().map(|name| format!("{name}_scale_inv"));
    let scales = scales.iter().map(|name| (name.as_str(), &[1u64, 1] as &[u64]));
    for (name, shape) in TENSORS.iter().copied().chain(scales) {
        let (dtype, each) = if gates.iter().any(|gate| gate == name) { ("F8_E4M3", 1) } else { ("BF16", 2) };
        let (start, count) = (data.len(), shape.iter().product::<u64>() as usize);
        data.resize(start + count * each, 0);
        header.insert(
            name.into(),
            json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, data.len()] }),
        );
    }
    let file = with_header(&Value::Object(header).to_string(), &data);
    fs::write(folder.path().join("model.safetensors"), file).unwrap();
    let model = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(model.tensors["blk.0.ffn_gate.weight"].quant.name, "F16");
    assert_eq!(model.metadata.get(tern_formats::ROUNDED), Some(&Key::Uint(2)));
}

/// The model of [`folder`] as a GGUF file would have it, with another value of one key.
#[test]
fn keys_of_a_configuration_that_nothing_reads_are_named() {
    let folder = folder();
    let unread = || Checkpoint::open(folder.path()).unwrap().metadata.get(tern_formats::UNREAD).cloned();
    assert_eq!(unread(), None);
    let mut config = config();
    config["initializer_range"] = json!(0.02); // of training
    config["no_such_feature"] = json!(false); // off
    config["hidden_act"] = json!("silu"); // as it is computed
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    assert_eq!(unread(), None);
    config["logit_multiplier"] = json!(0.5);
    config["hidden_act"] = json!("relu2");
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let want = ["hidden_act", "logit_multiplier"].map(String::from).into();
    assert_eq!(unread(), Some(Key::Strings(want)));
}

fn model_with(key: &str, value: Key) -> Checkpoint {
    let mut model = Checkpoint::open(folder().path()).unwrap();
    model.metadata.insert(key, value);
    model
}

#[test]
fn a_model_goes_back_to_its_folder() {
    let (source, out) = (folder(), tempdir().unwrap());
    let model = Checkpoint::open(source.path()).unwrap();
    let (path, all) =
        (out.path().join("model"), FolderExport { model: &model, floats: None, max_file: 1 << 30 });
    let written = all.write(&path, &mut |_| ()).unwrap();
    assert_eq!(
        (written.architecture, written.files, written.tensors),
        ("LlamaForCausalLM", 1, TENSORS.len())
    );
    assert_eq!(fs::read(path.join("model.safetensors")).unwrap().len() as u64 % 8, 0);
    let again = Checkpoint::open(&path).unwrap();
    for (name, tensor) in &model.tensors {
        assert_eq!(again.tensors[name].data(), tensor.data(), "{name}");
    }
    let text = all.write(&path, &mut |_| ()).unwrap_err().to_string();
    assert_eq!(text, format!("{} exists already", path.display()));
    // every tensor in its own file
    let path = out.path().join("small");
    let written = FolderExport { max_file: 1, ..all }.write(&path, &mut |_| ()).unwrap();
    assert_eq!(written.files, TENSORS.len());
    assert_eq!(Checkpoint::open(&path).unwrap().tensors.len(), TENSORS.len());
    // shorter floats are rounded, vectors are not
    let path = out.path().join("halves");
    FolderExport { floats: Some(&tern_quant::BF16), ..all }.write(&path, &mut |_| ()).unwrap();
    let halves = Checkpoint::open(&path).unwrap();
    assert_eq!(halves.tensors["blk.0.attn_q.weight"].quant, &tern_quant::BF16);
    assert_eq!(halves.tensors["output_norm.weight"].data(), model.tensors["output_norm.weight"].data());
}

#[test]
fn what_a_folder_cannot_hold_is_refused_by_name() {
    let out = tempdir().unwrap();
    let path = out.path().join("model");
    let refusal = |model: &Checkpoint| {
        let export = FolderExport { model, floats: None, max_file: 1 << 30 };
        let text = export.write(&path, &mut |_| ()).unwrap_err().to_string();
        assert!(out.path().read_dir().unwrap().next().is_none(), "something is left: {text}");
        text
    };
    let text = |value: &str| Key::String(value.into());
    assert_eq!(
        refusal(&model_with("llama.attention.head_count_kv", Key::Uints(vec![1, 2]))),
        "key `llama.attention.head_count_kv` is 2 unsigned [1, 2] and would be missing in a folder"
    );
    let said = refusal(&model_with("general.architecture", text("mamba2")));
    assert!(
        said.starts_with("folders of architecture mamba2 are not written; those of llama, qwen2, "),
        "{said}"
    );
    assert_eq!(
        refusal(&model_with("tokenizer.ggml.model", text("t5"))),
        "tokenizer `t5` is not written to folders; those of `gpt2` and `llama` are"
    );
    assert_eq!(
        refusal(&model_with("llama.new_key", Key::Uint(3))),
        "key `llama.new_key` is 3 and would be missing in a folder"
    );
    let mut model = Checkpoint::open(folder().path()).unwrap();
    let mut tensor = model.tensors["output_norm.weight"].clone();
    tensor.name = "blk.0.new.weight".into();
    model.tensors.insert(tensor.name.clone(), tensor);
    assert_eq!(refusal(&model), "tensor `blk.0.new.weight` has no name in a folder of LlamaForCausalLM");
}

/// Numbers of positions, which are integers, are in folders of BERT.
#[test]
fn tensors_that_no_graph_needs_may_be_integers() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let (length, rest) = whole.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut header: Value = serde_json::from_slice(header).unwrap();
    header["embeddings.position_ids"] =
        json!({ "dtype": "I64", "shape": [1, 2], "data_offsets": [data.len(), data.len() + 16] });
    fs::write(&path, with_header(&header.to_string(), &[data, &[0; 16]].concat())).unwrap();
    assert_eq!(Checkpoint::open(folder.path()).unwrap().tensors.len(), TENSORS.len());
}

#[test]
fn the_time_of_a_header_grows_with_its_tensors_and_no_faster() {
    let folder = folder();
    fs::write(folder.path().join("model.safetensors"), with_header(&empty_tensors(200_000), &[])).unwrap();
    let start = Instant::now();
    assert_eq!(refusal(folder.path()), "tensor `0`: shape [0] has a zero dimension");
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

#[test]
fn tensors_are_limited_in_number_and_names_in_length() {
    let folder = folder();
    let error = |header: &str| {
        fs::write(folder.path().join("model.safetensors"), with_header(header, &[])).unwrap();
        refusal(folder.path())
    };
    let many = error(&empty_tensors((1 << 20) + 5));
    assert_eq!(many, "model.safetensors: the header: 1048581 entries, want at most 1048576");
    let entry = r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
    let twice = error(&format!("{{\"a\":{entry},\"a\":{entry}}}"));
    assert_eq!(twice, "model.safetensors: tensor `a`: duplicate name");
    let long = error(&format!("{{\"{}\":{entry}}}", "n".repeat(1025)));
    assert!(long.ends_with("the name has 1025 bytes, want 1 to 1024"), "{long}");
    assert!(
        error("{} {}").starts_with("model.safetensors: the header is not a JSON object: trailing characters")
    );
}
