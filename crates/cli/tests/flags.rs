//! Flags: what other programs' users write is taken as meant, or refused with the words that help.

mod support;

use crate::support::{CONTINUATION, Home, PROMPT, stories_with, tern};

#[test]
fn minus_one_and_zero_are_taken_as_meant() {
    let tokens = |args: &[&str]| {
        let common = ["run", "-q", "--json", "--ignore-eos", "--temp", "0", PROMPT];
        tern(&[&common[..], args].concat()).json()["tokens"].as_array().unwrap().len()
    };
    assert_eq!(tokens(&["-n", "-1", "-c", "12"]), 7, "as many as fit");
    assert_eq!(tokens(&["-c", "0"]), 251, "the model's whole context");
    let seeds: Vec<_> = (0..2)
        .map(|_| tern(&["run", "-n", "1", "--json", "--seed", "-1", PROMPT]).json()["seed"].clone())
        .collect();
    assert_ne!(seeds[0], seeds[1]);
    tern(&["run", "-q", "-n", "1", "--top-k", "-1", PROMPT]).ok();
}

#[test]
fn flags_of_other_programs_are_answered_with_tern_s_own() {
    for (args, want) in [
        (&["run", "-ngl", "99", PROMPT][..], "use --device auto, cpu, cuda or cuda:N"),
        (&["chat", "-ngl99"], "use --device auto, cpu, cuda or cuda:N"),
        (&["serve", "--n-gpu-layers", "-1"], "use --device auto, cpu, cuda or cuda:N"),
        (&["run", "-p", PROMPT], "the prompt has no flag: write it as the argument of `run`"),
        (&["chat", "-p", "-x"], "the prompt has no flag"),
        (
            &["run", "llama3", "Why is the sky blue?"],
            "a model is named with -m, as in tern run -m MODEL PROMPT",
        ),
        (&["run", "-n", "-2", PROMPT], "want a whole number from 1 on, or -1 for no limit but the context"),
        (&["run", "-n", "0", PROMPT], "want a whole number from 1 on, or -1 for no limit but the context"),
        (&["run", "--seed", "-2", PROMPT], ", or -1 for a random one"),
        (&["run", "-c", "-1", PROMPT], "want a whole number from 1 on, or 0 for what the model was made for"),
        (&["run", "-t", "-1", PROMPT], "want a whole number from 1 on"),
    ] {
        let ran = tern(args);
        assert!(ran.usage().contains(want), "{args:?}: {}", ran.stderr());
        assert!(!ran.stderr().contains("tip: to pass"), "{args:?}: {}", ran.stderr());
    }
    assert_eq!(tern(&["run", "-q", "-n", "1", "--", "-ngl"]).0.status.code(), Some(0), "a prompt behind --");
}

/// A wrong flag is told at once, and not after a model was fetched and loaded.
#[test]
fn flags_are_checked_before_the_model_is_opened() {
    for (args, want) in [
        (&["run", "-m", "./none.gguf", "--top-p", "2", PROMPT][..], "top_p: want 0 to 1, got 2"),
        (&["run", "-m", "./none.gguf", "--temp", "-1", PROMPT], "temperature: want 0 or more, got -1"),
        (
            &["run", "-m", "./none.gguf", "--repeat-penalty", "0", PROMPT],
            "repetition: want more than 0, got 0",
        ),
        (
            &["run", "-m", "./none.gguf", "--logit-bias", "1=500", PROMPT],
            "bias: want -100 to 100, got 500 for token 1",
        ),
        (&["run", "-m", "./none.gguf", "--stop", "", PROMPT], "stop string 0 is empty"),
        (&["chat", "-m", "./none.gguf", "--min-p", "3"], "min_p: want 0 to 1, got 3"),
        (&["serve", "-m", "./none.gguf", "--top-p", "2"], "top_p: want 0 to 1, got 2"),
    ] {
        assert_eq!(tern(args).refusal(), want, "{args:?}");
    }
}

#[test]
fn chat_and_serve_take_the_model_first() {
    assert_eq!(tern(&["chat", "./none.gguf"]).refusal(), "./none.gguf: no such file or folder");
    let ran = tern(&["serve", "./none.gguf", "-q", "--port", "0", "--log", "off"]);
    assert_eq!(ran.refusal(), "./none.gguf: no such file or folder");
    for command in ["chat", "serve"] {
        assert!(tern(&[command, "stories", "-m", "smollm2"]).usage().contains("cannot be used with"));
        assert!(tern(&[command, "--help"]).ok().contains("[MODEL]"));
    }
}

/// `tern run llama3` is what others would write to start a model.
#[test]
fn a_prompt_that_names_a_model_is_hinted_at() {
    let hint =
        |args: &[&str]| tern(&[&["run", "-n", "1"], args].concat()).stderr().contains("-m names a model");
    for prompt in ["llama3", "smollm2", "./x.gguf", "Qwen3-0.6B"] {
        assert!(hint(&[prompt]), "{prompt}");
    }
    assert!(!hint(&[PROMPT]) && !hint(&["llama3", "-m", "stories"]) && !hint(&["-q", "llama3"]));
    let ran = tern(&["run", "-n", "1", "llama3"]);
    let want = "tern: `llama3` is taken as the prompt, for the model stories; -m names a model: tern run -m llama3 PROMPT";
    assert_eq!(ran.stderr().lines().next(), Some(want));
}

/// Without flags a text is sampled, with the file's own parameters where it has some; 0 is greedy.
#[test]
fn the_file_s_sampling_holds_where_no_flag_does() {
    let home = Home::new();
    stories_with(&home, "greedy.gguf", &[("general.sampling.temp", tern::formats::Value::Float(0.0))]);
    let said =
        |args: &[&str]| home.run(&[&["run", "-q", "-n", "24", PROMPT], args].concat()).ok().to_string();
    let greedy = said(&["--temp", "0"]);
    assert!(CONTINUATION.starts_with(greedy.trim_end()) || greedy.starts_with(CONTINUATION), "{greedy}");
    assert_eq!(said(&["--seed", "1"]), said(&["--seed", "1"]));
    assert_ne!(said(&["--seed", "1"]), said(&["--seed", "2"]), "sampled without any flag");
    assert_eq!(said(&["--seed", "1", "--temperature", "0"]), greedy);
    assert_eq!(said(&["--seed", "1", "-m", "./greedy.gguf"]), greedy);
    assert_eq!(said(&["--seed", "1", "-m", "./greedy.gguf", "--temp", "0.8"]), said(&["--seed", "1"]));

    stories_with(&home, "wrong.gguf", &[("general.sampling.top_p", tern::formats::Value::Float(3.0))]);
    let ran = home.run(&["run", "-n", "1", "-m", "./wrong.gguf", PROMPT]);
    ran.ok();
    let want = "ignored: recommended sampling parameters of ./wrong.gguf: top_p: want 0 to 1, got 3";
    assert!(ran.stderr().contains(want), "{}", ran.stderr());
}

#[test]
fn a_text_that_fills_the_context_says_so() {
    let ran = tern(&["run", "-c", "16", "--ignore-eos", PROMPT]);
    assert!(ran.stderr().ends_with("; the context of 16 tokens is full\n"), "{}", ran.stderr());
    let ran = tern(&["run", "-c", "16", "-n", "3", "--ignore-eos", PROMPT]);
    assert!(!ran.stderr().contains("is full"), "{}", ran.stderr());
}
