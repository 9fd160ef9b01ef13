//! A counting semaphore with a timeout.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The free slots.
pub(crate) struct Slots {
    free: Mutex<usize>,
    freed: Condvar,
}

/// A slot that is released on drop, on any thread.
pub(crate) struct Slot(Arc<Slots>);

impl Slots {
    pub(crate) fn new(slots: usize) -> Arc<Slots> {
        Arc::new(Slots { free: Mutex::new(slots), freed: Condvar::new() })
    }

    /// A slot, or `None` after the timeout.
    pub(crate) fn take(self: &Arc<Slots>, timeout: Duration) -> Option<Slot> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.freed.wait_timeout_while(free, timeout, |free| *free == 0);
        let (mut free, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *free = free.checked_sub(1)?;
        Some(Slot(Arc::clone(self)))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_slot_is_free_again() {
        let slots = Slots::new(1);
        let slot = slots.take(Duration::ZERO);
        assert!(slot.is_some());
        assert!(slots.take(Duration::from_millis(1)).is_none());
        let waiting = std::thread::spawn({
            let slots = Arc::clone(&slots);
            move || slots.take(Duration::from_secs(60)).is_some()
        });
        drop(slot);
        assert!(waiting.join().unwrap());
    }
}
