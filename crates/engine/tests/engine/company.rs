//! Drives a scheduler and a runner by hand: requests arrive and are cancelled at given steps.

use std::collections::{BTreeMap, VecDeque};

use tern_engine::{
    Batch, Capacity, Event, Finish, Guide, Limits, Request, RequestId, Rules, Runner, Scheduler, Stats,
};

/// A request and when it comes and goes, in steps.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    pub(crate) request: Request,
    /// Allows only every so manieth token.
    pub(crate) rules: Option<u32>,
    pub(crate) arrives: usize,
    pub(crate) cancelled: Option<usize>,
}

impl Guest {
    /// One that is there from the beginning and stays.
    pub(crate) fn new(request: Request) -> Guest {
        Guest { request, rules: None, arrives: 0, cancelled: None }
    }

    /// The request, with rules of its own.
    fn request(&self) -> Request {
        let guide = self.rules.map(|step| Guide::new(Stepping { step, last: 0 }));
        Request { guide, ..self.request.clone() }
    }
}

/// Each token differs from the one before by a multiple of `step`; token 7 completes a text.
struct Stepping {
    step: u32,
    last: u32,
}

impl Rules for Stepping {
    fn mask(&mut self) -> Result<Vec<u32>, String> {
        let mut words = vec![0; 2];
        (0..50u32)
            .filter(|id| id.abs_diff(self.last).is_multiple_of(self.step))
            .for_each(|id| words[id as usize / 32] |= 1 << (id % 32));
        Ok(words)
    }

    fn accept(&mut self, token: u32) -> Result<bool, String> {
        if !token.abs_diff(self.last).is_multiple_of(self.step) {
            return Err(format!("{token} after {}", self.last));
        }
        self.last = token;
        Ok(token == 7)
    }
}

/// What a request said and how it ended; `None` while it goes on or when it was cancelled.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Said {
    pub(crate) text: Vec<u32>,
    pub(crate) vector: Vec<f32>,
    pub(crate) finish: Option<Finish>,
    started: bool,
}

/// Turns in which `guests` finish even if they run one after the other, one token a step, and every other turn only
/// collects.
fn most_steps(guests: &[Guest]) -> usize {
    let tokens: usize = guests.iter().map(|g| g.request.prompt.len() + g.request.max_tokens).sum();
    2 * tokens + guests.iter().map(|g| g.arrives).max().unwrap_or(0)
}

/// Runs all guests to their end and checks after every step that no page is lost, no budget exceeded and nobody forgotten.
/// If the runner runs ahead, the next step is planned before the one before it is collected.
pub(crate) fn run(
    (limits, capacity): (Limits, Capacity),
    runner: &mut dyn Runner,
    guests: &[Guest],
    budgets: &[usize],
) -> Result<(Vec<Said>, Stats), String> {
    let mut scheduler = Scheduler::new(limits, capacity).map_err(|e| e.to_string())?;
    let mut said: BTreeMap<RequestId, Said> = BTreeMap::new();
    let mut under_way: VecDeque<Batch> = VecDeque::new();
    let last_arrival = guests.iter().map(|g| g.arrives).max().unwrap_or(0);
    for step in 0.. {
        for (id, guest) in (0..).zip(guests) {
            if guest.arrives == step {
                scheduler.add(id, guest.request()).map_err(|e| e.to_string())?;
                said.insert(id, Said::default());
            }
            if guest.cancelled == Some(step) {
                scheduler.cancel(id);
            }
        }
        if scheduler.is_idle() && under_way.is_empty() && step >= last_arrival {
            break;
        }
        if step > most_steps(guests) {
            return Err(format!("still going after {step} steps: {:?}", scheduler.stats()));
        }
        let budget = budgets[step % budgets.len()];
        let batch = scheduler.plan(budget);
        if under_way.is_empty() && batch.entries.is_empty() != scheduler.is_idle() {
            return Err(format!("planned {batch:?} with {:?}", scheduler.stats()));
        }
        if batch.tokens() > capacity.max_tokens || batch.entries.len() > limits.max_seqs {
            return Err(format!("over the limits: {batch:?}"));
        }
        let stats = scheduler.stats();
        if batch.tokens() > budget.max(stats.running) {
            return Err(format!("over the budget of {budget}: {batch:?}"));
        }
        batch.entries.iter().for_each(|e| e.make_mask());
        for &(id, cached) in &batch.started {
            let said = said.entry(id).or_default();
            if std::mem::replace(&mut said.started, true) {
                return Err(format!("request {id} started twice"));
            }
            if cached >= guests[id as usize].request.prompt.len() {
                return Err(format!("request {id}: {cached} cached tokens leave nothing to compute"));
            }
        }
        let planned = !batch.entries.is_empty();
        if planned {
            runner.submit(&batch).map_err(|e| e.to_string())?;
            under_way.push_back(batch);
        }
        if planned && runner.runs_ahead() && under_way.len() == 1 {
            continue;
        }
        let Some(batch) = under_way.pop_front() else { continue };
        let answers = runner.collect().map_err(|e| e.to_string())?;
        for (id, event) in scheduler.apply(&batch, &answers) {
            let said = said.entry(id).or_default();
            match event {
                Event::Token(token) => said.text.push(token.id),
                Event::Done(finish) if said.finish.is_none() => said.finish = Some(finish),
                Event::Embedding(vector) if said.vector.is_empty() => said.vector = vector,
                other => return Err(format!("request {id}: {other:?} after {said:?}")),
            }
        }
        scheduler.check().map_err(|e| e.to_string())?;
    }
    let stats = scheduler.stats();
    if stats.pages_free != capacity.pages {
        return Err(format!("pages are missing at the end: {stats:?}"));
    }
    Ok((said.into_values().collect(), stats))
}

/// What a guest says with the engine to itself and room for everything.
pub(crate) fn alone(runner: &mut dyn Runner, guest: &Guest) -> Result<Said, String> {
    let total = guest.request.prompt.len() + guest.request.max_tokens;
    let limits = Limits { max_seqs: 1, max_context: total, max_waiting: 0, step_millis: 0 };
    let pages = runner.capacity().pages_for(total);
    let capacity = Capacity { pages, max_tokens: total, max_outputs: 1, ..runner.capacity() };
    let guest = Guest { arrives: 0, cancelled: None, ..guest.clone() };
    Ok(run((limits, capacity), runner, &[guest], &[total])?.0.remove(0))
}

/// Says what is wrong if a guest said something else in company than alone.
pub(crate) fn compare(alone: &Said, together: &Said, guest: &Guest) -> Result<(), String> {
    let same = match (guest.cancelled, together.finish) {
        (Some(_), None) if together.vector.is_empty() => alone.text.starts_with(&together.text),
        _ => alone == together,
    };
    if same { Ok(()) } else { Err(format!("alone {alone:?}, together {together:?}, of {guest:?}")) }
}
