//! An answer that is constrained to a JSON schema.
//!
//!     cargo run --release --example json_schema

use serde_json::{Value, json};
use tern::{Error, Grammar, Model, Request};

fn main() -> Result<(), Error> {
    let model = Model::load("stories")?;
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 1, "maximum": 9},
            "animal": {"enum": ["dog", "cat", "bird"]},
        },
        "required": ["name", "age", "animal"],
        "additionalProperties": false,
    });
    let request = Request::text("A story about a child and an animal, as JSON: ").max_tokens(120).seed(3);
    let answer = model.generate(request.clone().constraint(Grammar::JsonSchema(schema)))?;
    let value: Value = serde_json::from_str(&answer.text).expect("the constraint makes it JSON");
    println!("{value:#}");

    let answer = model.generate(request.constraint(Grammar::Choice(vec!["yes".into(), "no".into()])))?;
    println!("{}", answer.text);
    Ok(())
}
