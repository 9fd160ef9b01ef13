//! Terminal output: messages of one line, and model text with control characters escaped.

use std::borrow::Cow;
use std::io::Write;

use tern::formats::escaped;

/// Maximum characters of a message; the middle of a longer one is omitted.
const MAX_CHARS: usize = 2000;
/// Characters kept at the end of a shortened message, where the reason is.
const TAIL_CHARS: usize = 400;

/// Writes one message to stderr, ignoring errors.
pub(crate) fn message(message: &str) {
    let line = one_line(message) + "\n";
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The message on one line, without control characters and of bounded length.
fn one_line(message: &str) -> String {
    let text = escaped(message);
    let count = text.chars().count();
    if count <= MAX_CHARS {
        return text.into_owned();
    }
    let at = |nth: usize| text.char_indices().nth(nth).map_or(text.len(), |(at, _)| at);
    let (head, tail) = (at(MAX_CHARS - TAIL_CHARS), at(count - TAIL_CHARS));
    format!("{} ... ({} bytes omitted) ... {}", &text[..head], tail - head, &text[tail..])
}

/// Model text for stdout: unchanged, or for a terminal with control characters escaped (except line feeds and
/// tabs), because tokens may contain any bytes.
pub(crate) fn model_text(text: &str, is_terminal: bool) -> Cow<'_, str> {
    let kept = ['\n', '\t'];
    if !is_terminal || matches!(escaped(&text.replace(kept, " ")), Cow::Borrowed(_)) {
        return text.into();
    }
    let pieces = text.split_inclusive(kept).map(|piece| {
        let body = piece.trim_end_matches(kept);
        format!("{}{}", escaped(body), &piece[body.len()..])
    });
    pieces.collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_of_bounded_length() {
        assert_eq!(one_line("tern: x.gguf: no such file"), "tern: x.gguf: no such file");
        assert_eq!(one_line("a\nb\x1b[2J"), "a\\nb\\u{1b}[2J");
        let long = one_line(&format!("begin {} the end", "\u{e9}".repeat(70_000)));
        assert!(long.starts_with("begin \u{e9}") && long.ends_with("\u{e9} the end"), "{long}");
        assert!(long.contains(" bytes omitted) ... ") && long.chars().count() < MAX_CHARS + 50, "{long}");
    }

    #[test]
    fn a_terminal_gets_escapes_and_a_pipe_every_byte() {
        let text = "one\ttwo\n\nthree\r\x1b[31m\u{7}\n";
        assert_eq!(model_text(text, false), text);
        assert_eq!(model_text(text, true), "one\ttwo\n\nthree\\r\\u{1b}[31m\\u{7}\n");
        assert!(matches!(model_text("caf\u{e9}\n", true), Cow::Borrowed(_)));
    }
}
