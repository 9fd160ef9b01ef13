//! `tern doctor --models` and `-m`: whole models on the device compared with the CPU; small random ones of
//! every architecture and format, or a real one.

use std::io::Write;

use tern::engine::{Capacity, WindowPages};
use tern::graph::{Backend, KvCells, Random, cases, divergence, top_logprobs};
use tern::models::{RouterLogits, SHAPES, Shape, Synth};
use tern::quant::Quant;
use tern::text::Tokenizer;
use tern::{Context, Device, ExpertPlacement, OpenedModel, PAGE_LEN, Silent};

use super::routers::Choices;
use super::threads::in_parallel;
use super::verdicts::Verdicts;
use super::workers;
use crate::args::DoctorArgs;
use crate::error::CliResult;

/// Longer than the window of the small Gemma and than two pages, and no multiple of a page.
const POSITIONS: usize = 70;
/// The same with `--reproducible`: more than the tokens of the largest steps whose
/// norms linears apply on GPUs.
const POSITIONS_REPRODUCIBLE: usize = 140;
/// More tokens than [`TEXT`] has in any vocabulary: one per byte.
const MAX_TOKENS: usize = TEXT.len();
/// Tokens per step: a GPU has its own kernels for one, two, up to four, and more.
const CHUNKS: [usize; 4] = [1, 2, 4, 64];
/// The same with `--reproducible`: all steps are of the kernels for many tokens, which have tiles of up to
/// 128 or of more tokens.
const CHUNKS_REPRODUCIBLE: [usize; 4] = [1, 4, 64, POSITIONS_REPRODUCIBLE];
/// Limits on the mean KL divergence from the CPU in nats per token, and on the distance of the logits.
const MEAN_KL: f64 = 2e-3;
const DISTANCE: f32 = 5e-3;
/// The same with a KV cache of 8 bits: rounding may take a key or a value to the next of few steps.
const DISTANCE_8_BITS: f32 = 2e-2;
/// Fraction of positions whose most probable token must be the same. Positions count if the two most probable
/// tokens differ by more than the margin.
const SAME: f64 = 0.99;
/// The same with experts: rounding may decide a near tie of the router, and another expert changes the rows
/// of that token and a little those of the tokens that attend to it. For this reason the median KL divergence
/// counts instead of the mean, and the distance of the rows that are nearest, a tenth of them.
const SAME_EXPERTS: f64 = 0.9;
const MARGIN: f32 = 0.5;

/// The text for real models.
const TEXT: &str = "Once upon a time there was a girl named Lily who lived in a small house by the sea. Every morning \
she walked along the beach with her dog and looked for shells. One day the dog found a bottle with a letter in it. The \
letter said: \"Whoever finds this, please tell my brother that I am well. I live on an island with many birds, and the \
fish are easy to catch.\" Lily ran home to show it to her mother. \"We must find this man's brother,\" she said. They \
asked the fishermen in the harbour, and the teacher, and the old woman who sold bread. In the end it was the postman who \
knew. He had carried letters to every house for thirty years, and he never forgot a name.";

/// Every architecture in one format, then every format in one architecture, then the spans
/// of rotations of Bonsai 2.
fn all() -> Vec<(Shape, &'static Quant)> {
    let small = |s: &Shape| Shape { vocab: 320, ..s.clone() };
    let tiny = SHAPES.iter().filter(|s| s.name.starts_with("tiny-"));
    let mut all: Vec<_> = tiny.map(|s| (small(s), &tern::quant::Q8_0)).collect();
    let formats = Synth::formats().filter(|q| *q != &tern::quant::Q8_0);
    if let Some(shape) = Shape::by_name("tiny-qwen3") {
        all.extend(formats.map(|quant| (small(shape), quant)));
    }
    all.extend(Shape::by_name("small-bonsai2").map(|shape| (small(shape), &tern::quant::PQ2_0)));
    all
}

pub(crate) fn random(args: &DoctorArgs, out: &mut impl Write) -> CliResult<()> {
    let mut verdicts = heading(args, out)?;
    let options = args.model.options(Context::TRAINED);
    let name = |(shape, quant): &(Shape, &Quant)| format!("{}:{}", shape.name, quant.name.to_lowercase());
    let selected =
        |model: &(Shape, &Quant)| args.filter.as_ref().is_none_or(|f| name(model).contains(f.as_str()));
    let models: Vec<_> = all().into_iter().filter(selected).collect();
    let each = |(): &mut (), (shape, quant): &(Shape, &'static Quant)| -> CliResult<Vec<(bool, String)>> {
        let opened = OpenedModel::random(shape, quant, &options, &Silent)?;
        let mut random = Random::new(7);
        let positions = if args.model.reproducible { POSITIONS_REPRODUCIBLE } else { POSITIONS };
        let tokens: Vec<u32> = (0..positions).map(|_| random.below(shape.vocab) as u32).collect();
        // what a device does not support is the verdict on this model, and the others are compared
        Ok(compare(args, &opened, &tokens)
            .unwrap_or_else(|why| vec![(false, format!("{:28} {why}", opened.name))]))
    };
    in_parallel(&models, workers(args.model.device), || (), each, |results| verdicts.add_all(&results?))?;
    verdicts.end(format_args!("models are wrong on {}", args.model.device))
}

pub(crate) fn real(args: &DoctorArgs, name: &str, out: &mut impl Write) -> CliResult<()> {
    let mut verdicts = heading(args, out)?;
    verdicts.verbose = true; // a single model is always shown
    let opened = args.model.open(name, None, Context::AtMost(MAX_TOKENS))?;
    let mut tokens = Tokenizer::from_metadata(&opened.metadata)?.encode(TEXT, true, false);
    tokens.truncate(opened.context());
    verdicts.add_all(&compare(args, &opened, &tokens)?)?;
    verdicts.end(format_args!("runs of {name} are wrong on {}", args.model.device))
}

fn heading<W: Write>(args: &DoctorArgs, mut out: W) -> CliResult<Verdicts<W>> {
    writeln!(out, "\nmodels on {}, compared with the CPU", args.model.backend()?.info().name)?;
    Ok(Verdicts::new(out, args.verbose))
}

/// Compares one model on the given tokens, and the experts that its routers choose.
fn compare(args: &DoctorArgs, opened: &OpenedModel, tokens: &[u32]) -> CliResult<Vec<(bool, String)>> {
    let mut results = compare_logits(args, opened, tokens)?;
    let routers = compare_routers(args, opened, tokens)?;
    for ((ok, line), (routers_ok, choices)) in results.iter_mut().zip(routers) {
        *ok &= routers_ok;
        line.push_str(&format!(", {choices}"));
    }
    Ok(results)
}

/// Compares the experts that are chosen for each token: others are near ties, or wrong. Nothing of a model
/// without routers.
fn compare_routers(
    args: &DoctorArgs,
    opened: &OpenedModel,
    tokens: &[u32],
) -> CliResult<Vec<(bool, String)>> {
    let Some(RouterLogits { graph, routers }) = opened.model.router_logits()? else { return Ok(vec![]) };
    let mut observed = opened.clone();
    observed.model.graph = graph;
    if matches!(observed.experts, ExpertPlacement::Host(_)) {
        observed.experts = ExpertPlacement::Host(None); // of the layers before the last router
    }
    let want =
        logits(Device::Cpu.open(args.model.device_options())?, &observed, tokens, tokens.len(), false)?;
    let is_coarse = matches!(opened.kv_cells, Some(KvCells::Int8 | KvCells::Fp8));
    let distance = f64::from(if is_coarse { DISTANCE_8_BITS } else { DISTANCE });
    let compared = chunks(args, opened, tokens).map(|chunk| {
        let got = logits(args.model.backend()?, &observed, tokens, chunk.min(tokens.len()), true)?;
        let all = Choices::compare(&routers, &want, &got);
        let Choices { compared, after, ties, wrong, moved, bound, distance: off } = all;
        let mut text =
            format!("{compared} choices of experts: {ties} near ties, {wrong} wrong, {after} after these");
        if ties + wrong > 0 {
            text.push_str(&format!(" (logits moved by {moved:.1e}, at most {bound:.1e} by rounding)"));
        }
        if off >= distance {
            text.push_str(&format!(", routers off by {off:.1e}"));
        }
        Ok((wrong == 0 && off < distance, text))
    });
    compared.collect()
}

/// Tokens per step that are compared.
fn chunks(args: &DoctorArgs, opened: &OpenedModel, tokens: &[u32]) -> impl Iterator<Item = usize> {
    let whole = opened.model.graph.sequence_rules().whole; // of encoders: a text is never split
    let chunks = if args.model.reproducible { CHUNKS_REPRODUCIBLE } else { CHUNKS };
    chunks.into_iter().filter(move |_| !whole).chain(whole.then_some(tokens.len()))
}

/// Compares the logits of one model on the given tokens, with few and many tokens per step: whether each is
/// right, and what is printed. With `--reproducible`, the bits must also be those of the first number of
/// tokens per step.
fn compare_logits(args: &DoctorArgs, opened: &OpenedModel, tokens: &[u32]) -> CliResult<Vec<(bool, String)>> {
    let want = logits(Device::Cpu.open(args.model.device_options())?, opened, tokens, tokens.len(), false)?;
    let is_coarse = matches!(opened.kv_cells, Some(KvCells::Int8 | KvCells::Fp8));
    let distance = if is_coarse { DISTANCE_8_BITS } else { DISTANCE };
    let mut first: Option<Vec<Vec<f32>>> = None;
    let compared = chunks(args, opened, tokens).map(|chunk| {
        let got = logits(args.model.backend()?, opened, tokens, chunk.min(tokens.len()), true)?;
        let (same, clear) = same_tops(&want, &got);
        let (what, kl, off, share) = if opened.model.has_experts() {
            let rows = || want.iter().zip(&got);
            let kl = quantile(2, rows().map(|(want, got)| divergence(want, got)));
            let off = quantile(10, rows().map(|(want, got)| f64::from(cases::distance(got, want)))) as f32;
            ("median", kl, off, SAME_EXPERTS)
        } else {
            ("mean", mean_kl(&want, &got), cases::distance(&got.concat(), &want.concat()), SAME)
        };
        let changed = match args.model.reproducible {
            true => {
                let first = first.get_or_insert_with(|| got.clone());
                first.iter().zip(&got).position(|(first, got)| !same_bits(first, got))
            }
            false => None,
        };
        let ok = kl < MEAN_KL && off < distance && same as f64 >= share * clear as f64 && changed.is_none();
        let name = &opened.name;
        let counts = format!("{same} of {clear} clear tokens the same, {what} KL {kl:.1e}, off by {off:.1e}");
        let bits = changed.map_or(String::new(), |at| format!(", other bits from position {at} on"));
        Ok((ok, format!("{name:28} {chunk:3} per step: {counts}{bits}")))
    });
    compared.collect()
}

/// The logits after every token, computed in chunks; `window`: layers with a window have their own pages.
/// `[positions][vocab]`
fn logits(
    backend: Box<dyn Backend>,
    opened: &OpenedModel,
    tokens: &[u32],
    chunk: usize,
    window: bool,
) -> CliResult<Vec<Vec<f32>>> {
    let pages = tokens.len().div_ceil(PAGE_LEN);
    // as few pages of layers with a window as a step of a chunk needs: the sequence uses them in turn
    let window = window.then(|| opened.model.graph.window()).flatten().map(|tokens| WindowPages {
        tokens,
        pages: WindowPages::in_turn(tokens, PAGE_LEN, chunk).min(pages),
    });
    let capacity =
        Capacity { pages, page_len: PAGE_LEN, max_tokens: chunk, max_outputs: chunk, window, state: None };
    let capacity = capacity.with_slots(&opened.model.graph, 1);
    let mut runner = opened.clone().runner(backend, capacity, &Silent)?;
    runner.finish_compiling()?;
    let mut rows = vec![];
    runner.logits(tokens, |_, row| rows.push(row.to_vec()))?;
    Ok(rows)
}

fn same_bits(one: &[f32], other: &[f32]) -> bool {
    one.iter().map(|x| x.to_bits()).eq(other.iter().map(|x| x.to_bits()))
}

/// Mean KL divergence of `got` from `want` over the rows, in nats.
fn mean_kl(want: &[Vec<f32>], got: &[Vec<f32>]) -> f64 {
    want.iter().zip(got).map(|(want, got)| divergence(want, got)).sum::<f64>() / want.len() as f64
}

/// The value below which one of `parts` equal parts of all values are.
fn quantile(parts: usize, values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / parts).copied().unwrap_or(0.0)
}

/// The number of rows with a clear most probable token in which `got` has the same, and
/// the number of such rows.
fn same_tops(want: &[Vec<f32>], got: &[Vec<f32>]) -> (usize, usize) {
    let (mut same, mut clear) = (0, 0);
    for (want, got) in want.iter().zip(got) {
        let best = top_logprobs(want, 2);
        if best.len() == 2 && best[0].1 - best[1].1 > MARGIN {
            clear += 1;
            same += usize::from(top_logprobs(got, 1)[0].0 == best[0].0);
        }
    }
    (same, clear)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clear_tokens_count() {
        let want = [vec![0.0, 2.0, 1.0], vec![1.0, 1.2, 0.0], vec![3.0, 0.0, 0.0]];
        let got = [vec![0.0, 2.1, 1.0], vec![1.2, 1.0, 0.0], vec![0.0, 0.0, 1.0]];
        assert_eq!(same_tops(&want, &got), (1, 2));
    }
}
