//! Texts being generated for one request, with their deadline, their counts and what is told about them.

use std::pin::Pin;
use std::time::Instant;

use serde::Serialize;
use tern::engine::{Event, Request};
use tern::{AnswerReader, Reading};
use tokio::time::sleep_until;

use crate::access::Record;
use crate::delta::Delta;
use crate::error::{ApiError, Result};
use crate::metrics::Finished;
use crate::model::ServedModel;
use crate::state::{App, Stop};
use crate::texts::Texts;

/// What is to be generated.
pub(crate) struct Job {
    /// `n` for each prompt, prompt after prompt.
    pub(crate) requests: Vec<Request>,
    /// Texts for each prompt.
    pub(crate) n: usize,
    pub(crate) reading: Reading,
    /// Clients get token ids beside the text.
    pub(crate) token_ids: bool,
}

/// Tokens of a request, in OpenAI's shape.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) total_tokens: usize,
    pub(crate) prompt_tokens_details: PromptDetails,
    pub(crate) completion_tokens_details: CompletionDetails,
}

/// Of the prompt's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct PromptDetails {
    pub(crate) cached_tokens: usize,
}

/// Of the generated tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct CompletionDetails {
    pub(crate) reasoning_tokens: usize,
}

/// A job that runs. Dropping it cancels what is left of it.
pub(crate) struct Generation<'a> {
    app: &'a App,
    texts: Texts,
    served: &'a ServedModel,
    answers: Vec<AnswerReader>,
    token_ids: bool,
    /// When each text last said something.
    spoke: Vec<Option<Instant>>,
    n: usize,
    started: Instant,
    prompt_tokens: usize,
    cached_tokens: usize,
    record: Record,
    /// Texts that go on.
    open: usize,
    /// Why the last text that ended did.
    reason: &'static str,
    deadline: Pin<Box<dyn Future<Output = ()> + Send>>,
    stop: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// A job that was let in, before anything of it is read.
pub(crate) struct Started {
    texts: Texts,
    reading: Reading,
    token_ids: bool,
    n: usize,
    prompt_tokens: usize,
    count: usize,
}

impl Job {
    /// Asks the engine to begin, or says why it does not.
    pub(crate) fn start(self, app: &App, served: &ServedModel, record: &Record) -> Result<Started> {
        let count = self.requests.len();
        let prompts = self.requests.iter().step_by(self.n.max(1));
        let prompt_tokens = prompts.map(|request| request.prompt.len()).sum();
        record.tell().prompt_tokens = prompt_tokens;
        let texts = Texts::start(served.model.handle(), self.requests, self.n);
        let texts = texts.map_err(|error| app.refusal(error))?;
        let Job { reading, token_ids, n, .. } = self;
        Ok(Started { texts, reading, token_ids, n: n.max(1), prompt_tokens, count })
    }
}

impl Started {
    /// Goes on with the vocabulary at hand.
    pub(crate) fn generation<'a>(
        self,
        app: &'a App,
        served: &'a ServedModel,
        record: &Record,
    ) -> Result<Generation<'a>> {
        let answer = |_| AnswerReader::new(served.model.tokenizer(), &self.reading);
        let answers: std::result::Result<Vec<_>, _> = (0..self.count).map(answer).collect();
        let answers = answers.map_err(|error| ApiError::bad("stop", error.to_string()))?;
        let deadline = app.config.request_timeout.map(|timeout| record.start + timeout);
        let deadline = async move {
            match deadline {
                Some(at) => sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        Ok(Generation {
            app,
            texts: self.texts,
            served,
            answers,
            token_ids: self.token_ids,
            spoke: vec![None; self.count],
            n: self.n,
            started: Instant::now(),
            prompt_tokens: self.prompt_tokens,
            cached_tokens: 0,
            record: record.clone(),
            open: self.count,
            reason: "abort",
            deadline: Box::pin(deadline),
            stop: Box::pin(app.stopped(Stop::Now)),
        })
    }
}

impl Generation<'_> {
    /// More of one of the texts; `None` when all have ended. An error ends them all.
    pub(crate) async fn next(&mut self) -> Option<Result<(usize, Delta)>> {
        loop {
            let event = tokio::select! {
                event = self.texts.next() => event,
                () = &mut self.deadline => return Some(Err(self.fail(ApiError::timeout(self.app.timeout())))),
                () = &mut self.stop => return Some(Err(self.fail(ApiError::shutting_down()))),
            };
            let (at, event) = event?;
            let delta = match event {
                Event::Started { cached } => {
                    self.begin(at, cached);
                    continue;
                }
                Event::Token(sampled) => {
                    self.count_token(at);
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
            let delta = Delta::new(delta, self.served.model.tokenizer(), self.token_ids);
            if let Some(reason) = delta.finish {
                self.texts.end(at);
                self.open -= 1;
                self.reason = reason;
                self.record.tell().finish = Some(reason);
            }
            return Some(Ok((at, delta)));
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        let completion_tokens = self.generated();
        let reasoning_tokens = self.answers.iter().map(AnswerReader::reasoning_tokens).sum();
        Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens,
            total_tokens: self.prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptDetails { cached_tokens: self.cached_tokens },
            completion_tokens_details: CompletionDetails { reasoning_tokens },
        }
    }

    fn generated(&self) -> usize {
        self.answers.iter().map(AnswerReader::tokens).sum()
    }

    fn begin(&mut self, at: usize, cached: usize) {
        self.app.metrics.queued(self.started.elapsed());
        // the other texts of a prompt find it in the cache because the first one put it there
        if at.is_multiple_of(self.n) {
            self.cached_tokens += cached;
            self.record.tell().cached_tokens = self.cached_tokens;
        }
    }

    fn count_token(&mut self, at: usize) {
        let now = Instant::now();
        match self.spoke[at].replace(now) {
            Some(before) => self.app.metrics.between_tokens(now - before),
            None => {
                let mut told = self.record.tell();
                if told.first_token.is_none() {
                    let after = now - self.record.start;
                    told.first_token = Some(after);
                    self.app.metrics.first_token(after);
                }
            }
        }
    }

    fn fail(&mut self, error: ApiError) -> ApiError {
        self.reason = "error";
        self.record.tell().error = Some(error.message.clone());
        self.record.tell().finish = Some("error");
        self.open = 0;
        (0..self.answers.len()).for_each(|at| self.texts.end(at));
        error
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        let generated_tokens = self.generated();
        self.record.tell().generated_tokens = generated_tokens;
        self.app.metrics.finished(Finished {
            reason: match self.reason {
                _ if self.open > 0 => "abort",
                "tool_calls" => "stop",
                reason => reason,
            },
            took: self.record.start.elapsed(),
            prompt_tokens: self.prompt_tokens,
            generated_tokens,
        });
    }
}
