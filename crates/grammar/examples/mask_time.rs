//! Times of grammars with a model's vocabulary: `cargo run --release -p tern-grammar
//! --example mask_time MODEL`.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tern_engine::Constraint;
use tern_formats::Checkpoint;
use tern_grammar::{Grammar, GrammarCompiler};
use tern_text::Tokenizer;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("want the path of a GGUF file")?;
    let tokenizer = Arc::new(Tokenizer::from_metadata(&Checkpoint::open(path.as_ref())?.metadata)?);
    let start = Instant::now();
    let compiler = GrammarCompiler::new(Arc::clone(&tokenizer));
    println!("{} tokens indexed in {:.1?}", tokenizer.vocab_size(), start.elapsed());

    let order = json!({
        "type": "object", "additionalProperties": false, "required": ["id", "customer", "lines", "status"],
        "properties": {
            "id": {"type": "string", "format": "uuid"},
            "customer": {"$ref": "#/$defs/person"},
            "lines": {"type": "array", "minItems": 1, "maxItems": 20, "items": {"$ref": "#/$defs/line"}},
            "status": {"enum": ["new", "paid", "sent", "returned", "lost"]},
            "placed": {"type": "string", "format": "date-time"},
            "note": {"type": ["string", "null"], "maxLength": 200},
            "total": {"type": "number", "minimum": 0, "maximum": 1e6},
        },
        "$defs": {
            "person": {"type": "object", "additionalProperties": false, "required": ["name", "email"], "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 80},
                "email": {"type": "string", "format": "email"},
                "age": {"type": "integer", "minimum": 0, "maximum": 150},
                "address": {"anyOf": [{"type": "null"}, {"type": "object", "required": ["street", "city"],
                    "additionalProperties": false, "properties": {
                        "street": {"type": "string"}, "city": {"type": "string"},
                        "code": {"type": "string", "pattern": "^[0-9]{5}(-[0-9]{4})?$"}}}]}}},
            "line": {"type": "object", "additionalProperties": false, "required": ["sku", "count", "price"],
                "properties": {
                    "sku": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4,8}$"},
                    "count": {"type": "integer", "minimum": 1, "maximum": 999},
                    "price": {"type": "number", "exclusiveMinimum": 0}}},
        },
    });
    for (name, grammar) in [
        ("any object", Grammar::JsonObject),
        ("a schema", Grammar::JsonSchema(order)),
        ("a regex", Grammar::Regex(r"[A-Z][a-z]+( [a-z]+){3,20}[.!?]".into())),
        ("a choice", Grammar::Choice(vec!["positive".into(), "negative".into(), "neutral".into()])),
    ] {
        measure(name, &compiler, &grammar)?;
    }
    Ok(())
}

/// Random texts, uniform among the allowed tokens.
fn measure(name: &str, compiler: &GrammarCompiler, grammar: &Grammar) -> Result<(), Box<dyn Error>> {
    let mut compile = Vec::new();
    for _ in 0..10 {
        let start = Instant::now();
        compiler.compile(grammar)?;
        compile.push(start.elapsed());
    }
    let compiled = compiler.compile(grammar)?;
    let (mut fork, mut mask, mut accept) = (Vec::new(), Vec::new(), Vec::new());
    let mut random = 1u64;
    for _ in 0..20 {
        let start = Instant::now();
        let mut constraint = compiled.constraint();
        fork.push(start.elapsed());
        for _ in 0..200 {
            let start = Instant::now();
            let words = constraint.mask()?;
            mask.push(start.elapsed());
            let allowed: Vec<u32> = (0..32 * words.len() as u32)
                .filter(|id| words[*id as usize / 32] >> (id % 32) & 1 == 1)
                .collect();
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let token = allowed[(random >> 33) as usize % allowed.len()];
            let start = Instant::now();
            let done = constraint.accept(token)?;
            accept.push(start.elapsed());
            if done {
                break;
            }
        }
    }
    println!("{name}:");
    for (what, mut times) in [("compile", compile), ("fork", fork), ("mask", mask), ("accept", accept)] {
        times.sort();
        let mean = times.iter().sum::<Duration>() / times.len() as u32;
        let (middle, most) = (times[times.len() / 2], times[times.len() - 1]);
        println!("  {what:8} mean {mean:>9.1?}  median {middle:>9.1?}  max {most:>9.1?}  of {}", times.len());
    }
    Ok(())
}
