//! `tern imatrix`: the importance of the columns of a model's matrices, measured on a text as llama.cpp does.

use std::path::Path;

use tern::engine::GraphRunner;
use tern::formats::quantize::{ImportanceSums, MeasuredText};
use tern::graph::LinearInputs;
use tern::{Context, ExpertPlacement};

use super::chunks::{DEFAULT_CHUNK, Windows, runner};
use crate::args::ImatrixArgs;
use crate::error::{CliError, CliResult};
use crate::load;

/// Floats of the rows that a step returns, about: they are joined several times on the way.
const STEP_FLOATS: usize = 1 << 23;
/// Tokens per step, at least.
const LEAST_TOKENS: usize = 16;

pub(crate) fn imatrix(args: &ImatrixArgs) -> CliResult<()> {
    check_folder(&args.out)?; // before a long measurement
    let mut opened = args.model.open("stories", None, Context::AtMost(DEFAULT_CHUNK))?;
    if opened.model.graph.vectors {
        let name = &opened.name;
        return Err(CliError::message(format!(
            "{name} computes vectors: importance is measured of models that generate text"
        )));
    }
    let windows = Windows::read(&args.file, &opened, args.chunks)?;
    let LinearInputs { graph, inputs } =
        opened.model.graph.linear_inputs().map_err(|e| CliError::message(e.to_string()))?;
    let mut sums = ImportanceSums::default();
    let tensors: Vec<usize> = inputs
        .iter()
        .map(|input| {
            let weight = graph.weight(input.weight);
            sums.tensor(&weight.name, weight.experts, weight.cols)
        })
        .collect();
    opened.model.graph = graph.clone();
    opened.experts = ExpertPlacement::Device; // the host would compute what is observed
    let backend = args.model.backend()?;
    let most = backend.info().step_tokens.min(windows.context);
    let tokens = (STEP_FLOATS / graph.output_width()).max(LEAST_TOKENS).min(most);
    let mut runner: GraphRunner = runner(opened, backend, (tokens, tokens), &args.model.progress())?;
    let bar = load::count_bar("measuring", windows.chunks as u64);
    for chunk in windows.iter() {
        runner.logits(&chunk, |_, row| {
            for (input, tensor) in inputs.iter().zip(&tensors) {
                input.parts(&graph, row).for_each(|(matrix, x)| sums.add(*tensor, matrix, x));
            }
        })?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let unused: Vec<_> = sums.unused().collect();
    if let Some((name, [experts, of])) = unused.iter().max_by_key(|(_, [experts, _])| *experts) {
        eprintln!(
            "tern: warning: the text did not need all experts of {} tensors, such as {experts} of {of} of {name}: \
             their columns count alike",
            unused.len()
        );
    }
    let dataset = args.file.display().to_string();
    let text = MeasuredText { dataset, chunks: windows.chunks, chunk_len: windows.context };
    let written = sums.write(&args.out, &text).map_err(|e| CliError::message(e.to_string()))?;
    eprintln!(
        "tern: {}: the importance of the columns of {written} tensors, {} chunks of {}",
        args.out.display(),
        windows.chunks,
        windows.context
    );
    Ok(())
}

fn check_folder(out: &Path) -> CliResult<()> {
    match out.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            Err(CliError::message(format!("{}: no such folder", folder.display())))
        }
        _ => Ok(()),
    }
}
