//! What is left of a folder's tensors: named values in file order, of which readers
//! take those that they know.

use indexmap::IndexMap;

/// Values by name. A taken one leaves its place empty: removing places would move all after them, for each
/// tensor of a folder.
pub(crate) struct Remaining<T> {
    places: IndexMap<String, Option<T>>,
}

impl<T> Default for Remaining<T> {
    fn default() -> Remaining<T> {
        Remaining { places: IndexMap::new() }
    }
}

impl<T> Remaining<T> {
    /// Adds a value, and returns the one that had its name.
    pub(crate) fn insert(&mut self, name: String, value: T) -> Option<T> {
        self.places.insert(name, Some(value)).flatten()
    }

    /// Removes a value and returns it.
    pub(crate) fn take(&mut self, name: &str) -> Option<T> {
        self.places.get_mut(name)?.take()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&T> {
        self.places.get(name)?.as_ref()
    }

    /// Names of all values.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.places.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| name)
    }

    /// Removes the values whose names do not pass.
    pub(crate) fn retain(&mut self, passes: impl Fn(&str) -> bool) {
        self.places.retain(|name, value| value.is_some() && passes(name));
    }
}

impl<T> FromIterator<(String, T)> for Remaining<T> {
    fn from_iter<I: IntoIterator<Item = (String, T)>>(values: I) -> Remaining<T> {
        Remaining { places: values.into_iter().map(|(name, value)| (name, Some(value))).collect() }
    }
}

impl<T> IntoIterator for Remaining<T> {
    type Item = (String, T);
    type IntoIter = std::vec::IntoIter<(String, T)>;

    fn into_iter(self) -> Self::IntoIter {
        let left = self.places.into_iter().filter_map(|(name, value)| Some((name, value?)));
        left.collect::<Vec<_>>().into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_taken_stays_in_order() {
        let mut left: Remaining<u32> = ["a", "b", "c", "d"].into_iter().map(String::from).zip(0..).collect();
        assert_eq!((left.take("b"), left.take("b"), left.take("x")), (Some(1), None, None));
        assert_eq!((left.get("a"), left.get("b")), (Some(&0), None));
        assert_eq!((left.insert("b".into(), 5), left.insert("a".into(), 6)), (None, Some(0)));
        left.retain(|name| name != "c");
        assert_eq!(left.names().collect::<Vec<_>>(), ["a", "b", "d"]);
        assert_eq!(left.into_iter().map(|(_, value)| value).collect::<Vec<_>>(), [6, 5, 3]);
    }
}
