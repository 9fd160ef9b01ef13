//! The results of a batch, appended to its two files; what is in them when a batch starts is not done again.

use std::collections::HashSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::BatchFiles;
use super::check::{Checked, IdDigest};
use super::error::BatchError;
use super::line::{RESULT_START, answered, unanswered};
use super::lines::Lines;
use super::routes::Reply;
use super::run::BatchCounts;

/// Maximum bytes of a result that is read back.
const MAX_RESULT: usize = 1 << 30;

/// The results so far.
pub(super) struct Journal {
    output: ResultFile,
    errors: ResultFile,
    finished: HashSet<IdDigest>,
    pub(super) counts: BatchCounts,
}

/// A file of results.
struct ResultFile {
    path: PathBuf,
    /// A file that is missing is made by the first result.
    file: Option<File>,
    /// Length of its whole lines.
    bytes: u64,
}

/// The members of a result that are read back.
#[derive(Deserialize)]
struct ReadBack {
    custom_id: String,
}

impl Journal {
    /// Reads the results of earlier runs. The files must be missing, or have results of this input only.
    pub(super) fn open(files: &BatchFiles, checked: &Checked) -> Result<Journal, BatchError> {
        let paths = [&files.input, &files.output, &files.errors];
        for (at, path) in paths.iter().enumerate() {
            if let Some(same) = paths[..at].iter().find(|other| is_same(other, path)) {
                let why = format!("the same file as {}; every file of a batch needs its own", same.display());
                return Err(BatchError::File(path.to_path_buf(), why));
            }
        }
        for path in [&files.output, &files.errors] {
            // before anything is opened: a pipe would wait for its reader
            if path.metadata().is_ok_and(|found| !found.is_file()) {
                return Err(BatchError::File(path.clone(), "not a regular file".into()));
            }
        }
        let output = open(&files.output)?;
        match output.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let why = "another process is writing results to this file";
                return Err(BatchError::File(files.output.clone(), why.into()));
            }
            // a file system without locks
            Err(TryLockError::Error(_)) => {}
        }
        let mut finished = HashSet::new();
        let output = ResultFile::read(&files.output, Some(output), checked, &mut finished)?;
        let completed = finished.len();
        let errors = if files.errors.exists() { Some(open(&files.errors)?) } else { None };
        let errors = ResultFile::read(&files.errors, errors, checked, &mut finished)?;
        let failed = finished.len() - completed;
        let counts = BatchCounts { completed, failed, ..BatchCounts::default() };
        Ok(Journal { output, errors, finished, counts })
    }

    /// Whether a line has a result.
    pub(super) fn has(&self, custom_id: &str) -> bool {
        self.finished.contains(&IdDigest::of(custom_id))
    }

    /// Appends the result of a line: to the output if the request succeeded, otherwise to the errors.
    pub(super) fn add(&mut self, custom_id: &str, reply: &Reply) -> Result<(), BatchError> {
        let good = (200..300).contains(&reply.status);
        self.counts.count(reply);
        self.append(custom_id, good, &answered(custom_id, reply))
    }

    /// Appends an error as the result of a line that was not answered.
    pub(super) fn fail(&mut self, custom_id: &str, code: &str, message: &str) -> Result<(), BatchError> {
        self.append(custom_id, false, &unanswered(custom_id, code, message))
    }

    fn append(&mut self, custom_id: &str, good: bool, line: &[u8]) -> Result<(), BatchError> {
        let (file, count) = match good {
            true => (&mut self.output, &mut self.counts.completed),
            false => (&mut self.errors, &mut self.counts.failed),
        };
        file.append(line)?;
        *count += 1;
        self.finished.insert(IdDigest::of(custom_id));
        Ok(())
    }

    /// Waits until what is written is on disk.
    pub(super) fn sync(&self) -> Result<(), BatchError> {
        for results in [&self.output, &self.errors] {
            if let Some(file) = &results.file {
                file.sync_data().map_err(|error| BatchError::io(&results.path, &error))?;
            }
        }
        Ok(())
    }
}

impl ResultFile {
    /// Adds the ids of the results in a file, and removes the end of a line that a killed run has left.
    fn read(
        path: &Path,
        file: Option<File>,
        checked: &Checked,
        finished: &mut HashSet<IdDigest>,
    ) -> Result<ResultFile, BatchError> {
        let mut results = ResultFile { path: path.into(), file, bytes: 0 };
        let Some(file) = &mut results.file else { return Ok(results) };
        let failed = |error| BatchError::io(path, &error);
        let mut lines = Lines::of(path, file.try_clone().map_err(failed)?, MAX_RESULT);
        while let Some(text) = lines.any()? {
            let refused =
                |why: &str| Err(BatchError::File(path.into(), format!("line {}{why}", text.number)));
            let start = &RESULT_START[..text.bytes.len().min(RESULT_START.len())];
            if !text.bytes.starts_with(start) || (text.complete && text.bytes.is_empty()) {
                return refused(" is not the result of a batch; choose another file");
            }
            if !text.complete {
                break;
            }
            let Ok(result) = serde_json::from_slice::<ReadBack>(&text.bytes) else {
                return refused(" is a damaged result; remove it, and its request runs again");
            };
            let id = IdDigest::of(&result.custom_id);
            if !checked.ids.contains(&id) {
                let id = result.custom_id;
                return refused(&format!(
                    " is the result of another input: its custom_id {id:?} is not in this one; choose another file"
                ));
            }
            finished.insert(id);
            results.bytes += text.size;
        }
        if file.metadata().map_err(failed)?.len() > results.bytes {
            file.set_len(results.bytes).map_err(failed)?;
        }
        file.seek(SeekFrom::Start(results.bytes)).map_err(failed)?;
        Ok(results)
    }

    /// Appends a whole line; if that fails, what was written of it is removed.
    fn append(&mut self, line: &[u8]) -> Result<(), BatchError> {
        if self.file.is_none() {
            self.file = Some(open(&self.path)?);
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        if let Err(error) = file.write_all(line) {
            let _ = file.set_len(self.bytes).and_then(|()| file.seek(SeekFrom::Start(self.bytes)));
            return Err(BatchError::io(&self.path, &error));
        }
        self.bytes += line.len() as u64;
        Ok(())
    }
}

fn open(path: &Path) -> Result<File, BatchError> {
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    opened.map_err(|error| BatchError::io(path, &error))
}

/// Whether two paths name one file, also by links.
fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| {
        // of a file that is missing, the folder
        path.canonicalize().or_else(|_| {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let name = path.file_name().unwrap_or_default();
            folder.unwrap_or(Path::new(".")).canonicalize().map(|folder| folder.join(name))
        })
    };
    matches!((place(one), place(other)), (Ok(one), Ok(other)) if one == other)
}
