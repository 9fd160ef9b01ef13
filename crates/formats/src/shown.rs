//! Strings of a file for display in messages and tables: control characters escaped, long strings truncated.

use std::borrow::Cow;
use std::fmt::Write;

/// Longest displayed string, in characters.
const MAX_CHARS: usize = 160;

/// A string of a file for display: control characters are escaped, and a long string is truncated and
/// followed by its length.
///
/// ```
/// use tern_formats::shown;
/// assert_eq!(shown("blk.0.attn_q.weight"), "blk.0.attn_q.weight");
/// assert_eq!(shown("a\x1b[2Jb\n"), "a\\u{1b}[2Jb\\n");
/// assert_eq!(shown(&"k".repeat(70_000)), format!("{}... (70000 bytes)", "k".repeat(160)));
/// ```
pub fn shown(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(MAX_CHARS) {
        None => escaped(text),
        Some((end, _)) => format!("{}... ({} bytes)", escaped(&text[..end]), text.len()).into(),
    }
}

/// The whole text with control characters and bidirectional overrides escaped.
pub fn escaped(text: &str) -> Cow<'_, str> {
    let is_control =
        |c: char| c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if !text.contains(is_control) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_control(c) {
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
    fn control_characters_are_escaped() {
        assert_eq!(escaped("\u{1b}]0;title\u{7}"), "\\u{1b}]0;title\\u{7}");
        assert_eq!(escaped("abc\u{202e}gpj.\u{9b}2J\r\n\t\0"), "abc\\u{202e}gpj.\\u{9b}2J\\r\\n\\t\\0");
        assert_eq!(
            escaped("caf\u{e9} cafe\u{301} \u{1f426} \"quoted\" \\"),
            "caf\u{e9} cafe\u{301} \u{1f426} \"quoted\" \\"
        );
    }

    #[test]
    fn long_strings_are_truncated_between_characters() {
        let long = "\u{1f426}".repeat(161);
        assert_eq!(shown(&long), format!("{}... (644 bytes)", "\u{1f426}".repeat(160)));
        assert_eq!(shown(&long[4..]), long[4..]);
    }
}
