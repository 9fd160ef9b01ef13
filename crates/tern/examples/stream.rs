//! Streams a text to an async task, and cancels another one by dropping it.
//!
//!     cargo run --release --example stream

use tern::{Error, Model, Request};

#[tokio::main]
async fn main() -> Result<(), Error> {
    // loading blocks, so it runs on its own thread
    let loaded = tokio::task::spawn_blocking(|| Model::load("stories")).await;
    let model = loaded.expect("loading does not panic")?;

    let task = tokio::spawn({
        let model = model.clone();
        async move {
            let mut stream = model.stream(Request::text("Once upon a time").max_tokens(40).seed(1))?;
            let mut pieces = 0;
            while let Some(delta) = stream.next().await {
                print!("{}", delta?.text());
                pieces += 1;
            }
            println!();
            Ok::<usize, Error>(pieces)
        }
    });

    let mut cancelled = model.stream(Request::text("The dog").max_tokens(100).seed(2))?;
    let first = cancelled.next().await;
    assert!(first.is_some_and(|delta| delta.is_ok()));
    drop(cancelled); // the engine stops computing it before the next step

    println!("{} pieces", task.await.expect("the task does not panic")?);
    Ok(())
}
