//! Scores of documents for a query: what the routes of rerankers share.

use std::borrow::Cow;

use serde_json::Value;
use tern::engine::{Event, Request};
use tern::{Pair, ScoreResult};

use super::embeddings::vectors;
use super::results::results;
use crate::Config;
use crate::http::error::{ApiError, Result};
use crate::http::request_log::RequestLog;
use crate::models::model::ServedModel;
use crate::request::encode::Encoder;
use crate::request::params::Params;
use crate::state::App;

/// Queries and documents, as tokens.
pub(super) enum Scoring {
    /// One list of tokens per pair, for a model that scores them.
    Pairs(Vec<Vec<u32>>),
    /// Both texts of each pair, for a model that embeds them: the score is the cosine of the two vectors.
    Texts(Vec<Vec<u32>>),
}

/// How documents are read.
pub(super) struct Reading {
    /// What makes a document relevant.
    instruction: Option<String>,
    /// The end of a document that does not fit the context is omitted; otherwise it is refused.
    truncate: bool,
    /// The rest of a longer document is omitted.
    max_document_tokens: Option<usize>,
}

impl Reading {
    /// Takes its parameters.
    pub(super) fn take(params: &mut Params) -> Result<Reading> {
        Ok(Reading {
            instruction: params.string("instruction")?,
            truncate: params.bool("truncate")?.or(params.bool("truncation")?).unwrap_or(false),
            max_document_tokens: params.integer("max_tokens_per_doc", 1, i64::MAX)?.map(|n| n as usize),
        })
    }

    /// The first tokens of a document, as text, if it may not have more.
    fn document<'d>(&self, document: &'d str, encoder: &Encoder<'_>) -> Cow<'d, str> {
        let Some(most) = self.max_document_tokens else { return document.into() };
        let tokenizer = encoder.served.model.tokenizer();
        let tokens = tokenizer.encode(document, false, false);
        match tokens.get(..most) {
            Some(first) if first.len() < tokens.len() => tokenizer.decode(first, true).into(),
            _ => document.into(),
        }
    }
}

impl Scoring {
    /// Encodes pairs of a query and a document.
    pub(super) fn new<'p>(
        pairs: &[(&'p str, &'p str)],
        reading: &Reading,
        encoder: &Encoder<'_>,
    ) -> Result<Scoring> {
        let read = |&(query, document): &(&'p str, &'p str)| (query, reading.document(document, encoder));
        let pairs: Vec<(&str, Cow<'p, str>)> = pairs.iter().map(read).collect();
        let model = &encoder.served.model;
        if model.reranker().is_some() {
            let pair = |(query, document): &(&str, Cow<'_, str>)| encode(query, document, reading, encoder);
            return Ok(Scoring::Pairs(pairs.iter().map(pair).collect::<Result<_>>()?));
        }
        if model.handle().generates() {
            let message = format!(
                "{}: this model is no reranker: it has neither a classifier nor a template that asks for yes or no",
                encoder.served.names[0]
            );
            return Err(ApiError::bad("model", message).code("no_reranker"));
        }
        let text = |text: &str| encoder.fitting(text, true, reading.truncate);
        let texts = pairs.iter().flat_map(|(query, document)| [*query, document]);
        Ok(Scoring::Texts(texts.map(text).collect::<Result<_>>()?))
    }

    /// Tokens in total.
    pub(super) fn tokens(&self) -> usize {
        let (Scoring::Pairs(all) | Scoring::Texts(all)) = self;
        all.iter().map(Vec::len).sum()
    }

    /// The score of each pair; of a classifier with one label its logit if `raw`, and otherwise its sigmoid.
    pub(super) async fn scores(
        self,
        app: &App,
        served: &ServedModel,
        log: &RequestLog,
        raw: bool,
    ) -> Result<Vec<f32>> {
        let model = &served.model;
        let pairs = match self {
            Scoring::Pairs(pairs) => pairs,
            Scoring::Texts(texts) => {
                let requests = texts.into_iter().map(|text| Request::embed(text, model.pooling())).collect();
                let vectors = vectors(app, served, log, requests).await?;
                let dot = |pair: &[Vec<f32>]| pair[0].iter().zip(&pair[1]).map(|(a, b)| a * b).sum();
                return Ok(vectors.chunks_exact(2).map(dot).collect());
            }
        };
        let requests = pairs.into_iter().map(|pair| model.score_request(pair)).collect();
        let take = |before, event: Event| ScoreResult::of(&event).or(before);
        let results = results(app, served, log, requests, 1, take).await?;
        let score = |result: &ScoreResult| match model.score(result) {
            Ok(score) if raw || !model.scores_are_logits() => Ok(score),
            Ok(logit) => Ok(1.0 / (1.0 + (-logit).exp())),
            Err(_) => Err(ApiError::internal()),
        };
        results.iter().map(score).collect()
    }
}

fn encode(query: &str, document: &str, reading: &Reading, encoder: &Encoder<'_>) -> Result<Vec<u32>> {
    encoder.cancel.check()?;
    let (model, instruction) = (&encoder.served.model, reading.instruction.as_deref());
    let tokens_of = |document: &str| model.pair_tokens(Pair { query, document, instruction });
    let (mut tokens, most) = (tokens_of(document), encoder.max_tokens);
    if reading.truncate && tokens.len() > most {
        let (own, others) = (model.tokenizer().encode(document, false, false), tokens_of("").len());
        let mut keep = most.saturating_sub(others);
        // a text that is cut may have a few tokens more than before
        while tokens.len() > most && keep > 0 {
            let cut = model.tokenizer().decode(&own[..keep.min(own.len())], true);
            tokens = tokens_of(&cut);
            keep = keep.saturating_sub(tokens.len().saturating_sub(most).max(1));
        }
    }
    if tokens.len() > most {
        let message = format!(
            "documents: a query and its document have {} tokens together, this model reads at most {most}; set truncate to \
             shorten documents",
            tokens.len()
        );
        return Err(ApiError::bad("documents", message).code("context_length_exceeded"));
    }
    Ok(tokens)
}

/// Texts of a parameter: strings, or objects with a `text`.
pub(super) fn texts(params: &mut Params, name: &str, config: &Config) -> Result<Vec<String>> {
    let Some(items) = params.array(name)? else { return Err(params.missing(name)) };
    if items.is_empty() || items.len() > config.max_inputs {
        return Err(ApiError::too_many(name, items.len(), config.max_inputs, "texts"));
    }
    let text = |item: Value| match item {
        Value::String(text) => Ok(text),
        Value::Object(mut fields) => match fields.remove("text") {
            Some(Value::String(text)) => Ok(text),
            _ => Err(ApiError::expected(name, "strings, or objects with a text", &Value::Object(fields))),
        },
        other => Err(ApiError::expected(name, "strings, or objects with a text", &other)),
    };
    items.into_iter().map(text).collect()
}
