//! Flags: habits from other programs work as meant, or are refused with advice.

mod support;

use crate::support::{CONTINUATION, Home, PROMPT, stories_with, tern};

#[test]
fn minus_one_and_zero_mean_unlimited() {
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
fn flags_of_other_programs_are_refused_with_advice() {
    for (args, want) in [
        (&["run", "-ngl", "many", PROMPT][..], "expected auto, all or a number of layers"),
        (&["serve", "--n-gpu-layers", "-3"], "expected auto, all or a number of layers"),
        (&["run", "--num-gpu", "20", PROMPT], "tip: use --gpu-layers"),
        (&["run", "-p", PROMPT], "the prompt is an argument of `run`, not a flag"),
        (&["chat", "-p", "-x"], "not a flag"),
        (&["run", "--verbose", PROMPT], "tip: not needed: memory and speed are printed without it"),
        (&["run", "-f", "prompt.txt"], "tip: the prompt of a file is read from stdin: tern run - < FILE"),
        (
            &["run", "--prompt-cache", "x", PROMPT],
            "tip: use --cache-dir FOLDER, which keeps the prefixes of all prompts",
        ),
        (&["run", "--n-predict", "8", PROMPT], "tip: the number of tokens is -n or --max-tokens"),
        (&["serve", "-fa", "on"], "tip: not needed: attention"),
        (&["run", "llama3", "Why is the sky blue?"], "select a model with -m: tern run -m MODEL PROMPT"),
        (
            &["run", "-n", "-2", PROMPT],
            "expected a whole number from 1, or -1 for as many as fit the context",
        ),
        (&["run", "-n", "0", PROMPT], "expected a whole number from 1, or -1 for as many as fit the context"),
        (&["run", "--seed", "-2", PROMPT], ", or -1 for a random seed"),
        (&["run", "-c", "-1", PROMPT], "expected a whole number from 1, or 0 for the trained context"),
        (&["run", "-t", "-1", PROMPT], "expected a whole number from 1"),
    ] {
        let ran = tern(args);
        assert!(ran.usage().contains(want), "{args:?}: {}", ran.stderr());
        assert!(!ran.stderr().contains("tip: to pass"), "{args:?}: {}", ran.stderr());
    }
    for layers in [&["-ngl", "99"][..], &["-ngl99"], &["--gpu-layers", "all"]] {
        let args = [&["run", "-m", "./none.gguf", "--device", "cpu", PROMPT], layers].concat();
        let (want, ran) = ("were requested, but the device is the CPU", tern(&args));
        assert!(ran.stderr().contains(want), "{layers:?}: {}", ran.stderr());
    }
    for layers in [&["-ngl", "0"][..], &["-ngl0"], &["--n-gpu-layers", "-1"]] {
        tern(&[&["run", "-q", "-n", "1", "--device", "cpu", PROMPT], layers].concat()).ok();
    }
    assert_eq!(tern(&["run", "-q", "-n", "1", "--", "-ngl"]).0.status.code(), Some(0), "a prompt after --");
}

/// A wrong flag is reported before a model is downloaded or loaded.
#[test]
fn flags_are_checked_before_the_model_is_opened() {
    for (args, want) in [
        (&["run", "-m", "./none.gguf", "--top-p", "2", PROMPT][..], "top_p: want 0 to 1, got 2"),
        (&["run", "-m", "./none.gguf", "--temp", "-1", PROMPT], "temperature: want 0 to 2, got -1"),
        (
            &["run", "-m", "./none.gguf", "--repeat-penalty", "0", PROMPT],
            "repeat_penalty: want 0.01 to 10, got 0",
        ),
        (
            &["run", "-m", "./none.gguf", "--logit-bias", "1=500", PROMPT],
            "logit_bias: want -100 to 100, got 500 for token 1",
        ),
        (&["run", "-m", "./none.gguf", "--stop", "", PROMPT], "stop string 0 is empty"),
        (&["chat", "-m", "./none.gguf", "--min-p", "3"], "min_p: want 0 to 1, got 3"),
        (&["serve", "-m", "./none.gguf", "--top-p", "2"], "top_p: want 0 to 1, got 2"),
    ] {
        assert_eq!(tern(args).refusal(), want, "{args:?}");
    }
}

#[test]
fn chat_and_serve_take_the_model_as_an_argument() {
    assert_eq!(tern(&["chat", "./none.gguf"]).refusal(), "./none.gguf: no such file or folder");
    let ran = tern(&["serve", "./none.gguf", "-q", "--port", "0", "--log", "off"]);
    assert_eq!(ran.refusal(), "./none.gguf: no such file or folder");
    for command in ["chat", "serve"] {
        assert!(tern(&[command, "stories", "-m", "smollm2"]).usage().contains("cannot be used with"));
        assert!(tern(&[command, "--help"]).ok().contains("[MODEL]"));
    }
}

/// `tern run llama3` starts a model in other programs.
#[test]
fn a_prompt_that_looks_like_a_model_name_gets_a_hint() {
    let hint = |args: &[&str]| {
        tern(&[&["run", "-n", "1"], args].concat()).stderr().contains("select a model with -m")
    };
    for prompt in ["llama3", "smollm2", "./x.gguf", "Qwen3-0.6B"] {
        assert!(hint(&[prompt]), "{prompt}");
    }
    assert!(!hint(&[PROMPT]) && !hint(&["llama3", "-m", "stories"]) && !hint(&["-q", "llama3"]));
    let ran = tern(&["run", "-n", "1", "llama3"]);
    let want = "tern: `llama3` is used as the prompt for the model stories; select a model with -m: tern run -m llama3 PROMPT";
    assert_eq!(ran.stderr().lines().next(), Some(want));
}

/// Without flags a text is sampled, with the parameters that the file recommends, if any.
#[test]
fn the_file_s_sampling_parameters_are_used_without_flags() {
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
