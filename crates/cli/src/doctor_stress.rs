//! `tern doctor --stress`: models under random mixes of requests, one after the other, and a table at the end.

use std::io::Write;
use std::time::Duration;

use tern::engine::{Capacity, Engine, Limits};
use tern::{Context, OpenedModel, PAGE_LEN, STEP_TOKENS, units};

use crate::args::DoctorArgs;
use crate::error::{CliError, CliResult};
use crate::stress::{Failure, Outcome, Plan, SIZES, Sizes, Watch, Watched, stress};

/// Tokens a sequence may have, where the model was made for so many.
const CONTEXT: usize = 1024;
/// KV pages for each stream: fewer than long requests need, so that some are preempted.
const STREAM_PAGES: usize = 4;
/// A difference with a smaller gap, in nats or as a part of a draw, is a near tie where steps of other sizes are summed in
/// another order. The processor sums in one order, whatever the step.
const TIE: f64 = 1e-2;
/// An engine that does nothing for so long hangs.
const HANG: Duration = Duration::from_secs(20);
/// Differences that are told one by one.
const TOLD: usize = 20;
/// How long a device that hangs may keep the process from ending.
const LEAVE: Duration = Duration::from_secs(5);

/// A model and what came of it; a sentence if it did not start.
struct Row {
    name: String,
    outcome: Result<Outcome, String>,
}

pub(crate) fn all(args: &DoctorArgs, out: &mut impl Write) -> CliResult<()> {
    let tie = if args.model.device.gpu().is_some() { TIE } else { 0.0 };
    let time = Duration::from_secs(args.seconds);
    let plan = Plan { streams: args.streams, time, seed: args.seed, tie, hang: HANG };
    let mut rows = vec![];
    let named = args.synthetic.is_empty() || args.model.model.is_some() || args.model.hf.is_some();
    let specs = named.then_some(None).into_iter().chain(args.synthetic.iter().map(Some));
    for spec in specs {
        let name = spec.map_or_else(|| args.model.name("stories").to_string(), String::clone);
        let outcome = one(args, spec.map(String::as_str), &plan).map_err(|e| e.to_string());
        let row = Row { name, outcome };
        details(&row, &plan, out)?;
        out.flush()?;
        let hangs = row.outcome.as_ref().is_ok_and(|o| matches!(o.failure, Some(Failure::Hang(_))));
        rows.push(row);
        if hangs {
            break; // the device is not usable any more
        }
    }
    table(&rows, &plan, out)?;
    out.flush()?;
    let bad = rows.iter().filter(|r| !r.is_good(&plan)).count();
    if bad == 0 {
        return Ok(());
    }
    Err(CliError::said(format!(
        "{bad} of {} models failed under stress on {}",
        rows.len(),
        args.model.device
    )))
}

fn one(args: &DoctorArgs, spec: Option<&str>, plan: &Plan) -> CliResult<Outcome> {
    if !args.model.quiet
        && let Some(spec) = spec
    {
        eprintln!("tern: making {spec}");
    }
    let opened = args.model.open("stories", spec, Context::AtMost(CONTEXT))?;
    let sizes = sizes(&opened, plan)?;
    let limits = Limits {
        max_seqs: plan.streams,
        max_context: sizes.context,
        max_waiting: 2 * plan.streams,
        step_millis: 0,
    };
    // scarce, so that sequences are preempted
    let pages = sizes.longest().div_ceil(PAGE_LEN).max(STREAM_PAGES * plan.streams);
    let capacity =
        Capacity { pages, page_len: PAGE_LEN, max_tokens: sizes.step_tokens, max_outputs: plan.streams };
    let runner = opened.runner(args.model.backend()?, capacity, &args.model.progress())?;
    let watch = Watch::new();
    let handle = Engine::start(Box::new(Watched::new(runner, watch.clone())), limits)?;
    let outcome = stress(&handle, &watch, sizes, plan)?;
    if matches!(outcome.failure, Some(Failure::Hang(_))) {
        std::mem::forget(handle); // its end would wait for the engine
        leave_soon();
    } else {
        handle.shutdown();
    }
    Ok(outcome)
}

/// Ends the process if a device does not let it end by itself.
fn leave_soon() {
    std::thread::spawn(|| {
        std::thread::sleep(LEAVE);
        std::process::abort();
    });
}

/// The steps of a server, or smaller ones if the context is short.
fn sizes(opened: &OpenedModel, plan: &Plan) -> CliResult<Sizes> {
    let c = &opened.model.config;
    if c.context < 4 {
        return Err(CliError::said(format!("a context of {} tokens is too short for a mix", c.context)));
    }
    let step_tokens = STEP_TOKENS.min(c.context / 2).max(plan.streams);
    Ok(Sizes { vocab: c.vocab, context: c.context, page_len: PAGE_LEN, step_tokens })
}

fn details(row: &Row, plan: &Plan, out: &mut impl Write) -> CliResult<()> {
    writeln!(out, "\n{}, {} streams, seed {}", row.name, plan.streams, plan.seed)?;
    let o = match &row.outcome {
        Ok(o) => o,
        Err(e) => return Ok(writeln!(out, "FAILED   {e}")?),
    };
    writeln!(
        out,
        "mixed    {} requests drawn from {} in {:.1} s, {} cancelled; {} tokens, {}",
        units::thousands(o.requests),
        o.alone,
        o.seconds,
        units::thousands(o.cancelled),
        units::thousands(o.tokens),
        units::rate(o.tokens as usize, o.seconds)
    )?;
    writeln!(
        out,
        "engine   {} steps, {} of them prompts beside decodes, at most {} sequences in one; {} preemptions, {} tokens of \
         prompts from the prefix cache; {} pages",
        units::thousands(o.stats.steps),
        units::thousands(o.steps.mixed),
        o.steps.sequences,
        units::thousands(o.stats.preemptions),
        units::thousands(o.stats.cached_tokens),
        o.stats.pages_total
    )?;
    let mut sizes = vec![];
    for (i, (most, count)) in SIZES.iter().zip(o.steps.by_tokens).enumerate().filter(|(_, s)| s.1 > 0) {
        let least = if i == 0 { 1 } else { SIZES[i - 1] + 1 };
        let range = if least == *most { format!("{most}") } else { format!("{least}-{most}") };
        sizes.push(format!("{range}: {}", units::thousands(count)));
    }
    writeln!(out, "steps    by tokens  {}", sizes.join("  "))?;
    for d in o.differences.iter().take(TOLD) {
        let gap = d.gap.map_or("gap not known".into(), |gap| format!("gap {gap:.1e}"));
        writeln!(
            out,
            "{} request {} (prompt {}): token {} is {} instead of {}, {gap}; {} times",
            if d.is_tie(plan) { "near tie" } else { "WRONG   " },
            d.difference.request,
            d.prompt,
            d.difference.at,
            d.difference.got,
            d.want,
            d.times
        )?;
    }
    if o.differences.len() > TOLD {
        writeln!(out, "         and {} more", o.differences.len() - TOLD)?;
    }
    if let Some(words) = failure(o) {
        writeln!(out, "FAILED   {words}")?;
    }
    Ok(())
}

fn failure(outcome: &Outcome) -> Option<String> {
    match outcome.failure.as_ref()? {
        Failure::Engine(words) => Some(words.clone()),
        Failure::Hang(still) => Some(format!("the engine hangs: no step ended for {} s", still.as_secs())),
    }
}

impl Row {
    fn is_good(&self, plan: &Plan) -> bool {
        self.outcome.as_ref().is_ok_and(|o| o.is_good(plan))
    }
}

fn table(rows: &[Row], plan: &Plan, out: &mut impl Write) -> CliResult<()> {
    writeln!(
        out,
        "\n| model | streams | seconds | requests | tokens | tokens/s | differ | near ties | largest gap | result |"
    )?;
    writeln!(out, "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|")?;
    for row in rows {
        let (name, streams) = (&row.name, plan.streams);
        match &row.outcome {
            Ok(o) => {
                let gap = o.largest_gap().map_or("-".into(), |gap| format!("{gap:.1e}"));
                let result = match failure(o) {
                    Some(words) => format!("FAILED: {words}"),
                    None if row.is_good(plan) => "good".into(),
                    None => "WRONG TEXTS".into(),
                };
                writeln!(
                    out,
                    "| {name} | {streams} | {:.1} | {} | {} | {} | {} | {} | {gap} | {result} |",
                    o.seconds,
                    units::thousands(o.requests),
                    units::thousands(o.tokens),
                    units::thousands((o.tokens as f64 / o.seconds.max(1e-9)) as u64),
                    o.differing(),
                    o.ties(plan)
                )?;
            }
            Err(e) => writeln!(out, "| {name} | {streams} | - | - | - | - | - | - | - | FAILED: {e} |")?,
        }
    }
    Ok(())
}
