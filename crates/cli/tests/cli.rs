//! The command: stdout, stderr and exit codes.

mod support;

use std::process::Stdio;

use crate::support::{CONTINUATION, Home, PROMPT, Ran, stories_file, tern};

#[test]
fn run_continues_a_prompt_and_reports_speed_and_memory() {
    let ran = tern(&["run", PROMPT, "-n", "40", "--temp", "0"]);
    assert!(ran.ok().starts_with(CONTINUATION), "{}", ran.stdout());
    assert!(ran.stdout().ends_with('\n'));
    let lines: Vec<&str> = ran.stderr().lines().collect();
    assert_eq!(lines.len(), 2, "{}", ran.stderr());
    for part in ["tern: stories (qwen3, 8 layers, Q1_0) on ", "weights 3.6 MiB", "KV 1.0 MiB for 256 tokens"]
    {
        assert!(lines[0].contains(part), "{part}: {}", lines[0]);
    }
    assert!(lines[0].contains("scratch ") && lines[0].ends_with(" free"), "{}", lines[0]);
    assert!(lines[1].starts_with("tern: loaded in "), "{}", lines[1]);
    assert!(lines[1].contains(" 5 prompt tokens, 40 tokens at ") && lines[1].ends_with("/s"), "{}", lines[1]);
}

/// The default model and a prompt on stdin.
#[test]
fn run_needs_nothing_but_a_prompt() {
    let home = Home::new();
    let ran = home.run_with(&["run", "-q", "-n", "8", "--temp", "0", "-"], PROMPT.as_bytes());
    assert_eq!(ran.ok(), home.run(&["run", "-n", "8", "--temp", "0", "-m", "stories", PROMPT]).ok());
    assert!(CONTINUATION.starts_with(ran.stdout().trim_end()), "{}", ran.stdout());
}

#[test]
fn quiet_leaves_stderr_empty() {
    let ran = tern(&["run", "-q", "-n", "3", "--temp", "0", PROMPT]);
    assert_eq!(ran.ok(), ", there was\n");
    assert_eq!(ran.stderr(), "");
}

#[test]
fn threads_do_not_change_the_text() {
    let one = tern(&["run", "-q", "-n", "12", "--seed", "3", "-t", "1", PROMPT]);
    for threads in ["2", "3"] {
        assert_eq!(
            tern(&["run", "-q", "-n", "12", "--seed", "3", "-t", threads, PROMPT]).ok(),
            one.ok(),
            "-t {threads}"
        );
    }
}

#[test]
fn run_json_has_text_tokens_and_timing() {
    let answer = tern(&["run", PROMPT, "-n", "6", "--temp", "0", "--json", "--logprobs", "3"]).json();
    let tokens = answer["tokens"].as_array().unwrap();
    assert_eq!(tokens.len(), 6);
    let text: String = tokens.iter().map(|t| t["text"].as_str().unwrap()).collect();
    assert_eq!(answer["text"], text);
    assert!(CONTINUATION.starts_with(&text), "{text}");
    for token in tokens {
        assert!(token["id"].as_u64().unwrap() < 4096);
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
        let top = token["top"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert_eq!((&top[0]["id"], &top[0]["text"]), (&token["id"], &token["text"]), "greedy takes the best");
        assert!(top.is_sorted_by_key(|t| -t["logprob"].as_f64().unwrap()));
    }
    assert_eq!(answer["finish_reason"], "length");
    assert!(answer["seed"].is_u64());
    let timing = &answer["timing"];
    assert_eq!((&timing["prompt_tokens"], &timing["decode_tokens"]), (&5.into(), &5.into()));
    for key in ["load_seconds", "prompt_seconds", "decode_seconds"] {
        assert!(timing[key].as_f64().unwrap() > 0.0, "{key}");
    }
}

/// Without --logprobs, tokens have their own log-probability and no others.
#[test]
fn run_json_has_top_tokens_only_with_logprobs() {
    let answer = tern(&["run", "-q", PROMPT, "-n", "2", "--json"]).json();
    assert!(answer["tokens"][0]["logprob"].is_f64());
    assert!(answer["tokens"][0].get("top").is_none());
}

#[test]
fn stop_strings_end_the_text_before_them() {
    let ran =
        tern(&["run", "-q", "-n", "40", "--temp", "0", "--stop", "named", "--stop", "never said", PROMPT]);
    assert_eq!(ran.ok(), ", there was a little girl \n");
    let answer = tern(&["run", "-q", "-n", "40", "--temp", "0", "--stop", " Lily", "--json", PROMPT]).json();
    assert_eq!(
        (&answer["text"], &answer["finish_reason"]),
        (&", there was a little girl named".into(), &"stop".into())
    );
}

#[test]
fn a_seed_repeats_a_text_and_another_gives_another() {
    let said = |seed: &str| {
        tern(&["run", "-q", "-n", "24", "--temp", "0.9", "--seed", seed, PROMPT]).ok().to_string()
    };
    assert_eq!(said("1"), said("1"));
    assert_ne!(said("1"), said("2"));
}

/// A seed that was not given is in the JSON, so any text can be had again.
#[test]
fn the_seed_of_a_text_can_be_read_and_used_again() {
    let first = tern(&["run", "-q", "-n", "12", "--temp", "1", "--json", PROMPT]).json();
    let seed = first["seed"].to_string();
    let second = tern(&["run", "-q", "-n", "12", "--temp", "1", "--json", "--seed", &seed, PROMPT]).json();
    assert_eq!((&first["text"], &first["tokens"]), (&second["text"], &second["tokens"]));
}

#[test]
fn biases_and_end_tokens_are_applied() {
    let forced = ["run", "-q", "-n", "4", "--json", "--logit-bias", "0=100", PROMPT];
    let answer = tern(&forced).json();
    assert_eq!((&answer["text"], &answer["finish_reason"]), (&"".into(), &"stop".into()));
    let answer = tern(&[&forced[..], &["--ignore-eos"]].concat()).json();
    assert_eq!((answer["tokens"].as_array().unwrap().len(), &answer["finish_reason"]), (4, &"length".into()));
}

#[test]
fn the_context_may_be_filled_to_the_last_token() {
    let answer = tern(&["run", "-q", "-c", "12", "--json", "--ignore-eos", PROMPT]).json();
    assert_eq!((answer["tokens"].as_array().unwrap().len(), &answer["finish_reason"]), (7, &"length".into()));
}

#[test]
fn prompts_that_do_not_fit_the_context_are_refused_with_the_numbers() {
    let long = "word ".repeat(300);
    let said = |args: &[&str]| tern(&[&["run", "-q"], args].concat()).refusal().to_string();
    let text = said(&[&long]);
    assert!(text.contains(" prompt tokens and 1 to generate do not fit the context of 256"), "{text}");
    assert!(text.split(' ').next().unwrap().parse::<usize>().unwrap() > 300, "{text}");
    assert_eq!(
        said(&["-c", "5", "-n", "1", PROMPT]),
        "5 prompt tokens and 1 to generate do not fit the context of 5"
    );
    assert_eq!(said(&["-c", "257", PROMPT]), "-c 257: exceeds the model's trained context of 256 tokens");
}

#[test]
fn missing_models_are_refused() {
    let said = |model: &str| tern(&["run", "-q", "-m", model, PROMPT]).refusal().to_string();
    let text = said("storeis");
    assert!(text.starts_with("no model named 'storeis' (did you mean stories?)"), "{text}");
    assert_eq!(said("./none.gguf"), "./none.gguf: no such file or folder");
    assert_eq!(said("org/repo"), "org/repo is not downloaded, and downloads are disabled (HF_HUB_OFFLINE)");
    assert_eq!(tern(&["run", "-q", "-hf", "org/repo", PROMPT]).refusal(), said("org/repo"));
    let text = tern(&["pull", "smollm2"]).refusal().to_string();
    assert!(text.starts_with("smollm2 is not downloaded"), "{text}");
}

#[test]
fn wrong_values_are_refused_with_a_message() {
    let said =
        |args: &[&str]| tern(&[&["run", "-q", "-n", "4"], args, &[PROMPT]].concat()).refusal().to_string();
    assert_eq!(said(&["--top-p", "2"]), "top_p: want 0 to 1, got 2");
    assert_eq!(said(&["--logit-bias", "4096=1"]), "bias: token id 4096 is outside the vocabulary of 4096");
    assert_eq!(said(&["--system", "Be brief."]), "--system: stories has no chat template");
    assert_eq!(said(&["--stop", ""]), "stop string 0 is empty");
    let text = Home::new().run_with(&["run", "-q", "-"], b"\xff\xfe").refusal().to_string();
    assert_eq!(text, "the text on stdin is not UTF-8");
    assert_eq!(
        tern(&["chat", "-q", "-m", "stories"]).refusal(),
        "stories has no chat template: use `tern run` to continue a text"
    );
}

/// A file whose first norm contains a NaN or an infinity fails with a message.
#[test]
fn a_model_with_a_nan_fails_with_its_position_in_every_format() {
    for (format, bad) in [("q4_0", f32::NAN), ("q1_0", f32::INFINITY), ("f16", f32::NAN)] {
        let (home, file) = (Home::new(), "./tiny.gguf");
        let vocab = stories_file();
        let spec = format!("tiny-qwen3:{format}");
        home.run(&["synth", &spec, file, "--vocab", vocab.to_str().unwrap()]).ok();
        let norm = tern::formats::Checkpoint::open(&home.path("tiny.gguf")).unwrap();
        let norm = norm.tensors["blk.0.attn_norm.weight"].data().to_vec();
        let mut bytes = std::fs::read(home.path("tiny.gguf")).unwrap();
        let at = bytes.windows(norm.len()).position(|part| part == norm).unwrap();
        bytes[at + 8..at + 12].copy_from_slice(&bad.to_le_bytes());
        std::fs::write(home.path("tiny.gguf"), bytes).unwrap();
        for temp in ["0", "0.8"] {
            let ran = home.run(&["run", "-q", "-m", file, "-n", "5", "--temp", temp, PROMPT]);
            let said = "the model produced values that are not finite (NaN or infinity) at position 4";
            assert_eq!(ran.refusal(), said, "{format} at {temp}");
        }
    }
}

/// Missing resources are refused with the numbers: no panic, and no process that
/// remains and does not respond.
#[test]
fn too_many_threads_and_too_much_memory_are_refused() {
    let text = tern(&["run", "-t", "100000", PROMPT]).usage().to_string();
    assert!(text.contains("expected at most 4096 threads"), "{text}");
    // a server also logs; its last line is the message
    let last = |ran: Ran| {
        assert_eq!(ran.0.status.code(), Some(1), "{}", ran.stderr());
        ran.stderr().lines().last().unwrap().to_string()
    };
    let serve = ["serve", "-q", "-m", "stories", "-t", "1", "--port", "0", "--kv-pages"];
    let text = last(tern(&[&serve[..], &["100000000"]].concat()));
    assert!(
        text.starts_with("tern: stories does not fit: weights ") && text.contains(", KV 11.9 TiB"),
        "{text}"
    );
    // within 400 MB of addresses
    let home = Home::new();
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -v 400000; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_tern")]);
    limited.args(serve).arg("50000").current_dir(home.0.path()).env("HOME", home.0.path());
    let text = last(Ran(limited.output().unwrap()));
    assert!(text.starts_with("tern: stories does not fit: ") && text.contains(" has 390.6 MiB; "), "{text}");
}

#[test]
fn wrong_usage_exits_with_2() {
    for args in [
        &[][..],
        &["frob"],
        &["run"],
        &["run", "a", "b"],
        &["run", "-n", "0", PROMPT],
        &["run", "-n", "many", PROMPT],
        &["run", "-t", "0", PROMPT],
        &["run", "--temp", "warm", PROMPT],
        &["run", "--logprobs", "2", PROMPT],
        &["run", "--logit-bias", "5", PROMPT],
        &["run", "--raw", "--system", "x", PROMPT],
        &["run", "-m", "stories", "--hf", "a/b", PROMPT],
        &["run", "--frobnicate", PROMPT],
        &["bench", "-r", "0"],
        &["bench", "-m", "stories", "--synthetic", "tiny-qwen3:q4_0"],
        &["perplexity"],
        &["synth", "tiny-qwen3:q4_0"],
    ] {
        assert!(
            tern(args).usage().contains("Usage: tern") || tern(args).usage().contains("--help"),
            "{args:?}"
        );
    }
}

#[test]
fn help_and_version_succeed() {
    assert_eq!(tern(&["--version"]).ok(), concat!("tern ", env!("CARGO_PKG_VERSION"), "\n"));
    let help = tern(&["--help"]);
    for command in ["run", "chat", "inspect", "tokenize", "bench", "perplexity", "synth", "pull", "list"] {
        assert!(help.ok().contains(&format!("\n  {command} ")), "{command}");
        assert!(tern(&[command, "--help"]).ok().contains("Usage: tern "), "{command}");
    }
}

/// `tern ... | head -1`: a closed stdout is not an error.
#[test]
fn a_closed_stdout_does_not_panic() {
    let home = Home::new();
    for args in [
        &["run", PROMPT, "-n", "40"][..],
        &["run", "--json", PROMPT, "-n", "4"],
        &["inspect", "stories"],
        &["list"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ran = Ran(home.command(args).stdin(Stdio::null()).stdout(writer).output().unwrap());
        assert!(!ran.stderr().contains("panicked"), "{args:?}: {}", ran.stderr());
        assert_eq!(ran.0.status.code(), Some(0), "{args:?}: {}", ran.stderr());
    }
}

/// `tern ... 2>&1 | head -1`: a closed stderr is not an error.
#[test]
fn a_closed_stderr_does_not_panic() {
    let home = Home::new();
    for args in [
        &["run", PROMPT, "-n", "4"][..],
        &["run", "-m", "nope", PROMPT],
        &["synth", "tiny-qwen3:q1_0", "x.gguf"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = home.command(args);
        let status = command.stdin(Stdio::null()).stdout(writer.try_clone().unwrap()).stderr(writer).status();
        assert_ne!(status.unwrap().code(), Some(101), "{args:?} panicked");
    }
}
