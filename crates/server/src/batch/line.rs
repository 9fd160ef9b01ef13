//! One line of a batch: the request that it has, and the line that its result becomes.

use serde_json::{Map, Value, json};

use super::check::BatchRules;
use super::error::LineError;
use super::lines::Text;
use super::routes::Reply;
use crate::http::error::describe;
use crate::ids;
use crate::request::json::{JsonError, MAX_VALUES, Values};

/// The routes that lines may name.
pub(crate) const ENDPOINTS: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/v1/decisions",
];

/// Maximum characters of a `custom_id`.
const MAX_ID: usize = 512;

/// What every result begins with.
pub(super) const RESULT_START: &[u8] = b"{\"id\":\"batch_req_";

/// The request of a line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BatchLine {
    pub(super) custom_id: String,
    pub(super) url: &'static str,
    pub(super) body: Map<String, Value>,
}

impl BatchLine {
    /// Parses `{"custom_id": ..., "method": "POST", "url": ..., "body": {...}}`.
    pub(super) fn parse(text: &Text, rules: &BatchRules) -> Result<BatchLine, LineError> {
        let wrong = |code, param, message| LineError { line: text.number, code, param, message };
        let invalid = |message| wrong("invalid_json_line", None, message);
        if text.too_long {
            let message = format!("longer than the limit of {} bytes", rules.max_line_bytes);
            return Err(wrong("line_too_long", None, message));
        }
        let json = std::str::from_utf8(&text.bytes).map_err(|_| invalid("not UTF-8".into()))?;
        let mut members = match Values::new().parse(json) {
            Ok(Value::Object(members)) => members,
            Ok(other) => return Err(invalid(format!("expected a JSON object, got {}", describe(&other)))),
            Err(JsonError::TooMany) => return Err(invalid(format!("more than {MAX_VALUES} JSON values"))),
            Err(JsonError::Syntax(error)) => return Err(invalid(format!("not valid JSON: {error}"))),
        };
        let expected = |param: &'static str, what: &str, got: Option<Value>| {
            let got = got.as_ref().map_or("nothing".into(), describe);
            let code = if got == "nothing" { "missing_required_parameter" } else { "invalid_value" };
            wrong(code, Some(param), format!("{param}: expected {what}, got {got}"))
        };
        let custom_id = match members.swap_remove("custom_id") {
            Some(Value::String(id)) if (1..=MAX_ID).contains(&id.chars().count()) => id,
            other => return Err(expected("custom_id", &format!("1 to {MAX_ID} characters"), other)),
        };
        match members.swap_remove("method") {
            None => {}
            Some(Value::String(method)) if method == "POST" => {}
            other => return Err(expected("method", "POST", other)),
        }
        let url = match members.swap_remove("url") {
            Some(Value::String(url)) => {
                let known = ENDPOINTS.iter().copied().find(|known| *known == url);
                known.ok_or_else(|| {
                    let what = format!("one of {}", ENDPOINTS.join(", "));
                    let mut error = expected("url", &what, Some(url.into()));
                    error.code = "invalid_url";
                    error
                })?
            }
            other => return Err(expected("url", "a string", other)),
        };
        if let Some(endpoint) = rules.endpoint.filter(|endpoint| *endpoint != url) {
            let message = format!("url: expected {endpoint}, the endpoint of the batch, got {url}");
            return Err(wrong("mismatched_endpoint", Some("url"), message));
        }
        let body = match members.swap_remove("body") {
            Some(Value::Object(body)) => body,
            other => return Err(expected("body", "an object", other)),
        };
        if let Some(stream) = body.get("stream").filter(|stream| **stream == true) {
            return Err(expected("body.stream", "false: a batch has no streams", Some(stream.clone())));
        }
        Ok(BatchLine { custom_id, url, body })
    }
}

/// The line of a request that was answered, well or not.
pub(super) fn answered(custom_id: &str, reply: &Reply) -> Vec<u8> {
    let (id, custom_id) = (ids::id("batch_req_"), json!(custom_id));
    let (status, request_id) = (reply.status, json!(reply.request_id));
    let mut line = format!(
        "{{\"id\":\"{id}\",\"custom_id\":{custom_id},\"response\":{{\"status_code\":{status},\"request_id\":{request_id},\"body\":"
    )
    .into_bytes();
    // bodies are JSON without line feeds
    line.extend_from_slice(&reply.body);
    line.extend_from_slice(b"},\"error\":null}\n");
    line
}

/// The line of a request that was not answered.
pub(super) fn unanswered(custom_id: &str, code: &str, message: &str) -> Vec<u8> {
    let error = json!({"code": code, "message": message});
    let line = json!({"id": ids::id("batch_req_"), "custom_id": custom_id, "response": null, "error": error});
    format!("{line}\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<BatchLine, LineError> {
        let rules = BatchRules { endpoint: Some("/v1/completions"), ..BatchRules::default() };
        let text = Text { number: 3, bytes: line.into(), too_long: false, complete: true, size: 0 };
        BatchLine::parse(&text, &rules)
    }

    #[test]
    fn a_line_has_an_id_a_route_and_a_body() {
        let line =
            parse(r#"{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"x": 1}}"#);
        assert_eq!(line.unwrap().body["x"], 1);
        for (line, code, param, message) in [
            ("[]", "invalid_json_line", None, "expected a JSON object, got an array of 0"),
            (
                "{",
                "invalid_json_line",
                None,
                "not valid JSON: EOF while parsing an object at line 1 column 1",
            ),
            (
                "{}",
                "missing_required_parameter",
                Some("custom_id"),
                "custom_id: expected 1 to 512 characters, got nothing",
            ),
            (
                r#"{"custom_id": ""}"#,
                "invalid_value",
                Some("custom_id"),
                "custom_id: expected 1 to 512 characters, got \"\"",
            ),
            (
                r#"{"custom_id": "a", "method": "GET"}"#,
                "invalid_value",
                Some("method"),
                "method: expected POST, got \"GET\"",
            ),
            (
                r#"{"custom_id": "a", "url": "/v1/chat/completions", "body": {}}"#,
                "mismatched_endpoint",
                Some("url"),
                "url: expected /v1/completions, the endpoint of the batch, got /v1/chat/completions",
            ),
            (
                r#"{"custom_id": "a", "url": "/v1/completions", "body": {"stream": true}}"#,
                "invalid_value",
                Some("body.stream"),
                "body.stream: expected false: a batch has no streams, got true",
            ),
            (
                r#"{"custom_id": "a", "url": "/v1/completions"}"#,
                "missing_required_parameter",
                Some("body"),
                "body: expected an object, got nothing",
            ),
        ] {
            let want = LineError { line: 3, code, param, message: message.into() };
            assert_eq!(parse(line), Err(want), "{line}");
        }
        let error = parse(r#"{"custom_id": "a", "url": "/v1/models", "body": {}}"#).unwrap_err();
        assert_eq!(error.code, "invalid_url");
    }

    #[test]
    fn results_are_lines_of_json() {
        let reply = Reply { status: 200, request_id: "req-1".into(), body: "{\"x\":[1]}".into() };
        let line = answered("a\"\n", &reply);
        assert!(line.starts_with(RESULT_START) && line.ends_with(b"\n"));
        let value: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(value["custom_id"], "a\"\n");
        assert_eq!(value["response"], json!({"status_code": 200, "request_id": "req-1", "body": {"x": [1]}}));
        assert_eq!(value["error"], Value::Null);
        let line = unanswered("b", "batch_expired", "too late");
        assert!(line.starts_with(RESULT_START) && line.ends_with(b"\n"));
        let value: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(value["error"], json!({"code": "batch_expired", "message": "too late"}));
    }
}
