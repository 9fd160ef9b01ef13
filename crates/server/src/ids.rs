//! Random ids and seeds.

/// 64 random bits of the system.
pub(crate) fn random() -> u64 {
    getrandom::u64().expect("the system has random numbers")
}

/// `prefix` and 32 hexadecimal digits.
pub(crate) fn id(prefix: &str) -> String {
    format!("{prefix}{:016x}{:016x}", random(), random())
}

/// Nine letters and digits: the only form of a tool call id that Mistral's templates accept.
pub(crate) fn call_id() -> String {
    const LETTERS: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let mut bits = random();
    let letter = |_| {
        let letter = LETTERS[(bits % 62) as usize];
        bits /= 62;
        char::from(letter)
    };
    (0..9).map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique() {
        let mut ids: Vec<String> = (0..1000).flat_map(|_| [call_id(), id("a-")]).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 2000);
        assert!(ids.iter().all(|id| id.len() == 9 || id.len() == 34));
    }
}
