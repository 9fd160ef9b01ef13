//! Many requests at once: they share steps, and each text is the same as alone.
//!
//!     cargo run --release --example many_requests

use std::thread;
use std::time::Instant;

use tern::{Error, LoadOptions, Model, Request};

fn main() -> Result<(), Error> {
    let model = Model::load_with("stories", &LoadOptions { max_seqs: 16, ..LoadOptions::default() })?;
    let request = |i: u64| Request::text("Once upon a time").max_tokens(50).seed(i);

    let start = Instant::now();
    let alone: Result<Vec<String>, Error> =
        (0..32).map(|i| model.generate(request(i)).map(|answer| answer.text)).collect();
    let (alone, one_by_one) = (alone?, start.elapsed());

    let start = Instant::now();
    let threads: Vec<_> = (0..32)
        .map(|i| {
            let model = model.clone(); // the same model
            thread::spawn(move || model.generate(request(i)).map(|answer| answer.text))
        })
        .collect();
    for (thread, alone) in threads.into_iter().zip(&alone) {
        assert_eq!(&thread.join().expect("no thread panics")?, alone);
    }
    println!("32 texts: {one_by_one:.1?} one by one, {:.1?} at once, the same texts", start.elapsed());
    println!("{:?}", model.handle().stats());
    Ok(())
}
