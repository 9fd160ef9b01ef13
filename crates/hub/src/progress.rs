//! How far a download is: said by this crate, drawn by the caller.

/// Receives what a download has to say; one piece of work at a time, `begin` to `end`.
pub trait Progress {
    /// A piece of work starts; `total` bytes where they are known (a package tool counts none: draw a spinner).
    fn begin(&self, label: &str, total: Option<u64>);
    /// `done` bytes of the work begun last are there, counted from its start.
    fn at(&self, done: u64);
    /// The work begun last is over, well or not.
    fn end(&self);
    /// A sentence worth showing, such as why a second source is tried.
    fn note(&self, sentence: &str);
}

/// A [`Progress`] that shows nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _label: &str, _total: Option<u64>) {}
    fn at(&self, _done: u64) {}
    fn end(&self) {}
    fn note(&self, _sentence: &str) {}
}

/// Calls `end` when it goes out of scope, so that an early return leaves no bar behind.
pub(crate) struct Work<'a>(&'a dyn Progress);

impl<'a> Work<'a> {
    pub(crate) fn begin(progress: &'a dyn Progress, label: &str, total: Option<u64>) -> Self {
        progress.begin(label, total);
        Work(progress)
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}
