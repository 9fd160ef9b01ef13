//! The lines of a file, each with a maximum length.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use super::error::BatchError;

/// The lines of a file that are not blank.
pub(super) struct Lines {
    file: PathBuf,
    input: BufReader<File>,
    number: usize,
    max_bytes: usize,
}

/// A line, without its end.
pub(super) struct Text {
    /// From 1.
    pub(super) number: usize,
    pub(super) bytes: Vec<u8>,
    /// The line has more bytes than are allowed, and `bytes` only its beginning.
    pub(super) too_long: bool,
    /// It ends with a line feed.
    pub(super) complete: bool,
    /// Bytes in the file, with its end.
    pub(super) size: u64,
}

impl Lines {
    /// Opens a regular file: another kind of file may have no end, and is not read twice.
    pub(super) fn open(path: &Path, max_bytes: usize) -> Result<Lines, BatchError> {
        let failed = |error| BatchError::io(path, &error);
        // before the file is opened, because that waits for the writer of a pipe
        if !path.metadata().map_err(failed)?.is_file() {
            return Err(BatchError::File(path.into(), "not a regular file".into()));
        }
        Ok(Lines::of(path, File::open(path).map_err(failed)?, max_bytes))
    }

    /// The lines of an open file, from its position on.
    pub(super) fn of(path: &Path, file: File, max_bytes: usize) -> Lines {
        Lines { file: path.into(), input: BufReader::with_capacity(256 << 10, file), number: 0, max_bytes }
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// The next line that is not blank.
    pub(super) fn next(&mut self) -> Result<Option<Text>, BatchError> {
        loop {
            let Some(mut text) = self.any()? else { return Ok(None) };
            if text.number == 1 && text.bytes.starts_with(b"\xef\xbb\xbf") {
                text.bytes.drain(..3); // a byte order mark
            }
            if !text.bytes.trim_ascii().is_empty() {
                return Ok(Some(text));
            }
        }
    }

    /// The next line, also if it is blank.
    pub(super) fn any(&mut self) -> Result<Option<Text>, BatchError> {
        let failed = |error| BatchError::io(&self.file, &error);
        let (mut bytes, most) = (vec![], self.max_bytes as u64 + 1); // with the line feed
        (&mut self.input).take(most).read_until(b'\n', &mut bytes).map_err(failed)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        let (mut complete, mut size) = (bytes.last() == Some(&b'\n'), bytes.len() as u64);
        let too_long = !complete && bytes.len() as u64 == most;
        while too_long && !complete {
            let rest = self.input.fill_buf().map_err(failed)?;
            let end = rest.iter().position(|byte| *byte == b'\n');
            let len = end.map_or(rest.len(), |at| at + 1);
            complete = end.is_some();
            size += len as u64;
            self.input.consume(len);
            if len == 0 {
                break;
            }
        }
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
        Ok(Some(Text { number: self.number, bytes, too_long, complete, size }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8], most: usize) -> Vec<(usize, String, bool, bool)> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in.jsonl");
        std::fs::write(&path, bytes).unwrap();
        let mut lines = Lines::open(&path, most).unwrap();
        let next = || lines.next().unwrap();
        let texts = std::iter::from_fn(next);
        texts.map(|t| (t.number, String::from_utf8(t.bytes).unwrap(), t.too_long, t.complete)).collect()
    }

    #[test]
    fn blank_lines_and_line_ends_of_all_systems_are_skipped() {
        let got = lines(b"\xef\xbb\xbfa\r\n\n  \nb", 10);
        assert_eq!(got, [(1, "a".into(), false, true), (4, "b".into(), false, false)]);
        assert_eq!(lines(b"", 10), []);
        assert_eq!(lines(b"\n\n", 10), []);
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_and_the_next_one_is_whole() {
        let got = lines(b"1234\n12345\n1\n123456", 4);
        let want = [(1, "1234", false), (2, "12345", true), (3, "1", false), (4, "12345", true)];
        let got: Vec<_> = got.iter().map(|(n, text, long, _)| (*n, text.as_str(), *long)).collect();
        assert_eq!(got, want);
    }

    #[test]
    fn what_is_not_a_regular_file_is_refused_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let error = Lines::open(folder.path(), 10).err().unwrap().to_string();
        assert!(error.ends_with(": not a regular file"), "{error}");
        let error = Lines::open(&folder.path().join("missing"), 10).err().unwrap().to_string();
        assert!(error.contains("No such file"), "{error}");
    }
}
