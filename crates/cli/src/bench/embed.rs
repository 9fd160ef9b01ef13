//! `tern bench embed`: tokens per second of a model that reads texts whole.

use std::time::Instant;

use serde_json::json;
use tern::engine::{Batch, Capacity, Entry, Pooling, Runner, Want};
use tern::graph::{PageTable, Random, Slice};
use tern::{Context, PAGE_LEN};

use crate::args::BenchEmbedArgs;
use crate::error::{CliError, CliResult};

pub(crate) fn bench_embed(args: &BenchEmbedArgs) -> CliResult<()> {
    let default = match (&args.synthetic, args.model.given()) {
        (Some(_), _) => "",
        (None, Some(name)) => name,
        (None, None) => {
            let text = "missing model: give -m an encoder, or --synthetic a shape, such as minilm-l6:f16";
            return Err(CliError::message(text));
        }
    };
    let opened = args.model.open(default, args.synthetic.as_deref(), Context::TRAINED)?;
    let (name, context, vocab) = (opened.name.clone(), opened.context(), opened.model.config.vocab);
    if !opened.model.graph.sequence_rules().whole {
        return Err(CliError::message(format!("{name} generates text: use `tern bench`")));
    }
    if args.tokens > context {
        let text =
            format!("--tokens: expected at most {context}, the context of {name}, got {}", args.tokens);
        return Err(CliError::message(text));
    }
    let pooling = opened.model.vectors.map_or(Pooling::Last, |vectors| vectors.pooling.after_graph());
    let backend = args.model.backend()?;
    let max_tokens = args.step_tokens.unwrap_or(backend.info().step_tokens).max(args.tokens);
    let (each, pages_each) = (max_tokens / args.tokens, args.tokens.div_ceil(PAGE_LEN));
    let capacity = Capacity {
        pages: each * pages_each,
        page_len: PAGE_LEN,
        max_tokens,
        max_outputs: each,
        window: None,
        state: None,
    };
    let mut runner = opened.runner(backend, capacity, &args.model.progress())?;
    runner.finish_compiling()?;
    let mut random = Random::new(1);
    let texts: Vec<Vec<u32>> =
        (0..args.texts).map(|_| (0..args.tokens).map(|_| random.below(vocab) as u32).collect()).collect();
    let batch = |texts: &[Vec<u32>]| {
        let entry = |(i, tokens): (usize, &Vec<u32>)| {
            let pages: PageTable = (i * pages_each..(i + 1) * pages_each).map(|page| page as u32).collect();
            let slice = Slice::new(tokens.len(), 0, pages);
            Entry { id: i as u64, tokens: tokens.clone(), carried: None, slice, want: Want::Pooled(pooling) }
        };
        Batch { entries: texts.iter().enumerate().map(entry).collect(), ..Batch::default() }
    };
    let batches: Vec<Batch> = texts.chunks(each).map(batch).collect();
    let (total, mut rates) = (args.texts * args.tokens, vec![]);
    for repetition in 0..=args.repeat {
        let start = Instant::now();
        for batch in &batches {
            runner.step(batch)?;
        }
        if repetition > 0 {
            rates.push(total as f64 / start.elapsed().as_secs_f64()); // the first one only warms up
        }
    }
    let best = rates.iter().copied().fold(0.0, f64::max);
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    if args.json {
        let report = json!({
            "model": name, "texts": args.texts, "tokens": args.tokens, "step_tokens": max_tokens, "mean": mean, "best": best,
        });
        println!("{report}");
    } else {
        println!(
            "{name}: {} texts of {} tokens in steps of {max_tokens}: {mean:.0} tokens/s, best {best:.0}",
            args.texts, args.tokens
        );
    }
    Ok(())
}
