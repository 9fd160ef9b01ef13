//! The engine thread: plan, submit, collect, apply, until it is stopped.
//!
//! A runner that runs ahead gets the next step before the one in flight is collected, so that the device does
//! not wait for the host.

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
use crate::disk::restore::{Deliver, EngineDisk};
use crate::handle::{Command, Shared, Sizes};
use crate::pace::Pace;
use crate::speculation::RowCost;
use crate::step_cost::StepCost;
use crate::step_sizes::StepSizes;
use crate::{
    Answer, Batch, DiskCache, EngineError, Event, Finish, Handle, Limits, RequestId, Runner, Scheduler,
    SharedConstraint, StepRules,
};

/// The state of the engine thread.
pub struct Engine {
    scheduler: Scheduler,
    runner: Box<dyn Runner>,
    /// The step in flight on a runner that runs ahead.
    in_flight: Option<Submitted>,
    budget: Budget,
    cost: StepCost,
    step_sizes: StepSizes,
    row_cost: RowCost,
    pace: Pace,
    /// When the last step was collected, or the engine woke up.
    collected: Instant,
    /// The cache on disk, if there is one.
    disk: Option<EngineDisk>,
    /// To the thread that computes masks while the model runs; it starts with the first mask.
    masks: Option<mpsc::Sender<MasksOf>>,
    streams: HashMap<RequestId, UnboundedSender<Event>>,
}

/// Masks to compute: of the next token of a constraint, and of those after each draft.
struct MasksOf {
    constraint: SharedConstraint,
    masks: Vec<Mask>,
    drafts: Vec<u32>,
}

/// A submitted step.
struct Submitted {
    batch: Batch,
    since: Instant,
}

impl Engine {
    /// Starts the thread. It ends with [`Handle::shutdown`], or when the last handle and stream are dropped.
    pub fn start(runner: Box<dyn Runner>, limits: Limits) -> Result<Handle, EngineError> {
        Engine::start_with(runner, limits, None)
    }

    /// The same with a cache on disk, if one is given: prefixes that leave memory go there and come back. The
    /// runner must copy its pages ([`Runner::cache_format`]) and not run ahead.
    pub fn start_with(
        runner: Box<dyn Runner>,
        limits: Limits,
        disk: Option<DiskCache>,
    ) -> Result<Handle, EngineError> {
        let disk = disk.map(|cache| match runner.cache_format() {
            Some(format) if !runner.runs_ahead() => Ok(EngineDisk::new(cache, format)),
            _ => Err(EngineError::NoDiskCache),
        });
        let disk = disk.transpose()?;
        let capacity = runner.capacity();
        let reads_whole = runner.reads_whole();
        let keeps_images = runner.keeps_images_whole();
        let mut scheduler =
            Scheduler::new(limits, capacity)?.reading_whole(reads_whole).keeping_images(keeps_images);
        if let Some(disk) = &disk {
            scheduler.use_disk(disk.keys());
        }
        let budget = Budget::new(capacity.max_tokens, limits.step_millis);
        let (vocab, generates, adapters) = (runner.vocab(), runner.generates(), runner.adapters());
        let image_width = runner.image_width();
        // the window's pages hold an image if it is no longer than the window
        let window = capacity.window.map_or(usize::MAX, |window| window.tokens);
        let image_rows = if keeps_images { capacity.max_tokens.min(window) } else { usize::MAX };
        let has_disk = disk.is_some();
        let sizes = Sizes {
            limits,
            capacity,
            vocab,
            generates,
            reads_whole,
            adapters,
            image_width,
            image_rows,
            has_disk,
        };
        let shared = Arc::new(Shared::new(sizes, scheduler.stats(), disk.as_ref().map(EngineDisk::counts)));
        let step_sizes = StepSizes::new(runner.step_borders());
        let engine = Engine {
            scheduler,
            runner,
            in_flight: None,
            budget,
            cost: StepCost::default(),
            step_sizes,
            row_cost: RowCost::default(),
            pace: Pace::default(),
            collected: Instant::now(),
            disk,
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

    fn run(mut self, shared: &Arc<Shared>) {
        // after a panic the state of the device is unknown, so the engine does not continue
        let why = catch_unwind(AssertUnwindSafe(|| self.work(shared)));
        self.end(shared, why.unwrap_or_else(|payload| EngineError::Panicked(panic_message(&*payload))));
    }

    /// Runs steps until there is a reason to stop.
    fn work(&mut self, shared: &Arc<Shared>) -> EngineError {
        let deliver: Deliver = {
            let shared = Arc::clone(shared);
            Arc::new(move |part| shared.send(Command::Read(part)))
        };
        let ahead = self.runner.runs_ahead();
        let why = loop {
            let next = match self.receive(shared).and_then(|()| self.begin(shared, &deliver)) {
                Ok(next) => next,
                Err(why) => break why,
            };
            // a runner that does not run ahead has finished the step it was just given
            let done = if ahead { std::mem::replace(&mut self.in_flight, next) } else { next };
            if let Some(step) = done
                && let Err(why) = self.finish(&step, shared)
            {
                break why;
            }
        };
        if let Some(step) = self.in_flight.take()
            && !why.ends_engine()
            && let Err(worse) = self.finish(&step, shared)
        {
            return worse;
        }
        why
    }

    /// Plans a step and submits it; `None` if the result of the one in flight must be known first.
    fn begin(&mut self, shared: &Shared, deliver: &Deliver) -> Result<Option<Submitted>, EngineError> {
        if let Some(disk) = &mut self.disk {
            disk.restore(&mut self.scheduler, &mut *self.runner, deliver)?;
        }
        let (cost, sizes, rows) = (&self.cost, &self.step_sizes, &self.row_cost);
        let rules = StepRules {
            few: &|all, clients| cost.few(all, clients),
            size: &|all| sizes.of(all),
            seconds: &|tokens| rows.of(tokens),
        };
        let batch = self.scheduler.plan_sized(self.budget.tokens(), &rules);
        if let Some(disk) = &self.disk {
            disk.write_evicted(&mut self.scheduler, &mut *self.runner)?;
        }
        let in_flight = self.in_flight.as_ref().map_or(0, |step| step.batch.tokens());
        let expected = self.pace.expected(batch.tokens().max(in_flight));
        shared.lock().begin(self.scheduler.stats(), expected);
        if batch.entries.is_empty() && !self.scheduler.has_work() {
            return Ok(None); // all sequences wait for the disk
        }
        if batch.entries.is_empty() {
            let nothing = EngineError::Broken("no step was planned although there are requests".into());
            return if self.in_flight.is_some() { Ok(None) } else { Err(nothing) };
        }
        for &(id, cached) in &batch.started {
            self.tell(id, Event::Started { cached });
        }
        self.request_masks(&batch);
        let since = Instant::now();
        if let Err(error) = self.runner.submit(&batch) {
            if error.ends_engine() {
                return Err(error);
            }
            // the step in flight is not affected
            if let Some(before) = self.in_flight.take() {
                self.finish(&before, shared)?;
            }
            let events = self.scheduler.fail(&batch, &error);
            self.report(events, shared);
            return Ok(None);
        }
        Ok(Some(Submitted { batch, since }))
    }

    /// Waits for the oldest step and applies its answers; an error means that no other step can run.
    fn finish(&mut self, step: &Submitted, shared: &Shared) -> Result<(), EngineError> {
        let events = match self.collect(step) {
            Ok(answers) => self.scheduler.apply(&step.batch, &answers),
            Err(error) if error.ends_engine() => return Err(error),
            Err(error) => {
                let mut events = self.scheduler.fail(&step.batch, &error);
                // the step after it depends on what was not computed
                if let Some(after) = self.in_flight.take() {
                    let _ = self.runner.collect();
                    events.extend(self.scheduler.fail(&after.batch, &error));
                }
                events
            }
        };
        self.report(events, shared);
        Ok(())
    }

    fn collect(&mut self, step: &Submitted) -> Result<Vec<Answer>, EngineError> {
        let answers = self.runner.collect()?;
        // a step that was submitted ahead began when the one before it ended
        let began = step.since.max(self.collected);
        let before = std::mem::replace(&mut self.collected, Instant::now());
        let (tokens, took) = (step.batch.tokens(), self.collected - began);
        self.budget.learn(tokens, took);
        self.pace.learn(tokens, took);
        if tokens == step.batch.entries.len() {
            self.cost.learn(tokens, took);
            self.step_sizes.learn(tokens, took);
        }
        if step.batch.only_decodes() {
            // with what the host did since the last step, because drafts may have made the device wait for it
            self.row_cost.learn(tokens, self.collected - before);
        }
        if answers.len() != step.batch.entries.len() {
            let (got, want) = (answers.len(), step.batch.entries.len());
            return Err(EngineError::Runner(format!("the runner returned {got} answers for {want} entries")));
        }
        Ok(answers)
    }

    fn report(&mut self, events: Vec<(RequestId, Event)>, shared: &Shared) {
        // the counts are published before the events, so that a receiver of the last
        // event finds them up to date
        shared.lock().publish(self.scheduler.stats());
        events.into_iter().for_each(|(id, event)| self.tell(id, event));
    }

    /// Has the masks of a batch computed while the model runs.
    fn request_masks(&mut self, batch: &Batch) {
        for entry in &batch.entries {
            let Some((masks, constraint)) = entry.masks() else { continue };
            let (constraint, drafts) = (constraint.clone(), entry.drafts().to_vec());
            let masks = MasksOf { constraint, masks, drafts };
            if self.mask_thread().is_none_or(|thread| thread.send(masks).is_err()) {
                entry.make_masks(); // without the thread: slower, but not lost
            }
        }
    }

    fn mask_thread(&mut self) -> Option<&mpsc::Sender<MasksOf>> {
        if self.masks.is_none() {
            let (sender, masks) = mpsc::channel::<MasksOf>();
            let make = move || masks.iter().for_each(|masks| make_masks(&masks));
            let started = thread::Builder::new().name("tern-masks".into()).spawn(make);
            self.masks = started.ok().map(|_| sender);
        }
        self.masks.as_ref()
    }

    /// Executes the commands that arrived since the last step; sleeps while there is
    /// nothing to do or in flight.
    fn receive(&mut self, shared: &Shared) -> Result<(), EngineError> {
        let mut state = shared.lock();
        state.idle();
        let mut waited = false; // for the disk: what was read is taken now, or not waited for any more
        loop {
            for command in std::mem::take(&mut state.inbox) {
                self.execute(command);
            }
            state.publish(self.scheduler.stats());
            if state.stopping {
                return Err(EngineError::Stopped);
            }
            let arrived = self.disk.as_ref().is_some_and(EngineDisk::has_arrived);
            if self.scheduler.has_work() || self.in_flight.is_some() || arrived || waited {
                state.work(Instant::now());
                return Ok(());
            }
            self.scheduler.check()?;
            let patience = self.disk.as_ref().and_then(EngineDisk::patience);
            state = shared.sleep(state, patience);
            self.collected = Instant::now();
            waited = patience.is_some();
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Add { id, request, stream, images } => {
                self.streams.insert(id, stream);
                images.into_iter().for_each(|(number, rows)| self.scheduler.know_image(number, rows));
                if let Err(error) = self.scheduler.add(id, *request) {
                    self.tell(id, Event::Failed(error));
                }
            }
            Command::Cancel(id) => {
                self.scheduler.cancel(id);
                self.streams.remove(&id);
            }
            Command::Read(part) => {
                if let Some(disk) = &mut self.disk {
                    disk.take(part);
                }
            }
        }
    }

    fn tell(&mut self, id: RequestId, event: Event) {
        let last = event.is_last();
        if let Some(stream) = self.streams.get(&id) {
            // a dropped receiver has already sent its cancel command
            let _ = stream.send(event);
        }
        if last {
            self.streams.remove(&id);
        }
    }

    /// Ends every stream; later requests are refused.
    fn end(mut self, shared: &Shared, why: EngineError) {
        let last = match &why {
            EngineError::Stopped => Event::Done(Finish::Cancelled),
            why => Event::Failed(why.clone()),
        };
        let mut state = shared.lock();
        state.ended = Some(why);
        for command in std::mem::take(&mut state.inbox) {
            self.execute(command);
        }
        for &id in self.streams.keys() {
            self.scheduler.cancel(id);
        }
        let stopped = matches!(state.ended, Some(EngineError::Stopped));
        state.publish(self.scheduler.stats());
        state.idle();
        drop(state);
        shared.closed.notify_waiters();
        for stream in self.streams.values() {
            let _ = stream.send(last.clone());
        }
        // not after a failure: what memory holds then is not known
        if let Some(disk) = self.disk.take().filter(|_| stopped) {
            let written =
                catch_unwind(AssertUnwindSafe(|| disk.write_all(&self.scheduler, &mut *self.runner)));
            drop(written); // the engine ends in any case
            shared.lock().publish(disk.counts().count(self.scheduler.stats()));
        }
    }
}

/// Sets the masks, also if the constraint panics: the sampler would otherwise wait without end.
fn make_masks(MasksOf { constraint, masks, drafts }: &MasksOf) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| constraint.make(masks, drafts))) {
        masks.iter().for_each(|mask| mask.set(Err(panic_message(&*payload))));
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
