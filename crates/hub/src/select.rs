//! Selecting the files of the requested model in a repository.

use std::path::{Path, PathBuf};

use crate::groups::{Group, base, ends_with, groups, is_delimiter, label};
use crate::{HubError, folder};

/// Preferred quantizations, in this order, if none is requested and there are several.
const PREFERRED: [&str; 2] = ["Q4_K_M", "Q8_0"];

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

/// The label of a group in a list: its quantization, else its file.
fn shown(group: &Group) -> String {
    group.label().unwrap_or_else(|| base(&group.files[0]).to_string())
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
