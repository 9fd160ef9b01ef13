//! Typed questions, in the shapes of OpenAI's Decisions API and of System One.

use serde_json::Value;
use tern::{Question, QuestionKind, QuestionOption};

use crate::http::error::{ApiError, Result};
use crate::request::ignored::Object;
use crate::request::params::Params;

/// Questions per request at most.
const MAX_QUESTIONS: usize = 400;

/// Options of a choice at most.
const MAX_CHOICES: usize = 255;

/// Levels of a score at most: their labels are digits.
const MAX_LEVELS: usize = 10;

/// A question of a request.
pub(crate) struct AskedQuestion {
    /// Its name; a question of OpenAI's API need not have one.
    pub(crate) name: Option<String>,
    pub(crate) question: Question,
    /// What the client calls the options: texts, or true and false.
    pub(crate) values: Vec<Value>,
}

/// `questions` of OpenAI's API: a list.
pub(crate) fn of_list(params: &mut Params) -> Result<Vec<AskedQuestion>> {
    let missing = params.missing("questions");
    let questions = params.array("questions")?.ok_or(missing)?;
    check_count("questions", questions.len(), 1, MAX_QUESTIONS, "questions")?;
    let question = |(at, given): (usize, Value)| {
        let mut given = params.nested(given, &format!("questions[{at}]"))?;
        let kind = given.required_string("type")?;
        let name = given.string("name")?;
        let instructions = instructions(&mut given)?;
        let (kind, options, values) = match kind.as_str() {
            "predicate" => (QuestionKind::Predicate, yes_and_no(None, None), vec![]),
            "choice" => choices(&mut given)?,
            "score" => levels(&mut given)?,
            _ => {
                let expected = "\"predicate\", \"choice\" or \"score\"";
                return Err(ApiError::expected(&given.name("type"), expected, &kind.into()));
            }
        };
        given.finish(Object::Question, &[])?;
        Ok(AskedQuestion { name, question: Question { instructions, kind, options }, values })
    };
    questions.into_iter().enumerate().map(question).collect()
}

/// `questions` of System One: an object with a member per question.
pub(crate) fn of_object(params: &mut Params) -> Result<Vec<AskedQuestion>> {
    let missing = params.missing("questions");
    let questions = params.object("questions")?.ok_or(missing)?.into_map();
    check_count("questions", questions.len(), 1, MAX_QUESTIONS, "questions")?;
    let question = |(name, given): (String, Value)| {
        if name.is_empty() {
            return Err(ApiError::bad("questions", "questions: the name of a question must not be empty"));
        }
        let mut given = params.nested(given, &format!("questions.{name}"))?;
        let kind = given.required_string("type")?;
        let instructions = instructions(&mut given)?;
        let (kind, options) = match kind.as_str() {
            "noul" => (QuestionKind::Predicate, noul(&mut given)?),
            "choice" => (QuestionKind::Choice, criteria(&mut given)?),
            "score" => (QuestionKind::Score, scale(&mut given)?),
            _ => {
                let expected = "\"noul\", \"choice\" or \"score\"";
                return Err(ApiError::expected(&given.name("type"), expected, &kind.into()));
            }
        };
        given.finish(Object::Question, &[])?;
        Ok(AskedQuestion {
            name: Some(name),
            question: Question { instructions, kind, options },
            values: vec![],
        })
    };
    questions.into_iter().map(question).collect()
}

fn check_count(name: &str, count: usize, least: usize, most: usize, what: &str) -> Result<()> {
    if (least..=most).contains(&count) {
        return Ok(());
    }
    Err(ApiError::bad(name, format!("{name}: expected {least} to {most} {what}, got {count}")))
}

/// What is asked: a text, parts of text and JSON, or JSON.
fn instructions(question: &mut Params) -> Result<String> {
    let name = question.name("instructions");
    let given = question.take("instructions").ok_or_else(|| question.missing("instructions"))?;
    let text = match given {
        Value::String(text) => text,
        Value::Array(parts) if parts.iter().all(|part| part["type"].is_string()) => {
            let texts = parts.into_iter().map(|part| part_text(part, &name)).collect::<Result<Vec<_>>>()?;
            texts.join("\n")
        }
        other @ (Value::Array(_) | Value::Object(_)) => other.to_string(),
        other => return Err(ApiError::expected(&name, "a text", &other)),
    };
    if text.trim().is_empty() {
        return Err(ApiError::bad(&*name, format!("{name}: must not be empty")));
    }
    Ok(text)
}

fn part_text(part: Value, name: &str) -> Result<String> {
    match (part["type"].as_str(), &part["text"], &part["data"]) {
        (Some("input_text"), Value::String(text), _) => Ok(text.clone()),
        (Some("input_json"), _, data @ (Value::Object(_) | Value::Array(_))) => Ok(data.to_string()),
        _ => {
            let expected = "parts of type input_text or input_json (images belong into the input)";
            Err(ApiError::expected(name, expected, &part))
        }
    }
}

fn yes_and_no(yes: Option<String>, no: Option<String>) -> Vec<QuestionOption> {
    let option = |name: &str, description| QuestionOption { name: name.into(), description };
    vec![option("yes", yes), option("no", no)]
}

type Options = (QuestionKind, Vec<QuestionOption>, Vec<Value>);

/// `choices`: values that are texts or flags, which must differ.
fn choices(question: &mut Params) -> Result<Options> {
    let (mut options, mut values) = (vec![], vec![]);
    let name = question.name("choices");
    let given = question.array("choices")?.ok_or_else(|| question.missing("choices"))?;
    check_count(&name, given.len(), 2, MAX_CHOICES, "choices")?;
    for (at, choice) in given.into_iter().enumerate() {
        let mut choice = question.nested(choice, &format!("{name}[{at}]"))?;
        let path = choice.name("value");
        let value = choice.take("value").ok_or_else(|| choice.missing("value"))?;
        let name = match &value {
            Value::String(text) => text.clone(),
            Value::Bool(flag) => flag.to_string(),
            other => return Err(ApiError::expected(&path, "a text, true or false", other)),
        };
        if values.contains(&value) {
            return Err(ApiError::bad(
                &*path,
                format!("{path}: {value} is there twice, choices must differ"),
            ));
        }
        options.push(QuestionOption { name, description: choice.string("description")? });
        values.push(value);
        choice.finish(Object::Question, &[])?;
    }
    Ok((QuestionKind::Choice, options, values))
}

/// `levels`, from the lowest on.
fn levels(question: &mut Params) -> Result<Options> {
    let name = question.name("levels");
    let given = question.array("levels")?.ok_or_else(|| question.missing("levels"))?;
    check_count(&name, given.len(), 2, MAX_LEVELS, "levels")?;
    let level = |(at, level): (usize, Value)| {
        let mut level = question.nested(level, &format!("{name}[{at}]"))?;
        let option = QuestionOption {
            name: level.required_string("label")?,
            description: level.string("description")?,
        };
        level.finish(Object::Question, &[])?;
        Ok(option)
    };
    let options = given.into_iter().enumerate().map(level).collect::<Result<_>>()?;
    Ok((QuestionKind::Score, options, vec![]))
}

/// `criteria` of a noul: what true and false mean.
fn noul(question: &mut Params) -> Result<Vec<QuestionOption>> {
    let Some(mut criteria) = question.object("criteria")? else { return Ok(yes_and_no(None, None)) };
    let options = yes_and_no(criteria.string("true")?, criteria.string("false")?);
    criteria.finish(Object::Question, &[])?;
    Ok(options)
}

/// `criteria` of a choice: the names of the options, and their descriptions or null.
fn criteria(question: &mut Params) -> Result<Vec<QuestionOption>> {
    let name = question.name("criteria");
    let given = question.object("criteria")?.ok_or_else(|| question.missing("criteria"))?.into_map();
    check_count(&name, given.len(), 1, MAX_CHOICES, "options")?;
    let option = |(option, description): (String, Value)| match description {
        Value::Null => Ok(QuestionOption { name: option, description: None }),
        Value::String(text) => Ok(QuestionOption { name: option, description: Some(text) }),
        other => Err(ApiError::expected(&format!("{name}.{option}"), "a text or null", &other)),
    };
    given.into_iter().map(option).collect()
}

/// `criteria` of a score: the names of the levels, from the lowest on.
fn scale(question: &mut Params) -> Result<Vec<QuestionOption>> {
    let name = question.name("criteria");
    let given = question.array("criteria")?.ok_or_else(|| question.missing("criteria"))?;
    check_count(&name, given.len(), 2, MAX_LEVELS, "levels")?;
    let level = |level: Value| match level {
        Value::String(text) => Ok(QuestionOption { name: text, description: None }),
        other => Err(ApiError::expected(&name, "an array of texts", &other)),
    };
    given.into_iter().map(level).collect()
}
