//! Properties of the engine's filters: cost, laziness, and how origins of text are tracked.

/// What a filter does with its input, beyond reading its elements once.
pub(super) enum Cost {
    /// Reads all that it holds.
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

/// Filters that give a generator in Python.
pub(super) const LAZY: [&str; 10] =
    ["map", "select", "reject", "selectattr", "rejectattr", "unique", "items", "batch", "slice", "reverse"];

/// Filters that say themselves who wrote what of their results, or give back no text.
pub(super) const TRACED: [&str; 17] = [
    "tojson", "join", "replace", "indent", "format", "string", "trim", "safe", "length", "count", "default",
    "d", "int", "float", "list", "map", "sum",
];

/// Filters that give back what is in a list or map as it is.
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
