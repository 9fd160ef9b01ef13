//! Independent work on several threads, with results in order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use crate::error::CliResult;

/// Computes `each` of all items on up to `threads` threads, each with its own `state`, and calls `done` with
/// the results in the order of the items, as soon as they are known. Ends with the first error of `done`.
pub(crate) fn in_parallel<T: Sync, S, R: Send>(
    items: &[T],
    threads: usize,
    state: impl Fn() -> S + Sync,
    each: impl Fn(&mut S, &T) -> R + Sync,
    mut done: impl FnMut(R) -> CliResult<()>,
) -> CliResult<()> {
    let (next, (sender, results)) = (AtomicUsize::new(0), mpsc::channel());
    thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            let (sender, next, state, each) = (sender.clone(), &next, &state, &each);
            scope.spawn(move || {
                let mut state = state();
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { return };
                    if sender.send((index, each(&mut state, item))).is_err() {
                        return; // results are not read after an error
                    }
                }
            });
        }
        drop(sender);
        let (mut waiting, mut expected) = (BTreeMap::new(), 0);
        for (index, result) in results {
            waiting.insert(index, result);
            while let Some(result) = waiting.remove(&expected) {
                done(result)?;
                expected += 1;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::CliError;

    #[test]
    fn results_come_in_order_and_an_error_ends_the_work() {
        let items: Vec<u64> = (0..50).collect();
        let each = |count: &mut u64, item: &u64| {
            *count += 1;
            thread::sleep(std::time::Duration::from_micros(item * 37 % 100));
            item * 2
        };
        let mut all = vec![];
        in_parallel(
            &items,
            4,
            || 0,
            each,
            |n| {
                all.push(n);
                Ok(())
            },
        )
        .expect("no error");
        assert_eq!(all, items.iter().map(|n| n * 2).collect::<Vec<_>>());
        let mut seen = 0;
        let ended = in_parallel(
            &items,
            4,
            || 0,
            each,
            |n| {
                seen += 1;
                if n == 20 { Err(CliError::message("enough")) } else { Ok(()) }
            },
        );
        assert_eq!((ended.is_err(), seen), (true, 11));
    }
}
