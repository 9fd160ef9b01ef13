//! Drafts never change a text: the embedded model with and without speculative decoding.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use tern::engine::{Mirostat, MirostatVersion, Sampling};
use tern::{Device, Grammar, LoadOptions, Model, Request, Speculation};

fn options(draft_max: usize) -> LoadOptions {
    let speculation = if draft_max > 0 { Speculation::Suffix } else { Speculation::Off };
    LoadOptions { device: Device::Cpu, threads: Some(2), speculation, draft_max, ..LoadOptions::default() }
}

fn model(draft_max: usize) -> Model {
    Model::load_with("stories", &options(draft_max)).unwrap()
}

/// Texts that repeat themselves, and requests whose samples depend on them in every way.
fn requests() -> Vec<Request> {
    let story = "Once upon a time there was a little girl named Lily. She had a red ball. ".repeat(3);
    let prompts = [story.as_str(), "Once upon a time", "One day, Tom and Tim, Tom and Tim, Tom and"];
    let of = |(seed, prompt): (u64, &&str)| {
        let plain = || Request::text(*prompt).max_tokens(90).seed(seed);
        let base = |base: Sampling| Request { base, ..plain() };
        let hot = || Sampling { temperature: 0.9, ..Sampling::default() };
        [
            plain().temperature(0.0),
            plain().temperature(0.4).logprobs(2),
            plain().temperature(1.3),
            base(Sampling { frequency: 0.4, repetition: 1.1, ..hot() }),
            base(Sampling { bias: vec![(5, 2.0), (9, -3.0)], ..hot() }),
            base(Sampling {
                mirostat: Some(Mirostat { version: MirostatVersion::Two, tau: 5.0, eta: 0.1 }),
                ..hot()
            }),
            plain().temperature(0.0).stop("ball"),
            plain().constraint(Grammar::Regex("( ?(red|blue) ball,){2,9}".into())),
            plain().constraint(Grammar::JsonSchema(serde_json::json!({
                "type": "object", "required": ["name", "color"], "additionalProperties": false,
                "properties": { "name": { "const": "the little girl" }, "color": { "enum": ["red", "blue"] } }
            }))),
        ]
    };
    (1..).zip(&prompts).flat_map(of).collect()
}

/// The tokens of all requests, `streams` at a time, and how many drafts were right, of all.
fn texts(model: &Model, streams: usize) -> (Vec<Vec<u32>>, (usize, usize)) {
    let (mut texts, mut drafts) = (vec![], (0, 0));
    for group in requests().chunks(streams) {
        let running: Vec<_> = group.iter().map(|request| model.stream(request.clone()).unwrap()).collect();
        for answer in running.into_iter().map(|stream| stream.wait().unwrap()) {
            texts.push(answer.tokens.iter().map(|token| token.id).collect());
            drafts = (drafts.0 + answer.accepted_tokens, drafts.1 + answer.drafted_tokens);
        }
    }
    (texts, drafts)
}

#[test]
fn drafts_do_not_change_texts() {
    let (plain, none) = texts(&model(0), 1);
    assert_eq!(none, (0, 0));
    let drafting = model(8);
    for streams in [1, 3, 8] {
        let (drafted, (right, all)) = texts(&drafting, streams);
        assert_eq!(drafted, plain, "{streams} at a time");
        assert!(right > 50 && all > right, "{streams} at a time: {right} of {all}");
    }
}

#[test]
fn a_request_may_have_fewer_drafts_or_none() {
    let model = model(8);
    let request = || Request::text("red ball, red ball, red ball, red").max_tokens(60).temperature(0.0);
    let drafted = |most| model.generate(Request { draft_max: most, ..request() }).unwrap();
    let (all, none) = (drafted(None), drafted(Some(0)));
    assert_eq!((all.text.as_str(), none.drafted_tokens), (none.text.as_str(), 0));
    assert_eq!(model.drafts(Some(99)), 8, "not more than the model was loaded with");
}
