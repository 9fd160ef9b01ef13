//! GBNF grammars: llama.cpp's examples, judged by its masks, and errors.

use std::time::Instant;

use serde_json::Value;
use tern_engine::Constraint;
use tern_grammar::Grammar;

use crate::vocabularies::{all, stories};
use crate::walk::{allowed, spell, walk};

const GRAMMARS: &[(&str, &str)] = &[
    ("arithmetic.gbnf", include_str!("gbnf/arithmetic.gbnf")),
    ("c.gbnf", include_str!("gbnf/c.gbnf")),
    ("chess.gbnf", include_str!("gbnf/chess.gbnf")),
    ("japanese.gbnf", include_str!("gbnf/japanese.gbnf")),
    ("json.gbnf", include_str!("gbnf/json.gbnf")),
    ("list.gbnf", include_str!("gbnf/list.gbnf")),
];

fn grammar(name: &str) -> Grammar {
    let (_, text) = GRAMMARS.iter().find(|(known, _)| *known == name).unwrap();
    Grammar::of_text((*text).into())
}

fn fnv(ids: &[u32]) -> u64 {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[test]
fn the_masks_are_those_of_llama_cpp() {
    let vocabulary = stories();
    let tokenizer = &vocabulary.tokenizer;
    // recorded by scripts/oracle/llama/grammar_masks.py
    let recorded: Vec<Value> = serde_json::from_str(include_str!("gbnf/masks.json")).unwrap();
    // without list.gbnf, in which llama.cpp excludes more
    assert_eq!(recorded.len(), 6 * (GRAMMARS.len() - 1));
    for run in &recorded {
        let compiled = vocabulary.compiler.compile(&grammar(run["grammar"].as_str().unwrap())).unwrap();
        let mut constraint = compiled.constraint();
        let mut text = vec![];
        for step in run["steps"].as_array().unwrap() {
            let mut mask = allowed(&constraint.mask().unwrap());
            let ends = mask.iter().any(|id| tokenizer.eog().contains(id));
            // llama.cpp never allows the character NUL
            mask.retain(|&id| !tokenizer.eog().contains(&id) && tokenizer.token_bytes(id, false) != [0]);
            let at = || format!("{} after {:?}", run["grammar"], tokenizer.decode(&text, true));
            assert_eq!(step["ends"], ends, "{}", at());
            assert_eq!(step["allowed"], mask.len(), "{}", at());
            assert_eq!(step["hash"], fnv(&mask).to_string(), "{}", at());
            if let Some(token) = step["token"].as_u64() {
                text.push(token as u32);
                let complete = constraint.accept(token as u32).unwrap();
                assert!(!complete || step == run["steps"].as_array().unwrap().iter().rev().nth(1).unwrap());
            }
        }
    }
}

#[test]
fn random_texts_are_valid_in_every_vocabulary() {
    for vocabulary in all() {
        let compiled = vocabulary.compiler.compile(&grammar("json.gbnf")).unwrap();
        for seed in 0..10 {
            let text = spell(vocabulary, &walk(vocabulary, &compiled, seed, &[]));
            assert!(serde_json::from_str::<Value>(&text).unwrap().is_object(), "{}: {text}", vocabulary.name);
        }
        let compiled = vocabulary.compiler.compile(&grammar("chess.gbnf")).unwrap();
        let text = spell(vocabulary, &walk(vocabulary, &compiled, 1, &[]));
        assert!(text.starts_with("1. ") && text.lines().count() > 1, "{text}");
    }
}

#[test]
fn a_keyword_does_not_shadow_a_name() {
    // a lexer that prefers the longest match rejects these
    let vocabulary = &all()[1];
    assert_eq!(vocabulary.name, "bytes");
    let matches = |grammar: &str, text: &str| {
        let compiled = vocabulary.compiler.compile(&Grammar::Gbnf(grammar.into())).unwrap();
        let mut constraint = compiled.constraint();
        text.bytes().all(|byte| {
            let id = vocabulary.tokenizer.encode(&char::from(byte).to_string(), false, false)[0];
            allowed(&constraint.mask().unwrap()).contains(&id) && constraint.accept(id).is_ok()
        }) && allowed(&constraint.mask().unwrap()).iter().any(|id| vocabulary.tokenizer.eog().contains(id))
    };
    let names = "root ::= (\"int\" | name) \";\"\nname ::= [a-z]+";
    for text in ["int;", "inx;", "in;", "integer;"] {
        assert!(matches(names, text), "{text}");
    }
    assert!(matches("root ::= [a-z]* \"x\" [a-z]", "axxb"));
    let list = include_str!("gbnf/list.gbnf");
    assert!(matches(list, "- a\n- b c\n") && !matches(list, "- a\n- \n") && !matches(list, "- a"));
    assert!(matches("root ::= (\"a\"? \"b\"?)*", "abba"));
    assert!(!matches("root ::= (\"a\"? \"b\"?)*", "abc"));
    assert!(matches("root ::= \"ab\"{2,3}", "ababab"));
    assert!(!matches("root ::= \"ab\"{2,3}", "abababab"));
    assert!(!matches("root ::= \"ab\"{2,3}", "ab"));
    assert!(matches("root ::= nested\nnested ::= \"(\" nested \")\" | \"\"", "((()))"));
    assert!(!matches("root ::= nested\nnested ::= \"(\" nested \")\" | \"\"", "((())"));
}

#[test]
fn a_wrong_grammar_is_refused_with_its_line() {
    for (text, want) in [
        ("root ::= a", "rule `root`: there is no rule `a`"),
        ("value ::= \"a\"", "there is no rule `root`"),
        ("root ::= \"a\n\nb ::= \"c\"", "line 3: the end of a literal is missing"),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2: rule `root` is defined twice"),
        ("root ::= (\"a\" | \"b\"", "line 1: expected `)`, got the end"),
        ("root = \"a\"\nb ::= \"a\"", "line 1: expected `::=` after `root`"),
        ("root ::= [z-a]", "line 1: the range 'z' to 'a' is empty"),
        ("root ::= [", "line 1: the end of a class is missing"),
        ("root ::= []", "line 1: the class [] matches nothing"),
        ("root ::= \"\\q\"", "line 1: unknown escape `\\q`"),
        ("root ::= \"\\uD800\"", "line 1: expected 4 hexadecimal digits of a character, got \"D800\""),
        ("root ::= * \"a\"", "line 1: '*' must follow an item"),
        ("root ::= \"a\"{3,1}", "line 1: the repetition {3,1} is empty"),
        ("root ::= \"a\"{x}", "line 1: expected a number of repetitions, got 'x'"),
        ("root ::= \"a\"{99999}", "line 1: 99999 repetitions: the limit is 2000"),
        ("root ::= <think>", "line 1: tokens (`<...>`) are not supported"),
        ("root ::= root \"a\" | \"b\"", "rule `root` begins with itself: left recursion is not supported"),
        (
            "root ::= \"x\" a\na ::= (b | \"c\")\nb ::= \"d\"? a \"e\"",
            "rule `a` begins with itself: left recursion is not supported",
        ),
        ("root ::= \"a\"\n&", "line 2: expected the name of a rule, got '&'"),
    ] {
        let error = stories().compiler.compile(&Grammar::of_text(text.into())).unwrap_err().to_string();
        assert_eq!(error, format!("invalid GBNF grammar: {want}"), "{text}");
    }
    let empty = stories().compiler.compile(&Grammar::Gbnf(String::new())).unwrap_err().to_string();
    assert_eq!(empty, "the GBNF grammar must not be empty");
}

#[test]
fn hostile_grammars_stay_within_their_limits() {
    let nested = format!("root ::= {}\"a\"{}", "(".repeat(5000), ")".repeat(5000));
    let copies = "root ::= ((((\"a\"{2000}){2000}){2000}){2000}){2000}";
    let optional = format!("root ::= {}", "[a-z]{0,2000} ".repeat(60));
    let ambiguous = "root ::= a a a a a a\na ::= ([a-z]* | b)*\nb ::= ([a-z] a \"x\" | [a-z])+";
    for text in [nested.as_str(), copies, &optional, ambiguous] {
        let start = Instant::now();
        if let Ok(compiled) = stories().compiler.compile(&Grammar::Gbnf(text.into())) {
            let mut constraint = compiled.constraint();
            for _ in 0..20 {
                let Ok(mask) = constraint.mask() else { break };
                let Some(id) = allowed(&mask).into_iter().find(|id| !stories().tokenizer.eog().contains(id))
                else {
                    break;
                };
                if constraint.accept(id).is_err() {
                    break;
                }
            }
        }
        let took = start.elapsed();
        assert!(took.as_secs() < 60, "{took:?}: {}", &text[..text.len().min(60)]);
    }
}

#[test]
fn long_texts_forget_old_states() {
    let vocabulary = stories();
    let compiled =
        vocabulary.compiler.compile(&Grammar::Gbnf("root ::= l\nl ::= [(] l [)] | [a-z ]+".into())).unwrap();
    let mut constraint = compiled.constraint();
    let id = |text: &str| {
        (0..vocabulary.tokenizer.vocab_size() as u32)
            .find(|&id| vocabulary.tokenizer.token_bytes(id, false) == text.as_bytes())
            .unwrap()
    };
    let depth = 3000;
    for _ in 0..depth {
        constraint.mask().unwrap();
        constraint.accept(id("(")).unwrap();
    }
    constraint.accept(id("a")).unwrap();
    for step in 0..depth {
        assert!(allowed(&constraint.mask().unwrap()).contains(&id(")")), "{step}");
        assert_eq!(constraint.accept(id(")")), Ok(step + 1 == depth));
    }
}

#[test]
fn a_text_is_gbnf_if_a_line_defines_a_rule() {
    for (text, gbnf) in [
        ("root ::= \"a\"", true),
        ("# comment\n  my-rule::=x", true),
        ("start: \"a\"", false),
        ("start: \"::=\"", false),
        ("start: A\nA: /x ::= y/", false),
    ] {
        assert_eq!(matches!(Grammar::of_text(text.into()), Grammar::Gbnf(_)), gbnf, "{text}");
    }
}
