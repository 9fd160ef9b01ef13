//! Markers in text whose whitespace may differ from the usual one.

/// Limit in bytes of whitespace inside a marker.
const LONGEST_SPACE: usize = 16;

/// Whether a text starts with a marker.
#[derive(Debug, PartialEq)]
pub(super) enum Found {
    Not,
    /// More text is needed.
    Maybe,
    /// It does, with this many bytes.
    Length(usize),
}

/// Compares the start of a text with a marker. Whitespace may differ where the marker has some and before
/// each `<`; a digit of the marker stands for any number.
pub(super) fn loosely(text: &str, marker: &str) -> Found {
    let mut at = 0;
    for want in marker.chars() {
        let rest = &text[at..];
        let run = |is: fn(&u8) -> bool| rest.bytes().take(LONGEST_SPACE).take_while(is).count();
        if want.is_ascii_whitespace() {
            at += run(u8::is_ascii_whitespace);
            continue;
        }
        if want.is_ascii_digit() {
            match run(u8::is_ascii_digit) {
                0 if rest.is_empty() => return Found::Maybe,
                0 => return Found::Not,
                digits => at += digits,
            }
            continue;
        }
        if want == '<' && at > 0 {
            at += run(u8::is_ascii_whitespace);
        }
        match text[at..].chars().next() {
            None => return Found::Maybe,
            Some(found) if found == want => at += want.len_utf8(),
            Some(_) => return Found::Not,
        }
    }
    Found::Length(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whitespace_and_numbers_may_differ() {
        for (text, marker, found) in [
            ("</arg_key>\n <arg_value>x", "</arg_key><arg_value>", Found::Length(23)),
            ("</arg_key><arg_value>x", "</arg_key>\n<arg_value>", Found::Length(21)),
            ("</arg_key>\n", "</arg_key><arg_value>", Found::Maybe),
            ("</arg_key>x", "</arg_key><arg_value>", Found::Not),
            ("\" index=\"12\"<|sep|>", "\" index=\"1\"<|sep|>", Found::Length(19)),
            ("\" index=\"", "\" index=\"1\"<|sep|>", Found::Maybe),
            (" x", "x", Found::Not),
            ("", "", Found::Length(0)),
        ] {
            assert_eq!(loosely(text, marker), found, "{text} {marker}");
        }
    }
}
