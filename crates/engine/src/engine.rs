//! The engine thread: plan, submit, collect, apply, until it is told to stop.
//!
//! A runner that runs ahead is given the next step before the one under way is collected, so that a device does not
//! wait for its host.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use tern_graph::Mask;
use tokio::sync::mpsc::UnboundedSender;

use crate::budget::Budget;
use crate::handle::{Command, Shared, Sizes};
use crate::pace::Pace;
use crate::{
    Answer, Batch, EngineError, Event, Finish, Guide, Handle, Limits, RequestId, Runner, Scheduler, Want,
};

/// What the engine thread owns.
pub struct Engine {
    scheduler: Scheduler,
    runner: Box<dyn Runner>,
    /// The step that a runner which runs ahead was given and has not answered.
    under_way: Option<UnderWay>,
    budget: Budget,
    pace: Pace,
    /// When the last step was collected.
    collected: Instant,
    /// Where masks are made while the model computes; the thread starts with the first.
    masks: Option<mpsc::Sender<(Guide, Mask)>>,
    streams: HashMap<RequestId, UnboundedSender<Event>>,
}

/// A submitted step.
struct UnderWay {
    batch: Batch,
    since: Instant,
}

impl Engine {
    /// Starts the thread. It ends with [`Handle::shutdown`], or when the last handle and stream are gone.
    pub fn start(runner: Box<dyn Runner>, limits: Limits) -> Result<Handle, EngineError> {
        let capacity = runner.capacity();
        let scheduler = Scheduler::new(limits, capacity)?;
        let budget = Budget::new(capacity.max_tokens, limits.step_millis);
        let sizes = Sizes { limits, capacity, vocab: runner.vocab() };
        let shared = Arc::new(Shared::new(sizes, scheduler.stats()));
        let engine = Engine {
            scheduler,
            runner,
            under_way: None,
            budget,
            pace: Pace::default(),
            collected: Instant::now(),
            masks: None,
            streams: HashMap::new(),
        };
        let inside = Arc::clone(&shared);
        let (alive, gone) = mpsc::channel();
        let thread = thread::Builder::new().name("tern-engine".into()).spawn(move || {
            let _alive: mpsc::Sender<()> = alive; // dropped after the runner
            engine.run(&inside);
        });
        thread.map_err(|e| EngineError::Load(format!("the engine thread did not start: {e}")))?;
        Ok(Handle::new(shared, gone))
    }

    fn run(mut self, shared: &Shared) {
        // after a panic nobody knows what the device did, so its work ends here and is not taken up again
        let why = catch_unwind(AssertUnwindSafe(|| self.work(shared)));
        self.end(shared, why.unwrap_or_else(|payload| EngineError::Panicked(panic_words(&*payload))));
    }

    /// Works until there is a reason not to.
    fn work(&mut self, shared: &Shared) -> EngineError {
        let ahead = self.runner.runs_ahead();
        let why = loop {
            let next = match self.receive(shared).and_then(|()| self.begin(shared)) {
                Ok(next) => next,
                Err(why) => break why,
            };
            // a runner that does not run ahead is done with the step it was just given
            let done = if ahead { std::mem::replace(&mut self.under_way, next) } else { next };
            if let Some(step) = done
                && let Err(why) = self.finish(&step, shared)
            {
                break why;
            }
        };
        if let Some(step) = self.under_way.take()
            && !why.ends_engine()
            && let Err(worse) = self.finish(&step, shared)
        {
            return worse;
        }
        why
    }

    /// Plans a step and submits it; none where the one under way must be known first.
    fn begin(&mut self, shared: &Shared) -> Result<Option<UnderWay>, EngineError> {
        let batch = self.scheduler.plan(self.budget.tokens());
        let under_way = self.under_way.as_ref().map_or(0, |step| step.batch.tokens());
        let expected = self.pace.expected(batch.tokens().max(under_way));
        shared.lock().begin(self.scheduler.stats(), expected);
        if batch.entries.is_empty() {
            let nothing = EngineError::Broken("there are requests but no plan for them".into());
            return if self.under_way.is_some() { Ok(None) } else { Err(nothing) };
        }
        for &(id, cached) in &batch.started {
            self.tell(id, Event::Started { cached });
        }
        self.promise_masks(&batch);
        let since = Instant::now();
        if let Err(error) = self.runner.submit(&batch) {
            if error.ends_engine() {
                return Err(error);
            }
            // the step before it has nothing to do with that
            if let Some(before) = self.under_way.take() {
                self.finish(&before, shared)?;
            }
            let events = self.scheduler.fail(&batch, &error);
            self.report(events, shared);
            return Ok(None);
        }
        Ok(Some(UnderWay { batch, since }))
    }

    /// Waits for the oldest step and applies what came of it; an error is one after which there is no other step.
    fn finish(&mut self, step: &UnderWay, shared: &Shared) -> Result<(), EngineError> {
        let events = match self.collect(step) {
            Ok(answers) => self.scheduler.apply(&step.batch, &answers),
            Err(error) if error.ends_engine() => return Err(error),
            Err(error) => {
                let mut events = self.scheduler.fail(&step.batch, &error);
                // the step after it stands on what was not computed
                if let Some(after) = self.under_way.take() {
                    let _ = self.runner.collect();
                    events.extend(self.scheduler.fail(&after.batch, &error));
                }
                events
            }
        };
        self.report(events, shared);
        Ok(())
    }

    fn collect(&mut self, step: &UnderWay) -> Result<Vec<Answer>, EngineError> {
        let answers = self.runner.collect()?;
        // a step that was submitted ahead began when the one before it was done
        let began = step.since.max(self.collected);
        self.collected = Instant::now();
        let (tokens, took) = (step.batch.tokens(), self.collected - began);
        self.budget.learn(tokens, took);
        self.pace.learn(tokens, took);
        if answers.len() != step.batch.entries.len() {
            let (got, want) = (answers.len(), step.batch.entries.len());
            return Err(EngineError::Runner(format!("the runner answered {got} of {want} entries")));
        }
        Ok(answers)
    }

    fn report(&mut self, events: Vec<(RequestId, Event)>, shared: &Shared) {
        // whoever hears of the end of a request finds it in the counts
        shared.lock().publish(self.scheduler.stats());
        events.into_iter().for_each(|(id, event)| self.tell(id, event));
    }

    /// Sends the masks of a batch to be made while the model computes.
    fn promise_masks(&mut self, batch: &Batch) {
        for entry in &batch.entries {
            let Want::Token(sample, Some(guide)) = &entry.want else { continue };
            let Some(mask) = &sample.mask else { continue };
            let sent = self.mask_thread().is_some_and(|m| m.send((guide.clone(), mask.clone())).is_ok());
            if !sent {
                entry.make_mask(); // later, but not lost
            }
        }
    }

    fn mask_thread(&mut self) -> Option<&mpsc::Sender<(Guide, Mask)>> {
        if self.masks.is_none() {
            let (sender, masks) = mpsc::channel::<(Guide, Mask)>();
            let make = move || masks.iter().for_each(|(guide, mask)| make_mask(&guide, &mask));
            let started = thread::Builder::new().name("tern-masks".into()).spawn(make);
            self.masks = started.ok().map(|_| sender);
        }
        self.masks.as_ref()
    }

    /// Takes in what arrived since the last step; sleeps while there is nothing to do and nothing under way.
    fn receive(&mut self, shared: &Shared) -> Result<(), EngineError> {
        let mut state = shared.lock();
        state.idle();
        loop {
            for command in std::mem::take(&mut state.inbox) {
                self.obey(command);
            }
            state.publish(self.scheduler.stats());
            if state.stopping {
                return Err(EngineError::Stopped);
            }
            if !self.scheduler.is_idle() || self.under_way.is_some() {
                state.work(Instant::now());
                return Ok(());
            }
            self.scheduler.check()?;
            state = shared.sleep(state);
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Add { id, request, stream } => {
                self.streams.insert(id, stream);
                if let Err(error) = self.scheduler.add(id, request) {
                    self.tell(id, Event::Failed(error));
                }
            }
            Command::Cancel(id) => {
                self.scheduler.cancel(id);
                self.streams.remove(&id);
            }
        }
    }

    fn tell(&mut self, id: RequestId, event: Event) {
        let last = event.is_last();
        if let Some(stream) = self.streams.get(&id) {
            // a receiver that is gone has sent its cancel already
            let _ = stream.send(event);
        }
        if last {
            self.streams.remove(&id);
        }
    }

    /// Refuses what comes from here on, and ends every stream.
    fn end(mut self, shared: &Shared, why: EngineError) {
        let last = match &why {
            EngineError::Stopped => Event::Done(Finish::Cancelled),
            why => Event::Failed(why.clone()),
        };
        let mut state = shared.lock();
        state.ended = Some(why);
        for command in std::mem::take(&mut state.inbox) {
            self.obey(command);
        }
        for &id in self.streams.keys() {
            self.scheduler.cancel(id);
        }
        state.publish(self.scheduler.stats());
        state.idle();
        drop(state);
        shared.closed.notify_waiters();
        for stream in self.streams.values() {
            let _ = stream.send(last.clone());
        }
    }
}

/// Keeps the promise, also when the rules panic: whoever waits for the mask would wait for ever.
fn make_mask(guide: &Guide, mask: &Mask) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| guide.make(mask))) {
        mask.keep(Err(panic_words(&*payload)));
    }
}

fn panic_words(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
