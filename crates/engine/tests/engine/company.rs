//! Drives a scheduler and a runner by hand: requests arrive and are cancelled at given steps.

use std::collections::BTreeMap;

use tern_engine::{Event, Finish, Limits, Request, RequestId, Runner, Scheduler, Stats};

/// A request and when it comes and goes, in steps.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    pub(crate) request: Request,
    pub(crate) arrives: usize,
    pub(crate) cancelled: Option<usize>,
}

/// What a request said and how it ended; `None` while it goes on or when it was cancelled.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Said {
    pub(crate) text: Vec<u32>,
    pub(crate) finish: Option<Finish>,
}

/// Steps in which `guests` finish even if they run one after the other, one token a step.
pub(crate) fn most_steps(guests: &[Guest]) -> usize {
    let tokens: usize = guests.iter().map(|g| g.request.prompt.len() + g.request.max_tokens).sum();
    tokens + guests.iter().map(|g| g.arrives).max().unwrap_or(0)
}

/// Runs all guests to their end and checks after every step that no page is lost, no budget exceeded and nobody forgotten.
pub(crate) fn run(
    limits: Limits,
    runner: &mut dyn Runner,
    guests: &[Guest],
) -> Result<(Vec<Said>, Stats), String> {
    let mut scheduler = Scheduler::new(limits).map_err(|e| e.to_string())?;
    let mut said: BTreeMap<RequestId, Said> = BTreeMap::new();
    let last_arrival = guests.iter().map(|g| g.arrives).max().unwrap_or(0);
    for step in 0.. {
        for (id, guest) in (0..).zip(guests) {
            if guest.arrives == step {
                scheduler.add(id, guest.request.clone()).map_err(|e| e.to_string())?;
                said.insert(id, Said::default());
            }
            if guest.cancelled == Some(step) {
                scheduler.cancel(id);
            }
        }
        if scheduler.is_idle() && step >= last_arrival {
            break;
        }
        if step > most_steps(guests) {
            return Err(format!("still going after {step} steps: {:?}", scheduler.stats()));
        }
        let batch = scheduler.plan();
        if batch.entries.is_empty() != scheduler.is_idle() {
            return Err(format!("planned {batch:?} with {:?}", scheduler.stats()));
        }
        if batch.entries.is_empty() {
            continue;
        }
        if batch.tokens() > limits.max_batch_tokens || batch.entries.len() > limits.max_seqs {
            return Err(format!("over the limits: {batch:?}"));
        }
        let stats = scheduler.stats();
        let still = stats.running - batch.entries.len(); // only the youngest may, when pages have run out
        if still > usize::from(stats.pages_free == 0) {
            return Err(format!("{still} of those who run stand still: {stats:?}"));
        }
        let sampled = runner.step(&batch).map_err(|e| e.to_string())?;
        for (id, event) in scheduler.apply(&batch, &sampled) {
            let said = said.entry(id).or_default();
            match event {
                Event::Token(token) => said.text.push(token.id),
                Event::Done(finish) if said.finish.is_none() => said.finish = Some(finish),
                other => return Err(format!("request {id}: {other:?} after {said:?}")),
            }
        }
        scheduler.check().map_err(|e| e.to_string())?;
    }
    let stats = scheduler.stats();
    if stats.pages_free != limits.pages {
        return Err(format!("pages are missing at the end: {stats:?}"));
    }
    Ok((said.into_values().collect(), stats))
}

/// What the request says with the engine to itself and room for everything.
pub(crate) fn alone(runner: &mut dyn Runner, request: &Request, page_len: usize) -> Result<Said, String> {
    let total = request.prompt.len() + request.max_tokens;
    let limits = Limits {
        max_seqs: 1,
        max_batch_tokens: total,
        max_context: total,
        pages: total.div_ceil(page_len),
        page_len,
        max_waiting: 0,
    };
    let guest = Guest { request: request.clone(), arrives: 0, cancelled: None };
    Ok(run(limits, runner, &[guest])?.0.remove(0))
}

/// Says what is wrong if a guest said something else in company than alone.
pub(crate) fn compare(alone: &Said, together: &Said, guest: &Guest) -> Result<(), String> {
    let same = match (guest.cancelled, together.finish) {
        (Some(_), None) => alone.text.starts_with(&together.text),
        _ => alone == together,
    };
    if same { Ok(()) } else { Err(format!("alone {alone:?}, together {together:?}, of {guest:?}")) }
}
