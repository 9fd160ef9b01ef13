//! How text is split before BPE: the `pre_tokenizer` of a `tokenizer.json`, and the name
//! that GGUF files have for it.

use serde_json::{Value, json};

/// The splitting that `pre_tokenizer: ByteLevel` does by itself.
const BYTE_LEVEL: &str = "(byte level)";
/// Each digit alone.
const DIGITS: &str = "(digits)";

/// Steps with a name.
struct Known {
    /// The patterns in order, as [`canonical`] writes them.
    steps: &'static [&'static str],
    /// The name; with `ignore_merges` it is another one.
    name: &'static str,
    ignoring_merges: Option<&'static str>,
}

const CL100K: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const DEEPSEEK_LETTERS: &str = concat!(
    "\\s?[A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}\u{295}-",
    "\u{2af}\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}\u{38e}-",
    "\u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}\u{13a0}-",
    "\u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}",
    "\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-",
    "\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}",
    "\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-",
    "\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}",
    "\u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}\u{2145}-\u{2149}",
    "\u{214e}\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}",
    "\u{a640}-\u{a66d}\u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\u{a78b}-\u{a78e}\u{ab70}-",
    "\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}",
    "\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}",
    "\u{1e900}-\u{1e943}]+",
);
const DEEPSEEK_MARKS: &str =
    "\\s?[!-/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+";
const CJK_AND_HANGUL: &str = "[一-龥ࠀ-一가-\u{d7ff}]+";
const CJK: &str = "[一-龥\u{3040}-ゟ゠-ヿ]+";

static KNOWN: &[Known] = &[
    Known { steps: &[CL100K], name: "dbrx", ignoring_merges: Some("llama-bpe") },
    Known { steps: &[QWEN2], name: "qwen2", ignoring_merges: None },
    Known { steps: &[QWEN35], name: "qwen35", ignoring_merges: None },
    Known { steps: &[O200K], name: "gpt-4o", ignoring_merges: None },
    Known { steps: &[TEKKEN], name: "tekken", ignoring_merges: Some("tekken") },
    Known { steps: &[BYTE_LEVEL], name: "gpt-2", ignoring_merges: None },
    Known { steps: &[DIGITS, BYTE_LEVEL], name: "smollm", ignoring_merges: None },
    Known { steps: &[r"\p{N}{1,3}", CJK, DEEPSEEK3], name: "deepseek-v3", ignoring_merges: None },
    Known {
        steps: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK_AND_HANGUL, DIGITS],
        name: "deepseek-coder",
        ignoring_merges: None,
    },
    Known {
        steps: &[r"[\r\n]", DEEPSEEK_LETTERS, DEEPSEEK_MARKS, r"\s+$", CJK_AND_HANGUL, DIGITS],
        name: "deepseek-llm",
        ignoring_merges: None,
    },
];

/// The name of a splitting, or what of it is not known.
pub(super) fn name(pre: Option<&Value>, ignore_merges: bool) -> Result<&'static str, String> {
    let mut steps = vec![];
    flatten(pre.unwrap_or(&Value::Null), &mut steps)?;
    let known =
        KNOWN.iter().find(|known| known.steps.iter().map(|step| canonical(step)).eq(steps.iter().cloned()));
    let known = known
        .ok_or_else(|| format!("a pre_tokenizer that splits by {}", crate::shown(&steps.join(", then "))))?;
    match (ignore_merges, known.ignoring_merges) {
        (false, Some(name)) if name == known.name => {
            Err(format!("the splitting `{name}` without ignore_merges"))
        }
        (false, _) => Ok(known.name),
        (true, Some(name)) => Ok(name),
        (true, None) => Err(format!("the splitting `{}` with ignore_merges", known.name)),
    }
}

/// The pre-tokenizer of a name, and whether it needs `ignore_merges`: the way back of [`name`].
pub(in crate::hf) fn json(name: &str) -> Option<(Value, bool)> {
    let named = |known: &&Known| known.name == name || known.ignoring_merges == Some(name);
    let known = KNOWN.iter().find(named)?;
    let byte_level = |regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex });
    let step = |step: &&str| match *step {
        BYTE_LEVEL => byte_level(true),
        DIGITS => json!({ "type": "Digits", "individual_digits": true }),
        regex => {
            json!({ "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false })
        }
    };
    let mut steps: Vec<Value> = known.steps.iter().map(step).collect();
    if !known.steps.contains(&BYTE_LEVEL) {
        steps.push(byte_level(false));
    }
    Some((json!({ "type": "Sequence", "pretokenizers": steps }), known.ignoring_merges == Some(name)))
}

/// The steps of a pre-tokenizer, one after the other.
fn flatten(pre: &Value, steps: &mut Vec<String>) -> Result<(), String> {
    let text = |key: &str| pre.get(key).and_then(Value::as_str);
    let flag = |key: &str| pre.get(key).and_then(Value::as_bool);
    match text("type") {
        None => Ok(()),
        Some("Sequence") => {
            let list = pre.get("pretokenizers").and_then(Value::as_array);
            list.into_iter().flatten().try_for_each(|step| flatten(step, steps))
        }
        Some("ByteLevel") => {
            if flag("add_prefix_space") == Some(true) {
                return Err("a pre_tokenizer with add_prefix_space".into());
            }
            if flag("use_regex").unwrap_or(true) {
                steps.push(BYTE_LEVEL.into());
            }
            Ok(())
        }
        Some("Digits") if flag("individual_digits") == Some(true) => {
            steps.push(DIGITS.into());
            Ok(())
        }
        Some("Split") => {
            let keeps = match (text("behavior"), flag("invert").unwrap_or(false)) {
                (Some("Isolated"), false) => true,
                (Some("Removed"), true) => true, // patterns match all of a text, so nothing is removed
                _ => false,
            };
            let pattern = pre.get("pattern").and_then(|p| p.get("Regex")).and_then(Value::as_str);
            match pattern.filter(|_| keeps) {
                Some(pattern) => steps.push(canonical(pattern)),
                None => return Err(format!("a pre_tokenizer with the step {pre}")),
            }
            Ok(())
        }
        Some(_) => Err(format!("a pre_tokenizer with the step {pre}")),
    }
}

/// A pattern with line ends written as escapes.
fn canonical(pattern: &str) -> String {
    pattern.replace('\r', r"\r").replace('\n', r"\n")
}
