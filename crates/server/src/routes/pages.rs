//! Lists in pages, and the query strings that ask for them.

use axum::response::Response;
use serde_json::{Value, json};

use crate::http::error::{ApiError, Result};
use crate::models::names::shortened;

/// Entries of a page, if the request does not say.
const LIMIT: usize = 100;
/// Maximum entries of a page.
const MAX_LIMIT: usize = 10_000;

/// The parameters of a query string. Values are plain words: ids, numbers and names.
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn parse(text: Option<&str>) -> Query {
        let pairs = text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (name.to_owned(), value.to_owned())
        };
        Query(pairs.map(pair).collect())
    }

    pub(super) fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.remove(at).1)
    }
}

/// Which part of a list is requested.
pub(super) struct Page {
    limit: usize,
    /// The id before the first entry.
    after: Option<String>,
    oldest_first: bool,
}

impl Page {
    /// Takes the parameters of every list; others are refused by name.
    pub(super) fn take(mut query: Query) -> Result<Page> {
        let limit = match query.take("limit") {
            None => LIMIT,
            Some(text) => match text.parse() {
                Ok(limit) if (1..=MAX_LIMIT).contains(&limit) => limit,
                _ => {
                    return Err(ApiError::expected(
                        "limit",
                        format!("1 to {MAX_LIMIT}"),
                        &shortened(&text).into(),
                    ));
                }
            },
        };
        let oldest_first = match query.take("order").as_deref() {
            None | Some("desc") => false,
            Some("asc") => true,
            Some(other) => return Err(ApiError::expected("order", "asc or desc", &shortened(other).into())),
        };
        let after = query.take("after");
        match query.0.first() {
            None => Ok(Page { limit, after, oldest_first }),
            Some((name, _)) => {
                let name = shortened(name);
                Err(ApiError::bad(name.clone(), format!("unknown parameter: {name}")))
            }
        }
    }

    /// The page of a list whose oldest entry is first.
    pub(super) fn json<T>(
        &self,
        entries: &[T],
        id: impl Fn(&T) -> &str,
        json: impl Fn(&T) -> Value,
    ) -> Result<Response> {
        let mut entries: Vec<&T> = entries.iter().collect();
        if !self.oldest_first {
            entries.reverse();
        }
        let begin = match &self.after {
            None => 0,
            Some(after) => match entries.iter().position(|entry| id(entry) == after) {
                Some(at) => at + 1,
                None => {
                    let message = format!("after: no entry has the id {:?}", shortened(after));
                    return Err(ApiError::bad("after", message));
                }
            },
        };
        let rest = &entries[begin..];
        let page = &rest[..rest.len().min(self.limit)];
        Ok(super::json(&json!({
            "object": "list",
            "data": page.iter().map(|entry| json(entry)).collect::<Vec<Value>>(),
            "first_id": page.first().map(|entry| id(entry)),
            "last_id": page.last().map(|entry| id(entry)),
            "has_more": page.len() < rest.len(),
        })))
    }
}
