//! The pool on real threads.

use std::time::{Duration, Instant};

use sync::{AtomicUsize, Ordering};
use threads::{Pool, Task, Whose};

#[path = "../../src/sync.rs"]
mod sync;
#[expect(dead_code, reason = "no test uses all of it")]
#[path = "../../src/threads.rs"]
mod threads;

fn task(index: usize, items: usize, unit: usize) -> Task {
    Task { index, items, unit, most: 2 * unit }
}

#[test]
fn every_item_is_done_once_and_barriers_order_phases() {
    for threads in [1, 2, 3, 5] {
        let mut pool = Pool::new(threads).unwrap();
        for round in 0..100 {
            // two tasks per phase
            let counts: Vec<[AtomicUsize; 50]> =
                (0..8).map(|_| [const { AtomicUsize::new(0) }; 50]).collect();
            let ok = pool.run(&|w| {
                for phase in 0..4 {
                    if (round + phase + w.index) % 7 == 0 {
                        std::thread::yield_now(); // other threads take what this one leaves
                    }
                    for whose in [Whose::Own, Whose::Others] {
                        for i in 2 * phase..2 * phase + 2 {
                            for item in w.share(task(i, 50 - i, 1 + i % 3), whose).flatten() {
                                counts[i][item].fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                    w.barrier();
                    for i in 0..2 * phase + 2 {
                        let done = |item: usize| counts[i][item].load(Ordering::Relaxed);
                        assert!((0..50).all(|item| done(item) == usize::from(item < 50 - i)));
                    }
                }
            });
            assert!(ok);
        }
    }
}

#[test]
fn a_panic_in_one_thread_fails_the_job_and_not_the_pool() {
    let mut pool = Pool::new(3).unwrap();
    std::panic::set_hook(Box::new(|_| {}));
    for bad in 0..30 {
        assert!(!pool.run(&|w| {
            w.share_all(task(0, 30, 1)).for_each(|item| assert!(item != bad));
            w.barrier();
            assert!(w.share_all(task(1, 30, 1)).next().is_none(), "past a barrier that nobody passes");
        }));
        assert!(pool.run(&|w| w.barrier()));
    }
}

#[test]
fn a_late_thread_does_not_block_the_others() {
    let mut pool = Pool::new(2).unwrap();
    let late = Duration::from_millis(200);
    let start = Instant::now();
    for _ in 0..20 {
        let in_time = AtomicUsize::new(0);
        assert!(pool.run(&|w| {
            if w.index == 1 && start.elapsed() < late {
                return; // as if it had not entered
            }
            for i in 0..50 {
                in_time.fetch_add(w.share_all(task(i, 10, 1)).count(), Ordering::Relaxed);
                w.barrier();
            }
        }));
        assert_eq!(in_time.into_inner(), 500);
    }
}
/// Runs `jobs` jobs of some phases with few items, most of them short and some long, on
/// more threads than cores.
fn small_jobs(jobs: usize, most: Duration) {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let mut pool = Pool::new(4 * cores).expect("threads");
    let start = Instant::now();
    for job in 0..jobs {
        let (phases, items, spins) = (1 + job % 7, 1 + job % 23, [0, 10, 100, 1000][job % 4]);
        let done = AtomicUsize::new(0);
        assert!(pool.run(&|w| {
            for i in 0..phases {
                for _ in w.share_all(task(i, items, 1)) {
                    (0..spins).for_each(|_| sync::spin_loop());
                    done.fetch_add(1, Ordering::Relaxed);
                }
                w.barrier();
            }
        }));
        assert_eq!(done.into_inner(), phases * items);
        if start.elapsed() > most {
            break; // a busy machine
        }
    }
}

#[test]
fn many_small_jobs_on_more_threads_than_cores() {
    small_jobs(50_000, Duration::from_secs(3));
}

/// Run manually: `cargo nextest run -p tern-cpu millions --run-ignored only`
#[test]
#[ignore = "takes minutes"]
fn millions_of_small_jobs_on_more_threads_than_cores() {
    small_jobs(5_000_000, Duration::from_secs(3600));
}
