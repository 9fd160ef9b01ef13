//! `tern doctor --models`: small made-up models of every architecture and format, on the device as on the processor.

use std::io::Write;

use tern_cpu::Cpu;
use tern_engine::{GraphRunner, Kv};
use tern_graph::{Backend, HostTensor, Random, cases, divergence};
use tern_models::{Model, SHAPES, Shape, Synth};
use tern_quant::Quant;

use crate::args::DoctorArgs;
use crate::doctor::Verdicts;
use crate::error::CliResult;
use crate::load;

/// Longer than the window of the small Gemma, and no multiple of a page.
const POSITIONS: usize = 42;
const PAGE_LEN: usize = 16;
/// Tokens a step: one and four have kernels of their own on a GPU, more have others.
const CHUNKS: [usize; 3] = [1, 4, POSITIONS];
/// What the device may lose against the processor, in nats a token, and how far the logits may be off.
const MEAN_KL: f64 = 2e-3;
const DISTANCE: f32 = 5e-3;

/// Every architecture in one format, then every format in one architecture.
fn all() -> Vec<(Shape, &'static Quant)> {
    let small = |s: &Shape| Shape { vocab: 320, ..s.clone() };
    let tiny = SHAPES.iter().filter(|s| s.name.starts_with("tiny-"));
    let mut all: Vec<_> = tiny.map(|s| (small(s), &tern_quant::Q8_0)).collect();
    let formats = tern_quant::ALL.iter().filter(|q| q.encode.is_some() && q.name != "Q8_0");
    if let Some(shape) = Shape::by_name("tiny-qwen3") {
        all.extend(formats.map(|quant| (small(shape), *quant)));
    }
    all
}

pub(crate) fn models(args: &DoctorArgs, out: &mut impl Write) -> CliResult<()> {
    let mut verdicts = Verdicts { out, verbose: args.verbose, good: 0, bad: 0 };
    writeln!(
        verdicts.out,
        "\nmodels on {}, against the processor",
        args.device.open(args.threads)?.info().name
    )?;
    for (shape, quant) in all() {
        let name = format!("{}:{}", shape.name, quant.name.to_lowercase());
        if args.filter.as_ref().is_some_and(|f| !name.contains(f.as_str())) {
            continue;
        }
        let mut synth = Synth::new(&shape, quant, None)?;
        let tensors = synth.tensors()?;
        let want =
            logits(Box::new(Cpu::new(load::threads(args.threads))), &synth.model, &tensors, POSITIONS)?;
        for chunk in CHUNKS {
            let got = logits(args.device.open(args.threads)?, &synth.model, &tensors, chunk)?;
            let (kl, off) = (mean_kl(&want, &got), cases::distance(&got.concat(), &want.concat()));
            let ok = kl < MEAN_KL && off < DISTANCE;
            verdicts
                .add(ok, format_args!("{name:28} {chunk:2} a step: mean KL {kl:.1e}, off by {off:.1e}"))?;
        }
    }
    verdicts.end(format_args!("models are wrong on {}", args.device))
}

/// The logits after every token, computed in chunks. `[positions][vocab]`
fn logits(
    backend: Box<dyn Backend>,
    model: &Model,
    tensors: &[HostTensor],
    chunk: usize,
) -> CliResult<Vec<Vec<f32>>> {
    let kv = Kv { pages: POSITIONS.div_ceil(PAGE_LEN), page_len: PAGE_LEN };
    let weights = tensors.iter().cloned();
    let mut runner = GraphRunner::new(backend, &model.graph, weights, kv, (chunk, chunk), |_, _| ())?;
    let mut random = Random::new(7);
    let tokens: Vec<u32> = (0..POSITIONS).map(|_| random.below(model.config.vocab) as u32).collect();
    let mut rows = vec![];
    runner.logits(&tokens, |_, row| rows.push(row.to_vec()))?;
    Ok(rows)
}

/// Mean over the rows of what `got` loses against `want`, in nats.
fn mean_kl(want: &[Vec<f32>], got: &[Vec<f32>]) -> f64 {
    want.iter().zip(got).map(|(want, got)| divergence(want, got)).sum::<f64>() / want.len() as f64
}
