//! The adapters that requests use and wait for, which routers of clusters read: a request goes where its
//! adapter is in use already.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The requests that use adapters, by model.
#[derive(Default)]
pub(super) struct AdapterRequests(Mutex<BTreeMap<String, OfModel>>);

/// The requests of one model.
#[derive(Default)]
struct OfModel {
    /// How many requests use each adapter, by name.
    running: BTreeMap<String, usize>,
    waiting: BTreeMap<String, usize>,
    /// When that changed, in seconds since 1970.
    changed: f64,
}

/// The names of the adapters of a model's requests, separated by commas.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct AdapterNames {
    pub(super) running: String,
    pub(super) waiting: String,
    /// When they changed, in seconds since 1970; 0 if no request has used one.
    pub(super) changed: f64,
}

/// A request with adapters, until it is dropped.
pub(crate) struct AdapterRequest<'a> {
    requests: &'a AdapterRequests,
    model: String,
    names: Vec<String>,
    running: bool,
}

impl AdapterRequests {
    /// A request of a model that waits, with these adapters.
    pub(super) fn begin(&self, model: &str, names: Vec<String>) -> AdapterRequest<'_> {
        let request = AdapterRequest { requests: self, model: model.to_owned(), names, running: false };
        request.change(|of, name| *of.waiting.entry(name.to_owned()).or_default() += 1);
        request
    }

    pub(super) fn names(&self, model: &str) -> AdapterNames {
        let models = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(of) = models.get(model) else { return AdapterNames::default() };
        let joined =
            |names: &BTreeMap<String, usize>| names.keys().map(String::as_str).collect::<Vec<_>>().join(",");
        AdapterNames { running: joined(&of.running), waiting: joined(&of.waiting), changed: of.changed }
    }
}

impl AdapterRequest<'_> {
    /// Its first sequence runs.
    pub(crate) fn run(&mut self) {
        if !self.running {
            self.running = true;
            self.change(|of, name| {
                leave(&mut of.waiting, name);
                *of.running.entry(name.to_owned()).or_default() += 1;
            });
        }
    }

    /// Changes the counts of its adapters.
    fn change(&self, change: impl Fn(&mut OfModel, &str)) {
        if self.names.is_empty() {
            return;
        }
        let mut models = self.requests.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of = models.entry(self.model.clone()).or_default();
        self.names.iter().for_each(|name| change(of, name));
        of.changed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    }
}

impl Drop for AdapterRequest<'_> {
    fn drop(&mut self) {
        self.change(|of, name| leave(if self.running { &mut of.running } else { &mut of.waiting }, name));
    }
}

fn leave(counts: &mut BTreeMap<String, usize>, name: &str) {
    if let Some(count) = counts.get_mut(name) {
        *count -= 1;
        if *count == 0 {
            counts.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_running_and_of_waiting_requests() {
        let requests = AdapterRequests::default();
        let names = |want: (&str, &str)| {
            let got = requests.names("m");
            assert_eq!((got.running.as_str(), got.waiting.as_str()), want);
            got.changed
        };
        drop(requests.begin("m", vec![]));
        assert_eq!(names(("", "")), 0.0);
        let mut first = requests.begin("m", vec!["b".into()]);
        let mut second = requests.begin("m", vec!["a".into(), "b".into()]);
        assert!(names(("", "a,b")) > 1e9);
        first.run();
        first.run();
        names(("b", "a,b"));
        second.run();
        names(("a,b", ""));
        drop(first);
        names(("a,b", ""));
        drop(second);
        names(("", ""));
        assert_eq!(requests.names("other"), AdapterNames::default());
    }
}
