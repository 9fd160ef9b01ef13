//! Models that see: rows of towers, and logits and tokens after them, are those that `transformers` computed.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod recorded;

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tern_cpu::Cpu;
use tern_cuda::{Cuda, CudaOptions};
use tern_engine::{
    Capacity, Engine, Event, GraphRunner, ImageRows, Images, Limits, Request, RunnerConfig, TowerRunner,
};
use tern_formats::quantize::{Quantization, Recipe};
use tern_formats::{Access, Checkpoint, Conversion};
use tern_graph::{Backend, KvCells, LayerGroup, Reference};
use tern_models::{Model, Tower, Variant};

use self::recorded::{error, logits, numbers, values, write_folder};

fn recordings() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/images");
    let mut paths: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: std::path::PathBuf| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        (name, serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap())
    };
    paths.into_iter().map(read).collect()
}

/// A recorded model and its tower.
struct Seeing {
    tower: Tower,
    runner: TowerRunner,
    model: Model,
    text: Checkpoint,
}

/// The token of rows.
const IMAGE: u32 = 126;

/// Tokens of a sequence.
const CONTEXT: usize = 64;

/// What runs a tower and its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    Reference,
    Cpu,
    /// The text model on two CPUs by layers.
    TwoCpus,
    Gpu,
}

impl Device {
    fn open(self) -> Box<dyn Backend> {
        match self {
            Device::Reference => Box::new(Reference::new()),
            Device::Cpu | Device::TwoCpus => Box::new(Cpu::new(2).unwrap()),
            Device::Gpu => Box::new(Cuda::open(0, CudaOptions::default()).unwrap()),
        }
    }
}

impl Seeing {
    /// Opens a folder, or a pair of files.
    fn open(text: &Path, mmproj: &Checkpoint, device: Device) -> Seeing {
        let text = Checkpoint::open(text).unwrap();
        let variant = Variant { sees: true, ..Variant::default() };
        let (model, _) = Model::open_as(&text, Some(CONTEXT), &variant).unwrap();
        let width = Tower::row_width(&text.metadata, model.config.width).unwrap();
        let tower = Tower::open(mmproj, model.arch.name, width).unwrap();
        let graphs = [&tower.encoder, &tower.projector];
        let stages = graphs.map(|graph| (graph.clone(), tower.tensors(graph, mmproj).unwrap()));
        Seeing { runner: TowerRunner::new(device.open(), stages).unwrap(), tower, model, text }
    }

    /// The rows of all pictures of a recording.
    fn rows(&mut self, recorded: &Value) -> Vec<Arc<ImageRows>> {
        let sizes = recorded["pictures"].as_array().unwrap();
        let size = |i: usize| [0, 1].map(|axis| sizes[i][axis].as_u64().unwrap() as usize);
        (0..sizes.len()).map(|i| Arc::new(self.picture(i, size(i)))).collect()
    }

    /// The rows of a picture of normalised pixels. `[3, height, width]`
    fn picture(&mut self, i: usize, [height, width]: [usize; 2]) -> ImageRows {
        let picture: Vec<f32> =
            values(&format!("picture {i}"), (3 * height * width) as u64, 1.0, 0.0).collect();
        let p = self.tower.patch;
        let grid = [height / p, width / p];
        let mut patches = vec![];
        for (row, col) in (0..grid[0]).flat_map(|row| (0..grid[1]).map(move |col| (row, col))) {
            for (channel, y) in (0..3).flat_map(|channel| (0..p).map(move |y| (channel, y))) {
                let at = (channel * height + row * p + y) * width + col * p;
                patches.extend_from_slice(&picture[at..at + p]);
            }
        }
        let run = |stage, inputs, rows, images| self.runner.run(stage, inputs, rows, images);
        let rows = self.tower.rows(patches, grid, run).unwrap();
        ImageRows { id: i as u32 + 1, ..rows }
    }

    fn graph_runner(&self, device: Device) -> GraphRunner {
        let (page_len, kv_cells) = if device == Device::Gpu { (16, KvCells::F16) } else { (4, KvCells::F32) };
        let capacity =
            Capacity { pages: 32, page_len, max_tokens: 32, max_outputs: 32, window: None, state: None };
        let capacity = capacity.with_slots(&self.model.graph, 16);
        let config = RunnerConfig { capacity, kv_cells, threads: 1 };
        let tensors = self.model.tensors(&self.text).unwrap();
        let graph = &self.model.graph;
        let backend: Box<dyn Backend> = match device {
            Device::TwoCpus => {
                let devices = vec![device.open(), device.open()];
                Box::new(LayerGroup::new(devices, graph, &graph.layer_borders()[..1]).unwrap())
            }
            _ => device.open(),
        };
        GraphRunner::new(backend, graph, tensors, config, |_| ()).unwrap()
    }

    /// The tokens of the prompt, with those that stand for rows.
    fn prompt(&self, recorded: &Value) -> Vec<u32> {
        let stand_in = self.tower.kind.prompt.stand_in.unwrap_or(IMAGE);
        prompt(recorded).into_iter().map(|id| if id == IMAGE { stand_in } else { id }).collect()
    }

    /// The logits after each token of the prompt.
    fn logits(&self, recorded: &Value, images: &Images, device: Device) -> Vec<Vec<f32>> {
        let mut all = vec![];
        self.graph_runner(device)
            .logits_with(&self.prompt(recorded), images, 7, |_, row| all.push(row.to_vec()))
            .unwrap();
        all
    }
}

fn prompt(recorded: &Value) -> Vec<u32> {
    numbers(recorded, "tokens").into_iter().map(|id| id as u32).collect()
}

/// The places of images: runs of the token that most tokens of the prompt are.
fn placed(recorded: &Value, rows: &[Arc<ImageRows>]) -> Images {
    let tokens = prompt(recorded);
    let is_image = |at: usize| tokens[at] == IMAGE;
    let starts = (0..tokens.len()).filter(|at| is_image(*at) && !is_image(at - 1));
    Images::new(starts.zip(rows.iter().cloned()))
}

fn table(rows: &Value) -> Vec<Vec<f32>> {
    logits(&serde_json::json!({ "logits": rows }))
}

/// How far the rows of a tower and the logits after them are from the recorded ones.
fn errors(recorded: &Value, device: Device) -> [f32; 2] {
    let folder = tempfile::tempdir().unwrap();
    write_tower(folder.path(), recorded);
    let mmproj = Checkpoint::open_tower(folder.path(), Access::default()).unwrap().unwrap();
    let mut model = Seeing::open(folder.path(), &mmproj, device);
    let rows = model.rows(recorded);
    let mut off = 0.0f32;
    for (rows, want) in rows.iter().zip(recorded["rows"].as_array().unwrap()) {
        // features of inner layers are after the columns that were recorded
        let (want, row) = (table(want), |row: &[f32], len: usize| row[..len].to_vec());
        assert_eq!(rows.len, want.len(), "rows");
        let got: Vec<Vec<f32>> =
            rows.values.chunks(rows.width).map(|values| row(values, want[0].len())).collect();
        off = off.max(error(&got, &want));
    }
    let all = model.logits(recorded, &placed(recorded, &rows), device);
    let got: Vec<_> = numbers(recorded, "positions").iter().map(|p| all[*p].clone()).collect();
    [off, error(&got, &logits(recorded))]
}

#[test]
fn rows_and_logits_are_those_of_transformers() {
    let mut wrong = vec![];
    for (name, recorded) in recordings() {
        for device in [Device::Reference, Device::Cpu, Device::TwoCpus] {
            let [rows, logits] = errors(&recorded, device);
            let text = format!("{name}: rows off by {rows:.1e}, logits by {logits:.1e}, {device:?}");
            println!("{text}");
            // the differences of rows grow in the layers of random weights
            let most = if name == "gemma4-clipped" { 1e-3 } else { 1e-4 };
            if !(rows < 1e-4 && logits < most) {
                wrong.push(text);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The same on a GPU, which `TERN_TEST_GPU=1` says there is (`scripts/emulated_gpu` has one), where x are
/// halves; or, with the name of a recording in place of 1, that one.
#[test]
fn a_gpu_computes_rows_and_logits() {
    let Some(filter) = std::env::var_os("TERN_TEST_GPU") else {
        println!("skipped: a_gpu_computes_rows_and_logits (TERN_TEST_GPU is not set)");
        return;
    };
    let filter = filter.to_string_lossy().into_owned();
    let mut wrong = vec![];
    for (name, recorded) in recordings().into_iter().filter(|(name, _)| filter == "1" || *name == filter) {
        let [rows, logits] = errors(&recorded, Device::Gpu);
        let text = format!("{name}: rows off by {rows:.1e}, logits by {logits:.1e}");
        println!("{text}");
        // the random weights of its text model multiply differences of rows by 400
        let most = if name == "gemma4-clipped" { 0.5 } else { 2e-2 };
        if !(rows < 2e-3 && logits < most) {
            wrong.push(text);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn tokens_after_images_are_those_of_transformers() {
    for (name, recorded) in recordings() {
        let folder = tempfile::tempdir().unwrap();
        write_tower(folder.path(), &recorded);
        let mmproj = Checkpoint::open_tower(folder.path(), Access::default()).unwrap().unwrap();
        let mut model = Seeing::open(folder.path(), &mmproj, Device::Cpu);
        let images = placed(&recorded, &model.rows(&recorded));
        let limits = Limits { max_seqs: 2, max_context: CONTEXT, max_waiting: 9, step_millis: 0 };
        let engine = Engine::start(Box::new(model.graph_runner(Device::Cpu)), limits).unwrap();
        let greedy = |images: &Images| -> (Vec<usize>, usize) {
            let request = Request { images: images.clone(), ..Request::new(model.prompt(&recorded), 8) };
            let (mut tokens, mut cached) = (vec![], 0);
            for event in engine.generate(request).unwrap() {
                match event {
                    Event::Token(token) => tokens.push(token.id as usize),
                    Event::Started { cached: of } => cached = of,
                    _ => {}
                }
            }
            (tokens, cached)
        };
        let want = numbers(&recorded, "greedy");
        let (first_time, cached) = greedy(&images);
        assert_eq!((&first_time, cached), (&want, 0), "{name}");
        let want = first_time;
        // again, from the prefix cache
        let (again, cached) = greedy(&images);
        assert_eq!(again, want, "{name}");
        assert!(cached > 0, "{name}: the same images are cached");
        // the same text with another image is computed from its first row on
        let first = images.iter().next().unwrap();
        let others = images.iter().map(|image| {
            let other = ImageRows {
                id: image.rows.id + 10,
                values: vec![0.5; image.rows.values.len()],
                ..(*image.rows).clone()
            };
            (image.start, Arc::new(other))
        });
        let (other, cached) = greedy(&Images::new(others));
        assert!(other != want && cached <= first.start, "{name}: {cached} tokens of another image");
    }
}

#[test]
fn a_converted_pair_has_the_same_rows() {
    for (name, recorded) in recordings() {
        let folder = tempfile::tempdir().unwrap();
        write_tower(folder.path(), &recorded);
        let text = Checkpoint::open(folder.path()).unwrap();
        let mmproj = Checkpoint::open_tower(folder.path(), Access::default()).unwrap().unwrap();
        let want = Seeing::open(folder.path(), &mmproj, Device::Reference).rows(&recorded);
        let (text_file, mmproj_file) = (folder.path().join("model.gguf"), folder.path().join("mmproj.gguf"));
        Conversion::unchanged(&text).write(&text, &text_file, &mut |_| ()).unwrap();
        Conversion::unchanged(&mmproj).write(&mmproj, &mmproj_file, &mut |_| ()).unwrap();
        let file = Checkpoint::open(&mmproj_file).unwrap();
        assert!(Tower::is_tower(&file));
        let got = Seeing::open(&text_file, &file, Device::Reference).rows(&recorded);
        assert!(got == want, "{name}: other rows in GGUF");
    }
}

#[test]
fn a_quantized_tower_has_nearly_the_same_rows() {
    let quantization = Quantization::pure(Recipe::named("Q8_0").unwrap());
    let mut quantized = 0;
    for (name, recorded) in recordings() {
        let folder = tempfile::tempdir().unwrap();
        write_tower(folder.path(), &recorded);
        let mmproj = Checkpoint::open_tower(folder.path(), Access::default()).unwrap().unwrap();
        let want = Seeing::open(folder.path(), &mmproj, Device::Cpu).rows(&recorded);
        let path = folder.path().join("mmproj.gguf");
        let formats = quantization.formats(&mmproj);
        quantization.conversion(&mmproj, &formats).write(&mmproj, &path, &mut |_| ()).unwrap();
        let file = Checkpoint::open(&path).unwrap();
        for tensor in file.tensors.values() {
            let is_kept = tensor.name.contains("patch_embd") || tensor.name.contains("position_embd");
            assert!(!is_kept || tensor.quant.name == "F32", "{name}: {}", tensor.name);
            quantized += usize::from(tensor.quant.name == "Q8_0");
        }
        let got = Seeing::open(folder.path(), &file, Device::Cpu).rows(&recorded);
        for (got, want) in got.iter().zip(&want) {
            let pairs = got.values.iter().zip(&want.values);
            let off = pairs.map(|(g, w)| (g - w).abs()).fold(0.0, f32::max);
            let largest = want.values.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            println!("{name}: off by {off:.1e} of {largest:.1e}");
            assert!(off > 0.0 && off < 0.05 * largest, "{name}: off by {off} of {largest}");
        }
    }
    // most widths of these towers are no multiples of 32: their matrices are F16
    assert!(quantized > 10, "{quantized}");
}

#[test]
fn a_tower_of_another_model_is_refused_with_both_widths() {
    let (_, recorded) = recordings().into_iter().find(|(name, _)| name == "qwen35").unwrap();
    let folder = tempfile::tempdir().unwrap();
    write_tower(folder.path(), &recorded);
    let mmproj = Checkpoint::open_tower(folder.path(), Access::default()).unwrap().unwrap();
    let refused = |arch, width| Tower::open(&mmproj, arch, width).unwrap_err().to_string();
    assert_eq!(
        refused("qwen35", 1024),
        "the rows of the tower have 64 columns, those of the model 1024: the files are of different models"
    );
    assert_eq!(refused("llama", 64), "`llama` models do not take images of a `qwen3vl_merger` tower in Tern");
    let mut other = mmproj.clone();
    other.metadata.insert("clip.projector_type", tern_formats::Value::String("resampler".into()));
    let error = Tower::open(&other, "qwen35", 64).unwrap_err().to_string();
    assert!(
        error.starts_with("images: towers of kind `resampler` are not supported; Tern runs qwen3vl_merger"),
        "{error}"
    );
}

/// Writes a recorded folder with the constants of its pixels.
fn write_tower(folder: &Path, recorded: &Value) {
    write_folder(folder, recorded, "F32");
    let pixels = recorded.get("preprocessor").cloned();
    let pixels =
        pixels.unwrap_or(serde_json::json!({ "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5] }));
    std::fs::write(folder.join("preprocessor_config.json"), pixels.to_string()).unwrap();
}
