//! A conversation that has to fit the context: its oldest turns are dropped first.

use serde_json::Value;

use crate::error::CliResult;
use crate::prompt;

/// The system message, and after it a user's message and an answer by turns.
#[derive(Clone, Debug)]
pub(crate) struct Conversation {
    system: Option<Value>,
    messages: Vec<Value>,
}

/// A conversation in tokens.
pub(crate) struct Fitted {
    pub(crate) prompt: Vec<u32>,
    /// Turns (a message and its answer) that were dropped for it.
    pub(crate) dropped: usize,
}

impl Conversation {
    pub(crate) fn new(system: Option<&str>) -> Conversation {
        Conversation { system: system.map(|text| prompt::message("system", text)), messages: vec![] }
    }

    /// Forgets all but the system message.
    pub(crate) fn clear(&mut self) {
        self.messages.clear();
    }

    /// A message that is not answered yet.
    pub(crate) fn ask(&mut self, text: &str) {
        self.messages.push(prompt::message("user", text));
    }

    pub(crate) fn answer(&mut self, text: &str) {
        self.messages.push(prompt::message("assistant", text));
    }

    /// Takes the last message back.
    pub(crate) fn take_back(&mut self) {
        self.messages.pop();
    }

    /// The tokens of the conversation with `reserve` of `context` left for the answer. Older turns are dropped for
    /// that; where the last message alone is too long, none is.
    pub(crate) fn fit(
        &mut self,
        (context, reserve): (usize, usize),
        tokens: impl Fn(&[Value]) -> CliResult<Vec<u32>>,
    ) -> CliResult<Fitted> {
        let mut first = 0;
        loop {
            let rest = self.messages.iter().skip(first);
            let prompt = tokens(&self.system.iter().chain(rest).cloned().collect::<Vec<_>>())?;
            let is_last = first + 2 >= self.messages.len();
            if prompt.len() + reserve <= context || is_last {
                let dropped = if prompt.len() < context { first } else { 0 };
                self.messages.drain(..dropped);
                return Ok(Fitted { prompt, dropped: dropped / 2 });
            }
            first += 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token a byte.
    fn tokens(messages: &[Value]) -> CliResult<Vec<u32>> {
        let text: String = messages.iter().filter_map(|m| m["content"].as_str()).collect();
        Ok(text.bytes().map(u32::from).collect())
    }

    fn turns() -> Conversation {
        let mut talk = Conversation::new(Some("S"));
        for text in ["aaaa", "bbbb"] {
            talk.ask(text);
            talk.answer(text);
        }
        talk.ask("cccc");
        talk
    }

    fn fitted(talk: &mut Conversation, context: usize, reserve: usize) -> (String, usize) {
        let fitted = talk.fit((context, reserve), tokens).unwrap();
        (fitted.prompt.iter().map(|b| char::from(*b as u8)).collect(), fitted.dropped)
    }

    #[test]
    fn the_oldest_turns_are_dropped_and_the_system_message_stays() {
        assert_eq!(fitted(&mut turns(), 25, 4), ("Saaaaaaaabbbbbbbbcccc".into(), 0));
        let mut talk = turns();
        assert_eq!(fitted(&mut talk, 24, 4), ("Sbbbbbbbbcccc".into(), 1));
        assert_eq!(fitted(&mut talk, 24, 4), ("Sbbbbbbbbcccc".into(), 0), "what is dropped stays dropped");
        assert_eq!(fitted(&mut turns(), 12, 4), ("Scccc".into(), 2));
        assert_eq!(
            fitted(&mut turns(), 6, 4),
            ("Scccc".into(), 2),
            "less than the reserve is better than nothing"
        );
    }

    #[test]
    fn a_message_that_never_fits_drops_nothing() {
        let mut talk = turns();
        assert_eq!(fitted(&mut talk, 5, 1), ("Scccc".into(), 0));
        talk.take_back();
        talk.ask("d");
        assert_eq!(fitted(&mut talk, 25, 4).0, "Saaaaaaaabbbbbbbbd");
    }
}
