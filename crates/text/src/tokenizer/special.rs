//! Special tokens: BOS, EOS and other end tokens, and markers that are recognised in text.

use std::collections::BTreeSet;
use std::ops::Range;

use aho_corasick::{AhoCorasick, Anchored, Input, Match, MatchKind, StartKind};
use hashbrown::HashMap;
use tern_formats::Metadata;

use super::TokenizerError;
use super::fill;
use super::vocab::{Kind, Vocab};

/// Texts that are end tokens in every model that has them as a token.
const END_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// The tokens with a role.
#[derive(Debug, Default)]
pub(super) struct Roles {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) sep: Option<u32>,
    pub(super) unknown: Option<u32>,
    pub(super) ends: BTreeSet<u32>,
}

impl Roles {
    /// Reads the ids, with `defaults` for missing keys; end tokens become control tokens.
    pub(super) fn read(
        metadata: &Metadata,
        vocab: &mut Vocab,
        defaults: Roles,
        warnings: &mut Vec<String>,
    ) -> Result<Roles, TokenizerError> {
        let size = vocab.len();
        let mut id_of = |role: &str, default: Option<u32>| -> Result<Option<u32>, TokenizerError> {
            let key = format!("tokenizer.ggml.{role}_token_id");
            let Some(id) = metadata.optional_usize(&key)? else {
                return Ok(default.filter(|&id| (id as usize) < size));
            };
            if id >= size {
                warnings.push(format!("{key} is {id}, the vocabulary has {size} tokens; it is ignored"));
                return Ok(None);
            }
            Ok(Some(id as u32))
        };
        let first = id_of("cls", defaults.bos)?;
        let mut roles = Roles {
            bos: id_of("bos", first)?,
            eos: id_of("eos", defaults.eos)?,
            sep: id_of("seperator", defaults.sep)?,
            unknown: id_of("unknown", defaults.unknown)?,
            ends: BTreeSet::new(),
        };
        let mut ends: Vec<u32> =
            [roles.eos, id_of("eot", None)?, id_of("eom", None)?].into_iter().flatten().collect();
        // folders may list any number
        let listed = metadata.optional_usizes("tokenizer.eog_token_ids")?.unwrap_or_default();
        ends.extend(listed.into_iter().filter(|id| *id < size).map(|id| id as u32));
        for marker in fill::ENDS {
            if let Some(id) = marker.find(metadata, vocab)? {
                vocab.set_kind(id, Kind::Control);
                ends.push(id);
            }
        }
        for text in END_TEXTS {
            if let Some(id) = vocab.id_of(text) {
                vocab.set_kind(id, Kind::Control);
                ends.push(id);
            }
        }
        // `</s>` is also an HTML tag: it is an end token only if the file declares it a control token
        ends.extend(vocab.id_of("</s>").filter(|&id| vocab.kind(id) == Some(Kind::Control)));
        roles.ends.extend(ends);

        // in harmony and Solar Open `<|end|>` ends a message, not the turn
        let has = |text| vocab.id_of(text).is_some();
        if (has("<|return|>") && has("<|call|>")) || (has("<|calls|>") && has("<|flush|>")) {
            let message_end = vocab.id_of("<|end|>").filter(|&id| Some(id) != roles.eos);
            message_end.map(|id| roles.ends.remove(&id));
        }
        Ok(roles)
    }
}

/// A part of the text, or a marker found in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'t> {
    Text(&'t str),
    Token(u32),
}

/// Whether a marker includes the spaces before or after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    SpacesBefore,
    SpacesAfter,
}

/// Finds markers in text: the longest at the leftmost position.
pub(super) struct Markers {
    always: Finder,
    on_request: Finder,
    takes: HashMap<u32, Takes>,
}

/// Which markers are recognised.
#[derive(Clone, Copy, Debug)]
pub(super) enum Read<'a> {
    /// User-defined tokens.
    UserDefined,
    /// Control tokens too, outside these byte ranges, which are sorted, disjoint and not empty.
    ControlOutside(&'a [Range<usize>]),
}

impl Read<'_> {
    /// Control tokens anywhere, or nowhere.
    pub(super) fn with_control_tokens(parse_special: bool) -> Read<'static> {
        if parse_special { Read::ControlOutside(&[]) } else { Read::UserDefined }
    }
}

struct Finder {
    ids: Vec<u32>,
    automaton: Option<AhoCorasick>,
}

impl Finder {
    fn new(vocab: &Vocab, kinds: &[Kind]) -> Result<Finder, TokenizerError> {
        let text = |id| vocab.text(id).filter(|text| !text.is_empty());
        let (ids, texts): (Vec<u32>, Vec<&str>) =
            vocab.of_kind(kinds).filter_map(|id| Some((id, text(id)?))).unzip();
        if ids.is_empty() {
            return Ok(Finder { ids, automaton: None });
        }
        let mut builder = AhoCorasick::builder();
        builder.match_kind(MatchKind::LeftmostLongest).start_kind(StartKind::Both);
        let automaton = builder.build(texts).map_err(|e| TokenizerError::Markers(e.to_string()))?;
        Ok(Finder { ids, automaton: Some(automaton) })
    }

    /// The first marker in a range of the text, or the longest that starts it.
    fn find(&self, text: &str, range: Range<usize>, anchored: Anchored) -> Option<(Match, u32)> {
        let found = self.automaton.as_ref()?.find(Input::new(text).range(range).anchored(anchored))?;
        Some((found, *self.ids.get(found.pattern().as_usize())?))
    }
}

impl Markers {
    pub(super) fn new(metadata: &Metadata, vocab: &Vocab) -> Result<Markers, TokenizerError> {
        let on_request = Finder::new(vocab, &[Kind::UserDefined, Kind::Control, Kind::Unknown])?;
        Ok(Markers {
            always: Finder::new(vocab, &[Kind::UserDefined])?,
            takes: takes(metadata, vocab, &on_request.ids)?,
            on_request,
        })
    }

    /// Whether some marker includes adjacent spaces.
    pub(super) fn take_spaces(&self) -> bool {
        !self.takes.is_empty()
    }

    /// The first marker from `at` on: of those that are recognised, the longest at the leftmost position.
    fn next(&self, text: &str, mut at: usize, read: Read<'_>) -> Option<(Match, u32)> {
        let Read::ControlOutside(user) = read else {
            return self.always.find(text, at..text.len(), Anchored::No);
        };
        loop {
            let (found, id) = self.on_request.find(text, at..text.len(), Anchored::No)?;
            let next = user.partition_point(|range| range.end <= found.start());
            let touched = user.get(next).filter(|range| range.start < found.end());
            if touched.is_none() || self.is_user_defined(id) {
                return Some((found, id));
            }
            // a control token that includes a user's bytes is not recognised, but a shorter or
            // a user-defined one may be
            let start = found.start();
            let own = touched.map_or(start, |range| range.start.max(start));
            let shorter = self.on_request.find(text, start..own, Anchored::Yes);
            let defined = self.always.find(text, start..text.len(), Anchored::Yes);
            let longest = shorter.into_iter().chain(defined).max_by_key(|(found, _)| found.end());
            if longest.is_some() {
                return longest;
            }
            at = start + text[start..].chars().next().map_or(1, char::len_utf8);
        }
    }

    fn is_user_defined(&self, id: u32) -> bool {
        self.always.ids.binary_search(&id).is_ok()
    }

    /// The text in parts, computed lazily.
    pub(super) fn parts<'t>(&'t self, text: &'t str, read: Read<'t>) -> impl Iterator<Item = Part<'t>> + 't {
        let (mut at, mut rest, mut ended) = (0, 0, false);
        let some = |text: &'t str| Some(Part::Text(text)).filter(|_| !text.is_empty());
        let pairs = std::iter::from_fn(move || {
            if ended {
                return None;
            }
            let Some((marker, id)) = self.next(text, at, read) else {
                ended = true;
                return Some([some(text.get(rest..).unwrap_or_default()), None]);
            };
            at = marker.end();
            let takes = self.takes.get(&id);
            // also empty if the previous marker included the spaces that this one starts with
            let mut before = text.get(rest..marker.start()).unwrap_or_default();
            if takes == Some(&Takes::SpacesBefore) {
                before = before.trim_end_matches(is_space);
            }
            rest = marker.end();
            if takes == Some(&Takes::SpacesAfter) {
                rest += text[rest..].len() - text[rest..].trim_start_matches(is_space).len();
            }
            Some([some(before), Some(Part::Token(id))])
        });
        pairs.flatten().flatten()
    }
}

fn is_space(c: char) -> bool {
    c.is_ascii_whitespace() || c == '\u{B}'
}

/// GGUF does not specify which markers include spaces; these models are recognised by name.
fn takes(metadata: &Metadata, vocab: &Vocab, markers: &[u32]) -> Result<HashMap<u32, Takes>, TokenizerError> {
    let name = metadata.optional_str("general.name")?.unwrap_or_default().to_lowercase();
    let pre = metadata.optional_str("tokenizer.ggml.pre")?.unwrap_or_default();
    let arch = metadata.optional_str("general.architecture")?.unwrap_or_default();
    let one = |text| vocab.id_of(text).map(|id| (id, Takes::SpacesBefore)).into_iter().collect();
    if ["jina-v2-de", "jina-v2-es", "jina-v2-code"].contains(&pre)
        || ["nomic-bert-moe", "jina-bert-v3"].contains(&arch)
    {
        return Ok(one("<mask>"));
    }
    if name.contains("modern-bert") {
        return Ok(one("[MASK]"));
    }
    if name.contains("phi-3") || name.contains("phi3") {
        let keep = ["<unk>", "<s>", "<|endoftext|>"].map(|text| vocab.id_of(text));
        let takers = markers.iter().filter(|&&id| !keep.contains(&Some(id)));
        return Ok(takers.map(|&id| (id, Takes::SpacesAfter)).collect());
    }
    Ok(HashMap::new())
}
