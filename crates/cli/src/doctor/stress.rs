//! Random mixes of requests on an engine; each text is compared with the same request alone.

mod deviation;
mod gap;
mod monitor;
mod outcome;
mod requests;

use std::collections::HashMap;
use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use tern::engine::{Event, Finish, Handle, Request, Sampled, Sampling, Stats, TokenStream};
use tern::graph::Random;

pub(crate) use deviation::Deviation;
pub(super) use deviation::{DEVIATIONS, LARGEST_STEP, square_of_differences};
use gap::gap;
pub(crate) use monitor::{MonitoredRunner, SIZES, StepMonitor, Steps};
pub(crate) use outcome::{Difference, Explained, Failure, Outcome};
use requests::Requests;
pub(crate) use requests::Sizes;

/// Number of requests from which mixes are drawn.
const POOL: usize = 48;
/// Minimum number of requests that are run alone, however long they take.
const MIN_ALONE: usize = 8;
/// Fraction of the time in which requests run alone.
const ALONE_TIME: f64 = 1.0 / 3.0;
/// Minimum tokens of a long answer.
const LONG_ANSWER: usize = 48;
/// An engine counts as hanging only after this multiple of its longest step.
const HANG_STEPS: u32 = 20;
/// Before the first step has completed, the limit is multiplied by this.
const FIRST_STEP: u32 = 6;
/// Interval of the progress check.
const POLL: Duration = Duration::from_millis(100);

/// How an engine is stressed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Requests at once.
    pub(crate) streams: usize,
    pub(crate) time: Duration,
    pub(crate) seed: u64,
    /// Differences with a gap up to this are near ties.
    pub(crate) tie: f64,
    /// An engine without progress for this long counts as hanging.
    pub(crate) hang: Duration,
    /// Drafts of a request at most; requests that run alone have none.
    pub(crate) drafts: usize,
}

/// Runs requests alone, then in mixes until the time has passed.
pub(crate) fn stress(
    handle: &Handle,
    monitor: &StepMonitor,
    sizes: Sizes,
    plan: &Plan,
) -> std::io::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let mut run = Run {
        handle,
        monitor,
        plan,
        vocab: sizes.vocab,
        pool: Requests::new(sizes, plan.seed).take(POOL).collect(),
        random: Random::new(!plan.seed),
        alone: vec![],
        open: vec![],
        counts: Counts::default(),
    };
    Ok(runtime.block_on(run.whole()))
}

/// A request that is running.
struct Open {
    /// Index in the pool.
    request: usize,
    text: Vec<u32>,
    /// Number of tokens after which it is cancelled.
    cancel: Option<usize>,
    stream: TokenStream,
}

#[derive(Debug, Default)]
struct Counts {
    requests: u64,
    tokens: u64,
    cancelled: u64,
    differences: HashMap<Difference, u64>,
}

struct Run<'a> {
    handle: &'a Handle,
    monitor: &'a StepMonitor,
    plan: &'a Plan,
    vocab: usize,
    pool: Vec<Request>,
    random: Random,
    /// The texts of the first requests of the pool, each run alone.
    alone: Vec<Vec<u32>>,
    open: Vec<Open>,
    counts: Counts,
}

impl Run<'_> {
    async fn whole(&mut self) -> Outcome {
        let mut failure = self.alone().await.err();
        let (before, mixing) = (self.handle.stats(), Instant::now());
        self.monitor.restart();
        if failure.is_none() {
            failure = self.mix().await.err();
        }
        let (after, steps, seconds) =
            (self.handle.stats(), self.monitor.steps(), mixing.elapsed().as_secs_f64());
        self.open.clear();
        let differences = self.explain(failure.is_none()).await;
        let Counts { requests, tokens, cancelled, .. } = self.counts;
        let stats = Stats {
            steps: after.steps - before.steps,
            preemptions: after.preemptions - before.preemptions,
            cached_tokens: after.cached_tokens - before.cached_tokens,
            drafted_tokens: after.drafted_tokens - before.drafted_tokens,
            accepted_tokens: after.accepted_tokens - before.accepted_tokens,
            ..after
        };
        let alone = self.alone.len();
        Outcome { alone, requests, tokens, cancelled, seconds, differences, failure, stats, steps }
    }

    /// Runs requests of the pool one at a time, within a fraction of the time.
    async fn alone(&mut self) -> Result<(), Failure> {
        let start = Instant::now();
        for i in 0..self.pool.len() {
            if i >= MIN_ALONE && start.elapsed() > self.plan.time.mul_f64(ALONE_TIME) {
                break;
            }
            let text = self.one(self.pool[i].clone()).await?;
            self.alone.push(text.iter().map(|t| t.id).collect());
        }
        Ok(())
    }

    /// Runs rounds of requests, each with a random number of streams from one to a few more than may run. In
    /// some rounds all answers are long, so that pages run out during decoding.
    async fn mix(&mut self) -> Result<(), Failure> {
        let most = self.plan.streams + self.plan.streams.div_ceil(4);
        let until = Instant::now() + self.plan.time.mul_f64(1.0 - ALONE_TIME);
        let all: Vec<usize> = (0..self.alone.len()).collect();
        let long: Vec<usize> = all.iter().copied().filter(|i| self.alone[*i].len() >= LONG_ANSWER).collect();
        loop {
            let level = 1 + self.random.below(most);
            let mut left = level * (1 + self.random.below(4));
            let only_long = self.random.below(3) == 0 && !long.is_empty();
            while left > 0 || !self.open.is_empty() {
                if Instant::now() >= until {
                    left = 0;
                }
                while self.open.len() < level && left > 0 {
                    self.start_one_of(if only_long { &long } else { &all })?;
                    left -= 1;
                }
                if !self.open.is_empty() {
                    let (i, event) = self.next().await?;
                    self.take(i, event)?;
                }
            }
            if Instant::now() >= until {
                return Ok(());
            }
        }
    }

    fn start_one_of(&mut self, requests: &[usize]) -> Result<(), Failure> {
        let request = requests[self.random.below(requests.len())];
        let cancel = (self.random.below(8) == 0).then(|| self.random.below(self.pool[request].max_tokens));
        let drafts = self.plan.drafts * usize::from(self.random.below(4) > 0);
        let stream = self.generate(Request { drafts, ..self.pool[request].clone() })?;
        self.counts.requests += 1;
        self.open.push(Open { request, text: vec![], cancel, stream });
        Ok(())
    }

    fn take(&mut self, i: usize, event: Event) -> Result<(), Failure> {
        let open = &mut self.open[i];
        let mut ended = false;
        match event {
            Event::Token(token) => {
                open.text.push(token.id);
                self.counts.tokens += 1;
            }
            Event::Started { .. } | Event::Drafted { .. } => {}
            Event::Done(Finish::Length) => {
                open.cancel = None; // too late
                ended = true;
            }
            Event::Failed(error) => return Err(Failure::Engine(error.to_string())),
            other => return Err(Failure::Engine(format!("a request ended with {other:?}"))),
        }
        let cancelled = open.cancel.is_some_and(|after| open.text.len() >= after);
        if ended || cancelled {
            let open = self.open.swap_remove(i);
            self.counts.cancelled += u64::from(cancelled);
            self.compare(&open);
        }
        Ok(())
    }

    /// A cancelled text must be a prefix of the whole one.
    fn compare(&mut self, open: &Open) {
        let alone = &self.alone[open.request];
        if let Some(at) = open.text.iter().zip(alone).position(|(got, want)| got != want) {
            let difference = Difference { request: open.request, at, got: open.text[at] };
            *self.counts.differences.entry(difference).or_default() += 1;
        }
    }

    /// Recomputes each difference alone, without cached pages, to measure how close the choice was.
    async fn explain(&mut self, running: bool) -> Vec<Explained> {
        let mut all: Vec<_> = self.counts.differences.drain().collect();
        all.sort_unstable_by_key(|(d, _)| (d.request, d.at, d.got));
        let mut explained = vec![];
        for (difference, times) in all {
            let Difference { request, at, .. } = difference;
            let want = self.alone[request][at];
            let gap = if running { self.gap(&difference, want).await.ok() } else { None };
            let prompt = self.pool[request].prompt.len();
            explained.push(Explained { difference, want, prompt, times, gap });
        }
        explained
    }

    async fn gap(&mut self, difference: &Difference, want: u32) -> Result<f64, Failure> {
        self.evict_all().await?;
        let &Difference { request, at, got } = difference;
        let text = self.alone[request][..at].to_vec();
        let mut prompt = self.pool[request].prompt.clone();
        prompt.extend(&text);
        let sampling = Sampling { logprobs: Some(self.vocab), ..Sampling::default() };
        let adapters = self.pool[request].adapters.clone();
        let token = self.one(Request { sampling, adapters, ..Request::new(prompt, 1) }).await?;
        Ok(token.first().map_or(f64::INFINITY, |t| gap(&self.pool[request], &text, &t.top, want, got)))
    }

    /// Overwrites all pages with other texts, so that the prefix cache has no hits.
    async fn evict_all(&mut self) -> Result<(), Failure> {
        let kv_tokens = self.handle.capacity().kv_tokens();
        let len = (self.handle.limits().max_context - 1).min(kv_tokens);
        for _ in 0..kv_tokens.div_ceil(len) + 1 {
            let prompt = requests::tokens(&mut self.random, self.vocab, len);
            self.one(Request::new(prompt, 1)).await?;
        }
        Ok(())
    }

    /// The tokens of a request that runs alone.
    async fn one(&mut self, request: Request) -> Result<Vec<Sampled>, Failure> {
        let stream = self.generate(request)?;
        self.open.push(Open { request: 0, text: vec![], cancel: None, stream });
        let mut text = vec![];
        loop {
            match self.next().await?.1 {
                Event::Token(token) => text.push(token),
                Event::Started { .. } => {}
                Event::Done(Finish::Length) => break,
                Event::Failed(error) => return Err(Failure::Engine(error.to_string())),
                other => return Err(Failure::Engine(format!("a request alone ended with {other:?}"))),
            }
        }
        self.open.clear();
        Ok(text)
    }

    fn generate(&self, request: Request) -> Result<TokenStream, Failure> {
        self.handle.generate(request).map_err(|e| Failure::Engine(e.to_string()))
    }

    /// The next event of any open request.
    async fn next(&mut self) -> Result<(usize, Event), Failure> {
        let waiting = Instant::now();
        loop {
            let event = poll_fn(|cx| {
                for (i, open) in self.open.iter_mut().enumerate() {
                    if let Poll::Ready(Some(event)) = open.stream.poll_next(cx) {
                        return Poll::Ready((i, event));
                    }
                }
                Poll::Pending
            });
            if let Ok(event) = tokio::time::timeout(POLL, event).await {
                return Ok(event);
            }
            let steps = self.monitor.steps();
            let idle = steps.last.max(waiting).elapsed();
            let hang = if steps.longest.is_zero() { self.plan.hang * FIRST_STEP } else { self.plan.hang };
            if idle > hang.max(steps.longest * HANG_STEPS) {
                return Err(Failure::Hang(idle));
            }
        }
    }
}

#[cfg(test)]
mod tests;
