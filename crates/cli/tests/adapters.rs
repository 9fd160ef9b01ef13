//! `--lora`: adapters on the command line.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use std::path::Path;

use crate::support::{Home, PROMPT};

fn fixture(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/adapters/gguf");
    folder.join(name).canonicalize().unwrap().to_str().unwrap().into()
}

/// A home with the model of the recorded adapters.
fn home() -> Home {
    let home = Home::new();
    let vocab = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tern/models/tern-stories-1bit.gguf");
    home.run(&["synth", "tiny-llama:q8_0", "base.gguf", "--vocab", vocab.to_str().unwrap()]).ok();
    home
}

#[test]
fn adapters_change_the_text_by_their_scale() {
    let home = home();
    let run = |lora: &[&str]| {
        let args =
            ["run", "-m", "./base.gguf", "--device", "cpu", "-n", "12", "--temp", "0", "--raw", PROMPT];
        let flags = lora.iter().flat_map(|lora| ["--lora", lora]);
        let ran = home.run(&args.into_iter().chain(flags).collect::<Vec<_>>());
        let has_plan = ran.stderr().contains(", adapters ");
        assert_eq!(has_plan, !lora.is_empty(), "{}", ran.stderr());
        ran.ok().to_string()
    };
    let [one, two] = ["tiny-llama-1.gguf", "tiny-llama-2.gguf"].map(fixture);
    let plain = run(&[]);
    let first = run(&[&format!("a={one}")]);
    let both = run(&[&format!("a={one}"), &format!("b={two}:-0.5")]);
    assert!(plain != first && first != both && plain != both, "{plain:?} {first:?} {both:?}");
    assert_eq!(run(&[&format!("a={one}:0")]), plain);
    assert_eq!(run(&[&format!("b={two}:0"), &format!("a={one}:1")]), first);
}

#[test]
fn benchmarks_and_perplexity_use_them() {
    let home = home();
    let lora = format!("a={}", fixture("tiny-llama-1.gguf"));
    std::fs::write(home.path("text"), "Once upon a time there was a dog. ".repeat(60)).unwrap();
    let perplexity = |more: &[&str]| {
        let args = [
            "perplexity",
            "--file",
            "text",
            "-m",
            "./base.gguf",
            "--device",
            "cpu",
            "-c",
            "64",
            "--json",
            "-q",
        ];
        let json = home.run(&[&args, more].concat()).json();
        (json["perplexity"].as_f64().unwrap(), json["comparison"].clone())
    };
    let (plain, _) = perplexity(&[]);
    let (adapted, comparison) = perplexity(&["--lora", &lora, "--compare", "./base.gguf"]);
    assert!((plain - adapted).abs() > 1.0, "{plain} {adapted}");
    assert!(comparison["kl_mean"].as_f64().unwrap() > 0.01, "{comparison}");
    let bench = [
        "bench",
        "-m",
        "./base.gguf",
        "--device",
        "cpu",
        "-p",
        "32",
        "-n",
        "8",
        "-r",
        "1",
        "-q",
        "--lora",
        &lora,
    ];
    assert!(home.run(&bench).ok().contains("tg8"));
}

#[test]
fn wrong_adapters_are_refused() {
    let home = home();
    let refused = |model: &str, lora: &str| {
        home.run(&["run", "-q", "-m", model, "--lora", lora, PROMPT]).refusal().to_string()
    };
    let one = fixture("tiny-llama-1.gguf");
    let usage = home.run(&["run", "-q", "--lora", "poet", PROMPT]);
    assert!(usage.usage().contains("expected NAME=FILE or NAME=FILE:SCALE"));
    assert!(refused("./base.gguf", "a=none.gguf").contains("none.gguf: No such file or directory"));
    let model = refused("./base.gguf", "a=base.gguf");
    assert!(model.contains("base.gguf: not an adapter: `general.type` is missing, want adapter"), "{model}");
    let other = refused("stories", &format!("a={one}"));
    assert!(other.contains("an adapter of a `llama` model: the model is `"), "{other}");
    let alone = home.run(&["run", "-q", "-m", &one, PROMPT]).refusal().to_string();
    assert!(
        alone.contains("the file is an adapter: want its base model, and the adapter with --lora"),
        "{alone}"
    );
    let lora = format!("a={one}");
    let several = ["serve", "-q", "--port", "0", "-m", "./base.gguf", "-m", "stories", "--lora", &lora];
    assert!(home.run(&several).refusal().contains("--lora: requires one model (-m)"));
}
