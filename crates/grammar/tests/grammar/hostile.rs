//! Hostile grammars are rejected or harmless, in bounded time.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tern_engine::Constraint;
use tern_grammar::{CompiledGrammar, Grammar, GrammarError};
use tern_text::CallTexts;

use crate::vocabularies::stories;
use crate::walk::{Random, allowed};

/// Compiles within the documented time, plus some for slow machines.
fn compile(grammar: &Grammar) -> Result<CompiledGrammar, GrammarError> {
    let start = Instant::now();
    let result = stories().compiler.compile(grammar);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    result
}

fn error(grammar: Grammar) -> String {
    let error = compile(&grammar).unwrap_err().to_string();
    assert!(!error.contains('\n') && error.len() < 500, "{error}");
    error
}

/// Either rejected, or masks are computed in bounded time for any choice of tokens.
fn survive(name: &str, grammar: Grammar) {
    let start = Instant::now();
    let compiled = match compile(&grammar) {
        Ok(compiled) => compiled,
        Err(error) => return println!("{name}: {:?}: {error}", start.elapsed()),
    };
    let compiled_in = start.elapsed();
    // on a thread with a default stack, like the one that computes masks
    let mut constraint = compiled.constraint();
    let slowest = std::thread::spawn(move || {
        let mut random = Random(1);
        let mut slowest = Duration::ZERO;
        for _ in 0..100 {
            let start = Instant::now();
            let Ok(mask) = constraint.mask() else { break };
            let tokens = allowed(&mask);
            let next = constraint.accept(tokens[random.below(tokens.len())]);
            slowest = slowest.max(start.elapsed());
            if next != Ok(false) {
                break;
            }
        }
        slowest
    });
    let slowest = slowest.join().unwrap();
    println!("{name}: compiled in {compiled_in:?}, slowest step {slowest:?}");
    assert!(slowest < Duration::from_secs(5), "{name}: {slowest:?}");
}

#[test]
fn excess_is_rejected_with_the_limit() {
    assert_eq!(
        error(Grammar::Regex("a".repeat(16_385))),
        "the regex has 16385 bytes: at most 16384 are allowed"
    );
    assert_eq!(
        error(Grammar::Lark("a".repeat(16_385))),
        "the Lark grammar has 16385 bytes: at most 16384 are allowed"
    );
    assert_eq!(error(Grammar::Regex(String::new())), "the regex must not be empty");
    assert_eq!(error(Grammar::Lark(String::new())), "the Lark grammar must not be empty");
    assert_eq!(error(Grammar::Choice(vec![])), "the list of choices must not be empty");
    assert_eq!(
        error(Grammar::JsonSchema(json!({"$ref": "https://example.org/a.json"}))),
        "`$ref` to `https://example.org/a.json` (at `#`): only references into the same schema (`#/...`) are supported"
    );
    assert_eq!(
        error(Grammar::JsonSchema(json!({"type": "array", "uniqueItems": true}))),
        "the schema keyword `uniqueItems` (at `#`) is not supported"
    );
}

#[test]
fn errors_of_the_parser_are_one_sentence() {
    for (grammar, want) in [
        (Grammar::JsonSchema(json!({"type": "date"})), "invalid JSON schema: Invalid type: date"),
        (
            Grammar::JsonSchema(json!({"type": "string", "format": "secret"})),
            "invalid JSON schema: Unknown format: secret",
        ),
        (
            Grammar::JsonSchema(json!({"oneOf": [{"type": "integer"}, {"type": "number"}]})),
            "invalid JSON schema: the options of a `oneOf` overlap or cannot be distinguished: use `anyOf`",
        ),
        (Grammar::Regex("(".into()), "invalid regex: unclosed group"),
        (Grammar::Lark("begin: \"a\"".into()), "invalid Lark grammar: no start rule found"),
    ] {
        assert_eq!(error(grammar), want);
    }
}

/// A value deeper than any parser accepts, dropped without recursion.
#[test]
fn deep_values_do_not_overflow_the_stack() {
    let mut deep = Value::Null;
    for _ in 0..100_000 {
        deep = Value::Array(vec![deep]);
    }
    let grammar = Grammar::JsonSchema(json!({}));
    assert!(compile(&grammar).is_ok());
    let mut schema = Map::new();
    schema.insert("const".into(), deep);
    let grammar = Grammar::JsonSchema(Value::Object(schema));
    assert_eq!(error_of(&grammar), "the JSON schema is nested more than 64 levels deep");
    let Grammar::JsonSchema(Value::Object(mut schema)) = grammar else { unreachable!() };
    let mut next = schema.remove("const");
    while let Some(Value::Array(mut items)) = next {
        next = items.pop();
    }
}

fn error_of(grammar: &Grammar) -> String {
    compile(grammar).unwrap_err().to_string()
}

#[test]
fn hostile_schemas() {
    let chain = |links: usize, last: Value| {
        let mut defs = Map::new();
        for n in 0..links {
            defs.insert(format!("{n}"), json!({"$ref": format!("#/$defs/{}", n + 1)}));
        }
        defs.insert(links.to_string(), last);
        json!({"$ref": "#/$defs/0", "$defs": defs})
    };
    let guarded_chain = |links: usize| {
        let mut defs = Map::new();
        for n in 0..links {
            defs.insert(format!("{n}"), json!({"items": {"$ref": format!("#/$defs/{}", (n + 1) % links)}}));
        }
        json!({"$ref": "#/$defs/0", "$defs": defs})
    };
    let wide: Vec<Value> = (0..1000).map(|n| json!({"required": [n.to_string()]})).collect();
    let product: Vec<Value> = (0..20)
        .map(|n| json!({"anyOf": (0..10).map(|k| json!({"required": [format!("{n}_{k}")]})).collect::<Vec<_>>()}))
        .collect();
    let patterns: Map<String, Value> =
        (0..16).map(|n| (format!("(a|b|{n})*[ab]{{20,200}}(a|b){{{n},90}}c{n}"), json!(true))).collect();
    let many: Map<String, Value> =
        (0..2000).map(|n| (format!("property{n}"), json!({"type": "null"}))).collect();
    let texts = CallTexts {
        open: String::new(),
        before_name: "{\"n\": \"".into(),
        before_arguments: "\", \"a\": ".into(),
        arguments: tern_text::ArgumentForm::Json,
        after_arguments: "}".into(),
        separator: String::new(),
        close: String::new(),
    };
    // the deepest recursion of the parser: each link adds two schemas
    let mut links = Map::new();
    for n in 0..2700 {
        links.insert(n.to_string(), json!({"properties": {"a": {"$ref": format!("#/$defs/{}", n + 1)}}}));
    }
    links.insert("2700".into(), json!({"type": "object"}));
    let tools = vec![("long".into(), json!({"$ref": "#/$defs/0", "$defs": links}))];
    survive("a chain in a tool", Grammar::Calls { texts, tools, many: false });
    for (name, schema) in [
        ("itself", json!({"$ref": "#"})),
        ("a circle", chain(3, json!({"$ref": "#/$defs/0"}))),
        ("a circle in allOf", json!({"allOf": [{"$ref": "#"}, {"type": "object"}]})),
        ("a long chain", chain(1900, json!({"type": "integer"}))),
        ("a long chain of objects", guarded_chain(1500)),
        (
            "two trees",
            json!({
                "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
                "$defs": {"a": {"properties": {"c": {"$ref": "#/$defs/a"}}}, "b": {"properties": {"c": {"$ref": "#/$defs/b"}}}},
            }),
        ),
        ("wide anyOf", json!({ "anyOf": wide.clone() })),
        ("wide allOf", json!({ "allOf": wide.clone() })),
        ("wide oneOf", json!({ "oneOf": wide })),
        ("a product", json!({ "allOf": product })),
        ("many properties", json!({ "properties": many, "additionalProperties": false })),
        ("many patterns", json!({ "patternProperties": patterns })),
        ("many items", json!({"type": "array", "minItems": 4_000_000_000u64})),
        ("many items at most", json!({"type": "array", "maxItems": 4_000_000_000u64})),
        (
            "more items than fit",
            json!({"type": "array", "minItems": u64::MAX, "items": {"type": "array", "maxItems": u64::MAX}}),
        ),
        ("a long string", json!({"type": "string", "minLength": 4_000_000_000u64})),
        ("longer than fits", json!({"type": "string", "minLength": u64::MAX, "maxLength": u64::MAX})),
        ("optional after optional", json!({"type": "string", "pattern": "a?".repeat(2000)})),
        (
            "many of those",
            json!({"anyOf": Value::Array((0..10).map(|n| json!({"type": "string", "pattern": format!("{n}{}", "a?".repeat(2000))})).collect())}),
        ),
        ("a long pattern", json!({"type": "string", "pattern": "^(([a-z]{1,500}){1,500}){1,500}$"})),
        ("a pattern in reverse", json!({"type": "string", "pattern": "^(.*a){30}$", "minLength": 1000})),
        ("many objects", json!({"minProperties": 100_000, "maxProperties": 4_000_000_000u64})),
        ("numbers", json!({"type": "number", "multipleOf": 1e-300, "minimum": -1e308, "maximum": 1e308})),
        (
            "multiples",
            json!({"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}, {"multipleOf": 1e-9}, {"type": "number"}]}),
        ),
        ("multiple of nothing", json!({"type": "integer", "multipleOf": 0})),
        ("no range", json!({"type": "integer", "minimum": 5, "maximum": 4})),
        ("a long const", json!({"const": "a".repeat(60_000)})),
        ("a long enum", json!({"enum": (0..9000).collect::<Vec<_>>()})),
        ("nested choices", {
            let mut schema = json!({"type": "integer"});
            for _ in 0..20 {
                schema = json!({"anyOf": [schema, {"items": schema}]});
                if schema.to_string().len() > 30_000 {
                    break;
                }
            }
            schema
        }),
    ] {
        survive(name, Grammar::JsonSchema(schema));
    }
}

#[test]
fn hostile_regexes() {
    let nested = format!("{}a{}", "(".repeat(8000), ")".repeat(8000));
    let alternatives: Vec<String> = (0..2500).map(|n| format!("{n}x")).collect();
    for (name, pattern) in [
        ("parentheses", nested.as_str()),
        ("counted counts", "((a{1,1000}){1,1000}){1,1000}"),
        ("one after the other", &"a?".repeat(8000)),
        ("backtracking bait", "(a|aa)+(a+)+(.*)*b"),
        ("reverse", &format!("(.*a).{{{}}}", 500)),
        ("long", &"ab".repeat(8000)),
        ("alternatives", &alternatives.join("|")),
        ("classes", &r"[\p{L}\p{N}--\p{Lu}]\w".repeat(700)),
        ("not a regex", "[z-a]**(?P<"),
        ("look", r"\b(?m)^a$\b"),
        ("bytes", r"(?-u)\xff{3}"),
    ] {
        survive(name, Grammar::Regex(pattern.into()));
    }
}

#[test]
fn hostile_lark() {
    let lines =
        |line: &dyn Fn(usize) -> String, count: usize| (0..count).map(line).collect::<Vec<_>>().concat();
    let mut rules = lines(&|n| format!("r{n}: r{}\n", n + 1), 1200);
    rules.push_str("r1200: \"a\"\nstart: r0\n");
    let mut terminals = lines(&|n| format!("R{n}: R{}\n", n + 1), 1200);
    terminals.push_str("R1200: \"a\"\nstart: R0\n");
    let double = lines(&|n| format!("r{n}: r{} r{}\n", n + 1, n + 1), 60) + "r60: \"a\"\nstart: r0\n";
    let double_terminal =
        lines(&|n| format!("R{n}: R{} R{}\n", n + 1, n + 1), 60) + "R60: \"a\"\nstart: R0\n";
    for (name, text) in [
        ("parentheses", format!("start: {}\"a\"{}", "(".repeat(8000), ")".repeat(8000))),
        ("tildes", format!("start: A\nA: {}\"a\"", "~".repeat(16_000))),
        ("templates", format!("start: {}", "a{".repeat(8000))),
        ("conditions", format!("start: \"a\" %if {}", "not(".repeat(4000))),
        ("nested lark", format!("start: {}", "%lark { start: ".repeat(1000))),
        ("nested json", format!("start: %json {}", "{\"items\":".repeat(1500))),
        ("a chain of rules", rules),
        ("a chain of terminals", terminals),
        ("doubling rules", double),
        ("doubling terminals", double_terminal),
        ("itself", "start: start".into()),
        ("left recursion", "start: start start | \"a\"".into()),
        ("nothing", "start: a\na: b*\nb: c*\nc: \"\"*".into()),
        ("ambiguous", "start: (a | b | c)*\na: \"x\"*\nb: \"x\"*\nc: (\"x\" \"x\"?)*".into()),
        ("ambiguous at length", "start: x\nx: x x x | /[a-z]*/ | /.*/".into()),
        ("repeats", "start: ((a{1000000}){1000000}){1000000}\na: \"x\"".into()),
        ("counted rules", "start: a~0..2000000000\na: \"x\" | \"y\" a".into()),
        ("never", "start: A\nA: /a/ & /b/".into()),
        ("an open string", "start: \"".into()),
        ("an unknown token", "start: <|no_such_token|>".into()),
        ("a token out of range", "start: <[4000000000]>".into()),
        ("another grammar", "start: @other".into()),
        ("substrings", format!("start: %regex {{\"substring_chars\": \"{}\"}}", "abc".repeat(5000))),
        ("invalid UTF-8", "%llguidance {\"allow_invalid_utf8\": true}\nstart: /(?-u)[^a]*/".into()),
    ] {
        survive(name, Grammar::Lark(text));
    }
}

/// Random bytes in the places where grammars are text.
#[test]
fn noise() {
    let mut random = Random(7);
    let alphabet: Vec<char> = "abAB01:\"/\\|()[]{}<>~*+?.,%&-_= \n#@é\u{7f}".chars().collect();
    for _ in 0..300 {
        let length = 1 + random.below(60);
        let text: String = (0..length).map(|_| alphabet[random.below(alphabet.len())]).collect();
        let _ = compile(&Grammar::Regex(text.clone()));
        let _ = compile(&Grammar::Lark(format!("start: {text}")));
        let _ = compile(&Grammar::Lark(text));
    }
}
