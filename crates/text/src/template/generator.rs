//! Python objects that the engine lacks: generators and bound methods.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr};
use minijinja::{Error, State, Value};

/// The result of `map`, `select` and similar filters: iterable, always true, without a length.
#[derive(Debug)]
pub(super) struct Generator(Vec<Value>);

impl Generator {
    pub(super) fn wrap(items: Vec<Value>) -> Value {
        Value::from_object(Generator(items))
    }

    pub(super) fn is(value: &Value) -> bool {
        value.downcast_object_ref::<Generator>().is_some()
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.clone())
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<generator object>")
    }
}

/// A method that is not called: `schema.items` is Python's method even if the schema has such a key.
#[derive(Debug)]
pub(super) struct BoundMethod {
    pub(super) of: Value,
    pub(super) name: String,
}

impl Object for BoundMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        self.of.call_method(state, &self.name, args)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<built-in method {} of dict object>", self.name)
    }
}
