//! Weights on their way to a backend: threads make the next few while one is stored, in order.
//!
//! How many are in memory is bounded, so that a model of any size is loaded with the memory of a few of its tensors.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use tern_graph::{HostTensor, LazyTensor, WeightError};

/// Weights per thread that are made and not yet stored, at most.
const PER_THREAD: usize = 2;
/// Bytes of weights that are made and not yet stored, at most. One weight may have more.
const BYTES: usize = 1 << 30;

type Made = Result<HostTensor, WeightError>;

/// What is made, and what may be next.
struct Queue {
    /// The next weight to make.
    next: usize,
    /// Weights that are stored.
    stored: usize,
    /// The weights from `stored` on that are made, or that a thread makes.
    ahead: VecDeque<Option<Made>>,
    /// Bytes of the weights from `stored` on that are made, or that a thread makes.
    bytes: usize,
    /// Nothing is taken any more.
    ended: bool,
}

struct Shared<'a> {
    tensors: &'a [LazyTensor],
    most: usize,
    most_bytes: usize,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// Makes `tensors` on `threads` threads and passes them to `store` on this one, in order; ends with the first error.
pub(crate) fn made_ahead<E: From<WeightError>>(
    tensors: &[LazyTensor],
    threads: usize,
    store: impl FnMut(HostTensor) -> Result<(), E>,
) -> Result<(), E> {
    made_within(tensors, threads, BYTES, store)
}

fn made_within<E: From<WeightError>>(
    tensors: &[LazyTensor],
    threads: usize,
    most_bytes: usize,
    mut store: impl FnMut(HostTensor) -> Result<(), E>,
) -> Result<(), E> {
    let threads = threads.clamp(1, tensors.len().max(1));
    if tensors.iter().all(LazyTensor::is_ready) {
        return tensors.iter().try_for_each(|tensor| store(tensor.make()?));
    }
    let queue = Queue { next: 0, stored: 0, ahead: VecDeque::new(), bytes: 0, ended: false };
    let most = PER_THREAD * threads;
    let shared = &Shared { tensors, most, most_bytes, queue: Mutex::new(queue), changed: Condvar::new() };
    thread::scope(|scope| {
        let _end = End(shared); // also if `store` fails or panics
        let start = |_: &usize| {
            let worker = thread::Builder::new().name("tern-weights".into());
            worker.spawn_scoped(scope, || shared.work()).is_ok()
        };
        if (0..threads).take_while(start).count() == 0 {
            // the system has no thread left
            return tensors.iter().try_for_each(|tensor| store(tensor.make()?));
        }
        for tensor in tensors {
            let made = shared.take()?;
            store(made)?;
            shared.has_stored(tensor);
        }
        Ok(())
    })
}

/// Ends the threads when it goes out of scope.
struct End<'a>(&'a Shared<'a>);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.queue().ended = true;
        self.0.changed.notify_all();
    }
}

impl<'a> Shared<'a> {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // nothing panics while it is locked
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'q>(&self, queue: MutexGuard<'q, Queue>) -> MutexGuard<'q, Queue> {
        self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes weights until there are no more.
    fn work(&self) {
        while let Some((index, tensor)) = self.begin() {
            let made = catch_unwind(AssertUnwindSafe(|| tensor.make())).unwrap_or_else(|_| {
                let (name, reason) = (tensor.name().to_string(), "the thread that made it failed".into());
                Err(WeightError::NotMade { name, reason })
            });
            let mut queue = self.queue();
            let place = index - queue.stored;
            if let Some(slot) = queue.ahead.get_mut(place) {
                *slot = Some(made);
            }
            self.changed.notify_all();
        }
    }

    /// The next weight, as soon as there is space for it.
    fn begin(&self) -> Option<(usize, &'a LazyTensor)> {
        let mut queue = self.queue();
        loop {
            let index = queue.next;
            let tensor = self.tensors.get(index).filter(|_| !queue.ended)?;
            let bytes = queue.bytes.saturating_add(tensor.bytes());
            if queue.ahead.is_empty() || (queue.ahead.len() < self.most && bytes <= self.most_bytes) {
                queue.next += 1;
                queue.bytes = bytes;
                queue.ahead.push_back(None);
                return Some((index, tensor));
            }
            queue = self.wait(queue);
        }
    }

    /// Waits for the oldest weight.
    fn take(&self) -> Made {
        let mut queue = self.queue();
        loop {
            // its place stays until it is stored
            match queue.ahead.front_mut().and_then(Option::take) {
                Some(made) => return made,
                None => queue = self.wait(queue),
            }
        }
    }

    fn has_stored(&self, tensor: &LazyTensor) {
        let mut queue = self.queue();
        queue.ahead.pop_front();
        queue.stored += 1;
        queue.bytes -= tensor.bytes();
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    /// A tensor of one value.
    fn tensor(name: &str, make: impl Fn() -> Result<f32, WeightError> + Send + Sync + 'static) -> LazyTensor {
        let quant = HostTensor::from_f32(name, 1, 1, &[0.0]).quant();
        LazyTensor::new(name, quant, [1, 1], move || Ok(make()?.to_le_bytes().to_vec().into())).unwrap()
    }

    /// Tensors of one value, their index; `made` counts those that are made.
    fn tensors(count: usize, made: &Arc<AtomicUsize>) -> Vec<LazyTensor> {
        let counted = |i: usize| {
            let made = Arc::clone(made);
            tensor(&format!("w{i}"), move || {
                made.fetch_add(1, Ordering::SeqCst);
                thread::sleep(Duration::from_micros((i as u64 * 37) % 300)); // out of order
                Ok(i as f32)
            })
        };
        (0..count).map(counted).collect()
    }

    #[test]
    fn weights_are_stored_in_order_and_few_are_made_ahead() {
        let made = Arc::default();
        let all = tensors(100, &made);
        for threads in [1, 3, 200] {
            made.store(0, Ordering::SeqCst);
            let (mut stored, mut most) = (vec![], 0);
            let store = |tensor: HostTensor| {
                thread::sleep(Duration::from_micros(200));
                most = most.max(made.load(Ordering::SeqCst) - stored.len());
                stored.push(tensor.to_f32()[0]);
                Ok::<_, WeightError>(())
            };
            made_ahead(&all, threads, store).unwrap();
            assert_eq!(stored, (0..100).map(|i| i as f32).collect::<Vec<_>>());
            assert!(most <= PER_THREAD * threads, "{most} ahead on {threads} threads");
        }
    }

    #[test]
    fn bytes_ahead_are_bounded_and_a_larger_weight_is_made_alone() {
        // each tensor has 4 bytes
        for (most_bytes, want) in [(1, 1), (4, 1), (12, 3)] {
            let made = Arc::<AtomicUsize>::default();
            let (mut stored, mut most) = (0, 0);
            let store = |_| {
                thread::sleep(Duration::from_millis(2)); // so that as many are made as may
                most = most.max(made.load(Ordering::SeqCst) - stored);
                stored += 1;
                Ok::<_, WeightError>(())
            };
            made_within(&tensors(20, &made), 4, most_bytes, store).unwrap();
            assert_eq!((stored, most), (20, want), "within {most_bytes} bytes");
        }
    }

    #[test]
    fn the_first_error_ends_the_work_and_names_the_weight() {
        let made = Arc::default();
        let mut all = tensors(50, &made);
        let refused = WeightError::NoMemory { name: "w20".into(), bytes: 4 };
        let refuses = refused.clone();
        all[20] = tensor("w20", move || Err(refuses.clone()));
        let run = |all: &[LazyTensor], fails: usize| {
            let mut stored = 0;
            let store = |_| {
                stored += 1;
                if stored > fails { Err(refused.clone()) } else { Ok(()) }
            };
            let error = made_ahead(all, 3, store).unwrap_err();
            (stored, error.to_string())
        };
        let message = "w20: the system refuses the 4 bytes that it takes";
        assert_eq!(run(&all, usize::MAX), (20, message.into()));
        assert_eq!(run(&all, 5), (6, message.into())); // the backend's own error
        all[10] = tensor("w10", || panic!("expected in this test"));
        let message = "w10: cannot be made: the thread that made it failed";
        assert_eq!(run(&all, usize::MAX), (10, message.into()));
        assert!(made.load(Ordering::SeqCst) < 100, "the rest is not made");
    }
}
