//! A model with adapters: requests with one, several and none, at the same time.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tern::formats::Checkpoint;
use tern::models::Synth;
use tern::{
    AdapterFile, AdapterScales, Context, Device, DeviceOptions, LoadOptions, Model, OpenedModel, Request,
    Silent,
};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/adapters/gguf").join(name)
}

/// The tiny model of the recorded adapters.
fn base() -> (TempDir, String) {
    let vocab = Checkpoint::from_bytes(tern::STORIES.into()).unwrap().metadata;
    let (mut shape, quant) = Synth::parse("tiny-llama:q8_0").unwrap();
    shape.vocab = vocab.strings("tokenizer.ggml.tokens").unwrap().len();
    let (folder, mut bytes) = (tempfile::tempdir().unwrap(), vec![]);
    Synth::new(&shape, quant, None).unwrap().write(&vocab, &mut bytes, |_, _| ()).unwrap();
    let path = folder.path().join("tiny-llama.gguf");
    std::fs::write(&path, bytes).unwrap();
    (folder, path.to_str().unwrap().into())
}

fn options(adapters: &[(&str, &str, f32)]) -> LoadOptions {
    let file = |(name, file, scale): &(&str, &str, f32)| AdapterFile {
        name: (*name).into(),
        path: fixture(file),
        scale: *scale,
    };
    LoadOptions {
        device: Device::Cpu,
        threads: Some(2),
        context: Context::Exactly(256),
        adapters: adapters.iter().map(file).collect(),
        ..LoadOptions::default()
    }
}

const TWO: [(&str, &str, f32); 2] = [("one", "tiny-llama-1.gguf", 1.0), ("two", "tiny-llama-2.gguf", -0.5)];

fn request() -> Request {
    let text = "Once upon a time there was a little girl who lived in a house by the sea with her dog and her cat, and";
    Request::text(text).max_tokens(24).temperature(0.0).seed(1)
}

#[test]
fn requests_with_different_adapters_share_an_engine() {
    let (_folder, base) = base();
    let all = Model::load_with(&base, &options(&TWO)).unwrap();
    let plain = Model::load_with(&base, &options(&[])).unwrap();
    assert_eq!(*all.active_adapters(), AdapterScales::new(&[1.0, -0.5]), "a loaded model uses all");
    assert_eq!(all.adapter("two"), Some(AdapterScales::new(&[0.0, -0.5])));
    assert_eq!((all.adapter("three"), plain.all_adapters().is_empty()), (None, true));
    let scales =
        [AdapterScales::NONE, all.adapter("one").unwrap(), all.adapter("two").unwrap(), all.all_adapters()];
    let models: Vec<Model> = scales.iter().map(|scales| all.with_adapters(scales.clone())).collect();
    let text = |model: &Model| model.generate(request()).unwrap().text;
    let alone: Vec<String> = models.iter().map(text).collect();
    assert_eq!(alone[0], text(&plain), "no adapter is the model without any");
    let distinct: std::collections::BTreeSet<_> = alone.iter().collect();
    assert_eq!(distinct.len(), 4, "{alone:?}");
    // at the same time, twice each, with the prefixes of all in the cache
    let streams: Vec<_> = (0..8).map(|i| models[i % 4].stream(request()).unwrap()).collect();
    for (i, stream) in streams.into_iter().enumerate() {
        assert_eq!(stream.wait().unwrap().text, alone[i % 4], "request {i}");
    }
    let vectors: Vec<_> = models.iter().map(|model| model.embed("a dog").unwrap()).collect();
    assert_eq!(vectors[0], plain.embed("a dog").unwrap());
    assert!(vectors[1] != vectors[0] && vectors[1] != vectors[3]);
}

#[test]
fn the_plan_has_the_memory_of_adapters() {
    let (_folder, base) = base();
    let plan = |adapters: &[(&str, &str, f32)]| {
        let opened = OpenedModel::open(&base, &options(adapters), &Silent).unwrap();
        let backend =
            Device::Cpu.open(DeviceOptions { threads: Some(2), ..DeviceOptions::default() }).unwrap();
        let capacity = tern::engine::Capacity {
            pages: 8,
            page_len: 32,
            max_tokens: 64,
            max_outputs: 8,
            window: None,
            state: None,
        };
        opened.memory(&*backend, capacity, tern::OnHost::Nothing).unwrap()
    };
    let (none, one, two) = (plan(&[]), plan(&TWO[..1]), plan(&TWO));
    assert!(none.adapters == 0 && one.adapters > 0 && two.adapters > one.adapters);
    assert!(one.scratch > none.scratch && one.total() > none.total() + one.adapters);
    assert!(one.to_string().contains(", adapters "), "{one}");
}

#[test]
fn adapters_that_cannot_be_loaded_are_refused() {
    let (_folder, base) = base();
    let message = |model: &str, adapters: &[(&str, &str, f32)]| {
        Model::load_with(model, &options(adapters)).err().unwrap().to_string()
    };
    let twice = [TWO[0], ("one", "tiny-llama-2.gguf", 1.0)];
    assert_eq!(message(&base, &twice), "two adapters have the name one");
    let other = message("stories", &TWO[..1]);
    assert!(other.contains("an adapter of a `llama` model: the model is `"), "{other}");
    assert!(message(&base, &[("x", "none.gguf", 1.0)]).contains("none.gguf: No such file"));
}

#[test]
fn flags_name_a_file_and_a_scale() {
    let parse = |text: &str| text.parse::<AdapterFile>();
    let file = |name: &str, path: &str, scale| AdapterFile { name: name.into(), path: path.into(), scale };
    assert_eq!(parse("a=b/c.gguf"), Ok(file("a", "b/c.gguf", 1.0)));
    assert_eq!(parse("a=b=c:-0.25"), Ok(file("a", "b=c", -0.25)));
    assert_eq!(parse("a=C:/x"), Ok(file("a", "C:/x", 1.0)));
    for wrong in ["", "a", "=b", "a=", "a=:2"] {
        assert_eq!(parse(wrong), Err("expected NAME=FILE or NAME=FILE:SCALE".into()), "{wrong}");
    }
    assert_eq!(parse("a=b:inf"), Err("expected a finite scale, got inf".into()));
}
