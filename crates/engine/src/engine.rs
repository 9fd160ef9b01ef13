//! The engine thread: plan, step, apply, until it is told to stop.

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
use crate::handle::{Command, Shared};
use crate::{
    Answer, Batch, EngineError, Event, Finish, Guide, Handle, Limits, RequestId, Runner, Scheduler, Want,
};

/// What the engine thread owns.
pub struct Engine {
    scheduler: Scheduler,
    runner: Box<dyn Runner>,
    budget: Budget,
    /// Where masks are made while the model computes; the thread starts with the first.
    masks: Option<mpsc::Sender<(Guide, Mask)>>,
    streams: HashMap<RequestId, UnboundedSender<Event>>,
}

impl Engine {
    /// Starts the thread. It ends with [`Handle::shutdown`], or when the last handle and stream are gone.
    pub fn start(runner: Box<dyn Runner>, limits: Limits) -> Result<Handle, EngineError> {
        let scheduler = Scheduler::new(limits)?;
        let shared = Arc::new(Shared::new(limits, runner.vocab(), scheduler.stats()));
        let budget = Budget::new(limits.max_batch_tokens, limits.step_millis);
        let engine = Engine { scheduler, runner, budget, masks: None, streams: HashMap::new() };
        let inside = Arc::clone(&shared);
        let thread = thread::Builder::new().name("tern-engine".into()).spawn(move || engine.run(&inside));
        let thread =
            thread.map_err(|e| EngineError::Load(format!("the engine thread did not start: {e}")))?;
        Ok(Handle::new(shared, thread))
    }

    fn run(mut self, shared: &Shared) {
        // after a panic nobody knows what the device did, so its work ends here and is not taken up again
        let why = catch_unwind(AssertUnwindSafe(|| self.work(shared)));
        self.end(shared, why.unwrap_or_else(|payload| EngineError::Panicked(panic_words(&*payload))));
    }

    /// Works until there is a reason not to.
    fn work(&mut self, shared: &Shared) -> EngineError {
        loop {
            if let Err(why) = self.receive(shared) {
                return why;
            }
            let batch = self.scheduler.plan(self.budget.tokens());
            shared.lock().publish(self.scheduler.stats());
            if batch.entries.is_empty() {
                return EngineError::Broken("there are requests but no plan for them".into());
            }
            for &(id, cached) in &batch.started {
                self.tell(id, Event::Started { cached });
            }
            let events = match self.step(&batch) {
                Ok(answers) => self.scheduler.apply(&batch, &answers),
                Err(error) => self.scheduler.fail(&batch, &error),
            };
            // whoever hears of the end of a request finds it in the counts
            shared.lock().publish(self.scheduler.stats());
            events.into_iter().for_each(|(id, event)| self.tell(id, event));
        }
    }

    fn step(&mut self, batch: &Batch) -> Result<Vec<Answer>, EngineError> {
        self.promise_masks(batch);
        let start = Instant::now();
        let answers = self.runner.step(batch)?;
        self.budget.learn(batch.tokens(), start.elapsed());
        if answers.len() != batch.entries.len() {
            let (got, want) = (answers.len(), batch.entries.len());
            return Err(EngineError::Runner(format!("the runner answered {got} of {want} entries")));
        }
        Ok(answers)
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

    /// Takes in what arrived since the last step; sleeps while there is nothing to do.
    fn receive(&mut self, shared: &Shared) -> Result<(), EngineError> {
        let mut state = shared.lock();
        loop {
            for command in std::mem::take(&mut state.inbox) {
                self.obey(command);
            }
            state.publish(self.scheduler.stats());
            if state.stopping {
                return Err(EngineError::Stopped);
            }
            if !self.scheduler.is_idle() {
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
        drop(state);
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
