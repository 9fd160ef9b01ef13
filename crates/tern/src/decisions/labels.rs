//! The labels of answers: texts that are one token each where an answer begins.

use tern_text::ChatText;
use thiserror::Error;

use super::QuestionKind;
use super::place::AfterQuestion;

/// The labels of a question's options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels {
    names: Vec<String>,
    /// The tokens of all labels.
    tokens: Vec<u32>,
    /// How many of them each label has.
    counts: Vec<usize>,
}

/// The vocabulary has too few tokens for the labels of a question.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{options} options need as many labels of one token each, and this model's vocabulary has {found}")]
pub struct LabelError {
    /// The options.
    pub options: usize,
    /// The labels that exist.
    pub found: usize,
}

impl Labels {
    /// Labels for `count` options of a kind of question that is followed by `after`: `yes` and `no`, letters,
    /// or numbers from 0.
    pub(super) fn new(
        kind: QuestionKind,
        count: usize,
        after: &AfterQuestion,
        encode: impl Fn(&ChatText) -> Vec<u32>,
    ) -> Result<Labels, LabelError> {
        let end = after.end();
        let before = encode(&end);
        let one_token = |label: &str| {
            let text = ChatText { text: format!("{}{label}", end.text), user: end.user.clone() };
            let tokens = encode(&text);
            (tokens.len() == before.len() + 1 && tokens.starts_with(&before)).then(|| tokens[before.len()])
        };
        let mut labels = Labels { names: vec![], tokens: vec![], counts: vec![] };
        let mut names = names(kind);
        while labels.names.len() < count {
            let found = labels.names.len();
            let name = names.next().ok_or(LabelError { options: count, found })?;
            let mut tokens = vec![];
            for token in spellings(kind, &name).iter().filter_map(|text| one_token(text)) {
                if !tokens.contains(&token) && !labels.tokens.contains(&token) {
                    tokens.push(token);
                }
            }
            if !tokens.is_empty() {
                labels.names.push(name);
                labels.counts.push(tokens.len());
                labels.tokens.extend(tokens);
            }
        }
        Ok(labels)
    }

    /// The labels.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The probability of each label, from the log-probabilities of its tokens.
    pub(super) fn masses(&self, logprobs: &[f32]) -> Vec<f64> {
        let mut rest = logprobs.iter();
        let mass = |&count: &usize| rest.by_ref().take(count).map(|&logprob| f64::from(logprob).exp()).sum();
        self.counts.iter().map(mass).collect()
    }
}

/// The names of labels, in order.
fn names(kind: QuestionKind) -> Box<dyn Iterator<Item = String>> {
    let letters = || ('A'..='Z').map(String::from);
    match kind {
        QuestionKind::Predicate => Box::new(["yes", "no"].into_iter().map(String::from)),
        QuestionKind::Score => Box::new((0..10).map(|level| level.to_string())),
        QuestionKind::Choice => {
            let pairs = letters().flat_map(move |first| letters().map(move |second| first.clone() + &second));
            Box::new(letters().chain(pairs))
        }
    }
}

/// The ways in which an answer may write a label.
fn spellings(kind: QuestionKind, name: &str) -> Vec<String> {
    let mut all = vec![name.to_owned()];
    if kind == QuestionKind::Predicate {
        let (first, rest) = name.split_at(1);
        all.extend([first.to_uppercase() + rest, name.to_uppercase()]);
    }
    let spaced: Vec<String> = all.iter().map(|text| format!(" {text}")).collect();
    all.extend(spaced);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes are tokens, and so are `yes`, `no`, `AB` and ` A`.
    fn encode(text: &ChatText) -> Vec<u32> {
        let (mut tokens, mut rest) = (vec![], text.text.as_str());
        'all: while !rest.is_empty() {
            for (id, word) in (1000..).zip(["yes", "no", "AB", " A"]) {
                if let Some(after) = rest.strip_prefix(word) {
                    tokens.push(id);
                    rest = after;
                    continue 'all;
                }
            }
            tokens.push(u32::from(rest.as_bytes()[0]));
            rest = &rest[1..];
        }
        tokens
    }

    fn labels(kind: QuestionKind, count: usize) -> Result<Labels, LabelError> {
        Labels::new(kind, count, &AfterQuestion::of("</s>\n"), encode)
    }

    #[test]
    fn labels_are_one_token_each() {
        let yes_no = labels(QuestionKind::Predicate, 2).unwrap();
        assert_eq!((yes_no.tokens(), &yes_no.counts[..]), (&[1000, 1001][..], &[1, 1][..]));
        let choice = labels(QuestionKind::Choice, 27).unwrap();
        assert_eq!(choice.names[..2], ["A", "B"]);
        assert_eq!((choice.names[26].as_str(), choice.counts[0]), ("AB", 2)); // "A" and " A"
        assert_eq!(labels(QuestionKind::Choice, 28), Err(LabelError { options: 28, found: 27 }));
        assert_eq!(labels(QuestionKind::Score, 10).unwrap().tokens()[9], u32::from(b'9'));
    }

    #[test]
    fn the_tokens_of_a_label_add_up() {
        let labels = labels(QuestionKind::Choice, 2).unwrap();
        let masses = labels.masses(&[0.25f32.ln(), 0.25f32.ln(), 0.125f32.ln()]);
        assert!((masses[0] - 0.5).abs() < 1e-6 && (masses[1] - 0.125).abs() < 1e-6, "{masses:?}");
    }
}
