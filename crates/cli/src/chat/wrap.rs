//! Word wrap of a streamed text: lines end between words at the width of a terminal. Code
//! blocks keep their lines.

use unicode_width::UnicodeWidthChar;

/// What delimits a code block, at the beginning of a line.
const FENCES: [&str; 2] = ["```", "~~~"];

/// A text that is written piece by piece. A word is written once its end is known.
#[derive(Debug)]
pub(crate) struct Wrap {
    width: usize,
    /// Columns of the line that are written.
    column: usize,
    /// Spaces that are written if a word follows on the same line.
    spaces: String,
    /// The beginning of a word.
    word: String,
    /// Whether the line has no word yet.
    at_line_start: bool,
    /// The fence of the code block that the text is in.
    code: Option<&'static str>,
}

impl Wrap {
    pub(crate) fn new(width: usize) -> Wrap {
        Wrap { width, column: 0, spaces: String::new(), word: String::new(), at_line_start: true, code: None }
    }

    /// The text to write next.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        let mut out = String::new();
        for c in piece.chars() {
            match c {
                '\n' => {
                    self.end_word(&mut out);
                    self.spaces.clear();
                    out.push('\n');
                    self.column = 0;
                    self.at_line_start = true;
                }
                ' ' | '\t' => {
                    self.end_word(&mut out);
                    self.spaces.push(c);
                }
                // text without spaces between words, such as Chinese, may be broken anywhere
                _ if c.width() == Some(2) => {
                    self.end_word(&mut out);
                    self.word.push(c);
                    self.end_word(&mut out);
                }
                _ => self.word.push(c),
            }
        }
        if self.code.is_some() && !self.at_line_start {
            self.end_word(&mut out);
        }
        out
    }

    /// What is left at the end of the text.
    pub(crate) fn finish(&mut self) -> String {
        let mut out = String::new();
        self.end_word(&mut out);
        out
    }

    fn end_word(&mut self, out: &mut String) {
        if self.word.is_empty() {
            return;
        }
        if std::mem::take(&mut self.at_line_start)
            && let Some(fence) = FENCES.into_iter().find(|fence| self.word.starts_with(fence))
        {
            self.code = match self.code {
                None => Some(fence),
                Some(open) if open == fence => None,
                other => other,
            };
        }
        let columns = |text: &str| text.chars().map(|c| c.width().unwrap_or(0)).sum::<usize>();
        let (spaces, word) = (columns(&self.spaces) + self.spaces.matches('\t').count(), columns(&self.word));
        if self.code.is_none() && self.column > 0 && self.column + spaces + word > self.width {
            out.push('\n');
            self.column = 0;
        } else {
            out.push_str(&self.spaces);
            self.column += spaces;
        }
        out.push_str(&self.word);
        self.column += word;
        self.spaces.clear();
        self.word.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text in pieces of every length.
    fn wrapped(text: &str, width: usize) -> String {
        let chars: Vec<char> = text.chars().collect();
        let by = |length: usize| {
            let mut wrap = Wrap::new(width);
            let pieces = chars.chunks(length).map(|piece| piece.iter().collect::<String>());
            pieces.map(|piece| wrap.push(&piece)).collect::<String>() + &wrap.finish()
        };
        let whole = by(chars.len().max(1));
        (1..5).for_each(|length| assert_eq!(by(length), whole, "in pieces of {length}"));
        whole
    }

    #[test]
    fn lines_end_between_words() {
        assert_eq!(wrapped("The sea is wide and blue.", 10), "The sea is\nwide and\nblue.");
        assert_eq!(wrapped("one\n\n  two  three four", 11), "one\n\n  two\nthree four");
        assert_eq!(wrapped("incomprehensibilities are long", 8), "incomprehensibilities\nare long");
        assert_eq!(wrapped("", 8), "");
        assert_eq!(wrapped("ends with a line\n", 80), "ends with a line\n");
    }

    #[test]
    fn code_blocks_keep_their_lines() {
        let code = "```rust\nlet a_long_line = \"of code that is wider\";\n    indented\n```";
        let text = format!("A list of words:\n{code}\nand more words after it");
        assert_eq!(wrapped(&text, 12), format!("A list of\nwords:\n{code}\nand more\nwords after\nit"));
        assert_eq!(
            wrapped("~~~\n``` is not the end of it\n~~~\na b c d", 5),
            "~~~\n``` is not the end of it\n~~~\na b c\nd"
        );
    }

    #[test]
    fn wide_characters_take_two_columns_and_break_anywhere() {
        assert_eq!(
            wrapped("\u{6d77}\u{6d77}\u{6d77}\u{6d77}\u{6d77}", 4),
            "\u{6d77}\u{6d77}\n\u{6d77}\u{6d77}\n\u{6d77}"
        );
        assert_eq!(
            wrapped("caf\u{e9}s e\u{301}te\u{301}", 9),
            "caf\u{e9}s e\u{301}te\u{301}",
            "a combining accent has no width"
        );
    }
}
