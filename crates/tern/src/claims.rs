//! The memory of a device that loads beside each other have planned with.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that loads in progress have planned with and may not have taken yet. Loads whose options share it
/// run beside each other and never plan with the same bytes: one plans at a time, which is short, and then
/// claims what it will take until it has it.
#[derive(Clone, Debug, Default)]
pub struct MemoryClaims(Arc<Mutex<u64>>);

/// The right to plan.
pub(crate) struct Planning<'a> {
    claims: &'a MemoryClaims,
    claimed: MutexGuard<'a, u64>,
}

/// Claimed bytes, free for others again when it is dropped: then they are taken, or never will be.
pub(crate) struct Claim {
    claims: MemoryClaims,
    bytes: u64,
}

impl MemoryClaims {
    fn lock(&self) -> MutexGuard<'_, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other load plans.
    pub(crate) fn plan(&self) -> Planning<'_> {
        Planning { claims: self, claimed: self.lock() }
    }
}

impl Planning<'_> {
    /// What is left of `free` bytes.
    pub(crate) fn left(&self, free: u64) -> u64 {
        free.saturating_sub(*self.claimed)
    }

    /// Claims what was planned.
    pub(crate) fn claim(mut self, bytes: u64) -> Claim {
        *self.claimed = self.claimed.saturating_add(bytes);
        Claim { claims: self.claims.clone(), bytes }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = self.claims.lock();
        *claimed = claimed.saturating_sub(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_load_has_claimed_is_not_planned_with_by_another() {
        let claims = MemoryClaims::default();
        let first = claims.plan();
        assert_eq!(first.left(100), 100);
        let first = first.claim(60);
        let second = claims.clone().plan().claim(30);
        assert_eq!(claims.plan().left(100), 10);
        assert_eq!(claims.plan().left(50), 0);
        drop(first);
        assert_eq!(claims.plan().left(100), 70);
        drop(second);
        assert_eq!(claims.plan().left(100), 100);
    }
}
