//! Prompts of a given number of tokens: random words that a server counts as one token each.

use tern::graph::Random;

use super::events::Usage;

/// Common words. Most vocabularies have a token for each of them.
const WORDS: [&str; 64] = [
    "the", "and", "to", "was", "he", "she", "it", "in", "of", "that", "his", "with", "they", "on", "said",
    "for", "you", "at", "her", "had", "is", "as", "but", "were", "have", "not", "be", "one", "all", "so",
    "very", "him", "day", "do", "out", "up", "there", "we", "big", "my", "are", "went", "them", "little",
    "then", "good", "from", "new", "time", "get", "see", "like", "play", "can", "what", "who", "happy",
    "could", "would", "when", "go", "did", "over", "home",
];
/// The first word of every prompt: all others then follow a space, so that their tokens do
/// not depend on their place.
const FIRST: &str = "The";
/// Words that are counted with one request.
const GROUP: usize = 8;
/// Fewer words than this give prompts that are too similar.
const MIN_WORDS: usize = 2 * GROUP;

/// Words after the first one that are the number of the prompt.
const SERIAL_WORDS: usize = 4;

/// How a server counts the tokens of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prompts {
    words: Vec<&'static str>,
    tokens_per_word: f64,
    /// Tokens of a prompt without words: BOS, the chat template, [`FIRST`].
    extra: f64,
}

impl Prompts {
    /// Words and tokens are the same: for a server that does not count tokens.
    pub(crate) fn uncounted() -> Prompts {
        Prompts { words: WORDS.to_vec(), tokens_per_word: 1.0, extra: 1.0 }
    }

    /// Asks `count` for the tokens of a few short prompts and keeps the words that are one token each, so
    /// that prompts have exact lengths. If these are too few, lengths are right on average.
    pub(crate) fn calibrate<E>(
        mut count: impl FnMut(&str) -> Result<Option<Usage>, E>,
    ) -> Result<Prompts, E> {
        let mut counts = vec![];
        for group in WORDS.chunks(GROUP) {
            let Some(usage) = count(&sentence(group))? else { return Ok(Prompts::uncounted()) };
            counts.push(usage.prompt_tokens as f64);
        }
        let all = count(&sentence(&WORDS))?.map_or(0.0, |usage| usage.prompt_tokens as f64);
        // every count has the extra tokens, so the sum of the groups has them once per group
        let groups = counts.len() as f64;
        let extra = ((counts.iter().sum::<f64>() - all) / (groups - 1.0)).max(0.0);
        let is_exact = |count: f64| (count - extra - GROUP as f64).abs() < 0.5;
        let groups = WORDS.chunks(GROUP).zip(&counts).filter(|(_, count)| is_exact(**count));
        let words: Vec<_> = groups.flat_map(|(group, _)| group.iter().copied()).collect();
        Ok(if words.len() >= MIN_WORDS {
            Prompts { words, tokens_per_word: 1.0, extra }
        } else {
            let tokens_per_word = ((all - extra) / WORDS.len() as f64).max(0.1);
            Prompts { words: WORDS.to_vec(), tokens_per_word, extra }
        })
    }

    /// The prompt with number `serial`. The words after the first one differ from those of every other
    /// number, so that a prefix cache finds nothing; the others are random.
    pub(crate) fn prompt(&self, tokens: usize, seed: u64, serial: usize) -> String {
        let count = ((tokens as f64 - self.extra) / self.tokens_per_word).round().max(1.0) as usize;
        let mut random = Random::new(Random::new(seed).next_u64() ^ serial as u64);
        let offset = Random::new(seed).below(self.words.len());
        let (mut number, mut chosen) = (serial, Vec::with_capacity(count));
        for i in 0..count {
            let word = if i < SERIAL_WORDS {
                let digit = number % self.words.len();
                number /= self.words.len();
                (digit + offset) % self.words.len()
            } else {
                random.below(self.words.len())
            };
            chosen.push(self.words[word]);
        }
        sentence(&chosen)
    }
}

fn sentence(words: &[&str]) -> String {
    let mut text = String::with_capacity(FIRST.len() + 8 * words.len());
    text.push_str(FIRST);
    for word in words {
        text.push(' ');
        text.push_str(word);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::convert::Infallible;

    use super::*;

    /// A server that counts `extra` tokens and one per word, or two if the word is long.
    fn calibrated(extra: u64, long: usize) -> Prompts {
        let tokens = |word: &str| if word.len() >= long { 2 } else { 1 };
        let count = |text: &str| {
            let prompt_tokens = extra + text.split(' ').map(tokens).sum::<u64>();
            Ok::<_, Infallible>(Some(Usage { prompt_tokens, completion_tokens: 1 }))
        };
        Prompts::calibrate(count).unwrap()
    }

    #[test]
    fn prompts_have_the_exact_number_of_tokens() {
        let words = |prompts: &Prompts, tokens| prompts.prompt(tokens, 1, 5).split(' ').count();
        let prompts = calibrated(0, 100);
        assert_eq!((prompts.words.len(), words(&prompts, 128)), (64, 128));
        let prompts = calibrated(30, 6); // `little` is two tokens
        assert_eq!((prompts.words.len(), words(&prompts, 128)), (56, 98));
        assert!(!prompts.words.contains(&"little"));
        let prompts = calibrated(1, 1);
        assert_eq!((prompts.words.len(), words(&prompts, 129)), (64, 64));
        assert_eq!(words(&calibrated(30, 100), 10), 2, "at least one word after the first");
        let none = Prompts::calibrate(|_| Ok::<_, Infallible>(None)).unwrap();
        assert_eq!(none, Prompts::uncounted());
    }

    #[test]
    fn prompts_begin_differently_and_depend_on_the_seed_only() {
        let prompts = Prompts::uncounted();
        let begins: HashSet<String> = (0..5000)
            .map(|i| prompts.prompt(64, 7, i).split(' ').take(1 + SERIAL_WORDS).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(begins.len(), 5000);
        assert_eq!(prompts.prompt(64, 7, 9), prompts.prompt(64, 7, 9));
        assert_ne!(prompts.prompt(64, 7, 9), prompts.prompt(64, 8, 9));
    }
}
