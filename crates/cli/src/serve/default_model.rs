//! The model of requests that name none.

/// The model that is offered, and that of requests without a name.
pub(super) const CHAT_MODEL: &str = "smollm2";

/// The model of requests without a name: the chat model, else the only one that is downloaded, else the
/// embedded one if it is alone. `models` are names, and whether they are downloaded.
pub(super) fn default_of<'a>(models: impl Iterator<Item = (&'a str, bool)>) -> Option<String> {
    let models: Vec<(&str, bool)> = models.collect();
    let downloaded: Vec<&str> =
        models.iter().filter(|(_, downloaded)| *downloaded).map(|(name, _)| *name).collect();
    let default = match downloaded.as_slice() {
        names if names.contains(&CHAT_MODEL) => Some(CHAT_MODEL),
        [only] => Some(*only),
        [] => models.first().map(|(name, _)| *name),
        _ => None,
    };
    default.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_chat_model_or_the_only_one() {
        let default = |models: &[(&str, bool)]| default_of(models.iter().copied());
        let stories = ("stories", false);
        assert_eq!(default(&[("a", true), (CHAT_MODEL, true), stories]).as_deref(), Some(CHAT_MODEL));
        assert_eq!(default(&[("a", true), stories]).as_deref(), Some("a"));
        assert_eq!(default(&[("a", true), ("b", true), stories]), None);
        assert_eq!(default(&[stories]).as_deref(), Some("stories"));
        assert_eq!(default(&[]), None);
    }
}
