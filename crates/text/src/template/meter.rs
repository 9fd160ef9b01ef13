//! What one rendering may cost, and where it is counted.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use minijinja::value::{DynObject, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Lists inside lists inside maps: no deeper than this.
const DEEPEST: usize = 128;

/// What a list or map costs beside its elements: visiting one takes as long as some bytes of text.
const CONTAINER: usize = 64;

/// Why a rendering was stopped, where it was not an error in the template's own terms.
#[derive(Debug, Clone)]
pub(super) enum Stop {
    /// The template called `raise_exception`.
    Raised(String),
    /// More bytes were touched than the meter allows.
    Work,
    /// A value nests too deeply.
    Depth,
}

/// Counts the bytes a rendering reads and makes. Fuel counts steps, but one step can double a string.
#[derive(Debug)]
pub(super) struct Meter {
    left: AtomicU64,
    stop: Mutex<Option<Stop>>,
}

impl Meter {
    pub(super) fn new(bytes: u64) -> Meter {
        Meter { left: AtomicU64::new(bytes), stop: Mutex::new(None) }
    }

    /// Takes `bytes` off what is left.
    pub(super) fn charge(&self, bytes: usize) -> Result<(), Error> {
        let bytes = bytes as u64;
        let took =
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        took.map(|_| ()).map_err(|_| self.stop(Stop::Work, "out of memory allowance"))
    }

    /// Notes why rendering ends and makes the engine's error for it.
    pub(super) fn stop(&self, stop: Stop, words: &'static str) -> Error {
        if let Ok(mut slot) = self.stop.lock() {
            slot.get_or_insert(stop);
        }
        Error::new(ErrorKind::InvalidOperation, words)
    }

    /// The first reason noted, if any.
    pub(super) fn stopped(&self) -> Option<Stop> {
        self.stop.lock().ok().and_then(|slot| slot.clone())
    }

    /// Charges for reading all of `value`: every string's bytes and every element.
    pub(super) fn walk(&self, value: &Value) -> Result<(), Error> {
        self.walk_below(value, DEEPEST)
    }

    fn walk_below(&self, value: &Value, depth: usize) -> Result<(), Error> {
        if let Some(text) = value.as_str() {
            return self.charge(text.len());
        }
        let Some(object) = value.as_object() else {
            return Ok(());
        };
        self.charge(CONTAINER)?;
        if depth == 0 {
            return Err(self.stop(Stop::Depth, "value nests too deeply"));
        }
        match object.repr() {
            // a macro or a bound method has fields, but nothing that can grow
            ObjectRepr::Map if is_namespace(object) || is_data(value) => {
                for (key, value) in object.try_iter_pairs().into_iter().flatten() {
                    self.walk_below(&key, depth - 1)?;
                    self.walk_below(&value, depth - 1)?;
                }
            }
            ObjectRepr::Seq | ObjectRepr::Iterable => {
                for value in object.try_iter().into_iter().flatten() {
                    self.walk_below(&value, depth - 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Is this the object `namespace()` makes? Only its type's name tells.
pub(super) fn is_namespace(object: &DynObject) -> bool {
    object.type_name().ends_with("::Namespace")
}

/// Is this a mapping in Python's sense: a dictionary, not a namespace, macro or loop?
pub(super) fn is_data(value: &Value) -> bool {
    value.kind() == ValueKind::Map
        && value.as_object().is_some_and(|object| {
            let name = object.type_name();
            !["::Namespace", "::Macro", "::Loop", "::Module"].iter().any(|end| name.ends_with(end))
        })
}
