//! `tern doctor --stress`: runs models one after the other under random mixes of
//! requests, and prints a table.

use std::io::Write;
use std::time::Duration;

use tern::engine::{Capacity, Engine, Limits, StateCapacity};
use tern::{Context, OpenedModel, PAGE_LEN, units};

use super::stress::{
    Deviation, Failure, LARGEST_STEP, MonitoredRunner, Outcome, Plan, SIZES, Sizes, StepMonitor, stress,
};
use crate::args::DoctorArgs;
use crate::error::{CliError, CliResult};

/// Context length, if the model's trained context is not shorter.
const CONTEXT: usize = 1024;
/// KV pages per stream: fewer than long requests need, so that some are preempted.
const STREAM_PAGES: usize = 4;
/// Snapshots of the state of recurrent layers: few, so that some are dropped.
const SNAPSHOTS: usize = 8;
/// Limit on the divergence of logits in steps of several tokens from those in steps of one, in nats: more is
/// a wrong kernel, not rounding. With experts there is none: another choice at a router's near tie moves the
/// logits of a token by far more.
const DIVERGENCE: f64 = 2e-3;
/// An engine without progress for this long counts as hanging.
const HANG: Duration = Duration::from_secs(20);
/// Maximum number of differences that are printed.
const MAX_PRINTED: usize = 20;
/// How long a hanging device may delay the exit of the process.
const EXIT_GRACE: Duration = Duration::from_secs(5);

/// A model and its outcome, or why it did not start.
struct Row {
    name: String,
    plan: Plan,
    /// How much logits change with the size of steps, on devices whose arithmetic depends on it.
    deviation: Option<Deviation>,
    outcome: Result<Outcome, String>,
}

pub(crate) fn all(args: &DoctorArgs, out: &mut impl Write) -> CliResult<()> {
    let time = Duration::from_secs(args.seconds);
    let plan = Plan { streams: args.streams, time, seed: args.seed, tie: 0.0, hang: HANG, drafts: 0 };
    let mut rows = vec![];
    let named = args.synthetic.is_empty() || args.model.given().is_some();
    let specs = named.then_some(None).into_iter().chain(args.synthetic.iter().map(Some));
    for spec in specs {
        let name = spec.map_or_else(|| args.model.name("stories").to_string(), String::clone);
        let (mut plan, mut deviation) = (plan, None);
        let outcome =
            one(args, spec.map(String::as_str), &mut plan, &mut deviation).map_err(|e| e.to_string());
        let row = Row { name, plan, deviation, outcome };
        details(&row, out)?;
        out.flush()?;
        let hangs = row.outcome.as_ref().is_ok_and(|o| matches!(o.failure, Some(Failure::Hang(_))));
        rows.push(row);
        if hangs {
            break; // the device is no longer usable
        }
    }
    table(&rows, out)?;
    out.flush()?;
    let bad = rows.iter().filter(|r| !r.is_good()).count();
    if bad == 0 {
        return Ok(());
    }
    Err(CliError::message(format!(
        "{bad} of {} models failed under stress on {}",
        rows.len(),
        args.model.device
    )))
}

/// Stresses one model. What its near ties are follows from the deviation that is measured first: on a GPU,
/// where activations are rounded to 15 bits in steps of one token and to 10 or 11 in larger ones. On the CPU,
/// and with `--reproducible`, there is none.
fn one(
    args: &DoctorArgs,
    spec: Option<&str>,
    plan: &mut Plan,
    deviation: &mut Option<Deviation>,
) -> CliResult<Outcome> {
    if !args.model.quiet
        && let Some(spec) = spec
    {
        eprintln!("tern: generating {spec}");
    }
    let opened = args.model.open("stories", spec, Context::AtMost(CONTEXT))?;
    let sizes = sizes(&opened, plan)?;
    let backend = args.model.backend()?;
    plan.drafts = args.model.speculate.drafts(args.model.draft_max, backend.runs_ahead());
    let limits = Limits {
        max_seqs: plan.streams,
        max_context: sizes.context,
        max_waiting: 2 * plan.streams,
        step_millis: 0,
    };
    // scarce, so that sequences are preempted
    let pages = sizes.longest().div_ceil(PAGE_LEN).max(STREAM_PAGES * plan.streams);
    let max_outputs = (plan.streams * (1 + plan.drafts)).max(LARGEST_STEP.min(sizes.step_tokens));
    let capacity = Capacity {
        pages,
        page_len: PAGE_LEN,
        max_tokens: sizes.step_tokens,
        max_outputs,
        window: None,
        state: None,
    };
    let graph = &opened.model.graph;
    let slots = StateCapacity::PER_SEQUENCE * plan.streams + SNAPSHOTS;
    let capacity = capacity.with_window(graph).with_slots(graph, slots);
    let has_experts = opened.model.has_experts();
    let mut runner = opened.runner(backend, capacity, &args.model.progress())?;
    runner.finish_compiling()?;
    if args.model.device.gpu().is_some() && !args.model.reproducible {
        let measured = Deviation::measure(&mut runner, sizes.vocab, sizes.longest(), plan.seed)?;
        let measured = deviation.insert(measured);
        plan.tie = measured.tie();
        if measured.divergence > DIVERGENCE && !has_experts {
            return Err(CliError::message(format!(
                "logits depend on the size of steps: a divergence of {:.1e} nats, want {DIVERGENCE:.0e} at most",
                measured.divergence
            )));
        }
    }
    let monitor = StepMonitor::new();
    let handle = Engine::start(Box::new(MonitoredRunner::new(runner, monitor.clone())), limits)?;
    let outcome = stress(&handle, &monitor, sizes, plan)?;
    if matches!(outcome.failure, Some(Failure::Hang(_))) {
        std::mem::forget(handle); // dropping it would wait for the engine
        abort_after_grace();
    } else {
        handle.shutdown();
    }
    Ok(outcome)
}

/// Aborts the process if the device prevents it from exiting.
fn abort_after_grace() {
    std::thread::spawn(|| {
        std::thread::sleep(EXIT_GRACE);
        std::process::abort();
    });
}

/// Tokens of a step: prompts have several.
const STEP_TOKENS: usize = 512;

/// The step size, or a smaller one if the context is short.
fn sizes(opened: &OpenedModel, plan: &Plan) -> CliResult<Sizes> {
    let c = &opened.model.config;
    if c.context < 4 {
        return Err(CliError::message(format!(
            "a context of {} tokens is too short for the stress test",
            c.context
        )));
    }
    let step_tokens = STEP_TOKENS.min(c.context / 2).max(plan.streams);
    let adapters = opened.adapters.files.len();
    Ok(Sizes { vocab: c.vocab, context: c.context, page_len: PAGE_LEN, step_tokens, adapters })
}

fn details(row: &Row, out: &mut impl Write) -> CliResult<()> {
    let plan = &row.plan;
    writeln!(out, "\n{}, {} streams, seed {}", row.name, plan.streams, plan.seed)?;
    if let Some(Deviation { mean, largest, divergence }) = row.deviation {
        writeln!(
            out,
            "logits   the difference of two moves by {mean:.1e} with the size of steps (root mean square; {largest:.1e} at the worst \
             position), divergence {divergence:.1e}: near ties have gaps up to {:.1e}",
            plan.tie
        )?;
    }
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
        "engine   {} steps, {} of them with prefill and decode, at most {} sequences per step; {} preemptions, {} prompt \
         tokens from the prefix cache; {} of {} drafts accepted; {} pages",
        units::thousands(o.stats.steps),
        units::thousands(o.steps.mixed),
        o.steps.sequences,
        units::thousands(o.stats.preemptions),
        units::thousands(o.stats.cached_tokens),
        units::thousands(o.stats.accepted_tokens),
        units::thousands(o.stats.drafted_tokens),
        o.stats.pages_total
    )?;
    let mut sizes = vec![];
    for (i, (most, count)) in SIZES.iter().zip(o.steps.by_tokens).enumerate().filter(|(_, s)| s.1 > 0) {
        let least = if i == 0 { 1 } else { SIZES[i - 1] + 1 };
        let range = if least == *most { format!("{most}") } else { format!("{least}-{most}") };
        sizes.push(format!("{range}: {}", units::thousands(count)));
    }
    writeln!(out, "steps    by tokens  {}", sizes.join("  "))?;
    for d in o.differences.iter().take(MAX_PRINTED) {
        let gap = d.gap.map_or("gap unknown".into(), |gap| format!("gap {gap:.1e}"));
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
    if o.differences.len() > MAX_PRINTED {
        writeln!(out, "         and {} more", o.differences.len() - MAX_PRINTED)?;
    }
    if let Some(message) = failure(o) {
        writeln!(out, "FAILED   {message}")?;
    }
    Ok(())
}

fn failure(outcome: &Outcome) -> Option<String> {
    match outcome.failure.as_ref()? {
        Failure::Engine(message) => Some(message.clone()),
        Failure::Hang(idle) => Some(format!("the engine hangs: no step completed for {} s", idle.as_secs())),
    }
}

impl Row {
    fn is_good(&self) -> bool {
        self.outcome.as_ref().is_ok_and(|o| o.is_good(&self.plan))
    }
}

fn table(rows: &[Row], out: &mut impl Write) -> CliResult<()> {
    writeln!(
        out,
        "\n| model | streams | seconds | requests | tokens | tokens/s | differ | near ties | largest gap | result |"
    )?;
    writeln!(out, "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|")?;
    for row in rows {
        let (name, plan, streams) = (&row.name, &row.plan, row.plan.streams);
        match &row.outcome {
            Ok(o) => {
                let gap = o.largest_gap().map_or("-".into(), |gap| format!("{gap:.1e}"));
                let result = match failure(o) {
                    Some(message) => format!("FAILED: {message}"),
                    None if row.is_good() => "good".into(),
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
