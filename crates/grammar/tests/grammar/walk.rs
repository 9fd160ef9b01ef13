//! A random text among the tokens that a constraint allows.

use tern_engine::Constraint;
use tern_grammar::CompiledGrammar;

use crate::vocabularies::Vocabulary;

/// Reproducible random numbers (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// The tokens of a mask.
pub(crate) fn allowed(mask: &[u32]) -> Vec<u32> {
    let bits = |(n, &word): (usize, &u32)| {
        (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 32 * n as u32 + bit)
    };
    mask.iter().enumerate().flat_map(bits).collect()
}

/// The tokens of a random text without the end token. `specials` are the control tokens that may occur in it.
pub(crate) fn walk(
    vocabulary: &Vocabulary,
    compiled: &CompiledGrammar,
    seed: u64,
    specials: &[u32],
) -> Vec<u32> {
    let tokenizer = &vocabulary.tokenizer;
    let mut random = Random(seed);
    let mut constraint = compiled.constraint();
    let mut text = Vec::new();
    loop {
        let mask = constraint.mask().unwrap();
        assert_eq!(mask.len(), tokenizer.vocab_size().div_ceil(32));
        let all = allowed(&mask);
        let (ends, tokens): (Vec<u32>, Vec<u32>) = all.iter().partition(|id| tokenizer.eog().contains(id));
        assert!(ends.is_empty() || ends.len() == tokenizer.eog().len(), "some end tokens, not all");
        for &id in &tokens {
            assert!((id as usize) < tokenizer.vocab_size());
            assert!(!tokenizer.is_control(id) || specials.contains(&id), "control token {id}");
        }
        assert!(text.len() < 2000, "no end in sight: {}", tokenizer.decode(&text, true));
        if !ends.is_empty() && (tokens.is_empty() || random.below(3) == 0) {
            assert_eq!(constraint.accept(ends[random.below(ends.len())]), Ok(true), "an end token ends");
            return text;
        }
        // prefer short tokens and closing characters, so that the text ends
        let mut pick = |class: Option<&Vec<bool>>| {
            let members = || tokens.iter().filter(|&&id| class.is_none_or(|class| class[id as usize]));
            let count = members().count();
            (count > 0).then(|| *members().nth(random.below(count)).unwrap())
        };
        let closing = Some(&vocabulary.closing);
        let id = match (text.len() > 60, text.len() % 4) {
            (true, _) | (_, 0) => pick(closing),
            (_, 1) => pick(Some(&vocabulary.short)),
            _ => None,
        };
        let id = id.or_else(|| pick(None)).unwrap();
        text.push(id);
        if constraint.accept(id).unwrap() {
            // no token can follow, and the mask is empty
            let after = allowed(&constraint.mask().unwrap());
            assert!(after.iter().all(|id| tokenizer.eog().contains(id)) && !after.is_empty());
            return text;
        }
    }
}

/// The bytes of the tokens, as text.
pub(crate) fn spell(vocabulary: &Vocabulary, tokens: &[u32]) -> String {
    let bytes = tokens.iter().flat_map(|&id| vocabulary.tokenizer.token_bytes(id, true));
    String::from_utf8(bytes.copied().collect()).unwrap()
}
