//! What a runner has room for: the KV pages and state slots it reserved and the largest
//! step it was compiled for.

use tern_graph::{Graph, KvCells, KvSpec, StateSpec, WindowLayers};

use crate::EngineError;

/// Cached prefixes whose window stays in memory, per sequence that may run at the same time,
/// and that sequence itself.
const WINDOWS_PER_SEQUENCE: usize = 4;

/// Sizes of a runner. The runner owns these numbers; engine and scheduler read them from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// KV pages in total, of layers that keep all tokens.
    pub pages: usize,
    /// Tokens per page.
    pub page_len: usize,
    /// Tokens in a step.
    pub max_tokens: usize,
    /// Tokens sampled in a step; at least one per sequence that may run at the same time.
    pub max_outputs: usize,
    /// The pages of layers with a window, if they have their own; otherwise all layers keep all tokens.
    pub window: Option<WindowPages>,
    /// The slots of recurrent layers, if there are any.
    pub state: Option<StateCapacity>,
}

/// The slots that hold the state of recurrent layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateCapacity {
    /// Slots in total: [`StateCapacity::PER_SEQUENCE`] per sequence that runs at the same
    /// time, and more for snapshots.
    pub slots: usize,
    /// Bytes per slot, of all layers.
    pub bytes: u64,
}

impl StateCapacity {
    /// Slots that a sequence holds at most: the state after its newest step and the one before it.
    pub const PER_SEQUENCE: usize = 2;
}

/// The pages of layers with a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowPages {
    /// Keys that a token sees, itself included.
    pub tokens: usize,
    /// Pages in total.
    pub pages: usize,
}

impl WindowPages {
    /// Pages that the keys of one token are in, at most: the window may begin in the middle of a page.
    pub fn span(&self, page_len: usize) -> usize {
        WindowPages::in_turn(self.tokens, page_len, 1)
    }

    /// Pages that a single sequence can use in turn for a window of `tokens`, in steps of `step` tokens: what
    /// a step writes and sees is in different pages.
    pub fn in_turn(tokens: usize, page_len: usize, step: usize) -> usize {
        (tokens.saturating_add(step)).saturating_sub(2).div_ceil(page_len.max(1)) + 1
    }
}

impl Capacity {
    /// The same with separate pages for layers with a window, if the graph has them: enough for all
    /// sequences that run and for two steps in flight, and for the windows of some cached prefixes; never
    /// more than of the other layers.
    pub fn with_window(self, graph: &Graph) -> Capacity {
        let Some(tokens) = graph.window() else { return Capacity { window: None, ..self } };
        let span = WindowPages { tokens, pages: 0 }.span(self.page_len);
        let windows = self.max_outputs.saturating_mul(WINDOWS_PER_SEQUENCE).saturating_mul(span);
        let steps = 2 * self.pages_for(self.max_tokens);
        let pages = windows.saturating_add(steps).min(self.pages);
        Capacity { window: Some(WindowPages { tokens, pages }), ..self }
    }

    /// The same with `slots` state slots, if the graph has recurrent layers.
    pub fn with_slots(self, graph: &Graph, slots: usize) -> Capacity {
        let state = StateCapacity { slots: slots.min(u32::MAX as usize), bytes: graph.state_bytes() };
        Capacity { state: (!graph.states.is_empty()).then_some(state), ..self }
    }

    /// The state of a graph with these slots; `None` if it has no recurrent layers.
    pub fn state_spec(&self, graph: &Graph) -> Option<StateSpec> {
        self.state.map(|state| StateSpec { layers: graph.states.clone(), slots: state.slots })
    }

    /// The KV cache of a graph with these pages.
    pub fn kv_spec(&self, graph: &Graph, cells: KvCells) -> KvSpec {
        let layers = || graph.window_layers();
        let window = self.window.map(|window| WindowLayers { layers: layers(), pages: window.pages });
        KvSpec { layers: graph.kv.clone(), cells, pages: self.pages, page_len: self.page_len, window }
    }

    /// Refuses sizes with which nothing could run.
    pub fn check(&self) -> Result<(), EngineError> {
        let window = self.window.unwrap_or(WindowPages { tokens: 1, pages: 1 });
        let sizes = [
            ("pages", self.pages),
            ("page_len", self.page_len),
            ("max_tokens", self.max_tokens),
            ("max_outputs", self.max_outputs),
            ("window", window.tokens),
        ];
        if let Some((name, got)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(EngineError::range(name, "1 or more", got));
        }
        let least = window.span(self.page_len).min(self.pages);
        if window.pages < least {
            let want = format!("{least} or more for a window of {}", window.tokens);
            return Err(EngineError::range("window pages", want, window.pages));
        }
        let (most, slots) = (u32::MAX as usize, self.state.map_or(1, |state| state.slots));
        if slots == 0 {
            return Err(EngineError::range("state slots", "1 or more", slots));
        }
        let counts = [("pages", self.pages), ("window pages", window.pages), ("state slots", slots)];
        match counts.into_iter().find(|(_, n)| *n > most) {
            Some((name, got)) => Err(EngineError::range(name, format!("at most {most}"), got)),
            None => Ok(()),
        }
    }

    /// Pages that hold `tokens` tokens.
    pub fn pages_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.page_len)
    }

    /// Sequences that have enough state slots to run at the same time.
    pub(crate) fn sequences(&self) -> usize {
        self.state.map_or(usize::MAX, |state| state.slots / StateCapacity::PER_SEQUENCE)
    }

    /// Tokens that all pages hold together.
    pub fn kv_tokens(&self) -> usize {
        self.pages.saturating_mul(self.page_len)
    }
}
