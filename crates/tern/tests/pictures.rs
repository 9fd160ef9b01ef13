//! A small trained model says what is on pictures that it was not trained on: what it says is what its
//! weights in bf16 say in `transformers`, and most of it is right.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tern::{Answer, Message, Model, Request};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/pictures").join(name)
}

/// A picture, a question, the right answer, and that of `transformers`.
struct Held {
    image: Vec<u8>,
    question: String,
    answer: String,
    transformers: String,
}

fn held_out() -> Vec<Held> {
    let text = std::fs::read_to_string(fixture("held-out.json")).unwrap();
    let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
    let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_string();
    let held = |row: &Value| Held {
        image: STANDARD.decode(text(row, "image")).unwrap(),
        question: text(row, "question"),
        answer: text(row, "answer"),
        transformers: text(row, "transformers"),
    };
    rows.iter().map(held).collect()
}

fn ask(model: &Model, messages: Vec<Message>) -> Answer {
    model.generate(Request::chat(messages).temperature(0.0).max_tokens(24)).unwrap()
}

fn about(held: &Held) -> Message {
    Message::user(&held.question).image(held.image.clone())
}

#[test]
fn held_out_pictures_are_answered_as_by_transformers() {
    let model = Model::load(&fixture("model.gguf").display().to_string()).unwrap();
    assert!(model.sees());
    let (mut right, mut same, all) = (0, 0, held_out());
    for held in &all {
        let text = ask(&model, vec![about(held)]).text;
        right += usize::from(text == held.answer);
        same += usize::from(text == held.transformers);
        if text != held.transformers {
            println!("{}: {text}, transformers: {}", held.question, held.transformers);
        }
    }
    println!("{right} of {} are right, {same} are those of transformers", all.len());
    // it was trained briefly: 37 right with these weights; by chance it would be one in seven
    assert!(right >= 36 && same >= 58 && all.len() == 60, "{right} right, {same} same of {}", all.len());
}

#[test]
fn later_turns_see_the_pictures_before_and_their_own() {
    let model = Model::load(&fixture("model.gguf").display().to_string()).unwrap();
    let all = held_out();
    let [first, second] = &all[..2] else { panic!() };
    let alone = ask(&model, vec![about(first)]);
    let told = Message::assistant(&alone.text);
    let both = ask(&model, vec![about(first), told.clone(), about(second)]);
    let again = ask(&model, vec![about(first), told, about(second)]);
    assert_eq!((&both.text, both.prompt_tokens), (&again.text, again.prompt_tokens));
    assert!(both.prompt_tokens > alone.prompt_tokens + 12, "rows of the second picture count");
    // the same words about another picture
    let other =
        all.iter().find(|held| held.question == first.question && held.answer != first.answer).unwrap();
    assert_ne!(
        ask(&model, vec![about(other)]).text,
        alone.text,
        "a picture of another content is not cached"
    );
}

#[test]
fn pictures_run_beside_each_other_and_beside_texts() {
    let model = Model::load(&fixture("model.gguf").display().to_string()).unwrap();
    let all = held_out();
    let alone: Vec<String> = all.iter().take(8).map(|held| ask(&model, vec![about(held)]).text).collect();
    let streams: Vec<_> = all
        .iter()
        .take(8)
        .flat_map(|held| [vec![about(held)], vec![Message::user(&held.question)]])
        .map(|messages| model.stream(Request::chat(messages).temperature(0.0).max_tokens(24)).unwrap())
        .collect();
    let texts: Vec<String> = streams.into_iter().map(|stream| stream.wait().unwrap().text).collect();
    let of_pictures: Vec<String> = texts.into_iter().step_by(2).collect();
    assert_eq!(of_pictures, alone);
}
