//! Splits text into the words that BPE merges, by the steps of a pre-tokenizer.
//!
//! All published patterns are regular except for one lookahead, `\s+(?!\S)`: spaces up to the last
//! one before a word. It is always last, so it is removed, matched as `\s+` and shortened here; the
//! rest runs in linear time.

use regex_automata::Input;
use regex_automata::meta::Regex;

/// One pass over the pieces; text between matches becomes separate pieces.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Every match is a piece.
    Pattern(&'static str),
    /// Every match is a number, split into groups of three from the right: `1234567` is `1`, `234`, `567`.
    Thousands(&'static str),
}

/// The lookahead at the end of published patterns.
const LAST_SPACES: [&str; 2] = [r"|\s+(?!\S)|\s+", r"|\s+(?!\S)"];

/// The index of `\s+` among the patterns of a compiled step.
const SPACES: usize = 1;

/// The steps of a pre-tokenizer, compiled.
pub(super) struct Splitter {
    steps: Vec<(Step, Regex)>,
}

impl Splitter {
    pub(super) fn new(steps: &[Step]) -> Splitter {
        Splitter { steps: steps.iter().map(|&step| (step, compile(step))).collect() }
    }

    /// Passes each word to `take`, in order, until it fails; the words concatenate to the text.
    pub(super) fn split<'t, E>(
        &self,
        text: &'t str,
        take: &mut dyn FnMut(&'t str) -> Result<(), E>,
    ) -> Result<(), E> {
        cut(&self.steps, text, take)
    }
}

/// Splits a piece by the first step, and the results by the others.
fn cut<'t, E>(
    steps: &[(Step, Regex)],
    piece: &'t str,
    take: &mut dyn FnMut(&'t str) -> Result<(), E>,
) -> Result<(), E> {
    if piece.is_empty() {
        return Ok(());
    }
    let Some(((step, regex), steps)) = steps.split_first() else { return take(piece) };
    let mut at = 0;
    while let Some((start, end)) = find(regex, piece, at) {
        cut(steps, &piece[at..start], take)?;
        match step {
            Step::Pattern(_) => cut(steps, &piece[start..end], take)?,
            Step::Thousands(_) => thousands(&piece[start..end], |group| cut(steps, group, take))?,
        }
        at = end;
    }
    cut(steps, &piece[at..], take)
}

fn compile(step: Step) -> Regex {
    let (Step::Pattern(pattern) | Step::Thousands(pattern)) = step;
    let main = LAST_SPACES.iter().find_map(|last| pattern.strip_suffix(last));
    match main {
        Some(main) => Regex::new_many(&[main, r"\s+"]),
        None => Regex::new(pattern),
    }
    .expect("the patterns are fixed, and a test compiles each")
}

/// The first match from `at` on.
fn find(regex: &Regex, piece: &str, at: usize) -> Option<(usize, usize)> {
    let found = regex.search(&Input::new(piece).range(at..))?;
    let (start, mut end) = (found.start(), found.end());
    if found.pattern().as_usize() == SPACES && end < piece.len() {
        // a word follows: the last space belongs to it, unless it is the only one
        let last = piece[start..end].char_indices().next_back().map_or(0, |(last, _)| last);
        if last > 0 {
            end = start + last;
        }
    }
    Some((start, end)).filter(|_| end > start)
}

fn thousands<'t, E>(digits: &'t str, mut take: impl FnMut(&'t str) -> Result<(), E>) -> Result<(), E> {
    let count = digits.chars().count();
    let (mut rest, mut count) = (digits, if count.is_multiple_of(3) { 3 } else { count % 3 });
    while !rest.is_empty() {
        let cut = rest.char_indices().nth(count).map_or(rest.len(), |(at, _)| at);
        take(&rest[..cut])?;
        (rest, count) = (&rest[cut..], 3);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::pre;
    use super::*;

    fn collect<'t>(pre: &pre::Pre, text: &'t str) -> Vec<&'t str> {
        let mut words = Vec::new();
        let taken: Result<(), ()> = Splitter::new(pre.steps).split(text, &mut |word| {
            words.push(word);
            Ok(())
        });
        taken.unwrap();
        words
    }

    fn words<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
        collect(pre::find(name).unwrap(), text)
    }

    #[test]
    fn the_last_space_belongs_to_the_word() {
        assert_eq!(words("gpt-2", "a   b  "), ["a", "  ", " b", "  "]);
        assert_eq!(words("gpt-2", "a\n\nb"), ["a", "\n", "\n", "b"]);
        assert_eq!(words("llama-bpe", "a\n\n  b\t\tc \n"), ["a", "\n\n", " ", " b", "\t", "\tc", " \n"]);
        assert_eq!(words("qwen2", " x"), [" x"]);
    }

    #[test]
    fn digits_and_contractions() {
        assert_eq!(words("llama-bpe", "I'LL 12345"), ["I", "'LL", " ", "123", "45"]);
        assert_eq!(words("qwen2", "12"), ["1", "2"]);
        assert_eq!(words("gpt-2", "I'LL 12345"), ["I", "'", "LL", " 12345"]);
        assert_eq!(words("afmoe", "x1234567."), ["x", "1", "234", "567", "."]);
        assert_eq!(words("tiny_aya", "1920x 1080"), ["192", "0", "x", " ", "1", "080"]);
        assert_eq!(words("falcon", "1234567"), ["123", "456", "7"]);
        assert_eq!(words("gpt-4o", "HelloWorld's ÀÉtat"), ["Hello", "World's", " ÀÉtat"]);
        assert_eq!(words("kimi-k2", "中文abc"), ["中文", "abc"]);
    }

    #[test]
    fn every_pattern_compiles_and_loses_nothing() {
        let text = "Hello,  world!\r\n\t 12345 été 中文 カナ 한글 x'RE \u{3000}\u{85}… <sentinel:1> IMGIMGABZ 🦙\u{7}";
        for pre in pre::ALL {
            let pieces = collect(pre, text);
            assert_eq!(pieces.concat(), text, "{:?}", pre.names);
        }
    }
}
