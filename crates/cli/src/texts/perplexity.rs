//! `tern perplexity`: how well a model predicts a text, measured as llama.cpp does, and how much it differs
//! from another model.
//!
//! The second half of each chunk is scored.

mod comparison;

use std::io::Write;

use serde_json::json;
use tern::engine::GraphRunner;
use tern::graph::{Backend, log_sum_exp};
use tern::{Context, LoadOptions, OpenedModel};

use self::comparison::Comparison;
use super::chunks::{self, DEFAULT_CHUNK, Windows};
use crate::args::PerplexityArgs;
use crate::error::{CliError, CliResult};
use crate::load;

/// Logits per step, 128 MiB of them, ...
const STEP_LOGITS: usize = 1 << 25;
/// ... and the fewest rows, of any vocabulary.
const STEP_OUTPUTS: usize = 64;

pub(crate) fn perplexity(args: &PerplexityArgs) -> CliResult<()> {
    let opened = args.model.open("stories", None, Context::AtMost(DEFAULT_CHUNK))?;
    let windows = Windows::read(&args.file, &opened, args.chunks)?;
    let Windows { context, chunks, .. } = windows;
    let mut reference = match &args.compare {
        Some(name) => Some(reference(args, name, &opened, &windows)?),
        None => None,
    };
    let mut runner = runner(args, opened, args.model.backend()?)?;
    let bar = load::count_bar("scoring", chunks as u64);
    let (mut sum, mut squares, mut count) = (0.0f64, 0.0f64, 0usize);
    let mut comparison = Comparison::default();
    for fed in windows.iter() {
        let scored = |position: usize| position >= context / 2 && position + 1 < context;
        let mut wanted = vec![]; // the logits of the reference at the scored positions
        if let Some(reference) = &mut reference {
            reference.logits(&fed, |position, logits| {
                if scored(position) {
                    wanted.push(logits.to_vec());
                }
            })?;
        }
        let mut wanted = wanted.iter();
        runner.logits(&fed, |position, logits| {
            if scored(position) {
                let loss = f64::from(log_sum_exp(logits) - logits[fed[position + 1] as usize]);
                sum += loss;
                squares += loss * loss;
                count += 1;
                if let Some(wanted) = wanted.next() {
                    comparison.add(wanted, logits);
                }
            }
        })?;
        bar.inc(1);
        let so_far = (sum / count.max(1) as f64).exp();
        match reference {
            Some(_) => {
                bar.set_message(format!("scoring: perplexity {so_far:.3}, KL {:.5}", comparison.mean()))
            }
            None => bar.set_message(format!("scoring: perplexity {so_far:.3}")),
        }
    }
    bar.finish_and_clear();
    let mean = sum / count as f64;
    let deviation = ((squares / count as f64 - mean * mean) / (count as f64 - 1.0).max(1.0)).sqrt();
    let (perplexity, spread) = (mean.exp(), mean.exp() * deviation);
    let mut out = std::io::stdout().lock();
    if args.json {
        let mut result = json!({ "perplexity": perplexity, "spread": spread, "tokens": count, "chunks": chunks, "context": context });
        if reference.is_some() {
            result["comparison"] = comparison.json();
        }
        writeln!(out, "{result}")?;
    } else {
        writeln!(
            out,
            "perplexity {perplexity:.4} +/- {spread:.4} ({chunks} chunks of {context}, {count} tokens scored)"
        )?;
        if reference.is_some() {
            writeln!(out, "{}", comparison.text())?;
        }
    }
    Ok(())
}

/// The model on a device, for one chunk at a time.
fn runner(args: &PerplexityArgs, opened: OpenedModel, backend: Box<dyn Backend>) -> CliResult<GraphRunner> {
    let tokens = backend.info().step_tokens.min(opened.context());
    let outputs = (STEP_LOGITS / opened.model.config.vocab.max(1)).max(STEP_OUTPUTS);
    chunks::runner(opened, backend, (tokens, tokens.min(outputs)), &args.model.progress())
}

/// The reference of a comparison, which must have the same tokens.
fn reference(
    args: &PerplexityArgs,
    name: &str,
    model: &OpenedModel,
    windows: &Windows,
) -> CliResult<GraphRunner> {
    let context = Context::Exactly(model.context());
    // adapters are of the model, not of its reference
    let options = LoadOptions { context, adapters: vec![], ..args.model.options(context) };
    let other = OpenedModel::open(name, &options, &args.model.progress())?;
    if !windows.are_those_of(&other)? || other.model.config.vocab != model.model.config.vocab {
        return Err(CliError::message(format!("--compare {name}: want a model with the same vocabulary")));
    }
    let backend = match &args.compare_device {
        Some(device) => device.open(args.model.device_options())?,
        None => args.model.backend()?,
    };
    runner(args, other, backend)
}
