//! Drives a scheduler and a runner by hand: requests arrive and are cancelled at given steps.

use std::collections::{BTreeMap, VecDeque};

use tern_engine::{
    Batch, Capacity, Constraint, Event, Finish, Limits, Request, RequestId, Runner, Scheduler,
    SharedConstraint, Stats, StepRules,
};

/// A request, and in which steps it arrives and is cancelled.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) request: Request,
    /// Constrains each token to differ from the one before by a multiple of this.
    pub(crate) stride: Option<u32>,
    pub(crate) arrives: usize,
    pub(crate) cancelled: Option<usize>,
}

impl Scenario {
    /// Arrives in the first step and is not cancelled.
    pub(crate) fn new(request: Request) -> Scenario {
        Scenario { request, stride: None, arrives: 0, cancelled: None }
    }

    /// The request with a fresh constraint.
    fn request(&self) -> Request {
        let constraint = self.stride.map(|step| SharedConstraint::new(Stepping { step, last: 0 }));
        Request { constraint, ..self.request.clone() }
    }
}

/// Each token differs from the one before by a multiple of `step`; token 7 completes a text.
struct Stepping {
    step: u32,
    last: u32,
}

impl Constraint for Stepping {
    fn mask(&mut self) -> Result<Vec<u32>, String> {
        let mut message = vec![0; 2];
        (0..50u32)
            .filter(|id| id.abs_diff(self.last).is_multiple_of(self.step))
            .for_each(|id| message[id as usize / 32] |= 1 << (id % 32));
        Ok(message)
    }

    fn accept(&mut self, token: u32) -> Result<bool, String> {
        if !token.abs_diff(self.last).is_multiple_of(self.step) {
            return Err(format!("{token} after {}", self.last));
        }
        self.last = token;
        Ok(token == 7)
    }

    fn look_ahead(&mut self, drafts: &[u32]) -> Vec<Result<Vec<u32>, String>> {
        let last = self.last;
        let mut masks = vec![self.mask()];
        for draft in drafts {
            match self.accept(*draft) {
                Ok(false) => masks.push(self.mask()),
                _ => break,
            }
        }
        self.last = last;
        masks
    }

    fn looks_ahead(&self) -> bool {
        true
    }
}

/// The text of a request and how it ended; `None` while it runs or if it was cancelled.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) text: Vec<u32>,
    pub(crate) vector: Vec<f32>,
    pub(crate) finish: Option<Finish>,
    started: bool,
}

/// Steps in which `scenarios` finish even if they run one after the other, with one token per step, and every
/// other step only collects.
fn most_steps(scenarios: &[Scenario]) -> usize {
    let tokens: usize = scenarios.iter().map(|g| g.request.prompt.len() + g.request.max_tokens).sum();
    2 * tokens + scenarios.iter().map(|g| g.arrives).max().unwrap_or(0)
}

/// Runs all scenarios to their end and checks after every step that no page is lost, no budget
/// exceeded and no sequence left out. If the runner runs ahead, the next step is planned before the
/// one before it is collected.
pub(crate) fn run(
    (limits, capacity): (Limits, Capacity),
    runner: &mut dyn Runner,
    scenarios: &[Scenario],
    budgets: &[usize],
) -> Result<(Vec<Outcome>, Stats), String> {
    let mut scheduler = Scheduler::new(limits, capacity).map_err(|e| e.to_string())?;
    let mut outcomes: BTreeMap<RequestId, Outcome> = BTreeMap::new();
    let mut in_flight: VecDeque<Batch> = VecDeque::new();
    let last_arrival = scenarios.iter().map(|g| g.arrives).max().unwrap_or(0);
    for step in 0.. {
        for (id, scenario) in (0..).zip(scenarios) {
            if scenario.arrives == step {
                scheduler.add(id, scenario.request()).map_err(|e| e.to_string())?;
                outcomes.insert(id, Outcome::default());
            }
            if scenario.cancelled == Some(step) {
                scheduler.cancel(id);
            }
        }
        if scheduler.is_idle() && in_flight.is_empty() && step >= last_arrival {
            break;
        }
        if step > most_steps(scenarios) {
            return Err(format!("still going after {step} steps: {:?}", scheduler.stats()));
        }
        let budget = budgets[step % budgets.len()];
        // any size of steps while clients compete
        let batch = scheduler.plan_sized(
            budget,
            &StepRules {
                few: &|all, _| 1 + budget % all,
                size: &|all| 1 + budget * 7 % all.max(1),
                seconds: &|tokens| 1.0 + tokens as f64 / 100.0,
            },
        );
        if in_flight.is_empty() && batch.entries.is_empty() != scheduler.is_idle() {
            return Err(format!("planned {batch:?} with {:?}", scheduler.stats()));
        }
        let samples: usize = batch.entries.iter().map(|e| e.samples().len()).sum();
        let sizes = [(batch.tokens(), capacity.max_tokens), (samples, capacity.max_outputs)];
        if sizes.iter().any(|(size, most)| size > most) || batch.entries.len() > limits.max_seqs {
            return Err(format!("over the limits: {batch:?}"));
        }
        let stats = scheduler.stats();
        if batch.tokens() > budget.max(stats.running) {
            return Err(format!("over the budget of {budget}: {batch:?}"));
        }
        batch.entries.iter().for_each(|e| e.make_masks());
        for &(id, cached) in &batch.started {
            let outcome = outcomes.entry(id).or_default();
            if std::mem::replace(&mut outcome.started, true) {
                return Err(format!("request {id} started twice"));
            }
            if cached >= scenarios[id as usize].request.prompt.len() {
                return Err(format!("request {id}: {cached} cached tokens leave nothing to compute"));
            }
        }
        let planned = !batch.entries.is_empty();
        if planned {
            runner.submit(&batch).map_err(|e| e.to_string())?;
            in_flight.push_back(batch);
        }
        if planned && runner.runs_ahead() && in_flight.len() == 1 {
            continue;
        }
        let Some(batch) = in_flight.pop_front() else { continue };
        let answers = runner.collect().map_err(|e| e.to_string())?;
        for (id, event) in scheduler.apply(&batch, &answers) {
            let outcome = outcomes.entry(id).or_default();
            match event {
                Event::Drafted { drafted, accepted } if accepted <= drafted => {}
                Event::Token(token) => outcome.text.push(token.id),
                Event::Done(finish) if outcome.finish.is_none() => outcome.finish = Some(finish),
                Event::Embedding(vector) if outcome.vector.is_empty() => outcome.vector = vector,
                other => return Err(format!("request {id}: {other:?} after {outcome:?}")),
            }
        }
        scheduler.check().map_err(|e| e.to_string())?;
    }
    let stats = scheduler.stats();
    let window_pages = capacity.window.map_or(0, |window| window.pages);
    let slots = capacity.state.map_or(0, |state| state.slots);
    let free = (stats.pages_free, stats.window_pages_free, stats.state_slots_free);
    if free != (capacity.pages, window_pages, slots) {
        return Err(format!("pages or slots are missing at the end: {stats:?}"));
    }
    Ok((outcomes.into_values().collect(), stats))
}

/// The outcome of a scenario that has the engine to itself, enough memory and no drafts.
pub(crate) fn alone(runner: &mut dyn Runner, scenario: &Scenario) -> Result<Outcome, String> {
    let total = scenario.request.prompt.len() + scenario.request.max_tokens;
    let limits = Limits { max_seqs: 1, max_context: total, max_waiting: 0, step_millis: 0 };
    let pages = runner.capacity().pages_for(total);
    let capacity = Capacity { pages, max_tokens: total, max_outputs: 1, ..runner.capacity() };
    let request = Request { drafts: 0, ..scenario.request.clone() };
    let scenario = Scenario { request, arrives: 0, cancelled: None, ..scenario.clone() };
    Ok(run((limits, capacity), runner, &[scenario], &[total])?.0.remove(0))
}

/// An error if a scenario has another outcome in a batch than alone.
pub(crate) fn compare(alone: &Outcome, together: &Outcome, scenario: &Scenario) -> Result<(), String> {
    let same = match (scenario.cancelled, together.finish) {
        (Some(_), None) if together.vector.is_empty() => alone.text.starts_with(&together.text),
        _ => alone == together,
    };
    if same { Ok(()) } else { Err(format!("alone {alone:?}, together {together:?}, of {scenario:?}")) }
}
