//! The states of a grammar, found while a text is matched: each is a set of places in rules,
//! with the rules to return to.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::rules::{Item, Rules};
use crate::limits;

/// Nothing to return to.
const BOTTOM: u32 = 0;
/// A transition that is not computed yet.
const UNKNOWN: u32 = u32::MAX;

/// The state in which no text matches.
pub(super) const DEAD: u32 = 0;

/// A place before a byte, and what follows its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Place {
    item: u32,
    stack: u32,
}

/// A place to return to, above others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Frame {
    item: u32,
    below: u32,
}

#[derive(Clone, Debug)]
struct State {
    places: Vec<Place>,
    /// The text may end here.
    accepts: bool,
    /// The state after each byte.
    next: Box<[u32; 256]>,
}

/// The states that were found so far.
#[derive(Clone, Debug)]
pub(super) struct Automaton {
    rules: Arc<Rules>,
    states: Vec<State>,
    by_places: HashMap<(Vec<Place>, bool), u32>,
    frames: Vec<Frame>,
    by_frame: HashMap<Frame, u32>,
    /// Places that may still be visited.
    work: usize,
    /// A limit was reached: the states are incomplete.
    pub(super) exceeded: bool,
}

impl Automaton {
    pub(super) fn new(rules: Arc<Rules>) -> Automaton {
        let bottom = Frame { item: 0, below: BOTTOM };
        let mut automaton = Automaton {
            rules,
            states: vec![],
            by_places: HashMap::new(),
            frames: vec![bottom],
            by_frame: HashMap::new(),
            work: limits::GBNF_WORK,
            exceeded: false,
        };
        automaton.state(vec![], false); // DEAD
        automaton
    }

    /// Begins a mask or a token, which has its own limit.
    pub(super) fn begin(&mut self) {
        self.work = limits::GBNF_WORK;
    }

    /// The state before the first byte.
    pub(super) fn start(&mut self) -> u32 {
        let root = self.rules.root;
        let places = self.rules.starts[root as usize].iter().map(|&item| Place { item, stack: BOTTOM });
        self.closure(places.collect())
    }

    /// The state after a byte; [`DEAD`] if none follows.
    pub(super) fn next(&mut self, state: u32, byte: u8) -> u32 {
        let known = self.states[state as usize].next[usize::from(byte)];
        if known != UNKNOWN {
            return known;
        }
        let takes = |place: &&Place| match self.rules.items[place.item as usize] {
            Item::Byte(set) => set.contains(byte),
            _ => false,
        };
        let after = |place: &Place| Place { item: place.item + 1, ..*place };
        let places = self.states[state as usize].places.iter().filter(takes).map(after).collect();
        let next = self.closure(places);
        self.states[state as usize].next[usize::from(byte)] = next;
        next
    }

    /// Whether the text may end in this state.
    pub(super) fn accepts(&self, state: u32) -> bool {
        self.states[state as usize].accepts
    }

    /// Whether no byte can follow.
    pub(super) fn is_final(&self, state: u32) -> bool {
        self.states[state as usize].places.is_empty()
    }

    /// Whether the known states should be forgotten, since there are many.
    pub(super) fn is_large(&self) -> bool {
        self.states.len() > limits::GBNF_STATES / 4
    }

    /// Forgets all states but one, whose number changes.
    pub(super) fn keep_only(&mut self, state: u32) -> u32 {
        let old = std::mem::replace(self, Automaton::new(Arc::clone(&self.rules)));
        let State { places, accepts, .. } = &old.states[state as usize];
        let places = places
            .iter()
            .map(|place| {
                let (mut returns, mut stack) = (vec![], place.stack);
                while stack != BOTTOM {
                    returns.push(old.frames[stack as usize].item);
                    stack = old.frames[stack as usize].below;
                }
                let stack = returns.into_iter().rev().fold(BOTTOM, |below, item| self.push(item, below));
                Place { item: place.item, stack }
            })
            .collect();
        self.state(places, *accepts)
    }

    /// Follows rules and ends of rules until every place is before a byte.
    fn closure(&mut self, mut open: Vec<Place>) -> u32 {
        let (mut seen, mut places, mut accepts) = (BTreeSet::new(), vec![], false);
        while let Some(place) = open.pop() {
            if !seen.insert(place) {
                continue;
            }
            self.work = self.work.saturating_sub(1);
            if seen.len() > limits::GBNF_PLACES || self.work == 0 {
                self.exceeded = true;
                return DEAD;
            }
            match self.rules.items[place.item as usize] {
                Item::Byte(_) => places.push(place),
                Item::End if place.stack == BOTTOM => accepts = true,
                Item::End => {
                    let Frame { item, below } = self.frames[place.stack as usize];
                    open.push(Place { item, stack: below });
                }
                Item::Rule(rule) => {
                    let after = place.item + 1;
                    // nothing remains of this rule: its own end is never returned to
                    let tail = self.rules.items[after as usize] == Item::End;
                    let stack = if tail { place.stack } else { self.push(after, place.stack) };
                    let rules = Arc::clone(&self.rules);
                    open.extend(rules.starts[rule as usize].iter().map(|&item| Place { item, stack }));
                }
            }
        }
        places.sort_unstable();
        self.state(places, accepts)
    }

    fn push(&mut self, item: u32, below: u32) -> u32 {
        let frame = Frame { item, below };
        *self.by_frame.entry(frame).or_insert_with(|| {
            self.frames.push(frame);
            self.frames.len() as u32 - 1
        })
    }

    fn state(&mut self, mut places: Vec<Place>, accepts: bool) -> u32 {
        if self.states.len() >= limits::GBNF_STATES {
            self.exceeded = true;
            return DEAD;
        }
        places.sort_unstable();
        let key = (places, accepts);
        if let Some(&known) = self.by_places.get(&key) {
            return known;
        }
        let number = self.states.len() as u32;
        let next = Box::new([if number == DEAD { DEAD } else { UNKNOWN }; 256]);
        self.states.push(State { places: key.0.clone(), accepts, next });
        self.by_places.insert(key, number);
        number
    }
}
