//! Where the question stands in a rendered conversation.

use std::collections::HashMap;
use std::sync::Arc;

use tern_text::ChatText;
use thiserror::Error;

use super::{LabelError, Labels, Question, QuestionKind};
use crate::{Chat, Message, Model, RenderedChat};

/// A mark in a conversation, at whose place questions are asked.
#[derive(Clone, Debug)]
pub struct QuestionPlace {
    mark: String,
    /// What is between the conversation and the question. It begins the question: at the end of the
    /// shared text its tokens would be others.
    separator: &'static str,
}

/// The chat template renders the last message not once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the chat template contains the last message {0} times: questions need it once")]
pub struct PlaceError(usize);

/// What follows the question in a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AfterQuestion {
    separator: &'static str,
    after: ChatText,
    /// The labels of questions so far: those of a kind with as many options are the same.
    labels: HashMap<(QuestionKind, usize), Arc<Labels>>,
}

impl QuestionPlace {
    /// Puts the mark at the end of the conversation: into the last message if it is of a user, otherwise into
    /// a new one.
    pub fn add_to(chat: &mut Chat) -> QuestionPlace {
        let contains = |mark: &str| chat.messages.iter().any(|message| message.content.contains(mark));
        let mark =
            (0..).map(|at| format!("<question {at}>")).find(|mark| !contains(mark)).unwrap_or_default();
        let separator = match chat.messages.last_mut().filter(|last| last.role == "user") {
            Some(last) => {
                last.content.push_str(&mark);
                "\n\n"
            }
            None => {
                chat.messages.push(Message::user(&mark));
                ""
            }
        };
        QuestionPlace { mark, separator }
    }

    /// Ends a rendered conversation before the question, and returns what follows it up to where an answer
    /// begins.
    pub fn split(&self, model: &Model, rendered: &mut RenderedChat) -> Result<AfterQuestion, PlaceError> {
        let opening = answer_opening(model, rendered);
        let ChatText { text, user } = &mut rendered.text;
        let found: Vec<usize> = text.match_indices(&self.mark).map(|(at, _)| at).collect();
        let [at] = found[..] else { return Err(PlaceError(found.len())) };
        let end = at + self.mark.len();
        let after = user.iter().filter(|range| range.end > end);
        let after = ChatText {
            text: format!("{}{opening}", &text[end..]),
            user: after.map(|range| range.start.max(end) - end..range.end - end).collect(),
        };
        text.truncate(at);
        user.retain_mut(|range| {
            range.end = range.end.min(at);
            range.start < range.end
        });
        Ok(AfterQuestion { separator: self.separator, after, labels: HashMap::new() })
    }
}

/// What the prompt lacks for an answer without reasoning to begin at once.
fn answer_opening(model: &Model, rendered: &RenderedChat) -> String {
    let tail = rendered.tail().trim_ascii_end();
    if let Some(style) = rendered.markup.channels.filter(|style| tail.ends_with(style.start)) {
        return style.answer.to_owned();
    }
    match rendered.markup.reasoning.filter(|style| tail.ends_with(style.begin)) {
        None => String::new(),
        Some(style) => {
            let own_line =
                model.template().is_some_and(|template| template.writes_on_its_own_line(style.end));
            format!("{}{}\n\n", if own_line { "\n" } else { "" }, style.end)
        }
    }
}

impl AfterQuestion {
    #[cfg(test)]
    pub(super) fn of(text: &str) -> AfterQuestion {
        let after = ChatText { text: text.into(), user: vec![] };
        AfterQuestion { separator: "", after, labels: HashMap::new() }
    }

    /// It alone.
    pub(super) fn end(&self) -> ChatText {
        self.after.clone()
    }

    /// The labels of a question's options.
    pub fn labels(
        &mut self,
        question: &Question,
        encode: impl Fn(&ChatText) -> Vec<u32>,
    ) -> Result<Arc<Labels>, LabelError> {
        let key = (question.kind, question.options.len());
        if let Some(labels) = self.labels.get(&key) {
            return Ok(Arc::clone(labels));
        }
        let labels = Arc::new(Labels::new(key.0, key.1, self, encode)?);
        self.labels.insert(key, Arc::clone(&labels));
        Ok(labels)
    }

    /// The question, and what follows it. Control tokens are not recognised in the question.
    pub fn with(&self, question: &Question, labels: &Labels) -> ChatText {
        let mut text = format!("{}{}", self.separator, question.text(labels));
        let asked = text.len();
        text.push_str(&self.after.text);
        let after = self.after.user.iter().map(|range| range.start + asked..range.end + asked);
        ChatText { text, user: std::iter::once(0..asked).chain(after).collect() }
    }
}
