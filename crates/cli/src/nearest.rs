//! Names that are close to a mistyped one.

/// How similar two names must be, from 0 to 1.
const SIMILAR: f64 = 0.75;
/// Most names that are proposed.
const MOST: usize = 3;

/// The names that are most similar to `name`, the best first.
pub(crate) fn names<'a>(name: &str, all: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let name = name.to_lowercase();
    let likeness = |other: &str| strsim::jaro_winkler(&name, &other.to_lowercase());
    let mut near: Vec<(f64, &str)> = all.into_iter().map(|other| (likeness(other), other)).collect();
    near.retain(|(likeness, _)| *likeness > SIMILAR);
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    near.dedup_by_key(|(_, name)| *name);
    // much better than the others is alone
    let best = near.first().map_or(0.0, |(likeness, _)| *likeness);
    near.retain(|(likeness, _)| best - likeness < 0.05);
    near.into_iter().take(MOST).map(|(_, name)| name).collect()
}

/// ` (did you mean NAME?)`, or nothing.
pub(crate) fn tip<'a>(name: &str, all: impl IntoIterator<Item = &'a str>) -> String {
    match names(name, all).as_slice() {
        [] => String::new(),
        near => format!(" (did you mean {}?)", near.join(" or ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_names_have_a_near_one() {
        let all = ["temp", "top-k", "top-p", "min-p", "seed"];
        assert_eq!(names("temperatur", all), ["temp"]);
        assert_eq!(names("topk", all), ["top-k"]);
        assert_eq!(tip("sed", all), " (did you mean seed?)");
        assert_eq!(tip("quantum", all), "");
        assert_eq!(tip("", all), "");
    }
}
