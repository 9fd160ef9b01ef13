//! A conversation of two turns.
//!
//!     cargo run --release --example chat -- smollm2

use tern::{Error, LoadOptions, Message, Model, Request};

/// For models without a template, such as the embedded one.
const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}\n{% endfor %}";

fn main() -> Result<(), Error> {
    let model = match std::env::args().nth(1) {
        Some(name) => Model::load(&name)?,
        None => {
            let options = LoadOptions { chat_template: Some(TEMPLATE.into()), ..LoadOptions::default() };
            Model::load_with("stories", &options)?
        }
    };
    let mut messages = vec![Message::user("Tell me about a dog in one sentence.")];
    for question in ["And about a cat?", ""] {
        let request = Request::chat(messages.clone()).max_tokens(40).temperature(0.0);
        let answer = model.generate(request)?;
        println!("{}\n  {}", messages[messages.len() - 1].content, answer.text.trim());
        println!("  ({} of {} prompt tokens cached)", answer.cached_tokens, answer.prompt_tokens);
        messages.push(Message::assistant(answer.text));
        messages.push(Message::user(question));
    }
    Ok(())
}
