//! `tern bench plan`: the cost of scheduling per step, without a model.

use std::io::Write;
use std::time::Instant;

use serde_json::json;
use tern::PAGE_LEN;
use tern::engine::{Answer, Batch, Capacity, Limits, Request, Sampled, Scheduler};

use crate::args::BenchPlanArgs;
use crate::error::CliResult;

/// Timed steps per case.
const STEPS: usize = 200;

pub(crate) fn bench_plan(args: &BenchPlanArgs) -> CliResult<()> {
    let mut out = std::io::stdout().lock();
    let mut results = vec![];
    if !args.json {
        writeln!(out, "{:44} {:>10} {:>10}", "a step of", "plan us", "apply us")?;
    }
    for (name, prompts) in [
        (format!("{} sequences of {} tokens", args.seqs, args.depth), false),
        (format!("{} sequences and a prompt of {}", args.seqs - 1, args.depth), true),
    ] {
        let (plan, apply) = time(args.seqs, args.depth, prompts)?;
        if args.json {
            results.push(json!({ "step": name, "plan_seconds": plan, "apply_seconds": apply }));
        } else {
            writeln!(out, "{name:44} {:>10.1} {:>10.1}", plan * 1e6, apply * 1e6)?;
        }
    }
    if args.json {
        writeln!(out, "{}", json!({ "steps": results }))?;
    }
    Ok(())
}

/// Median seconds of `plan` and `apply` once all sequences decode; with `prompts` there is
/// always one more in prefill.
fn time(seqs: usize, depth: usize, prompts: bool) -> CliResult<(f64, f64)> {
    let context = depth + 4 * STEPS;
    let limits = Limits { max_seqs: seqs, max_context: context, max_waiting: seqs, step_millis: 0 };
    let capacity = Capacity {
        pages: (seqs + 1) * context.div_ceil(PAGE_LEN),
        page_len: PAGE_LEN,
        max_tokens: 4096.max(seqs),
        max_outputs: seqs,
        window: None,
        state: None,
    };
    let mut scheduler = Scheduler::new(limits, capacity)?;
    let steady = if prompts { seqs - 1 } else { seqs };
    let prompt = |id: usize| (0..depth).map(|i| (i * 31 + id * 7) as u32 % 50_000).collect();
    for id in 0..steady {
        scheduler.add(id as u64, Request::new(prompt(id), 3 * STEPS))?;
    }
    let decoding = |batch: &Batch| batch.entries.iter().filter(|e| !e.samples().is_empty()).count();
    loop {
        let batch = scheduler.plan(usize::MAX);
        let all = decoding(&batch) == steady;
        scheduler.apply(&batch, &answers(&batch));
        if all {
            break;
        }
    }
    let (mut plans, mut applies) = (vec![], vec![]);
    for step in 0..STEPS {
        if prompts && scheduler.stats().running == steady {
            scheduler.add((steady + step) as u64, Request::new(prompt(steady + step), 1))?;
        }
        let start = Instant::now();
        let batch = scheduler.plan(usize::MAX);
        let planned = Instant::now();
        let answers = answers(&batch);
        let answered = Instant::now();
        scheduler.apply(&batch, &answers);
        plans.push((planned - start).as_secs_f64());
        applies.push(answered.elapsed().as_secs_f64());
    }
    plans.sort_by(f64::total_cmp);
    applies.sort_by(f64::total_cmp);
    Ok((plans[STEPS / 2], applies[STEPS / 2]))
}

fn answers(batch: &Batch) -> Vec<Answer> {
    batch.entries.iter().map(|_| Answer::Tokens(vec![Sampled { id: 9, ..Sampled::default() }])).collect()
}
