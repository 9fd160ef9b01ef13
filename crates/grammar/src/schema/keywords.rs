//! The keywords of JSON schemas that are supported.

/// The kind of a keyword's value.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum KeywordValue {
    /// A value that is passed to the parser unchanged.
    Data,
    /// A regex.
    Pattern,
    /// A schema.
    Schema,
    /// A list of schemas.
    List,
    /// Schemas by name.
    Map,
    /// A schema or a list of them.
    SchemaOrList,
    /// A reference into this schema.
    Reference,
    /// An annotation, which does not constrain the text.
    Annotation,
    /// An annotation of the whole document, accepted only at the root.
    RootAnnotation,
    /// A constraint that is supported only if it is `false`, which has no effect.
    False,
}

/// Every supported keyword; any other is an error.
pub(super) const KEYWORDS: &[(&str, KeywordValue)] = &[
    ("type", KeywordValue::Data),
    ("const", KeywordValue::Data),
    ("enum", KeywordValue::Data),
    ("required", KeywordValue::Data),
    ("minItems", KeywordValue::Data),
    ("maxItems", KeywordValue::Data),
    ("minProperties", KeywordValue::Data),
    ("maxProperties", KeywordValue::Data),
    ("minLength", KeywordValue::Data),
    ("maxLength", KeywordValue::Data),
    ("pattern", KeywordValue::Pattern),
    ("format", KeywordValue::Data),
    ("minimum", KeywordValue::Data),
    ("maximum", KeywordValue::Data),
    ("exclusiveMinimum", KeywordValue::Data),
    ("exclusiveMaximum", KeywordValue::Data),
    ("multipleOf", KeywordValue::Data),
    ("additionalItems", KeywordValue::Schema),
    ("additionalProperties", KeywordValue::Schema),
    ("items", KeywordValue::SchemaOrList),
    ("prefixItems", KeywordValue::List),
    ("anyOf", KeywordValue::List),
    ("allOf", KeywordValue::List),
    ("oneOf", KeywordValue::List),
    ("properties", KeywordValue::Map),
    ("patternProperties", KeywordValue::Map),
    ("$defs", KeywordValue::Map),
    ("definitions", KeywordValue::Map),
    ("$ref", KeywordValue::Reference),
    ("$schema", KeywordValue::RootAnnotation),
    ("$id", KeywordValue::RootAnnotation),
    ("id", KeywordValue::RootAnnotation),
    ("$anchor", KeywordValue::Annotation),
    ("$comment", KeywordValue::Annotation),
    ("title", KeywordValue::Annotation),
    ("description", KeywordValue::Annotation),
    ("default", KeywordValue::Annotation),
    ("examples", KeywordValue::Annotation),
    ("example", KeywordValue::Annotation),
    ("deprecated", KeywordValue::Annotation),
    ("readOnly", KeywordValue::Annotation),
    ("writeOnly", KeywordValue::Annotation),
    ("contentMediaType", KeywordValue::Annotation),
    ("contentEncoding", KeywordValue::Annotation),
    ("discriminator", KeywordValue::Annotation),
    ("uniqueItems", KeywordValue::False),
    ("nullable", KeywordValue::False),
];
