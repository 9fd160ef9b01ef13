//! Parsing a model's name: a known name, a path, or a repository of the hub.

use std::path::{Path, PathBuf};

use crate::known::{KNOWN, Known};
use crate::short::{SHORT, Short};
use crate::{Config, HubError};

/// Accepted prefixes of `org/repo`, as copied from web pages and other tools.
const PREFIXES: [&str; 4] = ["https://huggingface.co/", "huggingface.co/", "https://hf.co/", "hf.co/"];

/// Most names that an error proposes.
const MAX_CLOSE: usize = 4;

/// A repository of the hub and the choice among its models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RepoName {
    /// `org/repo`.
    pub(crate) repo: String,
    /// A quantization or a file's name.
    pub(crate) quant: Option<String>,
}

/// A parsed name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Name {
    Known(&'static Known),
    /// A short name, as it was typed without `:latest`.
    Short(&'static str, &'static Short),
    Path(PathBuf),
    Repo(RepoName),
}

impl Name {
    /// Parses `text`. A known name takes precedence over a file of that name (`./stories` is the file); an
    /// existing file or folder takes precedence over a repository.
    pub(crate) fn parse(text: &str) -> Result<Name, HubError> {
        if let Some(known) = known(text) {
            return Ok(Name::Known(known));
        }
        if let Some((name, short)) = Short::entry(text) {
            return Ok(Name::Short(name, short));
        }
        let path = Path::new(text);
        if !text.is_empty() && path.exists() {
            return Ok(Name::Path(path.to_path_buf()));
        }
        if path.is_absolute() || ["./", "../", "~"].iter().any(|p| text.starts_with(p)) || is_file_name(text)
        {
            return Err(HubError::NoSuchPath { path: path.to_path_buf() });
        }
        RepoName::parse(text).map(Name::Repo).ok_or_else(|| unknown(text))
    }

    /// Parses a name from elsewhere, which is never a path.
    pub(crate) fn parse_remote(text: &str) -> Result<Name, HubError> {
        let short = || Short::entry(text).map(|(name, short)| Name::Short(name, short));
        let repo = || RepoName::parse(text).map(Name::Repo);
        let name = known(text).map(Name::Known).or_else(short).or_else(repo);
        name.ok_or_else(|| HubError::NotAName { name: text.chars().take(100).collect() })
    }
}

impl RepoName {
    fn parse(text: &str) -> Option<RepoName> {
        let text = PREFIXES.iter().find_map(|p| text.strip_prefix(p)).unwrap_or(text);
        let (repo, quant) = match text.split_once(':') {
            Some((repo, quant)) => (repo, Some(quant)),
            None => (text, None),
        };
        let (org, name) = repo.split_once('/')?;
        let quant_is_fine = quant.is_none_or(is_word);
        // The hub forbids `--` in names, because its cache replaces the slash by it.
        let repo_is_fine = is_word(org) && is_word(name) && !repo.contains("--") && !repo.contains("..");
        (repo_is_fine && quant_is_fine)
            .then(|| RepoName { repo: repo.to_string(), quant: quant.map(str::to_string) })
    }

    /// The folder of the repository in the hub cache.
    pub(crate) fn folder(&self, config: &Config) -> PathBuf {
        config.hub_cache.join(format!("models--{}", self.repo.replace('/', "--")))
    }
}

impl std::fmt::Display for RepoName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.quant {
            Some(quant) => write!(f, "{}:{quant}", self.repo),
            None => f.write_str(&self.repo),
        }
    }
}

fn known(text: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.name == text)
}

fn is_word(text: &str) -> bool {
    let inside = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    !text.is_empty() && !text.starts_with(['.', '-']) && text.bytes().all(inside)
}

/// Whether the text is the name of a model file, without a quantization after it.
fn is_file_name(text: &str) -> bool {
    !text.contains(':') && [".gguf", ".safetensors"].iter().any(|e| text.to_ascii_lowercase().ends_with(e))
}

fn unknown(text: &str) -> HubError {
    let known = KNOWN.iter().map(|known| known.name);
    let asked = text.to_ascii_lowercase();
    let is_close = |name: &str| {
        let contains = asked.len() >= 3 && (name.contains(&asked) || asked.contains(name));
        let starts_alike = asked.len() >= 4 && asked.bytes().zip(name.bytes()).take(4).all(|(a, b)| a == b);
        contains || starts_alike || distance(&asked, name) <= 1 + name.len() / 4
    };
    let short = SHORT.iter().flat_map(|short| short.names.iter().copied());
    let mut close: Vec<&str> = known.clone().chain(short).filter(|name| is_close(name)).collect();
    close.sort_by_key(|name| distance(&asked, name));
    close.truncate(MAX_CLOSE);
    let close = match close.is_empty() {
        true => String::new(),
        false => format!(" (did you mean {}?)", close.join(" or ")),
    };
    HubError::Unknown { name: text.to_string(), close, known: known.collect::<Vec<_>>().join(", ") }
}

/// The edit distance of two short texts.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories() {
        for (text, repo, quant) in [
            ("a/b", "a/b", None),
            ("Prism-ML/Bonsai-8B-gguf:Q1_0", "Prism-ML/Bonsai-8B-gguf", Some("Q1_0")),
            ("hf.co/a/b.c_d:x-Q8_0.gguf", "a/b.c_d", Some("x-Q8_0.gguf")),
            ("https://huggingface.co/a/b", "a/b", None),
        ] {
            let want = RepoName { repo: repo.to_string(), quant: quant.map(str::to_string) };
            assert_eq!(Name::parse(text).unwrap(), Name::Repo(want), "{text}");
        }
        for text in
            ["", "a", "a/b/c", "a/", "/b:", "a/b:", "a/b:..", "a/../b", "a--b/c", "a b/c", "a/.b", "a/b:Q4 0"]
        {
            assert!(!matches!(Name::parse(text), Ok(Name::Repo(_))), "{text}");
        }
    }

    #[test]
    fn a_name_from_elsewhere_is_never_a_path() {
        for text in ["smollm2", "llama3.2:1b", "a/b", "hf.co/a/b:Q4_0"] {
            assert!(Name::parse_remote(text).is_ok(), "{text}");
        }
        // the last two exist beside the test
        for text in
            ["", "/etc/passwd", "../x", "a/../b", "a\\b", "a\0b", "~/x", "x.gguf", "C:/x", "src", "./src"]
        {
            assert!(matches!(Name::parse_remote(text), Err(HubError::NotAName { .. })), "{text}");
        }
        assert_eq!(Name::parse("src/lib.rs").unwrap(), Name::Path("src/lib.rs".into()));
        assert!(matches!(Name::parse_remote("src/lib.rs"), Ok(Name::Repo(_))));
    }

    #[test]
    fn a_short_name_is_a_file_of_the_hub() {
        for name in ["qwen3:0.6b", "llama3.2", "llama3.2:latest", "gpt-oss:20b"] {
            assert!(matches!(Name::parse(name), Ok(Name::Short(..))), "{name}");
        }
        assert!(matches!(Name::parse("smollm2"), Ok(Name::Known(_))));
    }

    #[test]
    fn a_missing_path_is_an_error() {
        for text in ["/no/such", "./no/such", "../no/such", "models/x.gguf", "x.GGUF", "x/y.safetensors"] {
            let error = Name::parse(text).unwrap_err().to_string();
            assert_eq!(error, format!("{text}: no such file or folder"));
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones_and_the_close_ones() {
        let error = Name::parse("smolm2").unwrap_err().to_string();
        assert_eq!(
            error,
            "no model named 'smolm2' (did you mean smollm2 or smollm3 or smollm2:360m or smollm2:1.7b?): want a \
             known name (stories, smollm2, gemma3-270m, tinyllama-iq2, or a short one such as llama3.2:1b: `tern list`), a \
             .gguf file, a folder that contains one, or a hub repository as org/repo[:QUANT]"
        );
        for (text, close) in [("story", "stories?"), ("gema3", "gemma3 or "), ("lama3.2", "llama3.2 or ")] {
            let error = Name::parse(text).unwrap_err().to_string();
            assert!(error.contains(&format!("(did you mean {close}")), "{error}");
        }
        assert!(!Name::parse("yarnspinner").unwrap_err().to_string().contains("did you mean"));
    }

    #[test]
    fn distances() {
        for (a, b, want) in [("", "abc", 3), ("kitten", "sitting", 3), ("same", "same", 0), ("ab", "ba", 2)] {
            assert_eq!(distance(a, b), want, "{a} {b}");
        }
    }
}
