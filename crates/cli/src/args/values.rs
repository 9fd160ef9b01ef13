//! Parsers of flag values, with messages that say what was expected.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use tern::Pooling;
use tern::formats::quantize::{Keep, RECIPES, Recipe};
use tern::quant;

/// Maximum number of generated tokens; none is as many as fit the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MaxTokens(pub(crate) Option<usize>);

impl FromStr for MaxTokens {
    type Err = String;

    fn from_str(text: &str) -> Result<MaxTokens, String> {
        match text {
            "-1" => Ok(MaxTokens(None)),
            _ => match positive(text) {
                Ok(n) => Ok(MaxTokens(Some(n))),
                Err(_) => Err("expected a whole number from 1, or -1 for as many as fit the context".into()),
            },
        }
    }
}

impl fmt::Display for MaxTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(n) => write!(f, "{n}"),
            None => f.write_str("-1"),
        }
    }
}

/// The seed of random draws; none is a random seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(pub(crate) Option<u64>);

impl FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Seed, String> {
        match (text, text.parse()) {
            ("-1", _) => Ok(Seed(None)),
            (_, Ok(seed)) => Ok(Seed(Some(seed))),
            _ => Err(format!("expected a whole number from 0 to {}, or -1 for a random seed", u64::MAX)),
        }
    }
}

/// The names of poolings, which completions offer too.
pub(crate) fn pooling() -> impl TypedValueParser<Value = Pooling> {
    PossibleValuesParser::new(Pooling::ALL.map(Pooling::name)).try_map(|name| name.parse::<Pooling>())
}

pub(crate) fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a whole number from 1".into()),
        Ok(n) => Ok(n),
    }
}

pub(crate) fn threads(text: &str) -> Result<usize, String> {
    match positive(text)? {
        n if n > tern::cpu::MAX_THREADS => {
            Err(format!("expected at most {} threads", tern::cpu::MAX_THREADS))
        }
        n => Ok(n),
    }
}

pub(crate) fn context(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "expected a whole number from 1, or 0 for the trained context".into())
}

/// A number of bytes, with M or G for a million or a billion of them, as llama-gguf-split has it.
pub(crate) fn file_size(text: &str) -> Result<u64, String> {
    let units = [("M", 1_000_000), ("G", 1_000_000_000)];
    let unit = units.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, bytes) = unit.unwrap_or((text, 1));
    let number: Option<u64> = number.parse().ok().filter(|n| *n > 0);
    number.and_then(|n| n.checked_mul(bytes)).ok_or_else(|| "expected a size such as 500M or 4G".into())
}

pub(crate) fn interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds".to_string())?;
    if (0.1..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("expected 0.1 to 3600 seconds".into()) }
}

/// Requests per second.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err("expected a number above 0, in requests per second".into()),
    }
}

/// The address of a server without `/v1`, which clients of OpenAI include, and without a slash at the end.
pub(crate) fn server_url(text: &str) -> Result<String, String> {
    let url = if text.contains("://") { text.to_string() } else { format!("http://{text}") };
    let base = url.trim_end_matches('/');
    let base = base.strip_suffix("/v1").unwrap_or(base);
    match base.split_once("://") {
        Some(("http" | "https", host)) if !host.is_empty() && !host.starts_with('/') => Ok(base.to_string()),
        _ => Err("expected a URL such as http://127.0.0.1:8080, with http or https".into()),
    }
}

/// A file whose extension selects the kind of charts.
pub(crate) fn plot_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg" | "html") => Ok(path),
        _ => Err("expected a file name that ends in .svg or .html".into()),
    }
}

pub(crate) fn host_name(text: &str) -> Result<String, String> {
    let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match text.strip_suffix('.').unwrap_or(text) {
        name if name == "*" || (!name.is_empty() && name.chars().all(known)) => Ok(name.to_string()),
        _ => Err("expected a host name such as chat.example.com, without scheme and port".into()),
    }
}

pub(crate) fn bias(text: &str) -> Result<(u32, f32), String> {
    let parts = text.split_once('=').and_then(|(id, by)| Some((id.parse().ok()?, by.parse().ok()?)));
    parts.ok_or_else(|| "expected a token id and a number, such as 42=-100".into())
}

/// Refuses every value: there is one prompt.
pub(crate) fn second_prompt(_: &str) -> Result<Infallible, String> {
    Err("expected one prompt, quoted if it contains spaces; select a model with -m: tern run -m MODEL PROMPT"
        .into())
}

/// A recipe by name.
pub(crate) fn recipe(name: &str) -> Result<&'static Recipe, String> {
    Recipe::named(name).ok_or_else(|| {
        let names: Vec<&str> = RECIPES.iter().map(|recipe| recipe.name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// `PATTERN=FORMAT`.
pub(crate) fn keep(text: &str) -> Result<Keep, String> {
    let (pattern, name) =
        text.split_once('=').ok_or("expected PATTERN=FORMAT, such as output.weight=q8_0")?;
    let writable = |quant: &&'static quant::Quant| quant.encode.is_some() && quant.gguf_id.is_some();
    let format = quant::by_name(name).filter(writable).ok_or_else(|| format!("{name} cannot be written"))?;
    Ok(Keep { pattern: pattern.into(), format })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minus_one_means_the_same_as_in_llama_cpp_and_vllm() {
        assert_eq!("-1".parse(), Ok(MaxTokens(None)));
        assert_eq!("7".parse(), Ok(MaxTokens(Some(7))));
        assert!(["0", "-2", "many", ""].iter().all(|text| text.parse::<MaxTokens>().is_err()));
        assert_eq!("-1".parse(), Ok(Seed(None)));
        assert_eq!("18446744073709551615".parse(), Ok(Seed(Some(u64::MAX))));
        assert!(["-2", "18446744073709551616", "x"].iter().all(|text| text.parse::<Seed>().is_err()));
        assert_eq!((context("0"), context("12")), (Ok(0), Ok(12)));
        assert!(context("-1").is_err());
    }

    #[test]
    fn sizes_of_files_are_bytes_millions_or_billions() {
        assert_eq!(file_size("500M"), Ok(500_000_000));
        assert_eq!(file_size("4G"), Ok(4_000_000_000));
        assert_eq!(file_size("4096"), Ok(4096));
        for wrong in ["", "0", "0M", "-1G", "4T", "1.5G", "G", "99999999999999G"] {
            assert_eq!(file_size(wrong), Err("expected a size such as 500M or 4G".into()), "{wrong}");
        }
    }

    #[test]
    fn host_names_have_neither_scheme_nor_port() {
        for good in ["chat.example.com", "gpu_box", "*", "a."] {
            assert!(host_name(good).is_ok(), "{good}");
        }
        for bad in ["", "https://a", "a:80", "a/b", "*.a", "[::1]"] {
            assert!(host_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn servers_are_addressed_as_openai_clients_do() {
        for (text, want) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("localhost:8080/v1/", "http://localhost:8080"),
            ("https://example.com/api/v1", "https://example.com/api"),
        ] {
            assert_eq!(server_url(text).as_deref(), Ok(want));
        }
        for bad in ["", "ftp://host", "http://", "http:///v1"] {
            assert!(server_url(bad).is_err(), "{bad}");
        }
        assert!(["0", "-1", "inf", "x"].iter().all(|text| rate(text).is_err()));
        assert!(plot_file("a.svg").is_ok() && plot_file("a.html").is_ok() && plot_file("a.png").is_err());
    }
}
