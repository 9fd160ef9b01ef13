//! Streams that were recorded: `fixtures/clients`, which `scripts/clients_test.py` validates with the
//! clients' own types.

use std::path::PathBuf;

use serde_json::Value;

/// The data of each server-sent event; an event's name must be its type.
pub(crate) fn events(text: &str) -> Vec<Value> {
    let mut events = Vec::new();
    let mut name = None;
    for line in text.lines() {
        if let Some(given) = line.strip_prefix("event: ") {
            name = Some(given.to_owned());
        } else if let Some(data) = line.strip_prefix("data: ") {
            let event: Value = serde_json::from_str(data).unwrap();
            assert_eq!(event["type"], name.take().unwrap(), "{event}");
            events.push(event);
        }
    }
    events
}

/// Compares events with those of a file, except for ids and times. A missing file is
/// written, and the test fails.
pub(crate) fn check(file: &str, events: &[Value]) {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/clients")).join(file);
    let line = |event: &Value| format!("{}\n", without_ids(event.clone()));
    let text: String = events.iter().map(line).collect();
    match std::fs::read_to_string(&path) {
        Ok(want) => assert_eq!(text, want, "{}: delete it to record it again", path.display()),
        Err(_) => {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            panic!("{} was missing and is recorded now: read it", path.display());
        }
    }
}

fn without_ids(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(without_ids).collect(),
        Value::Object(members) => {
            let member = |(name, value): (String, Value)| {
                let value = match (name.as_str(), value) {
                    ("id" | "item_id" | "call_id", Value::String(_)) => "id".into(),
                    ("created_at" | "completed_at", Value::Number(_)) => 1.into(),
                    (_, value) => without_ids(value),
                };
                (name, value)
            };
            Value::Object(members.into_iter().map(member).collect())
        }
        value => value,
    }
}
