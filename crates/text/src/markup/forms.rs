//! The forms of a tool call: how its name and its arguments are written.

/// The form of a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallForm {
    /// A JSON object with these keys in this order.
    Object {
        /// The key of the function's name.
        name_key: &'static str,
        /// The key of the arguments, an object.
        arguments_key: &'static str,
    },
    /// A JSON object with one member: the function's name is its key, the arguments are its value.
    Keyed,
    /// The function's name, a separator, and the arguments as a JSON object.
    Named {
        /// Between an id before the name and the name; empty if there is no id.
        after_id: &'static str,
        /// The separator.
        between: &'static str,
    },
    /// The function's name, then one element per argument.
    Tagged(TagStyle),
    /// The function's name, then a list of `key=value`, with values as Python or Gemma write them.
    Literal(LiteralStyle),
}

/// Arguments as elements: `before_key` KEY `after_key` VALUE `after_value` ..
///
/// Whitespace in these texts is what models usually write; parsing also accepts other whitespace between
/// elements. If `after_key` ends with a line feed, one line feed on either side of a value is not part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TagStyle {
    /// Between the function's name and the first argument.
    pub after_name: &'static str,
    /// Before an argument's key.
    pub before_key: &'static str,
    /// Between an argument's key and its value, and what it tells about the value.
    pub after_key: &'static [(&'static str, ValueKind)],
    /// After an argument's value.
    pub after_value: &'static str,
    /// After a value of the kind [`ValueKind::Cdata`].
    pub after_cdata: &'static str,
}

impl TagStyle {
    /// What ends the value of a key, after one of [`Self::after_key`].
    ///
    /// ```
    /// let style = tern_text::TagStyle {
    ///     after_name: ">",
    ///     before_key: "<",
    ///     after_key: &[(">", tern_text::ValueKind::Elements)],
    ///     after_value: "</",
    ///     after_cdata: "",
    /// };
    /// assert_eq!(style.end_of("city", style.after_key[0]), "</city>");
    /// ```
    pub fn end_of(&self, key: &str, (after_key, kind): (&str, ValueKind)) -> String {
        match kind {
            ValueKind::Elements => [self.after_value, key, after_key].concat(),
            ValueKind::Cdata => self.after_cdata.to_owned(),
            ValueKind::Schema | ValueKind::String | ValueKind::Json => self.after_value.to_owned(),
        }
    }
}

/// What a style of markup tells about the type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// Nothing: the schema of the tool decides.
    Schema,
    /// The same, for a value in a CDATA section.
    Cdata,
    /// It is a string.
    String,
    /// It is JSON.
    Json,
    /// It is a text or elements of the same form, those of an array named [`ITEM`]; the schema of the tool
    /// decides. What ends it has its key: `after_value` KEY `after_key`.
    Elements,
}

/// The name of the elements of an array.
pub const ITEM: &str = "item";

/// Arguments as a list: `open` KEY `assign` VALUE `,` .. `close`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiteralStyle {
    /// Before the first argument.
    pub open: &'static str,
    /// Between a key and its value.
    pub assign: &'static str,
    /// After the last argument.
    pub close: &'static str,
    /// On either side of a string without escapes; empty if strings are those of Python.
    pub quote: &'static str,
}

/// The fixed texts of calls: `open` (`before_name` NAME `before_arguments` ARGUMENTS `after_arguments`) ..
/// `close`, with `separator` between calls. Sufficient to write calls or a grammar for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallTexts {
    /// Before the first call.
    pub open: String,
    /// Before a call's name.
    pub before_name: String,
    /// Between a call's name and its arguments.
    pub before_arguments: String,
    /// How the arguments are written.
    pub arguments: ArgumentForm,
    /// After a call's arguments.
    pub after_arguments: String,
    /// Between two calls.
    pub separator: String,
    /// After the last call.
    pub close: String,
}

/// How the arguments of a call are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentForm {
    /// A JSON object.
    Json,
    /// One element per argument.
    Tags(TagStyle),
    /// A list of keys and values, without the brackets around it.
    Literal(LiteralStyle),
}
