//! Continues a text.
//!
//!     cargo run --release --example generate -- "Once upon a time"

use tern::{Error, Model, Request};

fn main() -> Result<(), Error> {
    let prompt = std::env::args().nth(1).unwrap_or_else(|| "Once upon a time".into());
    let model = Model::load("stories")?; // or "smollm2", a GGUF file, "org/repo:Q4_K_M"
    let answer = model.generate(Request::text(&prompt).max_tokens(60).temperature(0.0).logprobs(0))?;
    println!("{prompt}{}", answer.text);

    let surprise = answer.tokens.iter().filter_map(|token| token.logprob).map(|p| -p).sum::<f32>();
    println!("{} tokens, {:.2} nats per token", answer.tokens.len(), surprise / answer.tokens.len() as f32);
    Ok(())
}
