//! Two models in one process, each with its own engine: nothing is global.
//!
//!     cargo run --release --example two_models

use tern::{Context, Device, Error, LoadOptions, Model, OpenedModel, Request, Silent};

fn main() -> Result<(), Error> {
    let options = LoadOptions {
        device: Device::Cpu,
        threads: Some(1),
        context: Context::AtMost(256),
        ..LoadOptions::default()
    };
    let stories = Model::load_with("stories", &options)?;
    // the second one has random weights: it shows the shape of a larger model without a download
    let opened = OpenedModel::synthetic("tiny-qwen3:q8_0", &options, &Silent)?;
    let vocab = opened.model.config.vocab;
    let random = tern::engine::Engine::start(
        Box::new(opened.runner(options.device.open(options.device_options())?, capacity(), &Silent)?),
        tern::engine::Limits { max_seqs: 1, max_context: 256, max_waiting: 8, step_millis: 0 },
    )?;

    let text = stories.generate(Request::text("The cat").max_tokens(20).seed(5))?.text;
    println!("stories: The cat{text}");
    let tokens: Vec<u32> = (1..9).collect();
    let stream = random.generate(tern::engine::Request::new(tokens, 10))?;
    println!("a random model of {vocab} tokens: {} events", stream.count());
    Ok(())
}

/// KV pages and step sizes, for a program that works with token ids.
fn capacity() -> tern::engine::Capacity {
    tern::engine::Capacity {
        pages: 16,
        page_len: tern::PAGE_LEN,
        max_tokens: 64,
        max_outputs: 1,
        window: None,
        state: None,
    }
}
