//! The cost limits of one rendering.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use minijinja::value::{DynObject, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::Cancelled;

/// Maximum nesting of lists and maps.
pub(super) const DEEPEST: usize = 128;

/// The cost of visiting a value in addition to its bytes.
const NODE: usize = 16;

/// The cost of a list or map in addition to its elements.
const CONTAINER: usize = 64;

/// The cost of an element of a new list: the value and its string's allocation.
const ELEMENT: usize = 64;

/// Charges between two checks for cancellation.
const CHECK_EVERY: u32 = 64;

/// Why a rendering was stopped, other than by an error of the template.
#[derive(Debug, Clone)]
pub(super) enum Stop {
    /// The template called `raise_exception`.
    Raised(String),
    /// More bytes were processed than the meter allows.
    Work,
    /// A value is nested too deeply.
    Depth,
    /// The text is too long: its bytes.
    Output(u64),
    /// The caller cancelled the rendering.
    Cancelled,
}

/// Counts the bytes that a rendering reads and creates, and the values it visits. The engine's fuel only
/// counts steps, but one step can double a string or compare two long lists.
#[derive(Debug)]
pub(super) struct Meter {
    left: AtomicU64,
    charges: AtomicU32,
    cancelled: Cancelled,
    stop: Mutex<Option<Stop>>,
}

impl Meter {
    pub(super) fn new(bytes: u64, cancelled: Cancelled) -> Meter {
        Meter { left: AtomicU64::new(bytes), charges: AtomicU32::new(0), cancelled, stop: Mutex::new(None) }
    }

    /// Deducts `bytes`. A rendering has one thread, so load and store need not be atomic together.
    pub(super) fn charge(&self, bytes: usize) -> Result<(), Error> {
        let Some(left) = self.left.load(Ordering::Relaxed).checked_sub(bytes as u64) else {
            return Err(self.stop(Stop::Work, "out of memory allowance"));
        };
        self.left.store(left, Ordering::Relaxed);
        let charges = self.charges.load(Ordering::Relaxed).wrapping_add(1);
        self.charges.store(charges, Ordering::Relaxed);
        match charges.is_multiple_of(CHECK_EVERY) && self.cancelled.is_now() {
            true => Err(self.stop(Stop::Cancelled, "cancelled")),
            false => Ok(()),
        }
    }

    /// Charges for creating a list of `count` elements.
    pub(super) fn charge_elements(&self, count: usize) -> Result<(), Error> {
        self.charge(count.saturating_mul(ELEMENT))
    }

    /// Charges `cost` another `times` times.
    pub(super) fn charge_again(&self, cost: u64, times: usize) -> Result<(), Error> {
        self.charge(usize::try_from(cost).unwrap_or(usize::MAX).saturating_mul(times))
    }

    /// The remaining bytes.
    pub(super) fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Records why the rendering stops and returns an error for the engine.
    pub(super) fn stop(&self, stop: Stop, message: &'static str) -> Error {
        if let Ok(mut slot) = self.stop.lock() {
            slot.get_or_insert(stop);
        }
        Error::new(ErrorKind::InvalidOperation, message)
    }

    /// The first recorded reason, if any.
    pub(super) fn stopped(&self) -> Option<Stop> {
        self.stop.lock().ok().and_then(|slot| slot.clone())
    }

    /// Charges for visiting one value that is about to be written or compared, and fails if
    /// it is nested too deeply.
    pub(super) fn visit(&self, value: &Value, level: usize) -> Result<(), Error> {
        if level > DEEPEST {
            return Err(self.stop(Stop::Depth, "value nests too deeply"));
        }
        self.charge(match value.as_str() {
            Some(text) => NODE + text.len(),
            None if value.as_object().is_some() => CONTAINER,
            None => NODE,
        })
    }

    /// Charges for reading all of `value`, every string's bytes and every element, and returns the charge.
    pub(super) fn walk(&self, value: &Value) -> Result<u64, Error> {
        let before = self.left();
        self.walk_from(value, 0)?;
        Ok(before - self.left())
    }

    fn walk_from(&self, value: &Value, level: usize) -> Result<(), Error> {
        self.visit(value, level)?;
        let Some(object) = value.as_object() else {
            return Ok(());
        };
        match object.repr() {
            // macros and bound methods have fields, but their size is bounded
            ObjectRepr::Map if is_namespace(object) || is_data(value) => {
                for (key, value) in object.try_iter_pairs().into_iter().flatten() {
                    self.walk_from(&key, level + 1)?;
                    self.walk_from(&value, level + 1)?;
                }
            }
            ObjectRepr::Seq | ObjectRepr::Iterable => {
                for value in object.try_iter().into_iter().flatten() {
                    self.walk_from(&value, level + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Charges a string's bytes or a container's elements, without nested values.
    pub(super) fn charge_shallow(&self, value: &Value) -> Result<(), Error> {
        self.charge(match value.as_str() {
            Some(text) => NODE + text.len(),
            None => NODE + value.len().unwrap_or(0).saturating_mul(size_of::<Value>()),
        })
    }
}

/// Whether this is the object of `namespace()`, which can only be recognised by the name of its type.
pub(super) fn is_namespace(object: &DynObject) -> bool {
    object.type_name().ends_with("::Namespace")
}

/// Whether this is a mapping in Python's sense: a dictionary, not a namespace, macro or loop.
pub(super) fn is_data(value: &Value) -> bool {
    value.kind() == ValueKind::Map
        && value.as_object().is_some_and(|object| {
            let name = object.type_name();
            !["::Namespace", "::Macro", "::Loop", "::Module"].iter().any(|end| name.ends_with(end))
        })
}
