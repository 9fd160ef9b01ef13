//! Masks of tokens: one bit per token, 32 per word.

/// All tokens of a vocabulary.
pub(crate) fn all(vocab: usize) -> Vec<u32> {
    let mut mask = vec![u32::MAX; vocab.div_ceil(32)];
    if let Some(last) = mask.last_mut().filter(|_| !vocab.is_multiple_of(32)) {
        *last = (1 << (vocab % 32)) - 1;
    }
    mask
}

/// No token of a vocabulary but these.
pub(crate) fn only(vocab: usize, tokens: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut mask = vec![0; vocab.div_ceil(32)];
    tokens.into_iter().for_each(|token| set(&mut mask, token));
    mask
}

/// Adds a token.
pub(crate) fn set(mask: &mut [u32], token: u32) {
    if let Some(word) = mask.get_mut(token as usize / 32) {
        *word |= 1 << (token % 32);
    }
}

/// Removes a token.
pub(crate) fn clear(mask: &mut [u32], token: u32) {
    if let Some(word) = mask.get_mut(token as usize / 32) {
        *word &= !(1 << (token % 32));
    }
}
