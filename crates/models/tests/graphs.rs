//! The graph of every architecture as text: every change shows as a diff of its snapshot.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::HashMap;

use tern_formats::{Metadata, Value};
use tern_graph::{Op, RopeTable};
use tern_models::{Model, ModelError, SHAPES, Shape, Source};

/// A small version of a shape, so that its text is short.
fn small(name: &str) -> Shape {
    let shape = Shape::by_name(name).unwrap().clone();
    let layers = match shape.arch.name {
        "gemma4" => 6, // the last ones share keys and values
        // recurrent layers and others
        "qwen35" | "qwen35moe" | "qwen3next" | "lfm2" | "lfm2moe" | "granitehybrid" => 2,
        "nemotron_h" | "nemotron_h_moe" => 3, // one of each
        _ => 1,
    };
    Shape { layers, width: 64, ff: 96, heads: 4, kv_heads: 2, head_dim: 16, vocab: 100, ..shape }
}

/// A shape with additional tensors, or without some of its tensors.
struct With {
    shape: Shape,
    metadata: Metadata,
    tensors: HashMap<String, Vec<f32>>,
    hidden: Vec<&'static str>,
}

impl With {
    fn new(shape: Shape) -> With {
        With { metadata: shape.metadata(), shape, tensors: HashMap::new(), hidden: vec![] }
    }

    fn key(mut self, name: &str, value: Value) -> With {
        self.metadata.insert(format!("{}.{name}", self.shape.arch.name), value);
        self
    }

    fn tensor(mut self, name: &str, values: Vec<f32>) -> With {
        self.tensors.insert(name.into(), values);
        self
    }

    fn hide(mut self, name: &'static str) -> With {
        self.hidden.push(name);
        self
    }

    fn build(&self, context: Option<usize>) -> Result<Model, ModelError> {
        Model::build(&self.metadata, self, context)
    }

    fn text(&self) -> String {
        self.build(None).unwrap().graph.to_string()
    }

    /// The first rotary table of the graph.
    fn rope(&self, context: Option<usize>) -> RopeTable {
        self.build(context).unwrap().graph.ropes[0].clone()
    }
}

impl Source for With {
    fn shape(&self, name: &str) -> Option<[usize; 2]> {
        match self.tensors.get(name) {
            Some(values) => Some([1, values.len()]),
            None if self.hidden.contains(&name) => None,
            None => self.shape.shape(name),
        }
    }

    fn values(&self, name: &str) -> Option<Vec<f32>> {
        self.tensors.get(name).cloned().or_else(|| self.shape.values(name))
    }
}

/// One line per pair: its rotation at one position.
fn lines(table: &RopeTable) -> String {
    let pairs = table.freqs.iter().enumerate().map(|(i, f)| format!("pair {i}: {f:.4e}\n"));
    pairs.chain([format!("x {:.4}\n", table.magnitude)]).collect()
}

fn float(x: f64) -> Value {
    Value::Float(x)
}

fn text(s: &str) -> Value {
    Value::String(s.into())
}

#[test]
fn every_architecture_has_a_tiny_shape() {
    for arch in tern_models::ALL {
        let tiny = SHAPES.iter().find(|s| s.arch.name == arch.name && s.name.starts_with("tiny-"));
        assert!(tiny.is_some(), "{} has no tiny shape, so no snapshot", arch.name);
    }
}

#[test]
fn graphs_of_all_architectures() {
    for shape in SHAPES.iter().filter(|s| s.name.starts_with("tiny-")) {
        insta::assert_snapshot!(shape.name, With::new(small(shape.name)).text());
    }
}

#[test]
fn a_second_layer_continues_the_first() {
    let two = With::new(Shape { layers: 2, ..small("tiny-llama") }).text();
    insta::assert_snapshot!("two-layers", two);
}

/// Fused q, k and v, biases and scales are found by their names, in any architecture.
#[test]
fn optional_tensors_are_used_if_they_exist() {
    let fused = With::new(small("tiny-llama"))
        .tensor("blk.0.attn_qkv.weight", vec![])
        .tensor("blk.0.attn_qkv.bias", vec![0.0; 128])
        .tensor("blk.0.attn_output.bias", vec![0.0; 64])
        .tensor("blk.0.ffn_down.scale", vec![1.0])
        .tensor("output.weight", vec![])
        .hide("blk.0.ffn_gate.weight");
    insta::assert_snapshot!("optional-tensors", fused.text());
}

/// Five layers have a window and the local base, the sixth has full attention and the global base.
#[test]
fn gemma3_alternates_windows_and_tables() {
    let shape = Shape { layers: 7, rope_base: 1e6, ..small("tiny-gemma3") };
    let model = With::new(shape).build(None).unwrap();
    let mut out = String::new();
    let mut table = 0;
    for node in &model.graph.nodes {
        match &node.op {
            Op::Rope { table: t, .. } => table = *t,
            Op::Attend { layer, args, .. } => {
                out += &format!("layer {layer}: table {table}, window {:?}\n", args.window);
            }
            _ => {}
        }
    }
    for (i, table) in model.graph.ropes.iter().enumerate() {
        out += &format!("table {i}: last pair {:.4e}\n", table.freqs.last().unwrap());
    }
    insta::assert_snapshot!("gemma3-layers", out);
}

#[test]
fn gemma3_reads_its_caps_and_its_local_base() {
    let capped = With::new(small("tiny-gemma3"))
        .key("attn_logit_softcapping", float(50.0))
        .key("final_logit_softcapping", float(30.0))
        .key("rope.freq_base_swa", float(5000.0));
    insta::assert_snapshot!("gemma3-caps", capped.text());
    let zero = With::new(small("tiny-gemma3"))
        .key("attn_logit_softcapping", float(0.0))
        .key("final_logit_softcapping", float(0.0));
    assert_eq!(zero.text(), With::new(small("tiny-gemma3")).text(), "a cap of 0 is none");
}

fn attention_scale(with: &With) -> f32 {
    let model = with.build(None).unwrap();
    let attend = |op: &Op| if let Op::Attend { args, .. } = op { Some(args.scale) } else { None };
    model.graph.nodes.iter().find_map(|n| attend(&n.op)).unwrap()
}

#[test]
fn scores_are_scaled_by_the_head_or_by_the_file() {
    assert_eq!(attention_scale(&With::new(small("tiny-qwen3"))), 0.25);
    assert_eq!(attention_scale(&With::new(small("tiny-qwen3")).key("attention.scale", float(0.5))), 0.5);
    assert_eq!(attention_scale(&With::new(small("tiny-qwen3")).key("attention.scale", float(0.0))), 0.25);
    // the 27B is detected by its number of layers: its scale uses width / heads, not the head dimension
    let large = Shape { layers: 62, width: 256, ..small("tiny-gemma3") };
    assert_eq!(attention_scale(&With::new(large)), 0.125);
}

#[test]
fn the_rotation_base_is_optional_for_llama_only() {
    for name in ["tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-gemma3", "tiny-phi3"] {
        let mut with = With::new(small(name));
        let key = format!("{}.rope.freq_base", with.shape.arch.name);
        with.metadata.remove(&key);
        match with.build(None) {
            Ok(model) => {
                assert_eq!(name, "tiny-llama");
                assert_eq!(model.graph, With::new(small(name)).build(None).unwrap().graph);
            }
            Err(e) => assert_eq!(e.to_string(), format!("metadata key `{key}` is missing")),
        }
    }
}

#[test]
fn rope_over_a_part_of_the_head() {
    let with = With::new(small("tiny-qwen2")).key("rope.dimension_count", Value::Uint(8));
    insta::assert_snapshot!("rope-partial", lines(&with.rope(None)));
}

#[test]
fn rope_linear() {
    let plain = With::new(small("tiny-llama")).rope(None);
    let scaled = With::new(small("tiny-llama"))
        .key("rope.scaling.type", text("linear"))
        .key("rope.scaling.factor", float(4.0));
    let table = scaled.rope(None);
    insta::assert_snapshot!("rope-linear", lines(&table));
    assert!(plain.freqs.iter().zip(&table.freqs).all(|(p, s)| p / 4.0 == *s));
    // an older key for the same, a type of none, and a factor of 0 that means none
    let old = With::new(small("tiny-llama")).key("rope.scale_linear", float(4.0));
    assert_eq!(old.rope(None), table);
    assert_eq!(scaled.key("rope.scaling.type", text("none")).rope(None), plain);
    let zero = With::new(small("tiny-llama")).key("rope.scaling.factor", float(0.0));
    assert_eq!(zero.rope(None), plain);
}

#[test]
fn rope_yarn() {
    let yarn = With::new(Shape { rope_base: 1e4, context: 1024, ..small("tiny-yarn") });
    let table = yarn.rope(None);
    insta::assert_snapshot!("rope-yarn", lines(&table));
    let plain = With::new(Shape { yarn: 1, ..yarn.shape.clone() }).rope(None);
    assert_eq!(table.freqs[0], plain.freqs[0], "the fastest pair is kept");
    assert_eq!(table.freqs[7], plain.freqs[7] / 4.0, "the slowest is stretched in full");
    // without the key, the trained context is the original one
    let mut bare = With::new(yarn.shape.clone());
    bare.metadata.remove("qwen3.rope.scaling.original_context_length");
    let named = yarn.key("rope.scaling.original_context_length", Value::Uint(1024));
    assert_eq!(bare.rope(None), named.rope(None));
}

/// Llama 3.1 and later have the divisors of their frequencies as a tensor.
#[test]
fn rope_llama3() {
    let divisors = vec![1.0, 1.0, 1.0, 1.5, 3.0, 8.0, 8.0, 8.0];
    let table = With::new(small("tiny-llama")).tensor("rope_freqs.weight", divisors.clone()).rope(None);
    insta::assert_snapshot!("rope-llama3", lines(&table));
    let plain = With::new(small("tiny-llama")).rope(None);
    let want: Vec<f32> = plain.freqs.iter().zip(&divisors).map(|(f, d)| f / d).collect();
    assert_eq!(table.freqs, want);
    assert_eq!(table.magnitude, 1.0);
}

fn longrope() -> With {
    With::new(small("tiny-phi3"))
        .key("rope.scaling.original_context_length", Value::Uint(128))
        .key("rope.scaling.attn_factor", float(1.19))
        .tensor("rope_factors_long.weight", (0..8).map(|i| 1.0 + i as f32).collect())
        .tensor("rope_factors_short.weight", (0..8).map(|i| 1.0 + i as f32 / 10.0).collect())
}

/// Phi has two sets; the context of the run selects one.
#[test]
fn rope_longrope() {
    let (short, long) = (longrope().rope(Some(128)), longrope().rope(Some(129)));
    insta::assert_snapshot!("rope-longrope", format!("128:\n{}129:\n{}", lines(&short), lines(&long)));
    assert_eq!(longrope().rope(None), long, "512 tokens, what the shape is made for, are past the original");
    let plain = With::new(small("tiny-phi3")).rope(None);
    assert_eq!(long.freqs[7], plain.freqs[7] / 8.0);
    assert_eq!(short.freqs[7], plain.freqs[7] / 1.7);
}

fn refusal(with: &With) -> String {
    with.build(None).unwrap_err().to_string()
}

#[test]
fn rope_refusals() {
    let own = |key: &str, value| With::new(small("tiny-qwen2")).key(key, value);
    assert_eq!(
        refusal(&own("rope.scaling.type", text("dynamic"))),
        "`qwen2.rope.scaling.type` is `dynamic`: want none, linear, yarn or longrope"
    );
    assert_eq!(
        refusal(&own("rope.scaling.factor", float(-2.0))),
        "`qwen2.rope.scaling.factor` is -2: want a positive number"
    );
    assert_eq!(
        refusal(&own("rope.scaling.factor", float(f64::NAN))),
        "`qwen2.rope.scaling.factor` is NaN: want a positive number"
    );
    assert_eq!(
        refusal(&own("rope.dimension_count", Value::Uint(18))),
        "rope over 18 dimensions in heads of 16"
    );
    assert_eq!(
        refusal(&own("rope.dimension_count", Value::Uint(7))),
        "rope over 7 dimensions in heads of 16"
    );
    assert_eq!(
        refusal(&With::new(small("tiny-llama")).tensor("rope_freqs.weight", vec![1.0; 5])),
        "rope factors: want [8], file has [5]"
    );
    let mut alone = longrope();
    alone.tensors.remove("rope_factors_short.weight");
    assert_eq!(refusal(&alone), "rope_factors_long.weight and rope_factors_short.weight must come together");
    let mut incomplete = longrope();
    incomplete.metadata.remove("phi3.rope.scaling.original_context_length");
    assert_eq!(refusal(&incomplete), "metadata key `phi3.rope.scaling.original_context_length` is missing");
}

/// Numbers of weights as published, in billions, and bytes of KV cache per token: a row of 576 and one
/// of 512 columns per layer.
#[test]
fn shapes_with_latent_attention_have_the_size_of_their_models() {
    for (name, billions, kv) in
        [("deepseek-v2-lite", 15.7, 27 * 2 * 1088), ("glm-4.7-flash", 29.9, 47 * 2 * 1088)]
    {
        let shape = Shape::by_name(name).unwrap();
        let model = Model::build(&shape.metadata(), shape, None).unwrap();
        let weights: usize = model.graph.weights.iter().map(|w| w.rows * w.cols).sum();
        assert!((weights as f64 / 1e9 - billions).abs() < 0.1, "{name}: {weights} weights");
        let bytes = model.graph.kv.iter().map(|layer| layer.bytes_per_token(tern_graph::KvCells::F16));
        assert_eq!(bytes.sum::<usize>(), kv, "{name}");
        assert_eq!(
            model.graph.expert_layers(),
            shape.layers - 1,
            "{name}: all layers but the first have experts"
        );
    }
}
