//! Bytes of tokens to text, in complete characters.

/// Joins the bytes of tokens into UTF-8 text. A character split over tokens is returned once it is complete.
///
/// The concatenated output equals `String::from_utf8_lossy` of all bytes.
///
/// ```
/// use tern_text::Detokenizer;
/// let mut text = Detokenizer::new();
/// assert_eq!(text.push(b"na\xc3"), "na");
/// assert_eq!(text.push(b"\xafve \xff"), "ïve \u{fffd}");
/// assert_eq!(text.push(b"\xe2\x82"), "");
/// assert_eq!(text.finish(), "\u{fffd}");
/// ```
#[derive(Debug, Clone, Default)]
pub struct Detokenizer {
    /// An incomplete character: at most three bytes.
    pending: Vec<u8>,
}

impl Detokenizer {
    /// An empty stream.
    pub fn new() -> Detokenizer {
        Detokenizer::default()
    }

    /// Adds a token's bytes and returns the text that is complete now.
    pub fn push(&mut self, token: &[u8]) -> String {
        self.pending.extend_from_slice(token);
        let mut text = String::new();
        let mut used = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            used += chunk.valid().len();
            // an incomplete character is kept; it can only be in the last chunk
            let bad = chunk.invalid();
            let cut_off = std::str::from_utf8(bad).is_err_and(|error| error.error_len().is_none());
            if cut_off && used + bad.len() == self.pending.len() {
                break;
            }
            if !bad.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
                used += bad.len();
            }
        }
        self.pending.drain(..used);
        text
    }

    /// Ends the stream: an incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes that often start, continue and break characters.
    fn bytes() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let piece = prop_oneof![
            any::<char>().prop_map(|c| c.to_string().into_bytes()),
            "[a-zé日🙂]{0,4}".prop_map(String::into_bytes),
            prop::collection::vec(
                prop::sample::select(vec![
                    0x41, 0x80, 0xbf, 0xc2, 0xe0, 0xa0, 0xed, 0x9f, 0xf0, 0x90, 0xf4, 0x8f, 0xff
                ]),
                0..5
            ),
            prop::collection::vec(any::<u8>(), 0..4),
        ];
        prop::collection::vec(piece, 0..12)
    }

    proptest! {
        #[test]
        fn any_split_gives_the_lossy_text(pieces in bytes(), cuts in prop::collection::vec(1..5_usize, 0..40)) {
            let all = pieces.concat();
            let mut text = Detokenizer::new();
            let mut out = String::new();
            let mut rest = all.as_slice();
            for cut in cuts {
                let (token, after) = rest.split_at(cut.min(rest.len()));
                out += &text.push(token);
                rest = after;
            }
            out += &text.push(rest);
            prop_assert!(text.pending.len() < 4);
            out += &text.finish();
            prop_assert_eq!(out, String::from_utf8_lossy(&all));
        }
    }
}
