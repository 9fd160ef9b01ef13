//! Stored responses of `/v1/responses`, in memory: the oldest are dropped beyond a number and a size. Each
//! belongs to the API key that made it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::http::auth::Key;
use crate::request::json::size_and_depth;

/// A response with the conversation that it ends.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoredResponse {
    /// The response as it was returned.
    pub(crate) response: Value,
    /// The items of its conversation: those of earlier responses, the request's and its own output.
    pub(crate) items: Vec<Value>,
    /// How many of `items` precede the output.
    pub(crate) inputs: usize,
}

/// The stored responses.
pub(crate) struct ResponseStore {
    state: Mutex<State>,
    max_responses: usize,
    max_bytes: usize,
}

#[derive(Default)]
struct State {
    responses: HashMap<String, Entry>,
    /// Ids, oldest first.
    order: VecDeque<String>,
    bytes: usize,
}

struct Entry {
    key: Key,
    stored: StoredResponse,
    bytes: usize,
}

impl ResponseStore {
    pub(crate) fn new(max_responses: usize, max_bytes: usize) -> ResponseStore {
        ResponseStore { state: Mutex::default(), max_responses, max_bytes }
    }

    /// The responses of this key. Those of other keys do not exist for it.
    pub(crate) fn of(self: &Arc<Self>, key: Key) -> KeyResponses {
        KeyResponses { store: Arc::clone(self), key }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The stored responses of one API key.
#[derive(Clone)]
pub(crate) struct KeyResponses {
    store: Arc<ResponseStore>,
    key: Key,
}

impl KeyResponses {
    /// Stores a response and drops the oldest ones that exceed the limits; one that exceeds
    /// them alone is not stored.
    pub(crate) fn insert(&self, id: &str, stored: StoredResponse) {
        let size = |value: &Value| size_and_depth(value).0;
        let bytes = size(&stored.response) + stored.items.iter().map(size).sum::<usize>();
        let mut state = self.store.lock();
        state.bytes += bytes;
        state.order.push_back(id.to_owned());
        state.responses.insert(id.to_owned(), Entry { key: self.key, stored, bytes });
        while state.order.len() > self.store.max_responses || state.bytes > self.store.max_bytes {
            let Some(oldest) = state.order.pop_front() else { break };
            state.forget(&oldest);
        }
    }

    pub(crate) fn get(&self, id: &str) -> Option<StoredResponse> {
        let state = self.store.lock();
        state.responses.get(id).filter(|entry| self.owns(entry)).map(|entry| entry.stored.clone())
    }

    /// An item of any stored response.
    pub(crate) fn item(&self, id: &str) -> Option<Value> {
        let state = self.store.lock();
        let entries = state.responses.values().filter(|entry| self.owns(entry));
        let mut items = entries.flat_map(|entry| &entry.stored.items);
        items.find(|item| item["id"] == id).cloned()
    }

    /// Returns whether there was one.
    pub(crate) fn remove(&self, id: &str) -> bool {
        let mut state = self.store.lock();
        if !state.responses.get(id).is_some_and(|entry| self.owns(entry)) {
            return false;
        }
        state.order.retain(|other| other != id);
        state.forget(id)
    }

    fn owns(&self, entry: &Entry) -> bool {
        entry.key.is(&self.key).into()
    }
}

impl State {
    fn forget(&mut self, id: &str) -> bool {
        let entry = self.responses.remove(id);
        self.bytes -= entry.as_ref().map_or(0, |entry| entry.bytes);
        entry.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stored(text: &str) -> StoredResponse {
        let items = vec![json!({"id": format!("item-{text}"), "text": text})];
        StoredResponse { response: json!({}), items, inputs: 1 }
    }

    #[test]
    fn the_oldest_responses_are_dropped_beyond_the_limits() {
        let responses = Arc::new(ResponseStore::new(2, 400));
        let store = responses.of(Key::NONE);
        for id in ["a", "b", "c"] {
            store.insert(id, stored(id));
        }
        assert_eq!(store.get("a"), None);
        assert_eq!(store.get("c"), Some(stored("c")));
        assert_eq!(store.item("item-b").unwrap()["text"], "b");
        store.insert("d", stored(&"x".repeat(180)));
        assert_eq!((store.get("b"), store.get("c")), (None, None));
        assert!(store.get("d").is_some());
        store.insert("e", stored(&"x".repeat(300)));
        assert!(store.get("d").is_none() && store.get("e").is_none());
        assert_eq!(responses.lock().bytes, 0);
        store.insert("f", stored("f"));
        assert!(store.remove("f") && !store.remove("f"));
        assert_eq!(responses.lock().bytes, 0);
    }
}
