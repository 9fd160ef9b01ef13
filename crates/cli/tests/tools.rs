//! Commands about models: tokenize, inspect, synth, doctor, bench, perplexity, list.

mod support;

use serde_json::Value;
use tern::formats::{Metadata, gguf::Writer};

use crate::support::{CONTINUATION, Home, PROMPT, stories_file, tern};

#[test]
fn texts_and_token_ids_are_converted_both_ways() {
    let home = Home::new();
    let tokenize =
        |args: &[&str], stdin: &str| home.run_with(&[&["tokenize"], args].concat(), stdin.as_bytes());
    for text in [PROMPT, "  two  spaces\n\nand lines\n", "caf\u{e9} \u{1f426}", "<|endoftext|>", ""] {
        let ids = tokenize(&[], text).ok().to_string();
        assert!(ids.ends_with('\n'));
        assert_eq!(tokenize(&["--decode"], &ids).ok(), text);
    }
    let plain = tokenize(&[], PROMPT);
    assert_eq!(tokenize(&["--special"], PROMPT).ok(), format!("0 {}", plain.ok()), "BOS");
    assert_eq!(tokenize(&["--special"], "<|endoftext|>").ok(), "0 0\n");
    assert_eq!(tokenize(&["--decode", "--special"], "0").ok(), "<|endoftext|>");
    assert_eq!(tokenize(&["--decode"], "4096").refusal(), "`4096` is not a token id: expected 0 to 4095");
    assert_eq!(tokenize(&["--decode"], "1 two 3").refusal(), "`two` is not a token id: expected 0 to 4095");
    assert_eq!(tokenize(&["--decode"], "-1").refusal(), "`-1` is not a token id: expected 0 to 4095");
}

#[test]
fn inspect_shows_metadata_tensors_and_memory() {
    let ran = tern(&["inspect", "stories"]);
    for line in [
        "(embedded in the binary): GGUF v3, 3.7 MiB, alignment 32",
        "metadata (dialect Ggml)",
        "  qwen3.block_count = 8",
        "tensors (90)",
        "  token_embd.weight                        Q1_0     [512, 4096]",
        "memory",
        "  weights               3.6 MiB",
        "  KV per 1,000 tokens   3.9 MiB",
    ] {
        assert!(ran.ok().lines().any(|l| l == line), "{line}");
    }
    let file = stories_file();
    let named = tern(&["inspect", file.to_str().unwrap()]);
    assert!(named.ok().starts_with(&format!("{}: GGUF v3, ", file.display())));
    assert_eq!(named.ok().split_once('\n').unwrap().1, ran.ok().split_once('\n').unwrap().1);
}

#[test]
fn inspect_json_has_the_same_contents() {
    let said = tern(&["inspect", "stories", "--json"]).json();
    assert_eq!((&said["runnable"], &said["why_not"]), (&true.into(), &Value::Null));
    assert_eq!(said["metadata"]["qwen3.context_length"], 256);
    assert_eq!(said["metadata"]["tokenizer.ggml.tokens"].as_array().unwrap().len(), 4096);
    let tensors = said["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), 90);
    let total: u64 = tensors.iter().map(|t| t["bytes"].as_u64().unwrap()).sum();
    let by_format: u64 =
        said["formats"].as_array().unwrap().iter().map(|f| f["bytes"].as_u64().unwrap()).sum();
    assert_eq!((said["memory"]["weights"].as_u64(), by_format), (Some(total), total));
    // 8 layers, 2 heads of 64 for keys and as many for values, 2 bytes each
    assert_eq!(said["memory"]["kv_per_1000_tokens"], 8 * 2 * (64 + 64) * 2 * 1000);
}

/// A file that cannot be run can still be inspected.
#[test]
fn inspect_says_why_a_file_cannot_be_run() {
    let home = Home::new();
    let mut metadata = Metadata::default();
    metadata.insert("general.architecture", tern::formats::Value::String("mamba".into()));
    let mut file = std::fs::File::create(home.path("mamba.gguf")).unwrap();
    Writer::new(metadata).write_to(&mut file, |_, _| Ok(())).unwrap();
    let why = "architecture `mamba` is not supported; Tern runs ";
    let ran = home.run(&["inspect", "./mamba.gguf"]);
    assert!(ran.ok().contains(&format!("\ncannot be run: {why}")), "{}", ran.stdout());
    let said = home.run(&["inspect", "--json", "./mamba.gguf"]).json();
    assert_eq!((&said["runnable"], &said["memory"]), (&false.into(), &Value::Null));
    assert!(said["why_not"].as_str().unwrap().starts_with(why));
    let text = home.run(&["run", "-q", "-m", "./mamba.gguf", PROMPT]).refusal().to_string();
    assert!(text.contains(why), "{text}");

    std::fs::write(home.path("noise.gguf"), b"not a model at all, but long enough to be looked at").unwrap();
    for args in [&["inspect", "./noise.gguf"][..], &["run", "-q", "-m", "./noise.gguf", PROMPT]] {
        let text = home.run(args).refusal().to_string();
        assert!(text.contains("noise.gguf"), "{text}");
    }
}

#[test]
fn synthetic_files_can_be_inspected_run_and_measured() {
    let home = Home::new();
    let (file, vocab) = ("./tiny.gguf", stories_file());
    let ran = home.run(&["synth", "tiny-qwen3:q2_0", file, "--vocab", vocab.to_str().unwrap()]);
    assert_eq!(ran.ok(), "");
    assert!(ran.stderr().starts_with("tern: ./tiny.gguf tiny-qwen3:q2_0: "), "{}", ran.stderr());
    let names: Vec<_> = std::fs::read_dir(home.0.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["tiny.gguf"], "the part file is gone");

    let said = home.run(&["inspect", "--json", file]).json();
    assert_eq!((&said["runnable"], &said["formats"][0]["format"]), (&true.into(), &"Q2_0".into()));
    let answer = home.run(&["run", "-q", "-m", file, "-n", "5", "--json", "--ignore-eos", PROMPT]).json();
    assert_eq!(answer["tokens"].as_array().unwrap().len(), 5);
    assert_eq!(answer["timing"]["prompt_tokens"], 5, "the vocabulary of stories");

    let bench = ["bench", "-q", "-m", file, "-p", "16", "-n", "4", "-d", "8", "-b", "2", "-r", "2", "--json"];
    let said = home.run(&bench).json();
    assert_eq!(said["model"], file);
    assert!(said["weight_bytes"].as_u64().unwrap() > 0);
    let tests = said["tests"].as_array().unwrap();
    let names: Vec<_> = tests.iter().map(|t| t["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["pp16 @ 8 x 2", "tg4 @ 8 x 2"]);
    for test in tests {
        assert!(test["tokens_per_second"].as_f64().unwrap() > 0.0, "{test}");
        assert!(test["spread"].as_f64().unwrap() >= 0.0, "{test}");
        let seconds = test["seconds"].as_array().unwrap();
        assert_eq!(seconds.len(), 2);
        assert!(seconds.iter().all(|s| s.as_f64().unwrap() > 0.0), "{test}");
    }
}

#[test]
fn synthetic_files_can_have_a_chat_template_and_a_context() {
    let home = Home::new();
    std::fs::write(home.path("plain.jinja"), "{{ messages[0].content }}").unwrap();
    let args = ["synth", "tiny-qwen35:q8_0", "./tiny.gguf", "--context", "4096"];
    home.run(&[&args[..], &["--chat-template", "plain.jinja"]].concat()).ok();
    let metadata = tern::formats::Checkpoint::open(&home.path("tiny.gguf")).unwrap().metadata;
    assert_eq!(metadata.str("tokenizer.chat_template").unwrap(), "{{ messages[0].content }}");
    assert_eq!(metadata.usize("qwen35.context_length").unwrap(), 4096);
    let refusal =
        home.run(&[&args[..], &["--chat-template", "missing.jinja"]].concat()).refusal().to_string();
    assert!(refusal.starts_with("missing.jinja: "), "{refusal}");
}

/// Without --vocab a file gets a plain vocabulary, and can be run.
#[test]
fn synthetic_files_have_a_plain_vocabulary() {
    let home = Home::new();
    home.run(&["synth", "tiny-llama:q4_0", "./plain.gguf"]).ok();
    let ids = home.run_with(&["tokenize", "-m", "./plain.gguf"], "the caf\u{e9}".as_bytes()).ok().to_string();
    assert_eq!(
        home.run_with(&["tokenize", "--decode", "-m", "./plain.gguf"], ids.as_bytes()).ok(),
        "the caf\u{e9}"
    );
    let answer =
        home.run(&["run", "-q", "-m", "./plain.gguf", "-n", "3", "--json", "--ignore-eos", "hi"]).json();
    assert_eq!(answer["tokens"].as_array().unwrap().len(), 3);
}

#[test]
fn wrong_specs_and_paths_are_refused() {
    let home = Home::new();
    let said = |args: &[&str]| home.run(&[&["synth"], args].concat()).refusal().to_string();
    assert_eq!(said(&["tiny-qwen3", "x.gguf"]), "`tiny-qwen3`: want SHAPE:FORMAT, such as bonsai-1.7b:q1_0");
    let text = said(&["giant:q4_0", "x.gguf"]);
    assert!(text.starts_with("shape `giant` is not known; there are bonsai-8b, "), "{text}");
    let text = said(&["tiny-qwen3:q9", "x.gguf"]);
    assert!(text.starts_with("format `q9` cannot be written; there are F32, F16, "), "{text}");
    let text = said(&["tiny-qwen3:q4_0", "no/such/folder/x.gguf"]);
    assert!(text.starts_with("no/such/folder/x.gguf: "), "{text}");
    let text = said(&["tiny-qwen3:q4_0", "x.gguf", "--vocab", "none.gguf"]);
    assert!(text.starts_with("none.gguf: "), "{text}");
    assert_eq!(std::fs::read_dir(home.0.path()).unwrap().count(), 0, "nothing is left behind");
    let text = home.run(&["bench", "--synthetic", "giant:q4_0"]).refusal().to_string();
    assert!(text.starts_with("shape `giant` is not known"), "{text}");
}

#[test]
fn doctor_compares_a_real_model_with_the_cpu() {
    let said = tern(&["doctor", "-m", "stories", "--device", "cpu"]);
    let lines: Vec<&str> = said.ok().lines().collect();
    assert_eq!(lines.last(), Some(&"4 right, 0 wrong"), "{}", said.stdout());
    assert!(
        lines.iter().any(|l| l.contains("64 per step: 117 of 117 clear tokens the same")),
        "{}",
        said.stdout()
    );
}

/// With recurrent layers, a turn computes what is new and the last token of the answer before it; without
/// them, from the last full page on.
#[test]
fn bench_turns_counts_computed_tokens() {
    for (shape, want) in [
        ("tiny-qwen35:q8_0", [100, 8, 8, 8]),
        ("tiny-falcon-h1:q8_0", [100, 8, 8, 8]),
        ("tiny-qwen3:q8_0", [100, 16, 28, 8]),
    ] {
        let sizes =
            ["--turns", "4", "--history", "100", "--question", "7", "-n", "5", "--json", "--device", "cpu"];
        let report =
            Home::new().run(&[&["bench", "turns", "-q", "--synthetic", shape][..], &sizes].concat()).json();
        let turns = report["turns"].as_array().unwrap();
        let computed: Vec<u64> = turns.iter().map(|t| t["computed_tokens"].as_u64().unwrap()).collect();
        assert_eq!(computed, want, "{shape}");
        let last = &report["last_turn_without_cache"];
        assert_eq!((&last["prompt_tokens"], &last["computed_tokens"]), (&136.into(), &136.into()), "{shape}");
        assert!(report["faster"].as_f64().unwrap() > 0.0);
    }
    let refusal =
        Home::new().run(&["bench", "turns", "--synthetic", "tiny-qwen35:q8_0"]).refusal().to_string();
    assert_eq!(refusal, "the turns need 4640 tokens; tiny-qwen35:q8_0 has a context of 512");
}

#[test]
fn bench_measures_synthetic_models() {
    let args = ["bench", "-q", "--synthetic", "tiny-qwen3:q1_0", "-p", "8", "-n", "0", "-r", "1"];
    let said = tern(&[&args[..], &["--json"]].concat()).json();
    assert_eq!(said["tests"].as_array().unwrap().len(), 1, "a test of 0 tokens is omitted");
    assert!(said["tests"][0]["tokens_per_second"].as_f64().unwrap() > 0.0);
    let table = tern(&args);
    let lines: Vec<&str> = table.ok().lines().collect();
    assert_eq!(lines.len(), 2, "{}", table.stdout());
    assert!(lines[0].starts_with("model ") && lines[1].starts_with("tiny-qwen3:q1_0"), "{}", table.stdout());
    assert_eq!(
        tern(&["bench", "-q", "-p", "200", "-d", "100"]).refusal(),
        "depth and test need 300 tokens; stories has a context of 256"
    );
}

#[test]
fn bench_runs_every_number_of_streams() {
    let args = [
        "bench",
        "-q",
        "--synthetic",
        "tiny-qwen3:q1_0",
        "-p",
        "0",
        "-n",
        "2",
        "-r",
        "1",
        "-b",
        "1,3,2",
        "--json",
    ];
    let said = tern(&args).json();
    let tests: Vec<_> =
        said["tests"].as_array().unwrap().iter().map(|t| (&t["test"], &t["streams"])).collect();
    assert_eq!(
        tests,
        [(&"tg2".into(), &1.into()), (&"tg2 x 3".into(), &3.into()), (&"tg2 x 2".into(), &2.into())]
    );
    assert!(tern(&["bench", "-b", "1,0"]).stderr().contains("invalid value '0' for '--streams <N>'"));
}

/// By default a test is not longer than the context.
#[test]
fn bench_chooses_tests_that_fit() {
    let said = tern(&["bench", "-q", "-c", "16", "-r", "1", "--json"]).json();
    let names: Vec<_> = said["tests"].as_array().unwrap().iter().map(|t| &t["test"]).collect();
    assert_eq!(names, ["pp16", "tg16"]);
}

#[test]
fn perplexity_is_low_for_stories_and_high_for_noise() {
    let home = Home::new();
    let story = format!("{PROMPT}{CONTINUATION} ").repeat(4);
    let mut words: Vec<&str> = story.split(' ').collect();
    words.sort_unstable();
    std::fs::write(home.path("story.txt"), &story).unwrap();
    std::fs::write(home.path("noise.txt"), words.join(" ")).unwrap();
    let measure = |file: &str| {
        home.run(&["perplexity", "-q", "-c", "32", "--chunks", "2", "--json", "-f", file]).json()
    };
    let (good, bad) = (measure("story.txt"), measure("noise.txt"));
    assert_eq!((&good["chunks"], &good["context"], &good["tokens"]), (&2.into(), &32.into(), &30.into()));
    let of = |said: &Value| said["perplexity"].as_f64().unwrap();
    assert!(1.0 < of(&good) && of(&good) < 20.0 && of(&good) < of(&bad), "{good} {bad}");
    let bytes =
        ["perplexity", "-q", "-c", "32", "--chunks", "2", "--json", "-f", "story.txt", "--kv", "int8"];
    let bytes = of(&home.run(&bytes).json());
    assert!((bytes / of(&good) - 1.0).abs() < 7e-3, "{bytes} with keys and values in bytes, {good}");
    let text = home.run(&["perplexity", "-q", "-c", "32", "--chunks", "1", "-f", "story.txt"]);
    assert!(
        text.ok().starts_with("perplexity ") && text.ok().ends_with(" (1 chunks of 32, 15 tokens scored)\n")
    );

    std::fs::write(home.path("short.txt"), "Too short.").unwrap();
    let text = home.run(&["perplexity", "-q", "-c", "32", "-f", "short.txt"]).refusal().to_string();
    assert!(
        text.starts_with("short.txt has ") && text.ends_with(" tokens: at least 32 are required (-c)"),
        "{text}"
    );
    let text = home.run(&["perplexity", "-q", "-f", "none.txt"]).refusal().to_string();
    assert!(text.starts_with("none.txt: "), "{text}");
}

#[test]
fn list_shows_local_and_known_models() {
    let ran = tern(&["list"]);
    let line = |name: &str| ran.ok().lines().find(|l| l.split_whitespace().next() == Some(name)).unwrap();
    assert!(line("stories").ends_with("in the binary"));
    assert!(line("smollm2").ends_with("tern pull smollm2"));
    assert_eq!(tern(&["pull", "stories"]).ok(), "stories is embedded in the binary\n");
}
