//! Progress of downloads: reported by this crate, displayed by the caller.

/// Receives the progress of a download; one task at a time, from `begin` to `end`.
pub trait Progress {
    /// A task starts, of `total` bytes if known (package tools report none: show a spinner).
    fn begin(&self, label: &str, total: Option<u64>);
    /// `done` bytes of the current task are complete.
    fn at(&self, done: u64);
    /// The current task has ended, with or without success.
    fn end(&self);
    /// A message to display, such as why a second source is tried.
    fn note(&self, sentence: &str);
    /// Whether no request waits for the download any more: it ends with [`crate::HubError::Stopped`].
    fn stopped(&self) -> bool {
        false
    }
}

/// A [`Progress`] that displays nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _label: &str, _total: Option<u64>) {}
    fn at(&self, _done: u64) {}
    fn end(&self) {}
    fn note(&self, _sentence: &str) {}
}

/// Calls `end` on drop, so that an early return leaves no progress bar.
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
