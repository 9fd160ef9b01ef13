//! Properties of the engine's filters: cost, laziness, and how origins of text are tracked.

/// The cost of a filter beyond reading the elements of its input once.
pub(super) enum Cost {
    /// Reads nested values.
    Deep,
    /// Compares its elements with each other.
    Sorts,
    /// Compares each element with the arguments.
    Tests,
}

pub(super) const COSTS: [(&str, Cost); 15] = [
    ("pprint", Cost::Deep),
    ("batch", Cost::Deep),
    ("slice", Cost::Deep),
    ("zip", Cost::Deep),
    ("chain", Cost::Deep),
    ("sort", Cost::Sorts),
    ("unique", Cost::Sorts),
    ("min", Cost::Sorts),
    ("max", Cost::Sorts),
    ("groupby", Cost::Sorts),
    ("dictsort", Cost::Sorts),
    ("select", Cost::Tests),
    ("reject", Cost::Tests),
    ("selectattr", Cost::Tests),
    ("rejectattr", Cost::Tests),
];

/// Filters that return a generator in Python.
pub(super) const LAZY: [&str; 10] =
    ["map", "select", "reject", "selectattr", "rejectattr", "unique", "items", "batch", "slice", "reverse"];

/// Filters that track the origins of their results, or return no text.
pub(super) const TRACED: [&str; 17] = [
    "tojson", "join", "replace", "indent", "format", "string", "trim", "safe", "length", "count", "default",
    "d", "int", "float", "list", "map", "sum",
];

/// Filters that return elements of a list or map unchanged.
pub(super) const PICKS: [&str; 18] = [
    "items",
    "batch",
    "slice",
    "zip",
    "chain",
    "sort",
    "unique",
    "min",
    "max",
    "groupby",
    "dictsort",
    "select",
    "reject",
    "selectattr",
    "rejectattr",
    "reverse",
    "first",
    "last",
];
