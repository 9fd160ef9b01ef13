//! A text as it is generated, read by blocking or async code.

use std::pin::Pin;
use std::task::{Context, Poll};

use tern_engine::{Event, TokenStream};

use crate::Error;
use crate::answer::{Answer, AnswerReader, Delta};

/// The pieces of one text. Dropping it cancels the request.
///
/// Blocking code iterates over it; async code calls [`TextStream::next`] or uses it as a `futures` stream.
/// After an error or the delta with a finish reason it is over.
pub struct TextStream {
    tokens: TokenStream,
    reader: AnswerReader,
    prompt_tokens: usize,
    cached_tokens: usize,
    drafted_tokens: usize,
    accepted_tokens: usize,
    ended: bool,
}

impl TextStream {
    pub(crate) fn new(tokens: TokenStream, reader: AnswerReader, prompt_tokens: usize) -> TextStream {
        let (cached_tokens, drafted_tokens, accepted_tokens) = (0, 0, 0);
        let ended = false;
        TextStream { tokens, reader, prompt_tokens, cached_tokens, drafted_tokens, accepted_tokens, ended }
    }

    /// The next piece; `None` after the last one.
    pub async fn next(&mut self) -> Option<Result<Delta, Error>> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    /// Waits for the next piece; `None` after the last one.
    ///
    /// # Panics
    ///
    /// On a thread that drives a tokio runtime, which must not block: call [`TextStream::next`] there.
    pub fn next_blocking(&mut self) -> Option<Result<Delta, Error>> {
        while !self.ended {
            let event = self.tokens.next_blocking();
            if let Some(piece) = self.read(event) {
                return Some(piece);
            }
        }
        None
    }

    /// The next piece, for a hand-written future.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Delta, Error>>> {
        while !self.ended {
            let Poll::Ready(event) = self.tokens.poll_next(cx) else { return Poll::Pending };
            if let Some(piece) = self.read(event) {
                return Poll::Ready(Some(piece));
            }
        }
        Poll::Ready(None)
    }

    /// Waits for the rest of the text.
    pub fn wait(mut self) -> Result<Answer, Error> {
        let mut answer = Answer::default();
        while let Some(delta) = self.next_blocking() {
            answer.push(delta?);
        }
        Ok(self.counted(answer))
    }

    /// Waits for the rest of the text without blocking the thread.
    pub async fn wait_async(mut self) -> Result<Answer, Error> {
        let mut answer = Answer::default();
        while let Some(delta) = self.next().await {
            answer.push(delta?);
        }
        Ok(self.counted(answer))
    }

    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Tokens of the prompt that were in the prefix cache, known once the first delta has arrived.
    pub fn cached_tokens(&self) -> usize {
        self.cached_tokens
    }

    /// Tokens that were guessed so far, and those of them that were right.
    pub fn drafted_tokens(&self) -> (usize, usize) {
        (self.drafted_tokens, self.accepted_tokens)
    }

    fn counted(&self, answer: Answer) -> Answer {
        let TextStream { prompt_tokens, cached_tokens, drafted_tokens, accepted_tokens, .. } = *self;
        Answer { prompt_tokens, cached_tokens, drafted_tokens, accepted_tokens, ..answer }
    }

    /// What an event adds, if anything.
    fn read(&mut self, event: Option<Event>) -> Option<Result<Delta, Error>> {
        let piece = match event {
            Some(Event::Started { cached }) => {
                self.cached_tokens = cached;
                return None;
            }
            Some(Event::Drafted { drafted, accepted }) => {
                self.drafted_tokens += drafted;
                self.accepted_tokens += accepted;
                return None;
            }
            Some(Event::Token(sampled)) => self.reader.token(sampled).map(Ok)?,
            Some(Event::Done(finish)) => self.reader.done(finish).ok_or(Error::Cancelled),
            Some(Event::Failed(error)) => Err(error.into()),
            // the request is not an embedding, and the last event ended the stream
            Some(Event::Embedding(_)) | None => Err(Error::Cancelled),
        };
        self.ended = piece.as_ref().map_or(true, |delta| delta.finish.is_some());
        Some(piece)
    }
}

/// As [`TextStream::next_blocking`].
impl Iterator for TextStream {
    type Item = Result<Delta, Error>;

    fn next(&mut self) -> Option<Result<Delta, Error>> {
        self.next_blocking()
    }
}

impl futures_core::Stream for TextStream {
    type Item = Result<Delta, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Delta, Error>>> {
        self.get_mut().poll(cx)
    }
}
