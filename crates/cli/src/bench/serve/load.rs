//! A round of load: requests from a fixed number of streams, as fast as they allow or
//! at random arrival times.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tern::graph::Random;

use super::client::{Reply, RequestError};
use crate::error::{CliError, CliResult};

/// Stack of a stream's thread.
const STACK: usize = 512 << 10;

/// What a round sends.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// Requests at once.
    pub(crate) streams: usize,
    pub(crate) requests: usize,
    /// Seconds after the start of the round at which each request is sent; empty if all are sent immediately.
    pub(crate) arrivals: Vec<f64>,
}

/// A request that was sent.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// Seconds after the start of the round.
    pub(crate) sent: f64,
    /// Seconds between its arrival time and `sent`: all streams were busy.
    pub(crate) late: f64,
    /// Seconds after the start of the round.
    pub(crate) end: f64,
    pub(crate) result: Result<Reply, RequestError>,
}

/// Times of `requests` arrivals with `rate` per second on average: a Poisson process, the first at 0.
pub(crate) fn poisson(rate: f64, requests: usize, seed: u64) -> Vec<f64> {
    let mut random = Random::new(seed);
    let mut at = 0.0;
    let next = |_| {
        let now = at;
        let uniform = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64; // [0, 1)
        at -= (1.0 - uniform).ln() / rate;
        now
    };
    (0..requests).map(next).collect()
}

impl Load {
    /// Sends all requests and returns them in the order of their numbers. Each stream is a thread: `prepare`
    /// makes the request with a number, outside of measured times, and `send` blocks until its end.
    pub(crate) fn run<T>(
        &self,
        prepare: impl Fn(usize) -> T + Sync,
        send: impl Fn(T) -> Result<Reply, RequestError> + Sync,
    ) -> CliResult<Vec<Record>> {
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(self.requests)));
        let start = Instant::now();
        let stream = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= self.requests {
                    return;
                }
                let request = prepare(number);
                let arrival = self.arrivals.get(number).copied().unwrap_or(0.0);
                let wait = Duration::from_secs_f64(arrival).saturating_sub(start.elapsed());
                thread::sleep(wait);
                let sent = start.elapsed().as_secs_f64();
                let late = if self.arrivals.is_empty() { 0.0 } else { sent - arrival };
                let result = send(request);
                let record = Record { sent, late, end: start.elapsed().as_secs_f64(), result };
                done.lock().unwrap_or_else(|e| e.into_inner()).push((number, record));
            }
        };
        thread::scope(|scope| {
            for started in 0..self.streams.min(self.requests) {
                let thread = thread::Builder::new().name("tern-stream".into()).stack_size(STACK);
                if let Err(why) = thread.spawn_scoped(scope, stream) {
                    next.store(self.requests, Ordering::Relaxed); // the others end
                    return Err(CliError::message(format!(
                        "{} streams need as many threads, and only {started} could be started: {why}",
                        self.streams
                    )));
                }
            }
            Ok(())
        })?;
        let mut records = done.into_inner().unwrap_or_else(|e| e.into_inner());
        records.sort_unstable_by_key(|(number, _)| *number);
        Ok(records.into_iter().map(|(_, record)| record).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_poisson_and_depend_on_the_seed() {
        let times = poisson(50.0, 20_000, 3);
        assert_eq!(times[..100], poisson(50.0, 100, 3));
        assert_ne!(times[..100], poisson(50.0, 100, 4));
        assert_eq!(times[0], 0.0);
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((mean - 0.02).abs() < 0.0006, "{mean}");
        assert!((deviation - 0.02).abs() < 0.0012, "exponential gaps deviate by their mean: {deviation}");
    }

    #[test]
    fn every_request_is_sent_once_and_never_more_than_streams_at_once() {
        let load = Load { streams: 3, requests: 20, arrivals: vec![] };
        let (open, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let send = |number: usize| {
            most.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(2));
            open.fetch_sub(1, Ordering::SeqCst);
            Ok(Reply { first: number as f64, ..Reply::default() })
        };
        let records = load.run(|number| number, send).unwrap();
        let numbers: Vec<f64> = records.iter().map(|record| record.result.as_ref().unwrap().first).collect();
        assert_eq!(numbers, (0..20).map(f64::from).collect::<Vec<_>>());
        assert!(most.load(Ordering::SeqCst) <= 3);
        assert!(records.iter().all(|record| record.end > record.sent && record.late == 0.0));
    }

    #[test]
    fn requests_wait_for_their_arrival() {
        let arrivals = vec![0.0, 0.03, 0.06];
        let load = Load { streams: 3, requests: 3, arrivals: arrivals.clone() };
        let records = load.run(|_| (), |()| Ok(Reply::default())).unwrap();
        for (record, arrival) in records.iter().zip(arrivals) {
            assert!(record.sent >= arrival && (record.sent - arrival - record.late).abs() < 1e-9);
        }
    }
}
