//! Decisions against the probabilities of transformers (`scripts/oracle/transformers/decisions.py`), and
//! alone against the same among other work.

use std::path::PathBuf;
use std::thread;

use serde::Deserialize;
use tern::{Chat, Decision, Device, LoadOptions, Message, Model, Question, Request};

#[derive(Deserialize)]
struct Recorded {
    file: String,
    state: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    label_mass: f64,
    probabilities: Vec<f64>,
}

/// How far a probability may be from that of the same weights without quantized activations.
const TOLERANCE: f64 = 0.02;

fn questions() -> Vec<Question> {
    vec![
        Question::predicate("The parcel was full."),
        Question::choice("Which team should answer?", ["billing", "shipping", "sales"]),
        Question::score("How upset is the customer?", ["calm", "annoyed", "furious"]),
    ]
}

fn options() -> LoadOptions {
    LoadOptions { device: Device::Cpu, threads: Some(2), ..LoadOptions::default() }
}

fn chat(state: &str) -> Chat {
    Chat::new([Message::user(state)])
}

#[test]
fn probabilities_are_those_of_transformers() {
    let recorded: Recorded = serde_json::from_str(include_str!("decisions.json")).unwrap();
    let path = std::env::var_os("TERN_TEST_DATA").map(|data| PathBuf::from(data).join(&recorded.file));
    let Some(path) = path.filter(|path| path.exists()) else {
        println!("skipped: {} is missing (TERN_TEST_DATA)", recorded.file);
        return;
    };
    let model = Model::load_with(path.to_str().unwrap(), &options()).unwrap();
    let decisions = model.decide(chat(&recorded.state), &questions()).unwrap();
    assert_eq!(decisions.len(), recorded.cases.len());
    for (decision, case) in decisions.iter().zip(&recorded.cases) {
        let near = |got: f64, want: f64| (got - want).abs() < TOLERANCE;
        let both = decision.probabilities.iter().zip(&case.probabilities);
        assert!(both.clone().all(|(got, want)| near(*got, *want)), "{:?}", both.collect::<Vec<_>>());
        assert_eq!(decision.probabilities.len(), case.probabilities.len());
        assert!(near(decision.label_mass, case.label_mass), "{} {}", decision.label_mass, case.label_mass);
    }
}

#[test]
fn a_question_has_the_same_numbers_alone_among_others_and_under_load() {
    let questions = [
        Question::choice("Who was there?", ["a girl", "a dog", "a cat"]),
        Question::score("How big was it?", ["small", "big"]),
        Question::predicate("There was a dog."),
    ];
    let state = "Once upon a time there was a little girl named Lily. She had a dog. ".repeat(3);
    let path = std::env::var_os("TERN_TEST_DATA")
        .map(|data| PathBuf::from(data).join("smollm2-135m-instruct-q4_1.gguf"));
    let Some(path) = path.filter(|path| path.exists()) else {
        println!("skipped: smollm2-135m-instruct-q4_1.gguf is missing (TERN_TEST_DATA)");
        return;
    };
    let model = Model::load_with(path.to_str().unwrap(), &options()).unwrap();
    let decide = |questions: &[Question]| model.decide(chat(&state), questions).unwrap();
    let alone: Vec<Decision> = questions.iter().flat_map(|q| decide(std::slice::from_ref(q))).collect();
    assert_eq!(decide(&questions), alone);
    let load = || model.generate(Request::text("A long story:").max_tokens(40).seed(1)).unwrap();
    thread::scope(|scope| {
        let writers: Vec<_> = (0..3).map(|_| scope.spawn(load)).collect();
        while !writers.iter().all(|writer| writer.is_finished()) {
            assert_eq!(decide(&questions), alone);
        }
    });
    assert!(alone.iter().all(|decision| (decision.probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-9));
}
