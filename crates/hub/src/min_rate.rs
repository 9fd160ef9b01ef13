//! A minimum transfer rate for bodies, so that a server that sends a byte now and then
//! does not block a download.

use std::fmt;
use std::io::{self, Read};
use std::time::{Duration, Instant};

/// Bytes that must arrive per period.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MinRate {
    pub(crate) bytes: u64,
    pub(crate) within: Duration,
}

/// Half a kilobyte per second.
pub(crate) const SLOWEST: MinRate = MinRate { bytes: 16 << 10, within: Duration::from_secs(30) };

/// A body arrived slower than the minimum rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooSlow {
    received: u64,
    want: u64,
    within: Duration,
}

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooSlow { received, want, within } = self;
        write!(f, "{received} bytes received in {:.0} s, want at least {want}", within.as_secs_f64())
    }
}

impl std::error::Error for TooSlow {}

impl TooSlow {
    /// Whether a read failed for this reason.
    pub(crate) fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<TooSlow>())
    }
}

/// A reader that fails with [`TooSlow`] below the minimum rate.
pub(crate) struct RateChecked<R> {
    body: R,
    min_rate: MinRate,
    since: Instant,
    received: u64,
}

impl<R: Read> RateChecked<R> {
    pub(crate) fn new(body: R, min_rate: MinRate) -> RateChecked<R> {
        RateChecked { body, min_rate, since: Instant::now(), received: 0 }
    }
}

impl<R: Read> Read for RateChecked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.body.read(buffer)?;
        self.received += n as u64;
        let MinRate { bytes: want, within } = self.min_rate;
        if n > 0 && self.since.elapsed() >= within {
            if self.received < want {
                return Err(io::Error::other(TooSlow { received: self.received, want, within }));
            }
            (self.since, self.received) = (Instant::now(), 0);
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one byte per millisecond or less often, without end.
    struct Drip;

    impl Read for Drip {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            std::thread::sleep(Duration::from_millis(1));
            buffer[0] = b'x';
            Ok(1)
        }
    }

    fn rate(bytes: u64, millis: u64) -> MinRate {
        MinRate { bytes, within: Duration::from_millis(millis) }
    }

    #[test]
    fn a_slow_body_fails() {
        let mut text = vec![];
        let error = RateChecked::new(Drip, rate(10_000, 100)).read_to_end(&mut text).unwrap_err();
        assert!(TooSlow::is(&error), "{error}");
        assert!(error.to_string().ends_with(" bytes received in 0 s, want at least 10000"), "{error}");
        assert!(!text.is_empty(), "bytes received before the error are kept");
        assert!(!TooSlow::is(&io::Error::other("torn")));
    }

    #[test]
    fn a_fast_enough_body_passes() {
        let mut text = vec![];
        RateChecked::new(Drip.take(60), rate(1, 20)).read_to_end(&mut text).unwrap();
        assert_eq!(text.len(), 60);
        // a body that ends within the first period has no minimum
        RateChecked::new(Drip.take(3), rate(1_000, 1_000)).read_to_end(&mut text).unwrap();
    }
}
