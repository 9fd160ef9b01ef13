//! Batches: files with one request per line, answered by the routes of a server into files with one result
//! per line, in the shape of OpenAI's batches. `tern batch` and `/v1/batches` both run [`Batch`].
//!
//! A batch reads its input twice. The first pass checks every line before any work starts. The second one
//! answers the lines, several at once, and appends each result as soon as all earlier ones are written: the
//! results have the order of the lines, and a batch that was killed continues after the last whole line.

mod check;
mod error;
mod journal;
mod line;
mod lines;
mod routes;
mod run;

pub use check::BatchRules;
pub use error::{BatchError, LineError};
pub use routes::BatchRoutes;
pub use run::{BatchCounts, BatchStop};

pub(crate) use line::ENDPOINTS;

use std::path::PathBuf;

use tokio::sync::watch;

use self::check::Checked;
use self::journal::Journal;
use self::lines::Lines;

/// The files of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchFiles {
    /// A regular file with one request per line.
    pub input: PathBuf,
    /// Gets the results of requests that succeeded.
    pub output: PathBuf,
    /// Gets the results of the others; written only if there are some.
    pub errors: PathBuf,
}

/// A checked batch, of which nothing, a part or all may be answered.
pub struct Batch {
    files: BatchFiles,
    rules: BatchRules,
    checked: Checked,
    journal: Journal,
}

impl Batch {
    /// Checks the input, and finds what an earlier run has answered.
    pub fn open(files: BatchFiles, rules: BatchRules) -> Result<Batch, BatchError> {
        let checked = check::check(Lines::open(&files.input, rules.max_line_bytes)?, &rules)?;
        let journal = Journal::open(&files, &checked)?;
        Ok(Batch { files, rules, checked, journal })
    }

    /// The model that the first line names.
    pub fn model(&self) -> Option<&str> {
        self.checked.model.as_deref()
    }

    /// What is answered so far.
    pub fn counts(&self) -> BatchCounts {
        BatchCounts { total: self.checked.ids.len(), ..self.journal.counts }
    }

    /// Answers the lines that are not answered yet, `in_flight` at once, and reports each result. Returns
    /// what is answered, which is not all if `stop` said so. A failure leaves what is written, and another
    /// run continues after it.
    pub async fn run(
        &mut self,
        server: &BatchRoutes,
        in_flight: usize,
        stop: watch::Receiver<BatchStop>,
        progress: impl FnMut(BatchCounts),
    ) -> Result<BatchCounts, BatchError> {
        let lines = Lines::open(&self.files.input, self.rules.max_line_bytes)?;
        let (total, journal) = (self.checked.ids.len(), &mut self.journal);
        run::Run { lines, journal, total, rules: &self.rules, server, in_flight, stop, progress }.run().await
    }

    /// Writes an error as the result of each line that is not answered.
    pub fn fail_rest(&mut self, code: &str, message: &str) -> Result<BatchCounts, BatchError> {
        let mut lines = Lines::open(&self.files.input, self.rules.max_line_bytes)?;
        while let Some(text) = lines.next()? {
            let line = line::BatchLine::parse(&text, &self.rules)
                .map_err(|error| BatchError::changed(&self.files.input, &error))?;
            if !self.journal.has(&line.custom_id) {
                self.journal.fail(&line.custom_id, code, message)?;
            }
        }
        Ok(self.counts())
    }
}
