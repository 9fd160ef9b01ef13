//! Prefixes on disk with real models on the CPU: after a restart the same bits as without, whatever the
//! layers keep.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use tern::formats::Checkpoint;
use tern::models::Synth;
use tern::{
    AdapterFile, CacheFolder, Context, Device, Error, KvCells, LoadOptions, Model, OpenedModel, Progress,
    Request, Sampled, Silent,
};

const GIB: u64 = 1 << 30;

/// A small random model with the vocabulary of the embedded one.
fn write_model(spec: &str, folder: &Path) -> String {
    let vocab = Checkpoint::from_bytes(tern::STORIES.into()).unwrap().metadata;
    let (mut shape, quant) = Synth::parse(spec).unwrap();
    shape.vocab = vocab.strings("tokenizer.ggml.tokens").unwrap().len();
    let mut bytes = vec![];
    Synth::new(&shape, quant, None).unwrap().write(&vocab, &mut bytes, |_, _| ()).unwrap();
    let path = folder.join(format!("{}.gguf", spec.replace(':', "-")));
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().into()
}

fn options(cache_folder: Option<CacheFolder>) -> LoadOptions {
    LoadOptions {
        device: Device::Cpu,
        threads: Some(2),
        context: Context::Exactly(256),
        cache_folder,
        ..LoadOptions::default()
    }
}

fn cache(folder: &Path) -> Option<CacheFolder> {
    Some(CacheFolder::new(folder, GIB))
}

/// One greedy and one seeded request with a long prompt, with log-probabilities, whose bits are compared.
fn requests() -> [Request; 2] {
    let story =
        "Once upon a time there was a little girl named Lily. She had a red ball and a dog. ".repeat(3);
    [(0.0, 1), (0.9, 7)].map(|(temperature, seed)| {
        Request::text(story.as_str()).max_tokens(12).temperature(temperature).seed(seed).logprobs(3)
    })
}

fn answers(model: &Model) -> (Vec<Vec<Sampled>>, Vec<usize>) {
    let answers = requests().map(|request| model.stream(request).unwrap().wait().unwrap());
    let cached = answers.iter().map(|answer| answer.cached_tokens).collect();
    (answers.into_iter().map(|answer| answer.tokens).collect(), cached)
}

#[test]
fn a_prefix_from_disk_has_the_bits_of_one_that_is_computed() {
    let models = tempfile::tempdir().unwrap();
    let specs = [
        "tiny-llama:q8_0",
        "tiny-gemma3:q8_0",
        "tiny-qwen35:q8_0",
        "tiny-falcon-h1:q8_0",
        "tiny-mamba2:q8_0",
    ];
    for spec in specs {
        let name = write_model(spec, models.path());
        for kv_cells in [None, Some(KvCells::Int8)] {
            let folder = tempfile::tempdir().unwrap();
            let load = |cache| Model::load_with(&name, &LoadOptions { kv_cells, ..options(cache) }).unwrap();
            let (plain, _) = answers(&load(None));
            let (first, cached) = answers(&load(cache(folder.path())));
            assert_eq!((&first, cached[0]), (&plain, 0), "{spec}");
            let model = load(cache(folder.path()));
            let (again, cached) = answers(&model);
            assert_eq!(again, plain, "{spec} {kv_cells:?}");
            let stats = model.handle().stats();
            assert!(cached[0] >= 32, "{spec} {kv_cells:?}: {cached:?} {stats:?}");
            assert!(stats.disk_reads > 0 && stats.disk_hit_tokens >= cached[0] as u64, "{stats:?}");
            drop(model);
            // pages of other cells are those of another model
            let other = if kv_cells.is_none() { Some(KvCells::Int8) } else { None };
            let options = LoadOptions { kv_cells: other, ..options(cache(folder.path())) };
            assert_eq!(answers(&Model::load_with(&name, &options).unwrap()).1[0], 0, "{spec}");
        }
    }
}

#[test]
fn several_models_share_a_folder_and_never_each_others_pages() {
    let (models, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let names =
        ["tiny-llama:q8_0", "tiny-llama:q4_0", "tiny-qwen2:q8_0"].map(|s| write_model(s, models.path()));
    let load = |cache: &Option<CacheFolder>| {
        names.each_ref().map(|name| Model::load_with(name, &options(cache.clone())).unwrap())
    };
    let plain = load(&None).map(|model| answers(&model).0);
    for round in 0..2 {
        let shared = cache(folder.path());
        let both = load(&shared);
        for (model, plain) in both.iter().zip(&plain) {
            let (texts, cached) = answers(model);
            assert_eq!(&texts, plain);
            assert_eq!(cached[0] > 0, round > 0, "{cached:?}");
        }
    }
}

#[test]
fn pages_of_an_adapter_are_not_those_of_another_file_of_its_name() {
    let (models, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let name = write_model("tiny-llama:q8_0", models.path());
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/adapters/gguf");
    let load = |file: &str, cache| {
        let path: PathBuf = fixtures.join(file);
        let adapters = vec![AdapterFile { name: "one".into(), path, scale: 1.0 }];
        Model::load_with(&name, &LoadOptions { adapters, ..options(cache) }).unwrap()
    };
    let base = |model: &Model| model.with_adapters(tern::AdapterScales::NONE);
    let plain = load("tiny-llama-1.gguf", None);
    let (adapted, without) = (answers(&plain).0, answers(&base(&plain)).0);
    assert_ne!(adapted, without);
    answers(&load("tiny-llama-1.gguf", cache(folder.path())));
    let again = load("tiny-llama-1.gguf", cache(folder.path()));
    let (texts, cached) = answers(&again);
    assert_eq!((texts, cached[0] > 0), (adapted, true));
    let (texts, cached) = answers(&base(&again));
    assert_eq!((texts, cached[0]), (without.clone(), 0), "only adapted pages were written");
    drop(again);
    let other = load("tiny-llama-2.gguf", cache(folder.path()));
    assert_eq!(answers(&other).1[0], 0, "another file");
    let (texts, cached) = answers(&base(&other));
    assert_eq!((texts, cached[0] > 0), (without, true), "without adapters they do not matter");
}

#[test]
fn a_folder_in_use_is_left_alone_and_a_device_that_copies_nothing_is_refused() {
    #[derive(Default)]
    struct Warnings(Mutex<Vec<String>>);
    impl Progress for Warnings {
        fn warn(&self, message: &str) {
            self.0.lock().unwrap().push(message.into());
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let first = Model::load_with("stories", &options(cache(folder.path()))).unwrap();
    let (text, _) = answers(&first);
    let warnings = Warnings::default();
    let second = Model::load_showing("stories", &options(cache(folder.path())), &warnings).unwrap();
    let warned = warnings.0.into_inner().unwrap();
    assert!(warned.len() == 1 && warned[0].contains("another process uses this folder"), "{warned:?}");
    assert_eq!(answers(&second).0, text);
    drop(second);
    drop(first);
    let third = Model::load_with("stories", &options(cache(folder.path()))).unwrap();
    assert_eq!(answers(&third).0, text);
    assert!(third.handle().stats().disk_hit_tokens > 0);

    let options = options(cache(folder.path()));
    let opened = OpenedModel::open("stories", &options, &Silent).unwrap();
    let reference = Box::new(tern::graph::Reference::new());
    let refused = Model::start(opened, reference, &options, &Silent).err().unwrap();
    assert!(matches!(refused, Error::CacheFolderDevice(_)), "{refused}");
    assert!(refused.to_string().ends_with("does not copy its KV cache; only the CPU does"), "{refused}");
}
