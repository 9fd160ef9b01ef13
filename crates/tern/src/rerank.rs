//! Scores of documents for a query: those of a classifier, or the probability of `yes` after
//! the model's own template.

use std::collections::VecDeque;

use tern_engine::{Event, Request, Sampling, TokenStream};
use tern_formats::Metadata;
use tern_models::{VectorKind, Vectors};
use tern_text::{ChatText, Tokenizer};

use crate::{Error, Model};

/// How a model scores documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reranker {
    /// It has a classifier, which reads the query and the document as two texts.
    Classifier,
    /// It has a classifier, which reads both in a template.
    TemplateClassifier(RerankTemplate),
    /// It answers yes or no.
    Judge {
        /// The question.
        template: RerankTemplate,
        /// The token of the answer for relevant documents.
        yes: u32,
        /// The token of the other answer.
        no: u32,
    },
}

/// The text around a query and a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RerankTemplate(String);

/// The template of Qwen3-Reranker, for files that have none.
const QWEN3: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct \
                     provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: \
                     {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n\
                     </think>\n\n";
/// The instruction that its authors use for searches.
const INSTRUCTION: &str = "Given a web search query, retrieve relevant passages that answer the query";

/// A query and a document.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// What is searched.
    pub query: &'a str,
    /// What may answer it.
    pub document: &'a str,
    /// What makes a document relevant, for models that read it.
    pub instruction: Option<&'a str>,
}

impl Reranker {
    /// What a file says; `None` if the model does not score documents.
    pub(crate) fn of(
        metadata: &Metadata,
        name: &str,
        vectors: Option<Vectors>,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Reranker>, Error> {
        let own = metadata.optional_str("tokenizer.chat_template.rerank")?.map(str::to_owned);
        let arch = metadata.optional_str("general.architecture")?.unwrap_or_default();
        let title = metadata.optional_str("general.name")?.unwrap_or_default();
        match vectors {
            Some(Vectors { kind: VectorKind::Embedding, .. }) => return Ok(None),
            Some(Vectors { kind: VectorKind::Scores, .. }) => {
                let template = own.or_else(|| (arch == "qwen3").then(|| QWEN3.to_owned()));
                let with_template = |text| Reranker::TemplateClassifier(RerankTemplate(text));
                return Ok(Some(template.map_or(Reranker::Classifier, with_template)));
            }
            None => {}
        }
        let named = [name, title].iter().any(|text| text.to_ascii_lowercase().contains("rerank"));
        if own.is_none() && !named {
            return Ok(None);
        }
        let (Some(yes), Some(no)) = (tokenizer.id_of("yes"), tokenizer.id_of("no")) else { return Ok(None) };
        Ok(Some(Reranker::Judge {
            template: RerankTemplate(own.unwrap_or_else(|| QWEN3.to_owned())),
            yes,
            no,
        }))
    }
}

impl RerankTemplate {
    /// The tokens of a pair. Control tokens are recognised in the template only.
    fn encode(&self, tokenizer: &Tokenizer, pair: Pair<'_>) -> Vec<u32> {
        let texts = [
            ("{query}", pair.query),
            ("{document}", pair.document),
            ("{instruction}", pair.instruction.unwrap_or(INSTRUCTION)),
        ];
        let (mut rest, mut chat) = (self.0.as_str(), ChatText::default());
        loop {
            let found = texts.iter().filter_map(|(mark, text)| Some((rest.find(mark)?, mark, text)));
            let Some((at, mark, text)) = found.min_by_key(|(at, ..)| *at) else { break };
            chat.text.push_str(&rest[..at]);
            let start = chat.text.len();
            chat.text.push_str(text);
            chat.user.extend((!text.is_empty()).then_some(start..chat.text.len()));
            rest = &rest[at + mark.len()..];
        }
        chat.text.push_str(rest);
        tokenizer.encode_chat(&chat)
    }
}

impl Model {
    /// How it scores documents; none if it does not.
    pub fn reranker(&self) -> Option<&Reranker> {
        self.parts().reranker.as_ref()
    }

    /// The tokens of a pair, as its reranker reads it; of a model that embeds texts, those of both texts.
    pub fn pair_tokens(&self, pair: Pair<'_>) -> Vec<u32> {
        let tokenizer = self.tokenizer();
        match self.reranker() {
            Some(Reranker::TemplateClassifier(template) | Reranker::Judge { template, .. }) => {
                template.encode(tokenizer, pair)
            }
            Some(Reranker::Classifier) | None => tokenizer.encode_pair(pair.query, pair.document),
        }
    }

    /// What the engine computes for the tokens of a pair.
    pub fn score_request(&self, tokens: Vec<u32>) -> Request {
        let adapters = self.active_adapters().clone();
        let Some(Reranker::Judge { yes, no, .. }) = self.reranker() else {
            let second = self.tokenizer().second_text(&tokens);
            return Request { second, adapters, ..Request::embed(tokens, self.pooling()) };
        };
        let sampling = Sampling { logprobs: Some(0), reported: [*yes, *no].into(), ..Sampling::default() };
        Request { sampling, adapters, ..Request::new(tokens, 1) }
    }

    /// The score of a pair, from the result of its request: a logit of a classifier with one label, a
    /// probability otherwise.
    pub fn score(&self, result: &ScoreResult) -> Result<f32, Error> {
        match (self.reranker(), result) {
            (Some(Reranker::Judge { .. }), ScoreResult::Answers(logprobs)) => match logprobs[..] {
                [yes, no] => Ok(1.0 / (1.0 + (no - yes).exp())),
                _ => Err(Error::Cancelled),
            },
            (_, ScoreResult::Vector(scores)) if scores.len() == 1 => Ok(scores[0]),
            (_, ScoreResult::Vector(scores)) if !scores.is_empty() => {
                let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let sum: f32 = scores.iter().map(|score| (score - most).exp()).sum();
                Ok((scores[0] - most).exp() / sum)
            }
            _ => Err(Error::Cancelled),
        }
    }

    /// Whether scores are logits of one label, which a sigmoid maps to 0 to 1;
    /// otherwise they are probabilities.
    pub fn scores_are_logits(&self) -> bool {
        matches!(self.reranker(), Some(Reranker::Classifier))
    }

    /// The score of each document for a query.
    ///
    /// # Panics
    ///
    /// As [`Model::generate`].
    pub fn rerank<'d>(
        &self,
        query: &str,
        documents: impl IntoIterator<Item = &'d str>,
        instruction: Option<&str>,
    ) -> Result<Vec<f32>, Error> {
        if self.reranker().is_none() {
            return Err(Error::NoReranker(self.name().to_owned()));
        }
        let at_once = self.handle().limits().max_seqs.max(1); // more would only fill the queue
        let (mut running, mut scores) = (VecDeque::<TokenStream>::new(), vec![]);
        for document in documents {
            if running.len() == at_once
                && let Some(oldest) = running.pop_front()
            {
                scores.push(self.score(&ScoreResult::wait(oldest)?)?);
            }
            let tokens = self.pair_tokens(Pair { query, document, instruction });
            running.push_back(self.handle().generate(self.score_request(tokens))?);
        }
        for stream in running {
            scores.push(self.score(&ScoreResult::wait(stream)?)?);
        }
        Ok(scores)
    }
}

/// The result of a request of [`Model::score_request`].
#[derive(Clone, Debug, PartialEq)]
pub enum ScoreResult {
    /// The scores of a classifier.
    Vector(Vec<f32>),
    /// The log-probabilities of a judge's answers, yes and no.
    Answers(Vec<f32>),
}

impl ScoreResult {
    /// The result that an event carries, if it carries one.
    pub fn of(event: &Event) -> Option<ScoreResult> {
        match event {
            Event::Embedding(vector) => Some(ScoreResult::Vector(vector.clone())),
            Event::Token(sampled) => Some(ScoreResult::Answers(sampled.reported.clone())),
            Event::Started { .. } | Event::Drafted { .. } | Event::Done(_) | Event::Failed(_) => None,
        }
    }

    fn wait(stream: TokenStream) -> Result<ScoreResult, Error> {
        let mut result = None;
        // to its end: then its sequence has left the engine
        for event in stream {
            if let Event::Failed(error) = event {
                return Err(error.into());
            }
            result = ScoreResult::of(&event).or(result);
        }
        result.ok_or(Error::Cancelled)
    }
}
