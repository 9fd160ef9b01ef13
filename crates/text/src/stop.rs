//! Stop strings, found across the borders of tokens.

/// Why stop strings were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// An empty string would stop everything.
    #[error("stop string {0} is empty")]
    Empty(usize),
}

/// What a piece of text let through.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Passed {
    /// Text that no stop string can claim any more.
    pub text: String,
    /// The stop string that was found, by its place in the list. Its own text is not given out.
    pub stop: Option<usize>,
}

/// Looks for stop strings in text that arrives in pieces, and withholds what may begin one.
///
/// The string that is complete first in the stream wins, however the text is cut into pieces;
/// of several that end together, the longest.
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
    /// Text withheld: it may begin a stop string.
    held: String,
    found: Option<usize>,
}

impl StopStrings {
    /// A matcher for these strings; none at all lets everything through.
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

    /// Takes the next piece of text. After a stop nothing passes any more.
    pub fn push(&mut self, text: &str) -> Passed {
        if self.found.is_some() {
            return Passed { text: String::new(), stop: self.found };
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            let mut longest: Option<(usize, usize)> = None; // length, place
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
        // what could begin a stop string begins where the string does: at a character's first byte
        let keep = self.matchers.iter().map(|matcher| matcher.matched).max().unwrap_or(0);
        let held = self.held.split_off(self.held.len() - keep);
        Passed { text: std::mem::replace(&mut self.held, held), stop: None }
    }

    /// Ends the stream: gives out what was withheld.
    pub fn finish(&mut self) -> String {
        self.matchers.iter_mut().for_each(|matcher| matcher.matched = 0);
        std::mem::take(&mut self.held)
    }
}

/// One string and how much of it the text ends with (Knuth, Morris, Pratt): a step is constant time on average.
#[derive(Debug, Clone)]
struct Matcher {
    stop: Vec<u8>,
    /// For each prefix, the length of the longest shorter prefix that it ends with.
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

    /// Takes one byte; tells whether the string is complete.
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

    /// The same by looking at the whole text: the first end at which some string is complete.
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
        fn pieces_stop_where_the_whole_would(
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
                // withheld is exactly the longest ending that begins a stop string
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
    fn the_first_to_be_complete_wins() {
        let mut stops = StopStrings::new(vec!["abcd".into(), "bc".into()]).unwrap();
        assert_eq!(stops.push("xab"), Passed { text: "x".into(), stop: None });
        assert_eq!(stops.push("cd"), Passed { text: "a".into(), stop: Some(1) });
        assert_eq!(stops.push("more"), Passed { text: String::new(), stop: Some(1) });
        assert_eq!(stops.finish(), "");
    }

    #[test]
    fn empty_strings_are_refused() {
        let error = StopStrings::new(vec!["a".into(), String::new()]).unwrap_err();
        assert_eq!(error.to_string(), "stop string 1 is empty");
    }

    #[test]
    fn no_strings_let_all_through() {
        let mut stops = StopStrings::new(Vec::new()).unwrap();
        assert_eq!(stops.push("all"), Passed { text: "all".into(), stop: None });
    }
}
