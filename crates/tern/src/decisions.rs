//! Decisions: typed questions about a conversation, answered by the probabilities of labels at the position
//! where an answer would begin. No text is generated.
//!
//! All questions share the tokens up to the question, which come first: one read computes them, the others
//! find them in the prefix cache.

mod labels;
mod place;

use std::sync::Arc;

use tern_engine::{Event, Images, Request, Sampled, Sampling};
use tern_text::ChatText;

pub use labels::{LabelError, Labels};
pub use place::{AfterQuestion, PlaceError, QuestionPlace};

use crate::{Chat, Error, Model};

/// A question with a fixed set of answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// What is asked.
    pub instructions: String,
    /// What may be answered.
    pub kind: QuestionKind,
    /// The answers: yes and no, the choices, or the levels from the lowest on.
    pub options: Vec<QuestionOption>,
}

/// What the answers of a question are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuestionKind {
    /// Yes and no: whether a statement is true.
    Predicate,
    /// One of several options.
    Choice,
    /// A level of a scale.
    Score,
}

/// An answer that is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuestionOption {
    /// Its name.
    pub name: String,
    /// When it applies.
    pub description: Option<String>,
}

impl QuestionOption {
    /// An option without a description.
    pub fn new(name: impl Into<String>) -> QuestionOption {
        QuestionOption { name: name.into(), description: None }
    }

    fn line(&self, label: &str) -> String {
        let name = if self.name == label { String::new() } else { format!(" {}", self.name) };
        let description = self.description.as_ref().map(|text| format!(" - {text}")).unwrap_or_default();
        format!("{label}:{name}{description}\n")
    }
}

impl Question {
    /// Whether a statement about the conversation is true.
    pub fn predicate(statement: impl Into<String>) -> Question {
        let options = ["yes", "no"].map(QuestionOption::new).into();
        Question { instructions: statement.into(), kind: QuestionKind::Predicate, options }
    }

    /// Which of these options applies.
    pub fn choice<'n>(instructions: impl Into<String>, names: impl IntoIterator<Item = &'n str>) -> Question {
        let options = names.into_iter().map(QuestionOption::new).collect();
        Question { instructions: instructions.into(), kind: QuestionKind::Choice, options }
    }

    /// Which of these levels, from the lowest on, applies.
    pub fn score<'n>(instructions: impl Into<String>, levels: impl IntoIterator<Item = &'n str>) -> Question {
        Question { kind: QuestionKind::Score, ..Question::choice(instructions, levels) }
    }

    /// The question as the model reads it.
    fn text(&self, labels: &Labels) -> String {
        let lines = || -> String {
            self.options.iter().zip(labels.names()).map(|(option, label)| option.line(label)).collect()
        };
        let Question { instructions, .. } = self;
        match self.kind {
            QuestionKind::Predicate if self.options.iter().all(|option| option.description.is_none()) => {
                format!("Statement or question: {instructions}\n\nIs it true? Answer with yes or no only.")
            }
            QuestionKind::Predicate => format!(
                "Statement or question: {instructions}\n{}\nIs it true? Answer with yes or no only.",
                lines()
            ),
            QuestionKind::Choice => format!(
                "Question: {instructions}\nOptions:\n{}\nAnswer with the label of one option only.",
                lines()
            ),
            QuestionKind::Score => format!(
                "Question: {instructions}\nLevels:\n{}\nAnswer with the number of one level only.",
                lines()
            ),
        }
    }
}

/// What the engine computes for a question.
#[derive(Clone, Debug)]
pub struct Read {
    /// The request.
    pub request: Request,
    labels: Arc<Labels>,
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The probability of each option among all options.
    pub probabilities: Vec<f64>,
    /// The most probable option.
    pub best: usize,
    /// The probability that the model's answer begins with a label.
    pub label_mass: f64,
    /// Whether the most probable token of all is a label.
    pub argmax_is_label: bool,
}

impl Decision {
    /// The probability of the most probable option among all tokens.
    pub fn confidence(&self) -> f64 {
        self.probabilities.get(self.best).copied().unwrap_or_default() * self.label_mass
    }

    /// The expected position among the options.
    pub fn score(&self) -> f64 {
        (0u32..).zip(&self.probabilities).map(|(at, probability)| f64::from(at) * probability).sum()
    }
}

impl Read {
    /// The read of a question after the tokens that all questions share.
    pub fn new(question: Vec<u32>, shared: &[u32], images: &Images, labels: &Arc<Labels>) -> Read {
        let sampling =
            Sampling { logprobs: Some(0), reported: labels.tokens().into(), ..Sampling::default() };
        let request =
            Request { sampling, images: images.clone(), ..Request::new([shared, &question].concat(), 1) };
        Read { request, labels: Arc::clone(labels) }
    }

    /// The answer, from the token that was sampled.
    pub fn decision(&self, sampled: &Sampled) -> Decision {
        let masses = self.labels.masses(&sampled.reported);
        let label_mass: f64 = masses.iter().sum();
        let equal = 1.0 / masses.len().max(1) as f64;
        let share = |mass: &f64| if label_mass > 0.0 { mass / label_mass } else { equal };
        let probabilities: Vec<f64> = masses.iter().map(share).collect();
        // the first of equals
        let best =
            (0..probabilities.len()).rev().max_by(|&a, &b| probabilities[a].total_cmp(&probabilities[b]));
        Decision {
            best: best.unwrap_or_default(),
            label_mass: label_mass.min(1.0),
            argmax_is_label: self.labels.tokens().contains(&sampled.id),
            probabilities,
        }
    }
}

impl Model {
    /// Answers questions about a conversation.
    ///
    /// ```no_run
    /// use tern::{Chat, Message, Model, Question};
    /// let model = Model::load("smollm2")?;
    /// let chat = Chat::new([Message::user("I was charged twice for the same order.")]);
    /// let questions = [
    ///     Question::choice("Which team should answer?", ["billing", "shipping"]),
    ///     Question::predicate("The customer asks for a refund."),
    /// ];
    /// for decision in model.decide(chat, &questions)? {
    ///     println!("{} {:?}", decision.best, decision.probabilities);
    /// }
    /// # Ok::<(), tern::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// As [`Model::generate`].
    pub fn decide(&self, mut chat: Chat, questions: &[Question]) -> Result<Vec<Decision>, Error> {
        let place = QuestionPlace::add_to(&mut chat);
        let mut rendered = self.render(&chat, || false)?;
        let mut after = place.split(self, &mut rendered)?;
        let (shared, images) = self.encode_rendered(&mut rendered)?;
        let encode = |text: &ChatText| self.tokenizer().encode_chat(text);
        let mut reads = vec![];
        for question in questions {
            let labels = after.labels(question, encode)?;
            let tokens = encode(&after.with(question, &labels));
            self.max_tokens(shared.len() + tokens.len(), Some(1))?;
            reads.push(Read::new(tokens, &shared, &images, &labels));
        }
        // the first read computes what the others share
        let mut decisions = vec![];
        let (first, others) = reads.split_at(reads.len().min(1));
        for reads in [first, others] {
            let at_once = self.handle().limits().max_seqs.max(1);
            for reads in reads.chunks(at_once) {
                let start = |read: &Read| {
                    let adapters = self.active_adapters().clone();
                    self.handle().generate(Request { adapters, ..read.request.clone() })
                };
                let streams = reads.iter().map(start).collect::<Result<Vec<_>, _>>()?;
                for (read, stream) in reads.iter().zip(streams) {
                    let mut decision = None;
                    for event in stream {
                        match event {
                            Event::Token(sampled) => decision = Some(read.decision(&sampled)),
                            Event::Failed(error) => return Err(error.into()),
                            _ => {}
                        }
                    }
                    decisions.push(decision.ok_or(Error::Cancelled)?);
                }
            }
        }
        Ok(decisions)
    }
}
