//! The generation of one request's choices, with its deadline, its counts and its metrics.

pub(crate) mod choice_streams;
pub(crate) mod delta;
pub(crate) mod scoring;
pub(crate) mod usage;

use std::pin::Pin;
use std::time::Instant;

use tern::engine::{Event, Request};
use tern::{AnswerReader, Reading};
use tokio::time::sleep_until;

use self::choice_streams::ChoiceStreams;
use self::delta::{Delta, Report};
use self::scoring::{PromptScores, Scoring};
use self::usage::{CompletionDetails, PromptDetails, Usage};
use crate::http::error::{ApiError, Result};
use crate::http::request_log::RequestLog;
use crate::metrics::Finished;
use crate::models::model::ServedModel;
use crate::request::clients;
use crate::request::options::Options;
use crate::state::{App, Stop};

/// The app, the model and the log of one request.
pub(crate) struct RequestScope<'a> {
    pub(crate) app: &'a App,
    pub(crate) served: &'a ServedModel,
    pub(crate) log: &'a RequestLog,
}

/// What is to be generated.
pub(crate) struct Job {
    /// `n` per prompt, prompt after prompt.
    pub(crate) requests: Vec<Request>,
    /// Choices per prompt.
    pub(crate) n: usize,
    pub(crate) reading: Reading,
    pub(crate) report: Report,
    pub(crate) scoring: Scoring,
    /// Tokens of the prompt that each choice generates to score them.
    pub(crate) scored: Vec<usize>,
    /// The client's user.
    pub(crate) user: Option<String>,
}

/// A running job. Dropping it cancels the choices that have not ended.
pub(crate) struct Generation<'a> {
    app: &'a App,
    streams: ChoiceStreams,
    served: &'a ServedModel,
    answers: Vec<AnswerReader>,
    report: Report,
    /// Per choice.
    prompts: Vec<PromptScores>,
    /// When each choice produced its last token.
    last_token_at: Vec<Option<Instant>>,
    n: usize,
    started: Instant,
    prompt_tokens: usize,
    /// Tokens of prompts that are generated, per prompt and in all choices.
    scored: Scored,
    cached_tokens: usize,
    /// Guessed tokens of all choices, and those of them that were right.
    drafted_tokens: usize,
    accepted_tokens: usize,
    log: RequestLog,
    /// Choices that have not ended.
    open: usize,
    /// The finish reason of the choice that ended last.
    reason: &'static str,
    deadline: Pin<Box<dyn Future<Output = ()> + Send>>,
    stop: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// A job that the engine has accepted, before its first event is read.
pub(crate) struct Started {
    streams: ChoiceStreams,
    reading: Reading,
    report: Report,
    prompts: Vec<PromptScores>,
    n: usize,
    prompt_tokens: usize,
    scored: Scored,
    count: usize,
}

/// Prompt tokens that are generated, to score them.
#[derive(Clone, Copy, Debug, Default)]
struct Scored {
    /// Counted once per prompt.
    prompts: usize,
    /// Those that the answers contain, in all choices.
    echoed: usize,
}

impl Job {
    /// A job without requests.
    pub(crate) fn new(options: Options, reading: Reading) -> Job {
        Job {
            requests: vec![],
            n: options.n,
            reading,
            report: options.report(),
            scoring: options.scoring,
            scored: vec![],
            user: options.user,
        }
    }

    /// Submits the job to the engine.
    pub(crate) fn start(self, scope: &RequestScope<'_>) -> Result<Started> {
        let count = self.requests.len();
        let prompts = self.requests.iter().step_by(self.n.max(1));
        let prompt_tokens = prompts.map(|request| request.prompt.len()).sum();
        scope.log.fields().prompt_tokens = prompt_tokens;
        let Job { mut requests, reading, report, n, scoring, scored, user } = self;
        let prompts = scored.iter().map(|&scored| PromptScores::new(scoring, scored)).collect();
        let scored = Scored {
            prompts: scored.iter().step_by(n.max(1)).sum(),
            echoed: if scoring.echoed { scored.iter().sum() } else { 0 },
        };
        for request in &mut requests {
            request.client = clients::client(scope.log.key.number(), clients::user(user.as_deref()));
        }
        let streams = ChoiceStreams::start(scope.served.model.handle(), requests, n);
        let streams = streams.map_err(|error| scope.app.refusal(error))?;
        let n = n.max(1);
        Ok(Started { streams, reading, report, prompts, n, prompt_tokens, scored, count })
    }
}

impl Started {
    /// Begins to read the choices.
    pub(crate) fn generation<'a>(self, scope: &RequestScope<'a>) -> Result<Generation<'a>> {
        let &RequestScope { app, served, log } = scope;
        let answer = |_| AnswerReader::new(served.model.tokenizer(), &self.reading);
        let answers: std::result::Result<Vec<_>, _> = (0..self.count).map(answer).collect();
        let answers = answers.map_err(|error| ApiError::bad("stop", error.to_string()))?;
        let deadline = app.config.request_timeout.map(|timeout| log.start + timeout);
        let deadline = async move {
            match deadline {
                Some(at) => sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        Ok(Generation {
            app,
            streams: self.streams,
            served,
            answers,
            report: self.report,
            prompts: self.prompts,
            last_token_at: vec![None; self.count],
            n: self.n,
            started: Instant::now(),
            prompt_tokens: self.prompt_tokens,
            scored: self.scored,
            cached_tokens: 0,
            drafted_tokens: 0,
            accepted_tokens: 0,
            log: log.clone(),
            open: self.count,
            reason: "abort",
            deadline: Box::pin(deadline),
            stop: Box::pin(app.stopped(Stop::Now)),
        })
    }
}

impl Generation<'_> {
    /// The next piece of any choice; `None` when all have ended. An error ends all of them.
    pub(crate) async fn next(&mut self) -> Option<Result<(usize, Delta)>> {
        loop {
            let event = tokio::select! {
                event = self.streams.next() => event,
                () = &mut self.deadline => return Some(Err(self.fail(ApiError::timeout(self.app.timeout())))),
                () = &mut self.stop => return Some(Err(self.fail(ApiError::shutting_down()))),
            };
            let (at, event) = event?;
            let delta = match event {
                Event::Started { cached } => {
                    self.begin(at, cached);
                    continue;
                }
                Event::Drafted { drafted, accepted } => {
                    self.drafted_tokens += drafted;
                    self.accepted_tokens += accepted;
                    continue;
                }
                Event::Token(sampled) => {
                    self.count_token(at);
                    if !self.prompts[at].take(&sampled, self.served.model.tokenizer()) {
                        continue;
                    }
                    let Some(delta) = self.answers[at].token(sampled) else { continue };
                    delta
                }
                Event::Done(finish) => match self.answers[at].done(finish) {
                    Some(delta) => delta,
                    None => return Some(Err(self.fail(ApiError::shutting_down()))),
                },
                Event::Failed(error) => return Some(Err(self.fail(error.into()))),
                Event::Embedding(_) => return Some(Err(self.fail(ApiError::internal()))),
            };
            let mut delta = Delta::new(delta, self.report, self.served.model.tokenizer());
            delta.prompt_logprobs = self.prompts[at].complete();
            if let Some(reason) = delta.finish {
                self.streams.end(at);
                self.open -= 1;
                self.reason = reason;
                self.log.fields().finish = Some(reason);
            }
            return Some(Ok((at, delta)));
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        let completion_tokens = self.generated().saturating_sub(self.scored.echoed);
        let prompt_tokens = self.prompt_tokens + self.scored.prompts;
        let reasoning_tokens = self.answers.iter().map(AnswerReader::reasoning_tokens).sum();
        Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptDetails { cached_tokens: self.cached_tokens },
            completion_tokens_details: CompletionDetails {
                reasoning_tokens,
                accepted_prediction_tokens: self.accepted_tokens,
                rejected_prediction_tokens: self.drafted_tokens - self.accepted_tokens,
            },
        }
    }

    fn generated(&self) -> usize {
        self.answers.iter().map(AnswerReader::tokens).sum()
    }

    fn begin(&mut self, at: usize, cached: usize) {
        self.app.metrics.queued(self.served.id(), self.started.elapsed());
        // the other choices of a prompt find it in the cache because the first one put it there
        if at.is_multiple_of(self.n) {
            self.cached_tokens += cached;
            self.log.fields().cached_tokens = self.cached_tokens;
        }
    }

    fn count_token(&mut self, at: usize) {
        let now = Instant::now();
        match self.last_token_at[at].replace(now) {
            Some(before) => self.app.metrics.between_tokens(self.served.id(), now - before),
            None => {
                let mut fields = self.log.fields();
                if fields.first_token.is_none() {
                    let after = now - self.log.start;
                    fields.first_token = Some(after);
                    self.app.metrics.first_token(self.served.id(), after);
                }
            }
        }
    }

    fn fail(&mut self, error: ApiError) -> ApiError {
        self.reason = "error";
        self.log.fields().error = Some(error.message.clone());
        self.log.fields().finish = Some("error");
        self.open = 0;
        (0..self.answers.len()).for_each(|at| self.streams.end(at));
        error
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        let generated_tokens = self.generated();
        self.log.fields().generated_tokens = generated_tokens;
        let request = Finished {
            reason: match self.reason {
                _ if self.open > 0 => "abort",
                "tool_calls" => "stop",
                reason => reason,
            },
            took: self.log.start.elapsed(),
            prompt_tokens: self.prompt_tokens,
            generated_tokens,
        };
        self.app.metrics.finished(self.served.id(), request);
    }
}
