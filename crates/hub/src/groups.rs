//! Files of one model: the parts of a split file, and the quantization in a name.

use crate::HubError;

/// Prefixes of quantization names, before the first digit.
const FAMILIES: [&str; 11] = ["Q", "IQ", "TQ", "PQ", "PTQ", "F", "BF", "FP", "MXFP", "NVFP", "INT"];

/// One file, or the parts of one split file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    /// The path without its extension and part number.
    pub(crate) stem: String,
    /// The parts found, sorted.
    pub(crate) files: Vec<String>,
    /// The number of parts in the name.
    pub(crate) parts: usize,
}

impl Group {
    /// The quantization in the file's name, in capitals: `Q4_K_M`, `UD-Q4_K_XL`, `Q2_0_G64`.
    pub(crate) fn label(&self) -> Option<String> {
        label(&self.stem).map(|(start, end)| self.stem[start..end].to_ascii_uppercase())
    }

    pub(crate) fn complete(self, repo: &str) -> Result<Vec<String>, HubError> {
        let have = self.files.len();
        if have == self.parts {
            return Ok(self.files);
        }
        let file = self.files.into_iter().next().unwrap_or(self.stem);
        Err(HubError::Incomplete { repo: repo.to_string(), file, want: self.parts, have })
    }
}

/// The range of the quantization in a path without extension: the last word that is one.
pub(crate) fn label(stem: &str) -> Option<(usize, usize)> {
    let mut end = stem.len();
    let mut after = None; // the word after the current one
    loop {
        let start = stem[..end].rfind(|c: char| c.is_ascii() && is_delimiter(c as u8)).map_or(0, |at| at + 1);
        let word = &stem[start..end];
        if let Some(at) = quant_in(word) {
            let start = start + at;
            // a prefix `UD-` and a block size as suffix belong to the label
            let start = if ends_with(&stem[..start], "-UD-") { start - 3 } else { start };
            let end = match after {
                Some((from, to)) if is_block_size(&stem[from..to]) => to,
                _ => end,
            };
            return Some((start, end));
        }
        after = Some((start, end));
        end = start.checked_sub(1)?;
    }
}

/// The start of the quantization in a word: the whole word, or the part after a `_` (`model_q4_k_m`).
fn quant_in(word: &str) -> Option<usize> {
    let starts = std::iter::once(0).chain(word.match_indices('_').map(|(at, _)| at + 1));
    starts.into_iter().find(|&at| is_quant(&word[at..]))
}

fn is_quant(word: &str) -> bool {
    let Some(digit) = word.find(|c: char| c.is_ascii_digit()) else { return false };
    let family = &word[..digit];
    FAMILIES.iter().any(|f| f.eq_ignore_ascii_case(family))
        && word[digit..].bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn is_block_size(word: &str) -> bool {
    let digits = word.strip_prefix(['g', 'G']);
    digits.is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
}

// `_` does not separate words: it is part of the names, and Q4_K is not Q4_K_M.
pub(crate) fn is_delimiter(byte: u8) -> bool {
    matches!(byte, b'-' | b'.' | b'/')
}

/// Groups the parts of split files: `x-00001-of-00003.gguf` is part 1 of 3 of `x`.
pub(crate) fn groups<'a>(files: impl IntoIterator<Item = &'a str>, ending: &str) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for file in files {
        if !ends_with(file, ending) {
            continue;
        }
        let name = &file[..file.len() - ending.len()];
        let (stem, parts) = split(name).unwrap_or((name, 1));
        match groups.iter_mut().find(|g| g.stem == stem && g.parts == parts && parts > 1) {
            Some(group) => group.files.push(file.to_string()),
            None => groups.push(Group { stem: stem.to_string(), files: vec![file.to_string()], parts }),
        }
    }
    groups.iter_mut().for_each(|g| g.files.sort());
    groups.sort_by(|a, b| a.stem.cmp(&b.stem));
    groups
}

/// The stem and the number of parts of `stem-00001-of-00003`.
fn split(name: &str) -> Option<(&str, usize)> {
    let (rest, count) = name.rsplit_once("-of-")?;
    let (stem, index) = rest.rsplit_once('-')?;
    let number = |s: &str| s.bytes().all(|b| b.is_ascii_digit()).then(|| s.parse::<usize>().ok()).flatten();
    let (index, count) = (number(index)?, number(count)?);
    (1..=count).contains(&index).then_some((stem, count))
}

pub(crate) fn base(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

/// `str::ends_with`, ignoring case.
pub(crate) fn ends_with(text: &str, end: &str) -> bool {
    let at = text.len().checked_sub(end.len());
    at.and_then(|at| text.get(at..)).is_some_and(|tail| tail.eq_ignore_ascii_case(end))
}
