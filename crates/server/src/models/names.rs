//! Names of models in messages: a library may have thousands, and a client may send any text.

/// Names that a message has at most.
const MOST: usize = 20;
/// Characters of a name that a message has at most.
const LONGEST: usize = 100;

/// The first characters of a name.
pub(crate) fn shortened(name: &str) -> String {
    name.chars().take(LONGEST).collect()
}

/// The names, separated by commas; of many the first ones and how many there are more.
pub(crate) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names = names.into_iter();
    let mut text = names.by_ref().take(MOST).map(shortened).collect::<Vec<_>>().join(", ");
    let more = names.count();
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_a_bounded_number_of_names() {
        assert_eq!(listed(["a", "b"]), "a, b");
        let names: Vec<String> = (0..1000).map(|n| format!("{n}-{}", "x".repeat(500))).collect();
        let text = listed(names.iter().map(String::as_str));
        assert!(text.len() < 2200 && text.ends_with(" and 980 more"), "{text}");
    }
}
