//! The current input, in memory that outlives the process that runs it.

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::{MmapMut, MmapOptions};

/// Maximum length of an input.
pub(crate) const LONGEST: usize = 1 << 16;
/// A count and a length before the input.
const HEAD: usize = 16;

/// Shared by the parent and the child.
pub(crate) struct Record(MmapMut);

impl Record {
    pub(crate) fn create(path: &Path) -> io::Result<Record> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        file.set_len((HEAD + LONGEST) as u64)?;
        Record::map(&file)
    }

    pub(crate) fn open(path: &Path) -> io::Result<Record> {
        Record::map(&File::options().read(true).write(true).open(path)?)
    }

    fn map(file: &File) -> io::Result<Record> {
        // SAFETY: the file is ours, in the folder for temporary ones, and both processes
        // only read and write bytes
        let map = unsafe { MmapOptions::new().len(HEAD + LONGEST).map_mut(file)? };
        Ok(Record(map))
    }

    /// Records the next input.
    pub(crate) fn put(&mut self, input: &[u8]) {
        let count = self.count() + 1;
        self.0[HEAD..HEAD + input.len()].copy_from_slice(input);
        self.0[8..16].copy_from_slice(&(input.len() as u64).to_le_bytes());
        self.0[..8].copy_from_slice(&count.to_le_bytes());
    }

    /// Number of inputs so far.
    pub(crate) fn count(&self) -> u64 {
        self.word(0)
    }

    pub(crate) fn input(&self) -> Vec<u8> {
        let len = (self.word(8) as usize).min(LONGEST);
        self.0[HEAD..HEAD + len].to_vec()
    }

    fn word(&self, at: usize) -> u64 {
        self.0[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
    }
}
