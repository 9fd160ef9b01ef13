//! Embeddings of several texts, and how similar they are.
//!
//!     cargo run --release --example embeddings -- MODEL

use tern::{Error, Model};

fn main() -> Result<(), Error> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "stories".into());
    let model = Model::load(&name)?;
    let texts = ["The dog ran in the park.", "A puppy played outside.", "She ate a big red apple."];
    let vectors = model.embed_all(texts)?;
    for (text, vector) in texts.iter().zip(&vectors) {
        let similarities: Vec<String> =
            vectors.iter().map(|other| format!("{:5.2}", cosine(vector, other))).collect();
        println!("{}  {text}", similarities.join(" "));
    }
    Ok(())
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}
