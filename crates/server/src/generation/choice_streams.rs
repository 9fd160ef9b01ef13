//! The choices of one request: when each is started, and the next event of any of them.

use std::task::{Context, Poll};
use std::time::Duration;

use tern::engine::{EngineError, Event, Fault, Handle, Request, TokenStream};
use tokio::time::sleep;

/// Delay before a choice that found the queue full is submitted again.
const RETRY: Duration = Duration::from_millis(20);

/// Choices that are generated concurrently.
///
/// The first of several choices with the same prompt starts alone: once it has a token, its prompt is in the
/// prefix cache and the others do not compute it again. Dropping this cancels all of them.
pub(crate) struct ChoiceStreams {
    handle: Handle,
    states: Vec<ChoiceState>,
    /// Number of consecutive choices that share a prompt.
    group: usize,
    /// Choices that the engine holds at once; the others wait here and not in the engine's queue.
    at_once: usize,
    /// The choice that is polled first; rotates for fairness.
    turn: usize,
    /// The queue was full: a waiting choice must be submitted again.
    refused: bool,
}

enum ChoiceState {
    Waiting(Box<Request>),
    Running { stream: TokenStream, has_token: bool },
    Ended,
}

impl ChoiceStreams {
    /// Starts as many choices as possible. A full queue is an error only if none of them could start.
    pub(crate) fn start(
        handle: &Handle,
        requests: Vec<Request>,
        group: usize,
    ) -> Result<ChoiceStreams, EngineError> {
        for request in &requests {
            handle.admit(request)?; // before any of them is started
        }
        let states = requests.into_iter().map(|request| ChoiceState::Waiting(Box::new(request))).collect();
        let at_once = handle.limits().max_seqs.max(1);
        let handle = handle.clone();
        let mut streams =
            ChoiceStreams { handle, states, group: group.max(1), at_once, turn: 0, refused: false };
        match streams.launch() {
            Some((_, error)) if error.fault() != Fault::Busy || streams.running() == 0 => Err(error),
            _ => Ok(streams),
        }
    }

    /// The next event of any choice; `None` when all have ended.
    pub(crate) async fn next(&mut self) -> Option<(usize, Event)> {
        loop {
            if self.states.iter().all(|state| matches!(state, ChoiceState::Ended)) {
                return None;
            }
            if let Some((at, error)) = self.launch()
                && error.fault() != Fault::Busy
            {
                self.states[at] = ChoiceState::Ended;
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

    /// Ends one choice and drops its stream.
    pub(crate) fn end(&mut self, at: usize) {
        self.states[at] = ChoiceState::Ended;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(usize, Event)> {
        let (count, turn) = (self.states.len(), self.turn);
        for at in (0..count).map(|i| (turn + i) % count) {
            let ChoiceState::Running { stream, has_token } = &mut self.states[at] else { continue };
            let Poll::Ready(event) = stream.poll_next(cx) else { continue };
            *has_token |= matches!(event, Some(Event::Token(_)));
            self.turn = (at + 1) % count;
            match event {
                Some(event) => {
                    if event.is_last() {
                        self.states[at] = ChoiceState::Ended;
                    }
                    return Poll::Ready((at, event));
                }
                None => self.states[at] = ChoiceState::Ended, // unreachable: the last event ended it
            }
        }
        Poll::Pending
    }

    /// Starts waiting choices; returns the first that could not be started, and why.
    fn launch(&mut self) -> Option<(usize, EngineError)> {
        self.refused = false;
        while self.running() < self.at_once
            && let Some(at) = self.next_waiting()
        {
            let ChoiceState::Waiting(request) = &self.states[at] else { return None };
            match self.handle.generate((**request).clone()) {
                Ok(stream) => self.states[at] = ChoiceState::Running { stream, has_token: false },
                Err(error) => {
                    self.refused = true;
                    return Some((at, error));
                }
            }
        }
        None
    }

    /// The first waiting choice whose prompt is not being computed by another choice.
    fn next_waiting(&self) -> Option<usize> {
        let free = |at: usize| match &self.states[at - at % self.group] {
            ChoiceState::Waiting(_) => at.is_multiple_of(self.group),
            ChoiceState::Running { has_token, .. } => *has_token,
            ChoiceState::Ended => true,
        };
        (0..self.states.len()).find(|&at| matches!(self.states[at], ChoiceState::Waiting(_)) && free(at))
    }

    fn running(&self) -> usize {
        self.states.iter().filter(|state| matches!(state, ChoiceState::Running { .. })).count()
    }
}
