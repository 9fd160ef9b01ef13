//! A conversation that must fit the context: its oldest turns are dropped first.

use tern::Message;

use crate::error::CliResult;

/// The system message, followed by user messages and answers in turn.
#[derive(Clone, Debug)]
pub(crate) struct Conversation {
    system: Option<Message>,
    messages: Vec<Message>,
}

/// The tokens of the context, and how many of them are reserved for the answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Space {
    pub(crate) context: usize,
    pub(crate) reserve: usize,
}

/// A conversation that fits.
pub(crate) struct Fitted {
    /// Tokens of its prompt.
    pub(crate) tokens: usize,
    /// Dropped turns (a message and its answer).
    pub(crate) dropped: usize,
}

impl Conversation {
    pub(crate) fn new(system: Option<&str>) -> Conversation {
        Conversation { system: system.map(Message::system), messages: vec![] }
    }

    /// A system message and turns of a user and an assistant.
    pub(crate) fn of(system: Option<&str>, turns: Vec<Message>) -> Conversation {
        Conversation { messages: turns, ..Conversation::new(system) }
    }

    pub(crate) fn system(&self) -> Option<&str> {
        self.system.as_ref().map(|message| message.content.as_str())
    }

    pub(crate) fn set_system(&mut self, text: Option<&str>) {
        self.system = text.map(Message::system);
    }

    /// Removes all messages except the system message.
    pub(crate) fn clear(&mut self) {
        self.messages.clear();
    }

    /// Adds a user message with images before its text.
    pub(crate) fn ask(&mut self, text: &str, images: Vec<Vec<u8>>) {
        let user = Message::user(text);
        self.messages.push(images.into_iter().rev().fold(user, |message, image| message.image(image)));
    }

    pub(crate) fn answer(&mut self, text: &str) {
        self.messages.push(Message::assistant(text));
    }

    /// Removes the last message.
    pub(crate) fn remove_last(&mut self) {
        self.messages.pop();
    }

    pub(crate) fn messages(&self) -> Vec<Message> {
        self.system.iter().chain(&self.messages).cloned().collect()
    }

    /// Drops the oldest turns until the reserve fits; drops nothing if even the last
    /// message alone does not fit.
    pub(crate) fn fit(
        &mut self,
        space: Space,
        count: impl Fn(&[Message]) -> CliResult<usize>,
    ) -> CliResult<Fitted> {
        let mut first = 0;
        loop {
            let rest = self.messages.iter().skip(first);
            let tokens = count(&self.system.iter().chain(rest).cloned().collect::<Vec<_>>())?;
            let is_last = first + 2 >= self.messages.len();
            if tokens + space.reserve <= space.context || is_last {
                let dropped = if tokens < space.context { first } else { 0 };
                self.messages.drain(..dropped);
                return Ok(Fitted { tokens, dropped: dropped / 2 });
            }
            first += 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(messages: &[Message]) -> String {
        messages.iter().map(|m| m.content.as_str()).collect()
    }

    fn turns() -> Conversation {
        let mut conversation = Conversation::new(Some("S"));
        for text in ["aaaa", "bbbb"] {
            conversation.ask(text, vec![]);
            conversation.answer(text);
        }
        conversation.ask("cccc", vec![]);
        conversation
    }

    fn fitted(conversation: &mut Conversation, context: usize, reserve: usize) -> (String, usize) {
        let fitted =
            conversation.fit(Space { context, reserve }, |messages| Ok(text(messages).len())).unwrap();
        (text(&conversation.messages()), fitted.dropped)
    }

    #[test]
    fn the_oldest_turns_are_dropped_and_the_system_message_stays() {
        assert_eq!(fitted(&mut turns(), 25, 4), ("Saaaaaaaabbbbbbbbcccc".into(), 0));
        let mut conversation = turns();
        assert_eq!(fitted(&mut conversation, 24, 4), ("Sbbbbbbbbcccc".into(), 1));
        assert_eq!(
            fitted(&mut conversation, 24, 4),
            ("Sbbbbbbbbcccc".into(), 0),
            "dropped turns do not return"
        );
        assert_eq!(fitted(&mut turns(), 12, 4), ("Scccc".into(), 2));
        assert_eq!(
            fitted(&mut turns(), 6, 4),
            ("Scccc".into(), 2),
            "less than the reserve is better than nothing"
        );
    }

    #[test]
    fn a_message_that_never_fits_drops_nothing() {
        let mut conversation = turns();
        assert_eq!(fitted(&mut conversation, 5, 1), ("Saaaaaaaabbbbbbbbcccc".into(), 0));
        conversation.remove_last();
        conversation.ask("d", vec![]);
        assert_eq!(fitted(&mut conversation, 25, 4).0, "Saaaaaaaabbbbbbbbd");
    }
}
