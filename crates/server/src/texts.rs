//! The texts of one request: who is started when, and what comes next of any of them.

use std::task::{Context, Poll};
use std::time::Duration;

use tern::engine::{EngineError, Event, Fault, Handle, Request, TokenStream};
use tokio::time::sleep;

/// How long a text waits outside of a full queue before it tries again.
const RETRY: Duration = Duration::from_millis(20);

/// Texts that are generated side by side.
///
/// Of several texts with the same prompt the first one starts alone: once it speaks, its prompt is in the cache and
/// the others need not compute it again. Dropping this cancels them all.
pub(crate) struct Texts {
    handle: Handle,
    seats: Vec<Seat>,
    /// Texts in a row that share a prompt.
    group: usize,
    /// Texts of one request that the engine holds at once; the others wait here, not in everybody's queue.
    at_once: usize,
    /// Whom to ask first, so that everybody's turn comes.
    turn: usize,
    /// A text was not let in, so that it must try again.
    refused: bool,
}

enum Seat {
    Waiting(Box<Request>),
    Running { stream: TokenStream, spoke: bool },
    Over,
}

impl Texts {
    /// Starts as many as may start. A full queue refuses the request only if nothing of it could start.
    pub(crate) fn start(handle: &Handle, requests: Vec<Request>, group: usize) -> Result<Texts, EngineError> {
        for request in &requests {
            handle.admit(request)?; // before any of them costs anything
        }
        let seats = requests.into_iter().map(|request| Seat::Waiting(Box::new(request))).collect();
        let at_once = handle.limits().max_seqs.max(1);
        let handle = handle.clone();
        let mut texts = Texts { handle, seats, group: group.max(1), at_once, turn: 0, refused: false };
        match texts.launch() {
            Some((_, error)) if error.fault() != Fault::Busy || texts.running() == 0 => Err(error),
            _ => Ok(texts),
        }
    }

    /// The next event of any text; `None` when all are over.
    pub(crate) async fn next(&mut self) -> Option<(usize, Event)> {
        loop {
            if self.seats.iter().all(|seat| matches!(seat, Seat::Over)) {
                return None;
            }
            if let Some((at, error)) = self.launch()
                && error.fault() != Fault::Busy
            {
                self.seats[at] = Seat::Over;
                return Some((at, Event::Failed(error)));
            }
            let refused = self.refused;
            let event = std::future::poll_fn(|cx| self.poll(cx));
            let retry = async {
                match refused {
                    true => sleep(RETRY).await,
                    false => std::future::pending().await,
                }
            };
            tokio::select! {
                event = event => return Some(event),
                () = retry => {}
            }
        }
    }

    /// Ends one text, whose stream is dropped.
    pub(crate) fn end(&mut self, at: usize) {
        self.seats[at] = Seat::Over;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(usize, Event)> {
        let (count, turn) = (self.seats.len(), self.turn);
        for at in (0..count).map(|i| (turn + i) % count) {
            let Seat::Running { stream, spoke } = &mut self.seats[at] else { continue };
            let Poll::Ready(event) = stream.poll_next(cx) else { continue };
            *spoke |= matches!(event, Some(Event::Token(_)));
            self.turn = (at + 1) % count;
            match event {
                Some(event) => {
                    if event.is_last() {
                        self.seats[at] = Seat::Over;
                    }
                    return Poll::Ready((at, event));
                }
                None => self.seats[at] = Seat::Over, // cannot be: the last event ended it
            }
        }
        Poll::Pending
    }

    /// Starts whoever may start; gives back who could not, and why.
    fn launch(&mut self) -> Option<(usize, EngineError)> {
        self.refused = false;
        while self.running() < self.at_once
            && let Some(at) = self.waits()
        {
            let Seat::Waiting(request) = &self.seats[at] else { return None };
            match self.handle.generate((**request).clone()) {
                Ok(stream) => self.seats[at] = Seat::Running { stream, spoke: false },
                Err(error) => {
                    self.refused = true;
                    return Some((at, error));
                }
            }
        }
        None
    }

    /// The first text that waits and need not wait for another one's prompt.
    fn waits(&self) -> Option<usize> {
        let free = |at: usize| match &self.seats[at - at % self.group] {
            Seat::Waiting(_) => at.is_multiple_of(self.group),
            Seat::Running { spoke, .. } => *spoke,
            Seat::Over => true,
        };
        (0..self.seats.len()).find(|&at| matches!(self.seats[at], Seat::Waiting(_)) && free(at))
    }

    fn running(&self) -> usize {
        self.seats.iter().filter(|seat| matches!(seat, Seat::Running { .. })).count()
    }
}
