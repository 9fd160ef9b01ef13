//! One rendering: its limits, and the origins of its text.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::meter::{Meter, Stop, is_data};
use super::origins::Origins;
use super::traced::{Piece, Traced, whole};
use super::{ChatInput, TemplateError, python};

/// Steps of the engine, in addition to a multiple of the conversation's bytes.
const STEPS: u64 = 2_000_000;
const STEPS_PER_BYTE: u64 = 4;
/// Bytes that may be read and created while rendering, in addition to a multiple of the conversation's bytes.
const WORK: u64 = 64 << 20;
const WORK_PER_BYTE: u64 = 1024;
/// Bytes of output, in addition to a multiple of the conversation's bytes.
const OUTPUT: u64 = 4 << 20;
const OUTPUT_PER_BYTE: u64 = 8;

/// The limits of one rendering.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) steps: u64,
    work: u64,
    output: u64,
}

impl Limits {
    fn of(input: &ChatInput) -> Limits {
        let bytes = size(&input.messages)
            + input.tools.as_ref().map_or(0, size)
            + input.kwargs.values().map(size).sum::<u64>();
        Limits {
            steps: STEPS.saturating_add(bytes.saturating_mul(STEPS_PER_BYTE)),
            work: WORK.saturating_add(bytes.saturating_mul(WORK_PER_BYTE)),
            output: OUTPUT.saturating_add(bytes.saturating_mul(OUTPUT_PER_BYTE)),
        }
    }
}

/// The state shared by all functions that a template calls.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) limits: Limits,
    pub(super) meter: Meter,
    pub(super) origins: Origins,
}

impl Run {
    pub(super) fn new(input: &ChatInput) -> Run {
        let limits = Limits::of(input);
        let meter = Meter::new(limits.work, input.cancelled.clone());
        Run { limits, meter, origins: Origins::default() }
    }

    /// `str(value)`.
    pub(super) fn text(&self, value: &Value) -> Result<Traced, Error> {
        let mut out = Traced::default();
        python::write(self, &mut out, value)?;
        Ok(out)
    }

    /// `str(value)` without its origins.
    pub(super) fn plain_text(&self, value: &Value) -> Result<String, Error> {
        Ok(self.text(value)?.text)
    }

    /// Records what is written, and stops if the whole text becomes too long.
    pub(super) fn wrote(&self, piece: &Piece<'_>) -> Result<(), Error> {
        match self.origins.wrote(piece) {
            Some(len) if len as u64 > self.limits.output => {
                Err(self.meter.stop(Stop::Output(len as u64), "text too long"))
            }
            _ => Ok(()),
        }
    }

    /// A result whose text may come from any of `sources`: if they contain a user's text, all of
    /// it counts as the user's.
    pub(super) fn inherit(&self, result: Value, sources: &[Value]) -> Result<Value, Error> {
        if !self.holds_text(&result, false)? {
            return Ok(result);
        }
        for source in sources {
            if self.holds_text(source, true)? {
                return self.all_users(result);
            }
        }
        Ok(result)
    }

    /// Whether a value is or contains a string, or a string of the user's.
    fn holds_text(&self, value: &Value, users: bool) -> Result<bool, Error> {
        if let Some(text) = value.as_str() {
            return Ok(!text.is_empty() && (!users || self.origins.is_users(value)));
        }
        self.meter.charge_shallow(value)?;
        for item in python::held(value) {
            if self.holds_text(&item, users)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn all_users(&self, value: Value) -> Result<Value, Error> {
        if let Some(text) = value.as_str() {
            let len = text.len();
            self.meter.charge(len)?;
            return Ok(self.origins.respan(value, whole(len)));
        }
        let held = python::held(&value);
        self.meter.charge_elements(held.len())?;
        let held =
            held.into_iter().map(|item| self.all_users(item)).collect::<Result<Vec<Value>, Error>>()?;
        Ok(match value.kind() {
            ValueKind::Seq if value.is_tuple() => Value::from(Tuple::from(held)),
            ValueKind::Seq | ValueKind::Iterable => Value::from(held),
            ValueKind::Map if is_data(&value) => {
                Value::from_pairs(held.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())))
            }
            _ => value,
        })
    }

    /// The error of a failed rendering.
    pub(super) fn explain(&self, error: &Error) -> TemplateError {
        match self.meter.stopped() {
            Some(Stop::Raised(message)) => return TemplateError::Raised(message),
            Some(Stop::Work) => return TemplateError::Work(self.limits.work),
            Some(Stop::Depth) => return TemplateError::Depth,
            Some(Stop::Output(len)) => return TemplateError::Output { len, limit: self.limits.output },
            Some(Stop::Cancelled) => return TemplateError::Cancelled,
            None => {}
        }
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(inner) = cause {
            if inner.downcast_ref::<Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
                return TemplateError::Steps(self.limits.steps);
            }
            cause = inner.source();
        }
        TemplateError::Render { line: error.line().unwrap_or(0), what: message(error) }
    }
}

/// The engine's message without the position, which is reported separately.
pub(super) fn message(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// The approximate size of a JSON value in bytes.
fn size(value: &serde_json::Value) -> u64 {
    use serde_json::Value as Json;
    match value {
        Json::String(text) => text.len() as u64 + 2,
        Json::Array(items) => items.iter().map(size).sum::<u64>() + 2,
        Json::Object(map) => map.iter().map(|(key, item)| key.len() as u64 + 4 + size(item)).sum::<u64>() + 2,
        _ => 5,
    }
}
