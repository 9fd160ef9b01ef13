//! Routers: the experts that a model of f32 chooses are those that exact arithmetic
//! chooses, near ties included.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[expect(dead_code, reason = "the logits of a whole model are those of other tests")]
mod recorded;

use std::path::Path;

use serde_json::Value;
use tern_cpu::{Cpu, available};
use tern_engine::{Capacity, GraphRunner, RunnerConfig};
use tern_formats::Checkpoint;
use tern_graph::{Backend, Graph, HostTensor, KvCells, Reference, RoutingWorkspace};
use tern_models::{Model, Router, RouterLogits};

use self::recorded::{numbers, write_folder};

/// How far a router's logit may be from that of exact arithmetic, in parts of the standard deviation of a
/// layer's logits. A sum of 128 products of f32 has an error of about `2^-24 * sqrt(128)`, 7e-7 of its size,
/// and up to 24 of them in a row one of 3.3e-6.
const BOUND: f64 = 4e-6;

/// A router as `scripts/oracle/transformers/routers.py` recorded it in f64.
struct Recorded {
    /// `[tokens][experts]`
    logits: Vec<Vec<f64>>,
    /// Between the last expert that is chosen and the next one, in standard deviations. `[tokens]`
    gaps: Vec<f64>,
}

impl Recorded {
    fn of(recorded: &Value) -> Recorded {
        let floats = |row: &Value| -> Vec<f64> {
            row.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
        };
        let logits = recorded["logits"].as_array().unwrap().iter().map(floats).collect();
        Recorded { logits, gaps: floats(&recorded["gaps"]) }
    }

    /// The standard deviation of all logits.
    fn spread(&self) -> f64 {
        let all: Vec<f64> = self.logits.iter().flatten().copied().collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        (all.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / all.len() as f64).sqrt()
    }
}

/// The experts that a router chooses from exact logits, in order of their ids.
fn choice(router: &Router, bias: Option<&[f32]>, logits: &[f64]) -> Vec<usize> {
    let logits: Vec<f32> = logits.iter().map(|x| *x as f32).collect();
    let mut out = vec![0.0; 2 * router.routing.used];
    router.routing.choose(&logits, bias, &mut RoutingWorkspace::default(), &mut out);
    let mut ids: Vec<usize> = out[..router.routing.used].iter().map(|id| *id as usize).collect();
    ids.sort_unstable();
    ids
}

/// The rows of a graph.
fn rows(backend: Box<dyn Backend>, graph: &Graph, tensors: &[HostTensor], tokens: &[u32]) -> Vec<Vec<f32>> {
    let capacity =
        Capacity { pages: 4, page_len: 16, max_tokens: 64, max_outputs: 64, window: None, state: None };
    let config = RunnerConfig { capacity: capacity.with_slots(graph, 1), kv_cells: KvCells::F32, threads: 2 };
    let mut runner = GraphRunner::new(backend, graph, tensors.iter().cloned(), config, |_| ()).unwrap();
    let mut all = vec![];
    runner.logits(tokens, |_, row| all.push(row.to_vec())).unwrap();
    all
}

#[test]
fn experts_are_those_that_exact_arithmetic_chooses() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/routers");
    let mut paths: Vec<_> = fixtures.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let (mut near, mut wrong) = (0, vec![]);
    for path in paths {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let recorded: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        write_folder(folder.path(), &recorded, "F32");
        let (model, tensors) = Model::open(&Checkpoint::open(folder.path()).unwrap(), None).unwrap();
        let tensors: Vec<HostTensor> = tensors.iter().map(|t| t.make().unwrap()).collect();
        let RouterLogits { graph, routers } = model.router_logits().unwrap().unwrap();
        let tokens: Vec<u32> = numbers(&recorded, "tokens").into_iter().map(|id| id as u32).collect();
        let wanted: Vec<Recorded> =
            recorded["routers"].as_array().unwrap().iter().map(Recorded::of).collect();
        assert_eq!(routers.len(), wanted.len(), "{name}");
        near += wanted.iter().flat_map(|router| &router.gaps).filter(|gap| **gap < 3e-4).count();
        let cpus = available().into_iter().map(|kernels| {
            let cpu: Box<dyn Backend> = Box::new(Cpu::with_kernels(2, kernels).unwrap());
            (kernels.name, cpu)
        });
        let reference: (&str, Box<dyn Backend>) = ("reference", Box::new(Reference::new()));
        for (backend_name, backend) in cpus.chain([reference]) {
            let rows = rows(backend, &graph, &tensors, &tokens);
            let (mut most, mut flips) = (0.0f64, 0);
            for (want, router) in wanted.iter().zip(&routers) {
                let bias = router.bias.map(|bias| tensors[bias.index()].to_f32());
                let (logits, spread) = (router.logits.clone(), want.spread());
                for ((row, exact), gap) in rows.iter().zip(&want.logits).zip(&want.gaps) {
                    let off = |(got, want): (&f32, &f64)| (f64::from(*got) - want).abs() / spread;
                    most = row[logits.clone()].iter().zip(exact).map(off).fold(most, f64::max);
                    let exact = choice(router, bias.as_deref(), exact);
                    flips += usize::from(*gap > 2.0 * BOUND && router.choice(row) != exact);
                }
            }
            println!("{name} on {backend_name}: off by {most:.1e}, {flips} other choices");
            if flips > 0 || most > BOUND {
                wrong.push(format!("{name} on {backend_name}: off by {most:.1e}, {flips} other choices"));
            }
        }
    }
    assert!(near > 3, "{near} near ties: want some that a cache of halves would decide otherwise");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
