//! A body that must keep coming: a server that sends a byte now and then is as good as silent.

use std::fmt;
use std::io::{self, Read};
use std::time::{Duration, Instant};

/// The least that must come in a stretch of time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) bytes: u64,
    pub(crate) within: Duration,
}

/// Half a kilobyte a second, which the slowest modem exceeds.
pub(crate) const SLOWEST: Pace = Pace { bytes: 16 << 10, within: Duration::from_secs(30) };

/// A body came slower than its pace; the words are those of the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stalled {
    came: u64,
    want: u64,
    within: Duration,
}

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stalled { came, want, within } = self;
        write!(f, "{came} bytes came in {:.0} s, want {want} at least", within.as_secs_f64())
    }
}

impl std::error::Error for Stalled {}

impl Stalled {
    /// Whether this is why a read failed.
    pub(crate) fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Stalled>())
    }
}

/// A reader that fails with [`Stalled`] when too little came for too long.
pub(crate) struct Steady<R> {
    body: R,
    pace: Pace,
    since: Instant,
    came: u64,
}

impl<R: Read> Steady<R> {
    pub(crate) fn new(body: R, pace: Pace) -> Steady<R> {
        Steady { body, pace, since: Instant::now(), came: 0 }
    }
}

impl<R: Read> Read for Steady<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.body.read(buffer)?;
        self.came += n as u64;
        let Pace { bytes: want, within } = self.pace;
        if n > 0 && self.since.elapsed() >= within {
            if self.came < want {
                return Err(io::Error::other(Stalled { came: self.came, want, within }));
            }
            (self.since, self.came) = (Instant::now(), 0);
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a byte a millisecond or more, for ever.
    struct Drip;

    impl Read for Drip {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            std::thread::sleep(Duration::from_millis(1));
            buffer[0] = b'x';
            Ok(1)
        }
    }

    fn pace(bytes: u64, millis: u64) -> Pace {
        Pace { bytes, within: Duration::from_millis(millis) }
    }

    #[test]
    fn a_drip_is_a_stall() {
        let mut text = vec![];
        let error = Steady::new(Drip, pace(10_000, 100)).read_to_end(&mut text).unwrap_err();
        assert!(Stalled::is(&error), "{error}");
        assert!(error.to_string().ends_with(" bytes came in 0 s, want 10000 at least"), "{error}");
        assert!(!text.is_empty(), "what came before is kept");
        assert!(!Stalled::is(&io::Error::other("torn")));
    }

    #[test]
    fn what_keeps_the_pace_passes() {
        let mut text = vec![];
        Steady::new(Drip.take(60), pace(1, 20)).read_to_end(&mut text).unwrap();
        assert_eq!(text.len(), 60);
        // a short body may come as late as it likes, once
        Steady::new(Drip.take(3), pace(1_000, 1_000)).read_to_end(&mut text).unwrap();
    }
}
