//! `/v1/decisions` in OpenAI's shape, and `/v1/systemone` in vLLM's: answers to typed questions about an
//! input, read from the probabilities of labels. Nothing is generated.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value, json};
use tern::engine::Event;
use tern::text::ChatText;
use tern::{Chat, Decision, Message, Question, QuestionKind, QuestionPlace, Read, Sampled};

use super::responses::input;
use super::results::results;
use crate::http::error::{ApiError, Result};
use crate::http::request_log::RequestLog;
use crate::ids;
use crate::request::encode::Encoder;
use crate::request::ignored::Object;
use crate::request::options::unparsed;
use crate::request::params::Params;
use crate::request::prepare::{Preparation, Prepare};
use crate::request::prompt::{model_or_adapter, now, render};
use crate::request::questions::{self, AskedQuestion};
use crate::request::{adapters, clients, images, template_variables};
use crate::state::App;

struct Job {
    model: String,
    questions: Vec<AskedQuestion>,
    reads: Vec<Read>,
}

/// The answers to the questions of a job.
struct Answered {
    job: Job,
    decisions: Vec<Decision>,
    /// Tokens of all prompts, and those of them that were in the prefix cache.
    prompt_tokens: usize,
    cached_tokens: usize,
}

/// What is known of a read.
#[derive(Default)]
struct Progress {
    cached: usize,
    sampled: Option<Sampled>,
}

/// `/v1/decisions`
pub(super) async fn decisions(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    body: Body,
) -> Result<Response> {
    let answered = answered(&app, &log, body, |preparation| {
        prepare(preparation, |params, preparation| {
            let given = params.take("input").ok_or_else(|| params.missing("input"))?;
            let items = input::items(given, preparation.responses)?;
            let messages = input::messages(None, &items, params)?;
            Ok((messages, questions::of_list(params)?))
        })
    });
    let answered = answered.await?;
    let answers = answered.each().map(|(asked, decision)| answer(asked, decision));
    let Answered { prompt_tokens, cached_tokens, .. } = answered;
    let reads = answered.decisions.len();
    Ok(super::json(&json!({
        "model": answered.job.model,
        "answers": answers.collect::<Vec<Value>>(),
        "usage": {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached_tokens, "cache_write_tokens": 0},
            "output_tokens": reads,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt_tokens + reads,
        },
    })))
}

/// `/v1/systemone`
pub(super) async fn system_one(
    State(app): State<Arc<App>>,
    Extension(log): Extension<RequestLog>,
    body: Body,
) -> Result<Response> {
    let answered = answered(&app, &log, body, |preparation| {
        prepare(preparation, |params, _| {
            let state = match params.take("state").ok_or_else(|| params.missing("state"))? {
                Value::String(text) => text,
                other => other.to_string(),
            };
            let state = match params.string("instructions")? {
                None => state,
                Some(instructions) => format!("{instructions}\n\n{state}"),
            };
            Ok((vec![Message::user(state)], questions::of_object(params)?))
        })
    });
    let answered = answered.await?;
    let named = |of: fn(&Question, &Decision) -> Value| -> Map<String, Value> {
        let each = answered.each();
        each.map(|(asked, decision)| (asked.name.clone().unwrap_or_default(), of(&asked.question, decision)))
            .collect()
    };
    let diagnostics = |_: &Question, decision: &Decision| json!({"label_mass": decision.label_mass, "argmax_is_label": decision.argmax_is_label});
    Ok(super::json(&json!({
        "id": ids::id("decision-"),
        "object": "structured_decision",
        "created": now(),
        "model": answered.job.model,
        "answers": named(system_one_answer),
        "usage": {"input_tokens": answered.prompt_tokens, "output_tokens": answered.decisions.len()},
        "diagnostics": named(diagnostics),
    })))
}

impl Answered {
    fn each(&self) -> impl Iterator<Item = (&AskedQuestion, &Decision)> {
        self.job.questions.iter().zip(&self.decisions)
    }
}

/// What each API makes of the body: the conversation, and the questions about it.
type TakeInput = fn(&mut Params, &Preparation<'_>) -> Result<(Vec<Message>, Vec<AskedQuestion>)>;

async fn answered(app: &Arc<App>, log: &RequestLog, body: Body, prepare: Prepare<Job>) -> Result<Answered> {
    let (served, job) = app.prepare(log, body, prepare).await?;
    let requests: Vec<_> = job.reads.iter().map(|read| read.request.clone()).collect();
    let prompt_tokens = requests.iter().map(|request| request.prompt.len()).sum();
    let group = requests.len(); // the first computes what the others share
    let take = |before: Option<Progress>, event| {
        let before = before.unwrap_or_default();
        match event {
            Event::Started { cached } => Some(Progress { cached, ..before }),
            Event::Token(sampled) => Some(Progress { sampled: Some(sampled), ..before }),
            _ => Some(before),
        }
    };
    let results = results(app, &served, log, requests, group, take).await?;
    let cached_tokens = results.iter().map(|progress| progress.cached).sum();
    let decision = |(read, progress): (&Read, &Progress)| progress.sampled.as_ref().map(|s| read.decision(s));
    let decisions = job.reads.iter().zip(&results).map(decision).collect::<Option<_>>();
    let decisions = decisions.ok_or_else(ApiError::internal)?;
    Ok(Answered { job, decisions, prompt_tokens, cached_tokens })
}

fn prepare(preparation: &Preparation<'_>, take_input: TakeInput) -> Result<Job> {
    let Preparation { body, served, config, cancel, .. } = *preparation;
    let mut params = Params::parse(body, unparsed(config))?.naming(preparation.images);
    let model = model_or_adapter(&mut params, served)?;
    let (messages, questions) = take_input(&mut params, preparation)?;
    if messages.len() > config.max_messages {
        return Err(ApiError::too_many("input", messages.len(), config.max_messages, "messages"));
    }
    let mut chat = Chat::new(messages);
    chat.template_variables = template_variables::take_answering(&mut params, served, config)?;
    let adapters = adapters::take(&mut params, served, &model)?;
    let client = clients::name(&mut params);
    params.finish(Object::Body, &[])?;

    let encoder = Encoder::new(served, cancel, "input");
    let place = QuestionPlace::add_to(&mut chat);
    let mut rendered = render(&chat, &encoder)?;
    let after = place.split(&served.model, &mut rendered);
    let mut after = after.map_err(|error| ApiError::bad("input", error.to_string()))?;
    let (shared, images) = images::encode(&mut rendered, &encoder)?;
    let encode = |text: &ChatText| served.model.tokenizer().encode_chat(text);
    let mut reads = vec![];
    for (at, AskedQuestion { question, .. }) in questions.iter().enumerate() {
        cancel.check()?;
        let labels = after.labels(question, encode).map_err(|error| {
            let name = format!("questions[{at}]");
            ApiError::bad(&*name, format!("{name}: {error}"))
        })?;
        let tokens = encoder.chat(&after.with(question, &labels))?;
        served.model.max_tokens(shared.len() + tokens.len(), Some(1))?;
        let mut read = Read::new(tokens, &shared, &images, &labels);
        read.request.adapters = adapters.clone();
        read.request.client = clients::user(client.as_deref());
        reads.push(read);
    }
    Ok(Job { model, questions, reads })
}

/// An answer of OpenAI's API.
fn answer(asked: &AskedQuestion, decision: &Decision) -> Value {
    let Decision { probabilities, best, .. } = decision;
    let AskedQuestion { name, question, values } = asked;
    match question.kind {
        QuestionKind::Predicate => {
            json!({"type": "predicate", "name": name, "probability": probabilities[0]})
        }
        QuestionKind::Choice => {
            let each = values.iter().zip(probabilities);
            let each = each.map(|(value, probability)| json!({"value": value, "probability": probability}));
            json!({
                "type": "choice", "name": name, "choice": values[*best], "confidence": decision.confidence(),
                "probabilities": each.collect::<Vec<_>>(),
            })
        }
        QuestionKind::Score => {
            let each = (0..).zip(question.options.iter().zip(probabilities));
            let level = |(value, (option, probability)): (usize, (&tern::QuestionOption, &f64))| json!({"value": value, "label": option.name, "probability": probability});
            json!({
                "type": "score", "name": name, "score": decision.score(), "confidence": decision.confidence(),
                "probabilities": each.map(level).collect::<Vec<_>>(),
            })
        }
    }
}

/// An answer of System One.
fn system_one_answer(question: &Question, decision: &Decision) -> Value {
    let Decision { probabilities, best, .. } = decision;
    let named = |name: fn(usize, &tern::QuestionOption) -> String| -> Map<String, Value> {
        let names = question.options.iter().enumerate().map(|(at, option)| name(at, option));
        names.zip(probabilities).map(|(name, probability)| (name, json!(probability))).collect()
    };
    let by_name = |_, option: &tern::QuestionOption| option.name.clone();
    let confidence = decision.confidence();
    match question.kind {
        QuestionKind::Predicate => json!({
            "type": "noul", "noul": probabilities[0], "probabilities": named(by_name), "confidence": confidence,
        }),
        QuestionKind::Choice => json!({
            "type": "choice", "choice": question.options[*best].name, "probabilities": named(by_name),
            "confidence": confidence,
        }),
        QuestionKind::Score => {
            let levels = question.options.iter().enumerate();
            let legend: Map<String, Value> =
                levels.map(|(at, option)| (at.to_string(), option.name.clone().into())).collect();
            json!({
                "type": "score", "score": decision.score(), "legend": legend,
                "probabilities": named(|at, _| at.to_string()), "confidence": confidence,
            })
        }
    }
}
