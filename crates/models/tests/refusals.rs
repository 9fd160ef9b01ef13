//! Checkpoints that cannot be run: each is refused in one exact sentence, before any weight is read.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use tern_formats::{Checkpoint, Metadata, Value, gguf::Writer};
use tern_graph::{GraphError, Weight};
use tern_models::{Model, ModelError, Shape, Source, Synth};
use tern_quant::Quant;

/// A tensor to write: name, format, GGUF dims (columns first).
type Wanted = (String, &'static Quant, Vec<u64>);

/// A model file under construction; its weights are zeros.
struct File {
    metadata: Metadata,
    tensors: Vec<Wanted>,
}

impl File {
    /// A valid file of a shape with few layers and 64 tokens.
    fn of(name: &str) -> File {
        let shape = Shape::by_name(name).unwrap().clone();
        let layers = if shape.arch.name == "gemma4" { 6 } else { 1 }; // the last ones share keys and values
        File::of_shape(&Shape { layers, vocab: 64, ..shape })
    }

    fn of_shape(shape: &Shape) -> File {
        let model = Model::build(&shape.metadata(), shape, None).unwrap();
        let dims = |w: &Weight| match (w.rows, w.experts) {
            (1, _) => vec![w.cols as u64],
            (rows, 1) => vec![w.cols as u64, rows as u64],
            (rows, experts) => vec![w.cols as u64, (rows / experts) as u64, experts as u64],
        };
        let tensors = model.graph.weights.iter().map(|w| {
            let whole = w.rows > 1 && w.cols.is_multiple_of(tern_quant::Q8_0.block_len);
            let quant = if whole { &tern_quant::Q8_0 } else { &tern_quant::F32 };
            (w.name.clone(), quant, dims(w))
        });
        let factors = shape.values("rope_freqs.weight");
        let factors = factors.map(|f| ("rope_freqs.weight".into(), &tern_quant::F32, vec![f.len() as u64]));
        File { metadata: shape.metadata(), tensors: tensors.chain(factors).collect() }
    }

    fn tensor(&mut self, name: &str) -> &mut Wanted {
        self.tensors.iter_mut().find(|t| t.0 == name).unwrap()
    }

    fn add(&mut self, name: &str, quant: &'static Quant, dims: &[u64]) {
        self.tensors.push((name.into(), quant, dims.into()));
    }

    fn drop_tensor(&mut self, name: &str) {
        self.tensors.retain(|t| t.0 != name);
    }

    fn checkpoint(&self) -> Checkpoint {
        let mut writer = Writer::new(self.metadata.clone());
        for (name, quant, dims) in &self.tensors {
            writer.declare(name, quant, dims).unwrap();
        }
        let sizes: Vec<u64> = (0..self.tensors.len()).filter_map(|i| writer.tensor_bytes(i)).collect();
        let mut bytes = Vec::new();
        writer.write_to(&mut bytes, |i, out| out.write_all(&vec![0; sizes[i] as usize])).unwrap();
        Checkpoint::from_bytes(bytes.into()).unwrap()
    }

    /// Why the file is refused.
    fn refusal(&self) -> String {
        match Model::open(&self.checkpoint(), None) {
            Ok(_) => "accepted".into(),
            Err(e) => e.to_string(),
        }
    }
}

/// Why a one-layer qwen3 is refused after an edit.
fn refusal(edit: impl FnOnce(&mut File)) -> String {
    let mut file = File::of("tiny-qwen3");
    edit(&mut file);
    file.refusal()
}

/// The same with one metadata value replaced.
fn with_key(key: &str, value: Value) -> String {
    refusal(|f| drop(f.metadata.insert(key, value)))
}

#[test]
fn valid_files_are_accepted() {
    for shape in tern_models::SHAPES.iter().filter(|s| s.name.starts_with("tiny-")) {
        assert_eq!(File::of(shape.name).refusal(), "accepted", "{}", shape.name);
    }
}

#[test]
fn a_missing_key_is_named() {
    let common = [
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ];
    for (name, own) in [
        ("tiny-llama", &[][..]),
        ("tiny-qwen2", &["rope.freq_base"]),
        ("tiny-qwen3", &["rope.freq_base", "attention.key_length"]),
        ("tiny-gemma3", &["rope.freq_base", "attention.sliding_window"]),
        ("tiny-phi3", &["rope.freq_base"]),
    ] {
        for key in common.iter().chain(own) {
            let mut file = File::of(name);
            let key = format!("{}.{key}", name.trim_start_matches("tiny-"));
            assert!(file.metadata.remove(&key).is_some(), "{key}");
            file.metadata.remove("qwen3.rope.dimension_count"); // it would be too large for width / heads
            assert_eq!(file.refusal(), format!("metadata key `{key}` is missing"));
        }
    }
    assert_eq!(
        refusal(|f| drop(f.metadata.remove("general.architecture"))),
        "metadata key `general.architecture` is missing"
    );
}

#[test]
fn refusals_are_told_apart_without_their_words() {
    let refused = |edit: &dyn Fn(&mut File)| {
        let mut file = File::of("tiny-qwen3");
        edit(&mut file);
        Model::open(&file.checkpoint(), None).unwrap_err()
    };
    let name = || "blk.0.attn_norm.weight".to_string();
    assert_eq!(refused(&|f| f.drop_tensor(&name())), ModelError::MissingTensor(name()));
    let adapter = refused(&|f| drop(f.metadata.insert("general.type", Value::String("adapter".into()))));
    assert_eq!(adapter, ModelError::IsAdapter);
    assert_eq!(adapter.to_string(), "the file is an adapter: want its base model");
    let heads = refused(&|f| drop(f.metadata.insert("qwen3.attention.head_count_kv", Value::Uint(3))));
    assert!(matches!(heads, ModelError::Heads { kv_heads: 3, layer: None, .. }), "{heads}");
    let shape = refused(&|f| f.tensor("output_norm.weight").2 = vec![7]);
    let ModelError::Graph(GraphError::Shape { name, file, .. }) = shape else { panic!("{shape}") };
    assert_eq!((name.as_str(), file), ("output_norm.weight", [1, 7]));
    let stray = refused(&|f| f.add("blk.0.stray.weight", &tern_quant::F32, &[4]));
    assert!(matches!(stray, ModelError::UnexpectedTensor { arch: "qwen3", .. }), "{stray}");
}

#[test]
fn keys_that_have_a_default_may_be_missing() {
    for key in ["attention.value_length", "rope.dimension_count"] {
        let key = format!("qwen3.{key}");
        assert_eq!(refusal(|f| drop(f.metadata.remove(&key))), "accepted", "{key}");
    }
    // as many kv heads as heads, and heads as wide as the model divided by them
    let shape = Shape { layers: 1, vocab: 64, kv_heads: 8, ..Shape::by_name("tiny-llama").unwrap().clone() };
    let mut file = File::of_shape(&shape);
    for key in ["attention.head_count_kv", "attention.key_length", "attention.value_length"] {
        file.metadata.remove(&format!("llama.{key}")).unwrap();
    }
    file.metadata.remove("llama.rope.dimension_count").unwrap();
    assert_eq!(file.refusal(), "accepted");
}

#[test]
fn a_key_of_another_type_is_refused_with_its_value() {
    assert_eq!(
        with_key("qwen3.block_count", Value::String("three".into())),
        "metadata key `qwen3.block_count`: want a whole number, file has \"three\""
    );
    assert_eq!(
        with_key("qwen3.context_length", Value::Int(-1)),
        "metadata key `qwen3.context_length`: want a whole number, file has -1"
    );
    assert_eq!(
        with_key("qwen3.rope.freq_base", Value::Bool(true)),
        "metadata key `qwen3.rope.freq_base`: want a number, file has true"
    );
    assert_eq!(
        with_key("general.architecture", Value::Uint(3)),
        "metadata key `general.architecture`: want a string, file has 3"
    );
}

#[test]
fn an_unknown_architecture_is_refused_with_the_known_ones() {
    assert_eq!(
        with_key("general.architecture", Value::String("mamba".into())),
        "architecture `mamba` is not supported; Tern runs llama, qwen2, qwen2vl, qwen3, gemma3, gemma4, phi3, gemma2, olmo2, exaone4, glm4, \
         seed_oss, hunyuan-dense, ernie4_5, smollm3, granite, qwen3vl, qwen3vlmoe, qwen3moe, granitemoe, glm4moe, \
         gpt-oss, maple, command-r, cohere2, afmoe, jais2, granite_swa, muse-glimmer, mimo2, flint, arcee, starcoder2, stablelm, olmoe, minimax-m2, hunyuan-moe, ernie4_5-moe, exaone-moe, hy_v3, mellum, mistral3, bitnet, \
         bitnet-b1.58, deepseek2, mistral4, qwen35, qwen35moe, qwen3next, lfm2, lfm2moe, mamba2, granitehybrid, falcon-h1, nemotron_h, nemotron_h_moe, bert, nomic-bert, nomic-bert-moe, \
         jina-bert-v2, jina-bert-v3, modern-bert, gemma-embedding, eurobert, llama-embed"
    );
}

#[test]
fn experts_of_an_architecture_that_has_none_are_refused() {
    assert_eq!(
        with_key("qwen3.expert_count", Value::Uint(8)),
        "`qwen3.expert_count` is 8: want 0, experts of `qwen3` models are not supported"
    );
    assert_eq!(with_key("qwen3.expert_count", Value::Uint(0)), "accepted");
}

#[test]
fn experts_that_do_not_fit_are_refused_with_both_numbers() {
    let refusal = |edit: &dyn Fn(&mut File)| {
        let mut file = File::of("tiny-qwen3moe");
        edit(&mut file);
        file.refusal()
    };
    let with_key = |key: &str, value: u64| {
        refusal(&|f| drop(f.metadata.insert(format!("qwen3moe.{key}"), Value::Uint(value))))
    };
    assert_eq!(with_key("expert_count", 16), "blk.0.ffn_gate_inp.weight: want [16, 256], file has [8, 256]");
    assert_eq!(with_key("expert_count", 0), "`qwen3moe.expert_count` is 0: want 1 to 4096");
    assert_eq!(
        with_key("expert_used_count", 9),
        "`qwen3moe.expert_used_count` is 9: want 1 to the 8 experts"
    );
    assert_eq!(
        with_key("expert_used_count", 0),
        "`qwen3moe.expert_used_count` is 0: want 1 to the 8 experts"
    );
    assert_eq!(with_key("expert_gating_func", 5), "`qwen3moe.expert_gating_func` is 5: want 1 to 4");
    assert_eq!(with_key("expert_group_count", 3), "route: 8 experts in 3 groups");
    assert_eq!(
        with_key("expert_feed_forward_length", 0),
        "`qwen3moe.expert_feed_forward_length` is 0: want 1 to 16777216"
    );
    for key in ["expert_count", "expert_used_count"] {
        let key = format!("qwen3moe.{key}");
        let want = format!("metadata key `{key}` is missing");
        assert_eq!(refusal(&|f| drop(f.metadata.remove(&key))), want);
    }
    for name in ["blk.0.ffn_gate_inp.weight", "blk.0.ffn_down_exps.weight"] {
        assert_eq!(refusal(&|f| f.drop_tensor(name)), format!("{name} is missing"));
    }
    let shaped = |dims: &[u64]| refusal(&|f| f.tensor("blk.0.ffn_up_exps.weight").2 = dims.to_vec());
    let want = |file: &str| format!("blk.0.ffn_up_exps.weight: want [8, 192, 256], file has {file}");
    assert_eq!(shaped(&[256, 192, 4]), want("[4, 192, 256]"));
    assert_eq!(shaped(&[256, 8, 192]), want("[192, 8, 256]"));
    assert_eq!(shaped(&[256, 1536]), want("[1536, 256]"));
    assert_eq!(
        refusal(&|f| f.add("blk.0.ffn_gate.0.weight", &tern_quant::Q8_0, &[256, 192])),
        "blk.0.ffn_gate.0.weight: unexpected tensor in a `qwen3moe` model: results without it would be wrong"
    );
}

#[test]
fn experts_in_separate_tensors_must_be_complete_and_alike() {
    let refusal = |edit: &dyn Fn(&mut File)| {
        let mut file = File::of("tiny-mixtral");
        for part in ["ffn_gate", "ffn_up", "ffn_down"] {
            let (_, quant, dims) = file.tensor(&format!("blk.0.{part}_exps.weight")).clone();
            file.drop_tensor(&format!("blk.0.{part}_exps.weight"));
            (0..dims[2]).for_each(|e| file.add(&format!("blk.0.{part}.{e}.weight"), quant, &dims[..2]));
        }
        edit(&mut file);
        file.refusal()
    };
    assert_eq!(refusal(&|_| ()), "accepted");
    let name = "blk.0.ffn_up.5.weight";
    assert_eq!(refusal(&|f| f.drop_tensor(name)), format!("{name} is missing"));
    assert_eq!(
        refusal(&|f| f.tensor(name).2 = vec![192, 256]),
        format!("{name}: want [192, 256], file has [256, 192]")
    );
    assert_eq!(
        refusal(&|f| f.tensor(name).1 = &tern_quant::Q4_0),
        format!("{name}: want Q8_0 in all experts, file has Q4_0")
    );
    let ninth = "blk.0.ffn_up.8.weight";
    let refused = refusal(&|f| f.add(ninth, &tern_quant::Q8_0, &[256, 192]));
    assert!(refused.starts_with(&format!("{ninth}: unexpected tensor")), "{refused}");
    let none = refusal(&|f| f.drop_tensor("blk.0.ffn_down.0.weight"));
    assert!(none.contains("ffn_down"), "{none}");
}

#[test]
fn gemma4_that_does_not_fit() {
    let file = |name: &str, edit: &dyn Fn(&mut File)| {
        let mut file = File::of(name);
        edit(&mut file);
        file.refusal()
    };
    let dense = |edit: &dyn Fn(&mut File)| file("tiny-gemma4", edit);
    let experts = |edit: &dyn Fn(&mut File)| file("tiny-gemma4-experts", edit);
    let key = |name: &str, value: Value| {
        dense(&|f| drop(f.metadata.insert(format!("gemma4.{name}"), value.clone())))
    };
    assert_eq!((dense(&|_| ()), experts(&|_| ())), ("accepted".into(), "accepted".into()));
    // matrices that a shared layer does not use
    assert_eq!(dense(&|f| f.add("blk.4.attn_k.weight", &tern_quant::Q8_0, &[256, 128])), "accepted");
    assert_eq!(
        key("attention.shared_kv_layers", Value::Uint(6)),
        "`gemma4.attention.shared_kv_layers` is 6: want less than the 6 layers"
    );
    assert_eq!(
        key("attention.shared_kv_layers", Value::Uint(4)),
        "layer 2 has no keys: want a layer without a window among the first 2"
    );
    assert_eq!(
        key("attention.head_count_kv", Value::Ints(vec![4, 4, 2, 2, 4, 2])),
        "attend: want 2 kv heads of 32 and 32 columns, KV layer 1 has 4 kv heads of 32 and 32 columns"
    );
    assert_eq!(
        key("attention.head_count_kv", Value::Ints(vec![4, 3, 2, 4, 4, 2])),
        "layer 1: 8 heads are not a multiple of 3 kv heads"
    );
    assert_eq!(
        key("attention.head_count_kv", Value::Ints(vec![4, 4, 2])),
        "`gemma4.attention.head_count_kv` has 3 values: want 6, one per layer"
    );
    assert_eq!(
        key("feed_forward_length", Value::Ints(vec![512, 512, 0, 512, 512, 512])),
        "`gemma4.feed_forward_length` of layer 2 is 0: want 1 to 16777216"
    );
    assert_eq!(
        key("attention.value_length_swa", Value::Uint(16)),
        "`gemma4.attention.key_length_swa` is 32 and `gemma4.attention.value_length_swa` is 16: want the same, 1 to 16384"
    );
    assert_eq!(key("rope.dimension_count_swa", Value::Uint(34)), "rope over 34 dimensions in heads of 32");
    assert_eq!(
        key("embedding_length_per_layer_input", Value::Uint(1 << 17)),
        "`gemma4.embedding_length_per_layer_input` is 131072: want 0 to 65536"
    );
    for name in ["rope_freqs.weight", "per_layer_token_embd.weight", "blk.5.inp_gate.weight"] {
        assert_eq!(dense(&|f| f.drop_tensor(name)), format!("{name} is missing"));
    }
    let scale = "blk.1.layer_output_scale.weight";
    assert_eq!(dense(&|f| f.add(scale, &tern_quant::F32, &[2])), format!("{scale}: want [1], file has [2]"));
    for name in ["blk.2.ffn_gate_inp.weight", "blk.2.ffn_gate_inp.scale", "blk.0.pre_ffw_norm_2.weight"] {
        assert_eq!(experts(&|f| f.drop_tensor(name)), format!("{name} is missing"));
    }
    assert_eq!(
        experts(&|f| f.tensor("blk.3.ffn_gate_up_exps.weight").2 = vec![256, 192, 8]),
        "blk.3.ffn_gate_up_exps.weight: want [8, 384, 256], file has [8, 192, 256]"
    );
}

#[test]
fn layers_that_draft_are_not_run() {
    let shape = Shape { layers: 3, vocab: 64, ..Shape::by_name("tiny-glm4moe").unwrap().clone() };
    let mut file = File::of_shape(&shape);
    file.add("blk.3.nextn.eh_proj.weight", &tern_quant::F32, &[512, 256]);
    assert!(
        file.refusal().starts_with("blk.3.nextn.eh_proj.weight: unexpected tensor"),
        "{}",
        file.refusal()
    );
    file.metadata.insert("glm4moe.block_count", Value::Uint(4));
    file.metadata.insert("glm4moe.nextn_predict_layers", Value::Uint(1));
    assert_eq!(file.refusal(), "accepted");
    file.metadata.insert("glm4moe.nextn_predict_layers", Value::Uint(4));
    assert_eq!(file.refusal(), "`glm4moe.nextn_predict_layers` is 4: want less than the 4 layers");
}

#[test]
fn hybrids_that_do_not_fit() {
    let hybrid = |name: &str, layers: usize| {
        let shape = Shape::by_name(name).unwrap().clone();
        File::of_shape(&Shape { layers, vocab: 64, ..shape })
    };
    let with_key = |name: &str, layers: usize, key: &str, value: Value| {
        let mut file = hybrid(name, layers);
        file.metadata.insert(key, value);
        file.refusal()
    };
    for (name, layers) in [
        ("tiny-granitehybrid", 4),
        ("tiny-granitehybrid-dense", 4),
        ("tiny-falcon-h1", 3),
        ("tiny-nemotron_h", 5),
        ("tiny-nemotron_h_moe", 5),
    ] {
        let arch = Shape::by_name(name).unwrap().arch.name;
        assert_eq!(hybrid(name, layers).refusal(), "accepted", "{name}");
        assert_eq!(
            with_key(name, layers, &format!("{arch}.ssm.time_step_rank"), Value::Uint(7)),
            format!("`{arch}.ssm.inner_size` is 512: want a multiple of 7 heads and 2 groups")
        );
        assert_eq!(
            with_key(name, layers, &format!("{arch}.ssm.state_size"), Value::Uint(0)),
            format!("`{arch}.ssm.state_size` is 0: want 1 to 1048576")
        );
        let mut file = hybrid(name, layers);
        file.metadata.remove(&format!("{arch}.ssm.group_count"));
        assert_eq!(file.refusal(), format!("metadata key `{arch}.ssm.group_count` is missing"));
        let mut file = hybrid(name, layers);
        file.drop_tensor("blk.0.ssm_d");
        assert_eq!(file.refusal(), "blk.0.ssm_d is missing");
        let mut file = hybrid(name, layers);
        file.tensor("blk.0.ssm_in.weight").2[1] -= 1;
        assert_eq!(file.refusal(), "blk.0.ssm_in.weight: want [1160, 256], file has [1159, 256]");
    }
    let heads = |heads: &[i64]| Value::Ints(heads.to_vec());
    assert_eq!(
        with_key("tiny-granitehybrid", 4, "granitehybrid.attention.head_count_kv", heads(&[0, 3, 0, 2])),
        "8 heads are not a multiple of 3 kv heads"
    );
    assert_eq!(
        with_key("tiny-granitehybrid", 4, "granitehybrid.attention.head_count_kv", heads(&[0, 2])),
        "`granitehybrid.attention.head_count_kv` has 2 values: want 4, one per layer"
    );
    // the kind of a layer follows from its sizes, and with it the tensors
    assert_eq!(
        with_key("tiny-nemotron_h", 5, "nemotron_h.feed_forward_length", heads(&[0, 0, 0, 0, 512])),
        "blk.1.ffn_up.weight: unexpected tensor in a `nemotron_h` model: results without it would be wrong"
    );
    assert_eq!(
        with_key("tiny-nemotron_h_moe", 5, "nemotron_h_moe.moe_latent_size", Value::Uint(257)),
        "`nemotron_h_moe.moe_latent_size` is 257: want 1 to the 256 columns"
    );
    assert_eq!(
        with_key("tiny-nemotron_h_moe", 5, "nemotron_h_moe.expert_used_count", heads(&[0, 3, 0, 0, 2])),
        "metadata key `nemotron_h_moe.expert_used_count`: want a whole number, file has 5 integers [0, 3, 0, 0, ...]"
    );
}

#[test]
fn values_per_layer_must_be_enough() {
    let mut file = File::of("tiny-maple");
    file.metadata.insert("maple.attention.sliding_window_pattern", Value::Bools(vec![]));
    let key = "maple.attention.sliding_window_pattern";
    assert_eq!(file.refusal(), format!("`{key}` has 0 values: want 1, one per layer"));
    file.metadata.remove(key);
    assert_eq!(file.refusal(), format!("metadata key `{key}` is missing"));
}

#[test]
fn a_misshapen_tensor_is_refused_with_both_shapes() {
    assert_eq!(
        refusal(|f| f.tensor("blk.0.attn_q.weight").2 = vec![256, 256]),
        "blk.0.attn_q.weight: want [512, 256], file has [256, 256]"
    );
    assert_eq!(
        refusal(|f| f.tensor("blk.0.attn_norm.weight").2 = vec![255]),
        "blk.0.attn_norm.weight: want [1, 256], file has [1, 255]"
    );
    assert_eq!(
        refusal(|f| f.tensor("token_embd.weight").2 = vec![128, 64]),
        "token_embd.weight: want [64, 256], file has [64, 128]"
    );
    assert_eq!(
        refusal(|f| f.tensor("blk.0.attn_k_norm.weight").2 = vec![128]),
        "blk.0.attn_k_norm.weight: want [1, 64], file has [1, 128]"
    );
    assert_eq!(
        refusal(|f| f.add("blk.0.attn_q.bias", &tern_quant::F32, &[256])),
        "blk.0.attn_q.bias: want [1, 512], file has [1, 256]"
    );
}

#[test]
fn a_missing_tensor_is_named() {
    for name in ["token_embd.weight", "output_norm.weight", "blk.0.attn_k.weight", "blk.0.ffn_down.weight"] {
        assert_eq!(refusal(|f| f.drop_tensor(name)), format!("{name} is missing"));
    }
    assert_eq!(with_key("qwen3.block_count", Value::Uint(2)), "blk.1.attn_norm.weight is missing");
}

#[test]
fn a_tensor_that_the_graph_does_not_read_is_refused() {
    let stray = |name: &str| refusal(|f| f.add(name, &tern_quant::F32, &[256, 8]));
    for name in ["blk.0.ffn_gate_inp.weight", "blk.1.attn_q.weight", "blk.0.attn_sinks.weight", "mm.0.weight"]
    {
        let want = format!("{name}: unexpected tensor in a `qwen3` model: results without it would be wrong");
        assert_eq!(stray(name), want);
    }
    for name in ["blk.0.attn_rot_embd", "blk.0.attention.rotary_emb.inv_freq", "blk.0.attn_q.input_scale"] {
        assert_eq!(stray(name), "accepted", "{name}");
    }
    let mut llama = File::of("tiny-llama");
    llama.add("rope_freqs.weight", &tern_quant::F32, &[16]);
    assert_eq!(llama.refusal(), "accepted", "rope factors are inside the graph");
}

#[test]
fn a_format_known_by_name_only_is_refused() {
    for quant in [&tern_quant::Q8_1, &tern_quant::Q8_K, &tern_quant::I32] {
        assert_eq!(
            refusal(|f| f.tensor("blk.0.attn_q.weight").1 = quant),
            format!("blk.0.attn_q.weight: format {} is known but cannot be run", quant.name)
        );
    }
}

#[test]
fn sizes_of_zero_and_beyond_any_model_are_refused() {
    for (key, most) in [
        ("block_count", 1 << 12),
        ("embedding_length", 1 << 20),
        ("feed_forward_length", 1 << 24),
        ("attention.head_count", 1 << 14),
        ("attention.head_count_kv", 1 << 14),
        ("attention.key_length", 1 << 14),
        ("attention.value_length", 1 << 14),
        ("context_length", 1u64 << 30),
    ] {
        let key = format!("qwen3.{key}");
        for wrong in [0, most + 1, u64::MAX] {
            assert_eq!(with_key(&key, Value::Uint(wrong)), format!("`{key}` is {wrong}: want 1 to {most}"));
        }
    }
    assert_eq!(
        with_key("qwen3.attention.head_count_kv", Value::Uint(3)),
        "8 heads are not a multiple of 3 kv heads"
    );
    assert_eq!(
        with_key("qwen3.attention.head_count", Value::Uint(1)),
        "1 heads are not a multiple of 2 kv heads"
    );
}

#[test]
fn numbers_given_per_layer_must_be_equal() {
    for (key, same, other) in [
        ("attention.head_count", 8, 16),
        ("attention.head_count_kv", 2, 4),
        ("feed_forward_length", 512, 1024),
    ] {
        let key = format!("qwen3.{key}");
        assert_eq!(with_key(&key, Value::Uints(vec![same; 3])), "accepted", "{key}");
        assert_eq!(with_key(&key, Value::Ints(vec![same as i64; 3])), "accepted", "{key}");
        assert_eq!(
            with_key(&key, Value::Uints(vec![same, same, other])),
            format!("`{key}` differs from layer to layer")
        );
    }
}

/// Whatever value a key has, the result is a model or an error.
#[test]
fn no_metadata_value_is_a_panic() {
    let odd = || {
        let whole = [0, 1, 2, 3, 63, 1000, 1 << 20, 1 << 30, u64::MAX].map(Value::Uint);
        let floats = [0.0, -1.0, 1e-30, 1e30, f64::NAN, f64::INFINITY].map(Value::Float);
        let others = [
            Value::Int(-1),
            Value::Bool(true),
            Value::String(String::new()),
            Value::String("yarn".into()),
            Value::Uints(vec![]),
            Value::Uints(vec![0, 0]),
            Value::Floats(vec![1.0]),
        ];
        whole.into_iter().chain(floats).chain(others)
    };
    for name in ["tiny-yarn", "tiny-gemma3"] {
        let shape = Shape { layers: 1, vocab: 64, ..Shape::by_name(name).unwrap().clone() };
        let (sound, checkpoint) = (shape.metadata(), File::of_shape(&shape).checkpoint());
        for (key, _) in sound.iter() {
            for value in odd() {
                let mut checkpoint = checkpoint.clone();
                checkpoint.metadata.insert(key, value);
                for context in [None, Some(1)] {
                    let _ = Model::open(&checkpoint, context);
                }
            }
        }
    }
}

#[test]
fn a_spec_is_a_shape_and_a_format() {
    let refused = |spec: &str| Synth::parse(spec).unwrap_err().to_string();
    assert_eq!(refused("tiny-qwen3"), "`tiny-qwen3`: want SHAPE:FORMAT, such as bonsai-1.7b:q1_0");
    let text = refused("gpt9:q4_k");
    assert!(text.starts_with("shape `gpt9` is not known; there are bonsai-8b, "), "{text}");
    let text = refused("tiny-qwen3:q8_k");
    assert!(text.starts_with("format `q8_k` cannot be written; there are F32, F16, "), "{text}");
    let (shape, quant) = Synth::parse("Tiny-Qwen3:q4_K").unwrap();
    assert_eq!((shape.name, quant.name), ("tiny-qwen3", "Q4_K"));
}
