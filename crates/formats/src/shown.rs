//! Strings of a file in a sentence or a table: nothing that a terminal would act on, and never a page of it.

use std::borrow::Cow;
use std::fmt::Write;

/// Characters of a string that are shown.
const MOST: usize = 160;

/// A name or a text of a file, to be shown to a person: control characters are escaped, and a long string is cut and
/// followed by its length.
///
/// ```
/// use tern_formats::shown;
/// assert_eq!(shown("blk.0.attn_q.weight"), "blk.0.attn_q.weight");
/// assert_eq!(shown("a\x1b[2Jb\n"), "a\\u{1b}[2Jb\\n");
/// assert_eq!(shown(&"k".repeat(70_000)), format!("{}... (70000 bytes)", "k".repeat(160)));
/// ```
pub fn shown(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(MOST) {
        None => escaped(text),
        Some((end, _)) => format!("{}... ({} bytes)", escaped(&text[..end]), text.len()).into(),
    }
}

/// The whole text with its control characters escaped, and those that reorder what stands around them.
pub fn escaped(text: &str) -> Cow<'_, str> {
    let acts = |c: char| c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if !text.contains(acts) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match acts(c) {
            // writing to a string cannot fail
            true => _ = write!(out, "{}", c.escape_debug()),
            false => out.push(c),
        }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_act_on_is_escaped() {
        assert_eq!(escaped("\u{1b}]0;title\u{7}"), "\\u{1b}]0;title\\u{7}");
        assert_eq!(escaped("abc\u{202e}gpj.\u{9b}2J\r\n\t\0"), "abc\\u{202e}gpj.\\u{9b}2J\\r\\n\\t\\0");
        assert_eq!(
            escaped("caf\u{e9} cafe\u{301} \u{1f426} \"quoted\" \\"),
            "caf\u{e9} cafe\u{301} \u{1f426} \"quoted\" \\"
        );
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = "\u{1f426}".repeat(161);
        assert_eq!(shown(&long), format!("{}... (644 bytes)", "\u{1f426}".repeat(160)));
        assert_eq!(shown(&long[4..]), long[4..]);
    }
}
