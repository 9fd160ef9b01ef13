//! Fairness between clients: what each has, and whose turn is next.
//!
//! The next sequence is one of the client with the fewest running sequences; of those, of the client that has
//! waited for its turn the longest. So what a client waits for does not depend on how many sequences another
//! one has in the queue.

use std::collections::HashMap;

/// The clients that have sequences.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clients {
    accounts: HashMap<u64, Account>,
    /// Counts turns.
    turns: u64,
}

/// The sequences of a client, and its last turn.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    running: usize,
    waiting: usize,
    /// When its last sequence started, or when it came.
    since: u64,
}

impl Clients {
    /// A sequence enters the queue; a client without others is the last to have its turn.
    pub(crate) fn enter(&mut self, client: u64) {
        let since = self.next_turn();
        self.accounts.entry(client).or_insert(Account { since, ..Account::default() }).waiting += 1;
    }

    fn next_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    /// Whether no more than one client has sequences.
    pub(crate) fn is_one(&self) -> bool {
        self.accounts.len() < 2
    }

    /// A sequence leaves the queue to run.
    pub(crate) fn start(&mut self, client: u64) {
        let since = self.next_turn();
        let account = self.accounts.entry(client).or_default();
        account.waiting = account.waiting.saturating_sub(1);
        account.running += 1;
        account.since = since;
    }

    /// A running sequence goes back to the queue.
    pub(crate) fn stop(&mut self, client: u64) {
        let account = self.accounts.entry(client).or_default();
        account.running = account.running.saturating_sub(1);
        account.waiting += 1;
    }

    /// A running sequence has ended.
    pub(crate) fn leave(&mut self, client: u64) {
        self.end(client, |account| account.running = account.running.saturating_sub(1));
    }

    /// A waiting sequence is dropped.
    pub(crate) fn leave_queue(&mut self, client: u64) {
        self.end(client, |account| account.waiting = account.waiting.saturating_sub(1));
    }

    fn end(&mut self, client: u64, end: impl FnOnce(&mut Account)) {
        if let Some(account) = self.accounts.get_mut(&client) {
            end(account);
            if account.running + account.waiting == 0 {
                self.accounts.remove(&client);
            }
        }
    }

    /// The sequences of a client that run or wait.
    pub(crate) fn open(&self, client: u64) -> usize {
        self.accounts.get(&client).map_or(0, |account| account.running + account.waiting)
    }

    /// The lowest is next.
    pub(crate) fn standing(&self, client: u64) -> (usize, u64) {
        self.accounts.get(&client).map_or((0, 0), |account| (account.running, account.since))
    }

    /// Whether a running sequence of `from` gives way to a waiting one of `to`: only if `from` has no fewer
    /// than `to` afterwards, so that they never take turns in preempting each other.
    pub(crate) fn yields(&self, from: u64, to: u64) -> bool {
        self.standing(from).0 > self.standing(to).0 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_with_the_least_is_next() {
        let mut clients = Clients::default();
        for _ in 0..3 {
            clients.enter(1);
            clients.start(1);
        }
        clients.enter(2);
        clients.enter(3);
        assert!(clients.standing(2) < clients.standing(3) && clients.standing(3) < clients.standing(1));
        assert!(clients.yields(1, 2) && !clients.yields(2, 1));
        clients.stop(1);
        clients.start(2);
        assert!(!clients.yields(1, 2), "two and one: nobody gains");
        clients.leave(2);
        clients.enter(2);
        assert!(clients.standing(3) < clients.standing(2), "who comes back is behind who waits");
        clients.leave_queue(2);
        clients.leave_queue(3);
        assert_eq!((clients.open(1), clients.open(2), clients.is_one()), (3, 0, true));
        (0..2).for_each(|_| clients.leave(1));
        clients.leave_queue(1);
        assert!(clients.accounts.is_empty());
    }
}
