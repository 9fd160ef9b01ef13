//! Stop strings, matched across token boundaries.

/// Invalid stop strings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// An empty string, at this index.
    #[error("stop string {0} is empty")]
    Empty(usize),
}

/// The result of adding a piece of text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Passed {
    /// Text that cannot be part of a stop string.
    pub text: String,
    /// The index of the stop string that was found. Its text is not part of the output.
    pub stop: Option<usize>,
}

/// Searches for stop strings in text that arrives in pieces, and holds back what may be the start of one.
///
/// The stop string that is complete first is found, however the text is divided into pieces; of several that
/// end at the same position, the longest.
///
/// ```
/// use tern_text::StopStrings;
/// let mut stops = StopStrings::new(vec!["\nUser:".into()])?;
/// assert_eq!(stops.push("Hello\nUs").text, "Hello");
/// let end = stops.push("er: Hi");
/// assert_eq!((end.text.as_str(), end.stop), ("", Some(0)));
/// # Ok::<(), tern_text::StopError>(())
/// ```
#[derive(Debug, Clone)]
pub struct StopStrings {
    matchers: Vec<Matcher>,
    /// Text held back: it may be the start of a stop string.
    held: String,
    found: Option<usize>,
}

impl StopStrings {
    /// A matcher for these strings; an empty list matches nothing.
    pub fn new(stops: Vec<String>) -> Result<StopStrings, StopError> {
        match stops.iter().position(String::is_empty) {
            Some(at) => Err(StopError::Empty(at)),
            None => Ok(StopStrings {
                matchers: stops.into_iter().map(Matcher::new).collect(),
                held: String::new(),
                found: None,
            }),
        }
    }

    /// Adds the next piece of text. After a stop the output is empty.
    pub fn push(&mut self, text: &str) -> Passed {
        if self.found.is_some() {
            return Passed { text: String::new(), stop: self.found };
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            let mut longest: Option<(usize, usize)> = None; // length, index
            for (place, matcher) in self.matchers.iter_mut().enumerate() {
                if matcher.step(byte) && longest.is_none_or(|(length, _)| matcher.stop.len() > length) {
                    longest = Some((matcher.stop.len(), place));
                }
            }
            if let Some((length, place)) = longest {
                self.found = Some(place);
                let mut text = std::mem::take(&mut self.held);
                text.truncate(before + at + 1 - length);
                return Passed { text, stop: self.found };
            }
        }
        // a partial match starts at a character's first byte, like the stop string
        let keep = self.matchers.iter().map(|matcher| matcher.matched).max().unwrap_or(0);
        let held = self.held.split_off(self.held.len() - keep);
        Passed { text: std::mem::replace(&mut self.held, held), stop: None }
    }

    /// Ends the stream and returns the text held back.
    pub fn finish(&mut self) -> String {
        self.matchers.iter_mut().for_each(|matcher| matcher.matched = 0);
        std::mem::take(&mut self.held)
    }
}

/// One stop string and the length of its prefix at the end of the text (Knuth-Morris-Pratt).
#[derive(Debug, Clone)]
struct Matcher {
    stop: Vec<u8>,
    /// Per prefix, the length of the longest proper prefix that is also its suffix.
    borders: Vec<usize>,
    matched: usize,
}

impl Matcher {
    fn new(stop: String) -> Matcher {
        let stop = stop.into_bytes();
        let mut matcher = Matcher { borders: vec![0; stop.len()], stop, matched: 0 };
        for at in 1..matcher.stop.len() {
            matcher.step(matcher.stop[at]);
            matcher.borders[at] = matcher.matched;
        }
        matcher.matched = 0;
        matcher
    }

    /// Adds one byte; returns whether the string is complete.
    fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.stop.get(self.matched) != Some(&byte) {
            self.matched = self.borders[self.matched - 1];
        }
        self.matched += usize::from(self.stop.get(self.matched) == Some(&byte));
        self.matched == self.stop.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reference on the whole text: the first position at which some string is complete.
    fn naive(text: &str, stops: &[String]) -> (String, Option<usize>) {
        for end in 0..=text.len() {
            let ending =
                stops.iter().enumerate().filter(|(_, s)| text.as_bytes()[..end].ends_with(s.as_bytes()));
            if let Some((at, stop)) = ending.max_by_key(|(at, stop)| (stop.len(), usize::MAX - at)) {
                return (text[..end - stop.len()].to_string(), Some(at));
            }
        }
        (text.to_string(), None)
    }

    proptest! {
        #[test]
        fn pieces_stop_where_the_whole_text_does(
            pieces in prop::collection::vec("[abé日🙂]{0,4}", 0..12),
            stops in prop::collection::vec("[abé日🙂]{1,5}", 0..4),
        ) {
            let (text, stop) = naive(&pieces.concat(), &stops);
            let mut matcher = StopStrings::new(stops.clone()).unwrap();
            let mut out = String::new();
            let mut found = None;
            let mut seen = String::new();
            for piece in &pieces {
                let passed = matcher.push(piece);
                out += &passed.text;
                found = passed.stop;
                if found.is_some() {
                    break;
                }
                // the text held back is the longest suffix that is a prefix of a stop string
                seen += piece;
                let longest = (0..=seen.len())
                    .filter(|&at| seen.is_char_boundary(at))
                    .map(|at| &seen[at..])
                    .find(|end| stops.iter().any(|stop| stop.starts_with(end)))
                    .unwrap_or("");
                prop_assert_eq!(&matcher.held, longest);
            }
            out += &matcher.finish();
            prop_assert_eq!((out, found), (text, stop));
        }
    }

    #[test]
    fn the_first_complete_string_stops() {
        let mut stops = StopStrings::new(vec!["abcd".into(), "bc".into()]).unwrap();
        assert_eq!(stops.push("xab"), Passed { text: "x".into(), stop: None });
        assert_eq!(stops.push("cd"), Passed { text: "a".into(), stop: Some(1) });
        assert_eq!(stops.push("more"), Passed { text: String::new(), stop: Some(1) });
        assert_eq!(stops.finish(), "");
    }

    #[test]
    fn empty_strings_are_rejected() {
        let error = StopStrings::new(vec!["a".into(), String::new()]).unwrap_err();
        assert_eq!(error.to_string(), "stop string 1 is empty");
    }

    #[test]
    fn without_strings_nothing_stops() {
        let mut stops = StopStrings::new(Vec::new()).unwrap();
        assert_eq!(stops.push("all"), Passed { text: "all".into(), stop: None });
    }
}
