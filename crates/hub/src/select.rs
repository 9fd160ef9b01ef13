//! Selecting the files of the requested model in a repository.

use std::path::{Path, PathBuf};

use crate::{HubError, folder};

/// Preferred quantizations, in this order, if none is requested and there are several.
const PREFERRED: [&str; 2] = ["Q4_K_M", "Q8_0"];

/// Prefixes of quantization names, before the first digit.
const FAMILIES: [&str; 11] = ["Q", "IQ", "TQ", "PQ", "PTQ", "F", "BF", "FP", "MXFP", "NVFP", "INT"];

/// One file, or the parts of one split file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    /// The path without its extension and part number.
    stem: String,
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

/// The language models among the `.gguf` files; the parts of split models are grouped.
pub(crate) fn ggufs<'a>(files: impl IntoIterator<Item = &'a str>) -> Vec<Group> {
    // Projectors and importance matrices are GGUF files too, often in F16.
    let beside = |file: &str| {
        let name = base(file).to_ascii_lowercase();
        name.contains("mmproj") || name.contains("imatrix")
    };
    groups(files.into_iter().filter(|f| !beside(f)), ".gguf")
}

/// The files of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Chosen {
    /// A GGUF file or all parts of one.
    Gguf(Vec<String>),
    /// A folder of safetensors.
    Folder(Vec<String>),
}

impl Chosen {
    pub(crate) fn files(&self) -> &[String] {
        match self {
            Chosen::Gguf(files) | Chosen::Folder(files) => files,
        }
    }

    /// What to open in a snapshot: the first file, or the snapshot itself.
    pub(crate) fn path(&self, snapshot: &Path) -> PathBuf {
        match self {
            Chosen::Gguf(files) => snapshot.join(&files[0]),
            Chosen::Folder(_) => snapshot.to_path_buf(),
        }
    }
}

/// The files of the model that `quant` selects: a quantization, or a file's name. Without it, the safetensors
/// of a repository that has no GGUF file.
pub(crate) fn choose<'a>(
    repo: &str,
    files: impl IntoIterator<Item = &'a str>,
    quant: Option<&str>,
) -> Result<Chosen, HubError> {
    let files: Vec<&str> = files.into_iter().collect();
    let groups = ggufs(files.iter().copied());
    if groups.is_empty() && quant.is_none() {
        let none = HubError::NoModel { repo: repo.to_string() };
        return folder::files(repo, &files)?.map(Chosen::Folder).ok_or(none);
    }
    choose_gguf(repo, &groups, quant).map(Chosen::Gguf)
}

fn choose_gguf(repo: &str, groups: &[Group], quant: Option<&str>) -> Result<Vec<String>, HubError> {
    let have = || match groups.is_empty() {
        true => "no .gguf file".to_string(),
        false => groups.iter().map(shown).collect::<Vec<_>>().join(", "),
    };
    let several = |fit: &[&Group]| {
        let have = fit.iter().map(|g| base(&g.files[0])).collect::<Vec<_>>().join(", ");
        HubError::Several { repo: repo.to_string(), have }
    };
    if let Some(quant) = quant {
        let fit = matching(groups, quant);
        return match fit.as_slice() {
            [] => Err(HubError::NoQuant { repo: repo.to_string(), quant: quant.to_string(), have: have() }),
            [one] => (*one).clone().complete(repo),
            more => Err(several(more)),
        };
    }
    match groups {
        [one] => one.clone().complete(repo),
        _ => {
            for preferred in PREFERRED {
                if let [one] = matching(groups, preferred).as_slice() {
                    return (*one).clone().complete(repo);
                }
            }
            Err(HubError::Several { repo: repo.to_string(), have: have() })
        }
    }
}

/// The groups that `quant` selects: by exact label, or if there is none by words that end in it (`Q4_K_XL`
/// for `UD-Q4_K_XL`, `i1-Q4_K_M` for a name with a prefix).
fn matching<'g>(groups: &'g [Group], quant: &str) -> Vec<&'g Group> {
    if ends_with(quant, ".gguf") {
        let named = |g: &&Group| g.files.iter().any(|f| f == quant || base(f) == quant);
        return groups.iter().filter(named).collect();
    }
    let exact = |g: &&Group| g.label().is_some_and(|l| l.eq_ignore_ascii_case(quant));
    let by_words = |g: &&Group| {
        let Some((_, end)) = label(&g.stem) else { return false };
        let named = &g.stem[..end];
        let Some(start) = named.len().checked_sub(quant.len()) else { return false };
        ends_with(named, quant) && (start == 0 || is_delimiter(named.as_bytes()[start - 1]))
    };
    let fit: Vec<_> = groups.iter().filter(exact).collect();
    if fit.is_empty() { groups.iter().filter(by_words).collect() } else { fit }
}

/// The quantization in a file's name, in capitals.
pub(crate) fn label_of(file: &str) -> Option<String> {
    ggufs([file]).first()?.label()
}

/// The range of the quantization in a path without extension: the last word that is one.
fn label(stem: &str) -> Option<(usize, usize)> {
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
fn is_delimiter(byte: u8) -> bool {
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

/// The label of a group in a list: its quantization, else its file.
fn shown(group: &Group) -> String {
    group.label().unwrap_or_else(|| base(&group.files[0]).to_string())
}

pub(crate) fn base(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

/// `str::ends_with`, ignoring case.
fn ends_with(text: &str, end: &str) -> bool {
    let at = text.len().checked_sub(end.len());
    at.and_then(|at| text.get(at..)).is_some_and(|tail| tail.eq_ignore_ascii_case(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels() {
        for (file, want) in [
            ("Bonsai-8B-Q1_0.gguf", Some("Q1_0")),
            ("Bonsai-8B-PQ2_0.gguf", Some("PQ2_0")),
            ("Bonsai-8B-PTQ1_0.gguf", Some("PTQ1_0")),
            ("Bonsai-8B-Q2_0_g64.gguf", Some("Q2_0_G64")),
            ("Bonsai-8B-Q2_0-g64.gguf", Some("Q2_0-G64")),
            ("SmolLM2-135M-Instruct.Q4_1.gguf", Some("Q4_1")),
            ("Qwen_Qwen3-8B-Q4_K_M.gguf", Some("Q4_K_M")),
            ("Q3-8B-IQ2_XXS.gguf", Some("IQ2_XXS")),
            ("model_q4_k_m.gguf", Some("Q4_K_M")),
            ("gpt-oss-20b-MXFP4_MOE.gguf", Some("MXFP4_MOE")),
            ("Qwen3-8B-UD-Q4_K_XL.gguf", Some("UD-Q4_K_XL")),
            ("Model.i1-Q4_K_M.gguf", Some("Q4_K_M")),
            ("BF16/Model-00001-of-00002.gguf", Some("BF16")),
            ("bitnet-TQ2_0.gguf", Some("TQ2_0")),
            ("Model-f16.gguf", Some("F16")),
            ("Model.f16.q8_0.gguf", Some("Q8_0")),
            ("Phi-3-mini.gguf", None),
            ("Qwen3-8B.gguf", None),
            ("ggml-model.gguf", None),
        ] {
            assert_eq!(ggufs([file])[0].label().as_deref(), want, "{file}");
        }
    }

    /// Cases: the request, the files of the repository, the selection (None: an error).
    #[test]
    fn a_quant_matches_exactly() {
        let cases: &[(&str, &[&str], Option<&str>)] = &[
            ("Q2_0", &["B-PQ2_0.gguf", "B-Q2_0_g64.gguf", "B-Q2_0.gguf"], Some("B-Q2_0.gguf")),
            ("q2_0", &["B-PQ2_0.gguf", "B-Q2_0.gguf"], Some("B-Q2_0.gguf")),
            ("Q2_0", &["B-PQ2_0.gguf", "B-Q2_0_g64.gguf"], None),
            ("Q2_0", &["B-Q2_0-g64.gguf"], None),
            ("Q2_0", &["B-Q2_0-g64.gguf", "B-Q2_0.gguf"], Some("B-Q2_0.gguf")),
            ("Q2_0_g64", &["B-Q2_0.gguf", "B-Q2_0_g64.gguf"], Some("B-Q2_0_g64.gguf")),
            ("PQ2_0", &["B-PQ2_0.gguf", "B-Q2_0.gguf"], Some("B-PQ2_0.gguf")),
            ("Q1_0", &["B-PTQ1_0.gguf", "B-TQ1_0.gguf"], None),
            ("TQ1_0", &["B-PTQ1_0.gguf", "B-TQ1_0.gguf"], Some("B-TQ1_0.gguf")),
            ("Q4_K", &["M-Q4_K_M.gguf", "M-Q4_K_S.gguf"], None),
            ("Q4_K", &["M-Q4_K_M.gguf", "M-Q4_K.gguf"], Some("M-Q4_K.gguf")),
            ("Q4_K_M", &["M.Q4_K_M.gguf", "M.IQ4_K_M.gguf"], Some("M.Q4_K_M.gguf")),
            ("K_M", &["M-Q4_K_M.gguf"], None),
            ("4_K_M", &["M-Q4_K_M.gguf"], None),
            ("Q4", &["M-Q4_0.gguf"], None),
            ("F16", &["M-BF16.gguf", "M-f16.gguf"], Some("M-f16.gguf")),
            ("F16", &["M-BF16.gguf", "mmproj-F16.gguf", "M.mmproj-f16.gguf"], None),
            ("8B", &["M-8B-Q4_0.gguf"], None),
            ("Q4_K_XL", &["M-UD-Q4_K_XL.gguf"], Some("M-UD-Q4_K_XL.gguf")),
            ("UD-Q4_K_XL", &["M-UD-Q4_K_XL.gguf"], Some("M-UD-Q4_K_XL.gguf")),
            ("Q4_K_M", &["M-UD-Q4_K_M.gguf", "M-Q4_K_M.gguf"], Some("M-Q4_K_M.gguf")),
            ("i1-Q4_K_M", &["M.i1-Q4_K_M.gguf"], Some("M.i1-Q4_K_M.gguf")),
            ("Q4_K_M", &["M.i1-Q4_K_M.gguf"], Some("M.i1-Q4_K_M.gguf")),
            ("Q4_K_M", &["model_q4_k_m.gguf"], Some("model_q4_k_m.gguf")),
            ("Q8_0", &["A-Q8_0.gguf", "B-Q8_0.gguf"], None),
            ("B-Q8_0.gguf", &["A-Q8_0.gguf", "B-Q8_0.gguf"], Some("B-Q8_0.gguf")),
            ("Q8_0", &["Q8_0/m.gguf", "Q4_0/m.gguf"], Some("Q8_0/m.gguf")),
            ("Q8_0", &["README.md", "config.json"], None),
        ];
        for (quant, files, want) in cases {
            let got = choose("o/r", files.iter().copied(), Some(quant));
            match (got, want) {
                (Ok(got), Some(want)) => assert_eq!(got.files(), [*want], "{quant}"),
                (Err(_), None) => {}
                (got, want) => panic!("{quant} of {files:?}: want {want:?}, got {got:?}"),
            }
        }
    }

    #[test]
    fn without_a_quant_the_usual_one_or_the_only_one() {
        let cases: &[(&[&str], Option<&str>)] = &[
            (&["M-Q8_0.gguf", "M-Q4_K_M.gguf", "M-F16.gguf"], Some("M-Q4_K_M.gguf")),
            (&["M-Q8_0.gguf", "M-F16.gguf", "mmproj-Q4_K_M.gguf"], Some("M-Q8_0.gguf")),
            (&["B-Q1_0.gguf", "README.md", "imatrix.gguf"], Some("B-Q1_0.gguf")),
            (&["M-Q5_0.gguf", "M-Q6_K.gguf"], None),
        ];
        for (files, want) in cases {
            let got = choose("o/r", files.iter().copied(), None).ok();
            assert_eq!(got, want.map(|f| Chosen::Gguf(vec![f.to_string()])), "{files:?}");
        }
        let error = choose("o/r", ["M-Q5_0.gguf", "M-Q6_K.gguf"], None).unwrap_err().to_string();
        let want = "o/r has several matching models: choose one as o/r:QUANT or o/r:FILE, from Q5_0, Q6_K";
        assert_eq!(error, want);
        let error = choose("o/r", ["M-Q5_0.gguf", "M-Q6_K.gguf"], Some("Q4_0")).unwrap_err().to_string();
        assert_eq!(error, "o/r has no file for Q4_0; it has Q5_0, Q6_K");
    }

    #[test]
    fn all_parts_of_a_split_file_are_required() {
        let parts = ["Q8_0/m-00002-of-00002.gguf", "Q8_0/m-00001-of-00002.gguf", "m-Q4_0.gguf"];
        let got = choose("o/r", parts, Some("Q8_0")).unwrap();
        let want = ["Q8_0/m-00001-of-00002.gguf", "Q8_0/m-00002-of-00002.gguf"];
        assert_eq!(got.files(), want);
        let error = choose("o/r", ["m-Q8_0-00002-of-00003.gguf"], None).unwrap_err().to_string();
        assert_eq!(error, "o/r: m-Q8_0-00002-of-00003.gguf is split into 3 files, found 1");
    }

    #[test]
    fn safetensors_are_a_model_if_there_is_no_gguf() {
        let files = ["config.json", "tokenizer.json", "model.safetensors"];
        let folder = choose("o/r", files, None).unwrap();
        assert_eq!(folder, Chosen::Folder(files.map(String::from).to_vec()));
        assert_eq!(folder.path(Path::new("s")), Path::new("s"));
        let both = ["config.json", "model.safetensors", "m-Q4_0.gguf"];
        assert_eq!(choose("o/r", both, None).unwrap(), Chosen::Gguf(vec!["m-Q4_0.gguf".into()]));
        let error = choose("o/r", ["config.json", "pytorch_model.bin"], None).unwrap_err().to_string();
        assert_eq!(error, "o/r has no .gguf file, and no config.json with .safetensors files");
        assert!(matches!(choose("o/r", files, Some("Q4_0")), Err(HubError::NoQuant { .. })));
    }
}
