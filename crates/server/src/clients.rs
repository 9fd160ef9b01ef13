//! Fairness between clients: how many requests each has, and the priority that follows from it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Requests of a client that are distinguished; further ones rank equally.
const RANKS: i64 = 1 << 10;

/// Who sent a request: the hash of its API key, and the user that it names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ClientKey {
    pub(crate) key: u64,
    pub(crate) user: Option<String>,
}

/// The sequences of each client that are running or waiting.
#[derive(Clone, Default)]
pub(crate) struct Clients(Arc<Mutex<HashMap<ClientKey, usize>>>);

/// A request in its client's count, until it is dropped.
pub(crate) struct ClientTurn {
    clients: Clients,
    key: ClientKey,
    /// Sequences of this request.
    count: usize,
    /// Sequences of the client before it.
    before: usize,
}

impl Clients {
    /// Counts a request of `count` sequences.
    pub(crate) fn enter(&self, key: ClientKey, count: usize) -> ClientTurn {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let open = clients.entry(key.clone()).or_default();
        let before = *open;
        *open += count;
        drop(clients);
        ClientTurn { clients: self.clone(), key, count, before }
    }
}

impl ClientTurn {
    /// The priority for the engine: the request's own, then the number of requests that its client already has. So the
    /// first request of a client is scheduled before the hundredth of another, however late it arrives.
    pub(crate) fn priority(&self, requested: i32) -> i32 {
        let rank = i64::try_from(self.before).unwrap_or(i64::MAX).min(RANKS - 1);
        let priority = i64::from(requested).saturating_mul(RANKS).saturating_add(rank);
        priority.clamp(i64::from(i32::MIN) + 1, i64::from(i32::MAX)) as i32
    }
}

impl Drop for ClientTurn {
    fn drop(&mut self) {
        let mut clients = self.clients.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = clients.get_mut(&self.key) {
            *open = open.saturating_sub(self.count);
            if *open == 0 {
                clients.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_with_many_requests_ranks_behind_one_with_few() {
        let clients = Clients::default();
        let key = |user: &str| ClientKey { key: 1, user: Some(user.into()) };
        let many: Vec<ClientTurn> = (0..3).map(|_| clients.enter(key("many"), 2)).collect();
        let few = clients.enter(key("few"), 1);
        let priorities: Vec<i32> = many.iter().chain([&few]).map(|turn| turn.priority(0)).collect();
        assert_eq!(priorities, [0, 2, 4, 0]);
        assert!(many[2].priority(-1) < few.priority(0), "the request's own priority goes first");
        assert_eq!(few.priority(i32::MAX), i32::MAX);
        drop(many);
        assert_eq!(clients.enter(key("many"), 1).priority(5), 5 * 1024);
        drop(few);
        assert!(clients.0.lock().unwrap().is_empty());
    }
}
