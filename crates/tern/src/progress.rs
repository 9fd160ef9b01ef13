//! Progress of loading a model: reported here, shown by the caller.

use crate::Error;
use crate::memory::MemoryPlan;
use crate::opened::OpenedModel;

/// Receives the progress of a load; one piece of work at a time, `begin` to `end`. Every method
/// does nothing by default.
pub trait Progress {
    /// A piece of work starts; `total` bytes if they are known (a package tool counts none: show a spinner).
    fn begin(&self, _label: &str, _total: Option<u64>) {}
    /// `done` bytes of the current work are finished.
    fn at(&self, _done: u64) {}
    /// The bytes are done, and the current work continues with `label`.
    fn continues(&self, _label: &str) {}
    /// The current work has ended, successfully or not.
    fn end(&self) {}
    /// Something that the user should know, such as a vocabulary that looks wrong.
    fn warn(&self, _message: &str) {}
    /// What the model will take of the memory of `device`, before it is taken.
    fn plan(&self, _model: &OpenedModel, _plan: &MemoryPlan, _device: &tern_graph::DeviceInfo) {}
    /// Whether the work is to end early: a download ends with [`tern_hub::HubError::Stopped`], and a load
    /// with [`Error::Stopped`] before its next tensor.
    fn stopped(&self) -> bool {
        false
    }
}

/// A [`Progress`] that shows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {}

/// Fails if the load of `name` is to end early.
pub(crate) fn check_stopped(name: &str, progress: &dyn Progress) -> Result<(), Error> {
    if progress.stopped() { Err(Error::Stopped(name.to_owned())) } else { Ok(()) }
}

/// Downloads report to the same place.
pub(crate) struct Downloads<'a>(pub(crate) &'a dyn Progress);

impl tern_hub::Progress for Downloads<'_> {
    fn begin(&self, label: &str, total: Option<u64>) {
        self.0.begin(label, total);
    }

    fn at(&self, done: u64) {
        self.0.at(done);
    }

    fn end(&self) {
        self.0.end();
    }

    fn note(&self, sentence: &str) {
        self.0.warn(sentence);
    }

    fn stopped(&self) -> bool {
        self.0.stopped()
    }
}

/// Calls `end` when it goes out of scope, so that an early return leaves no bar on the screen.
pub(crate) struct Work<'a>(&'a dyn Progress);

impl<'a> Work<'a> {
    pub(crate) fn begin(progress: &'a dyn Progress, label: &str, total: u64) -> Work<'a> {
        progress.begin(label, Some(total));
        Work(progress)
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}
