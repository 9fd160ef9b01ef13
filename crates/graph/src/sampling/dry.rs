//! DRY ("don't repeat yourself"): a penalty on tokens that would continue a repetition,
//! which grows with its length.
//!
//! For every earlier place where the text's end already occurred, the token that followed it there is
//! penalised by `multiplier * base^(length - allowed_length)`, where `length` is how many tokens match.
//! Breakers, such as a line break, end a match, and are never penalised.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The largest exponent of a float: e^88.7 is the largest finite one.
const MAX_LOG: f32 = 88.722_84;

/// The parameters of DRY; off by default.
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// The penalty of the shortest repetition; 0 is off.
    pub multiplier: f32,
    /// The penalty grows by this factor per token.
    pub base: f32,
    /// Repetitions that are shorter are not penalised.
    pub allowed_length: usize,
    /// Look at this many tokens of the prompt and the text; 0 is off.
    pub last_n: usize,
    /// What ends a repetition.
    pub breakers: Arc<Breakers>,
}

impl Default for Dry {
    fn default() -> Dry {
        let breakers = Arc::default();
        Dry { multiplier: 0.0, base: 1.75, allowed_length: 2, last_n: usize::MAX, breakers }
    }
}

/// Sequences of tokens that end a repetition, by their first token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Breakers(HashMap<u32, Vec<Vec<u32>>>);

impl Breakers {
    /// Adds the sequence of a first token and those after it.
    pub fn add(&mut self, first: u32, rest: Vec<u32>) {
        let known = self.0.entry(first).or_default();
        if !known.contains(&rest) {
            known.push(rest);
        }
    }

    /// The number of sequences.
    pub fn count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Whether this token alone ends a repetition.
    fn is_breaker(&self, token: u32) -> bool {
        self.0.get(&token).is_some_and(|rests| rests.iter().any(Vec::is_empty))
    }

    /// Tokens after the last breaker of a text.
    fn tokens_after(&self, tokens: &[u32]) -> usize {
        for (from, first) in tokens.iter().enumerate().rev() {
            let Some(rests) = self.0.get(first) else { continue };
            let after = &tokens[from + 1..];
            let longest = rests.iter().filter(|rest| after.starts_with(rest)).map(Vec::len).max();
            if let Some(length) = longest {
                return after.len() - length;
            }
        }
        tokens.len()
    }
}

impl Dry {
    /// Whether it can change a logit.
    pub fn is_on(&self) -> bool {
        self.multiplier != 0.0 && self.last_n > 0
    }

    /// What is subtracted from the logits of the next token, by token.
    pub fn penalties(&self, tokens: &[u32]) -> Vec<(u32, f32)> {
        if !self.is_on() {
            return vec![];
        }
        let tokens = &tokens[tokens.len().saturating_sub(self.last_n)..];
        let limit = self.breakers.tokens_after(tokens);
        if tokens.len() <= self.allowed_length || limit < self.allowed_length {
            return vec![];
        }
        // the longest repetition that each token would continue
        let mut longest: BTreeMap<u32, usize> = BTreeMap::new();
        for (back, matched) in matches(tokens).into_iter().enumerate().skip(1) {
            let matched = matched.min(limit);
            if matched >= self.allowed_length {
                let next = longest.entry(tokens[tokens.len() - back]).or_default();
                *next = matched.max(*next);
            }
        }
        let max_exponent =
            if self.base > 1.000_001 { (MAX_LOG / self.base.ln()) as usize } else { usize::MAX };
        let penalty = |length: usize| {
            let exponent = (length - self.allowed_length).min(max_exponent);
            // at most the largest float: an infinity would leave nothing to draw from
            (self.multiplier * self.base.powf(exponent as f32)).clamp(f32::MIN, f32::MAX)
        };
        let repeats = longest.into_iter().filter(|(id, _)| !self.breakers.is_breaker(*id));
        repeats.map(|(id, length)| (id, penalty(length))).collect()
    }
}

/// For each `back`: how many tokens before `tokens.len() - back` equal those at the end of the text.
///
/// The Z-function of the reversed text, which compares each token twice at most.
fn matches(tokens: &[u32]) -> Vec<usize> {
    let count = tokens.len();
    let at = |back: usize| tokens[count - 1 - back];
    let mut found = vec![0; count];
    let (mut left, mut right) = (0, 0); // the match that reaches furthest: [left, right)
    for back in 1..count {
        let mut length = if back < right { found[back - left].min(right - back) } else { 0 };
        while back + length < count && at(length) == at(back + length) {
            length += 1;
        }
        if back + length > right {
            (left, right) = (back, back + length);
        }
        found[back] = length;
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn dry(breakers: &[&[u32]]) -> Dry {
        let mut all = Breakers::default();
        breakers.iter().for_each(|b| all.add(b[0], b[1..].to_vec()));
        Dry { multiplier: 0.5, base: 2.0, breakers: Arc::new(all), ..Dry::default() }
    }

    #[test]
    fn the_penalty_grows_with_the_repetition() {
        // 1 2 3 was followed by 4, and 3 alone by 5: too short
        let text = [9, 1, 2, 3, 4, 3, 5, 1, 2, 3];
        assert_eq!(dry(&[]).penalties(&text), [(4, 1.0)]);
        assert_eq!(Dry { allowed_length: 3, ..dry(&[]) }.penalties(&text), [(4, 0.5)]);
        assert_eq!(Dry { allowed_length: 1, ..dry(&[]) }.penalties(&text), [(4, 2.0), (5, 0.5)]);
        assert_eq!(Dry { allowed_length: 4, ..dry(&[]) }.penalties(&text), []);
        assert_eq!(Dry { last_n: 8, ..dry(&[]) }.penalties(&text), [(4, 0.5)]);
        assert_eq!(Dry { last_n: 5, ..dry(&[]) }.penalties(&text), []);
        assert_eq!(Dry { multiplier: 0.0, ..dry(&[]) }.penalties(&text), []);
        assert_eq!(Dry { last_n: 0, ..dry(&[]) }.penalties(&text), []);
    }

    #[test]
    fn a_breaker_ends_a_repetition() {
        let text = [1, 2, 3, 4, 1, 2, 3];
        assert_eq!(dry(&[&[1]]).penalties(&text), [(4, 0.5)]); // 2 3 follow it
        assert_eq!(dry(&[&[2]]).penalties(&text), []);
        assert_eq!(dry(&[&[1, 2]]).penalties(&text), []);
        assert_eq!(dry(&[&[1, 9]]).penalties(&text), [(4, 1.0)]);
        // never penalised, unless more must follow
        assert_eq!(dry(&[&[4]]).penalties(&text), []);
        assert_eq!(dry(&[&[4, 9]]).penalties(&text), [(4, 1.0)]);
        // not complete yet
        assert_eq!(dry(&[&[3, 4]]).penalties(&text), [(4, 1.0)]);
    }

    #[test]
    fn no_parameters_give_an_infinite_penalty() {
        for base in [1.0, 1.000_000_1, 1.75, 1e30, f32::MAX] {
            for multiplier in [f32::MAX, -f32::MAX, 0.8] {
                let dry = Dry { base, multiplier, allowed_length: 0, ..Dry::default() };
                assert!(dry.penalties(&[7; 2000]).iter().all(|p| p.1.is_finite()), "{base} {multiplier}");
            }
        }
        assert_eq!(Dry { multiplier: 1.0, ..Dry::default() }.penalties(&[]), []);
        assert_eq!(Dry { multiplier: 1.0, allowed_length: 0, ..Dry::default() }.penalties(&[1]), []);
    }

    proptest! {
        #[test]
        fn matches_are_those_of_the_definition(tokens in prop::collection::vec(0u32..3, 1..60)) {
            let slow = |back: usize| {
                let end = tokens.len() - back;
                (0..end).take_while(|i| tokens[end - 1 - i] == tokens[tokens.len() - 1 - i]).count()
            };
            let found = matches(&tokens);
            for back in 1..tokens.len() {
                prop_assert_eq!(found[back], slow(back), "{} back", back);
            }
        }
    }
}
