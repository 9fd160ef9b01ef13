//! `tern quantize`, `tern convert` and `tern perplexity --compare` as a user has them.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use serde_json::Value;
use tern::formats::Checkpoint;
use tern::quant::{F16, Q4_0, Q6_K, Q8_0};

use crate::support::{CONTINUATION, Home, PROMPT, stories_file};

/// A home with a model of random floats, `f16.gguf`.
fn home() -> Home {
    let home = Home::new();
    let stories = stories_file();
    home.run(&["synth", "tiny-qwen3:f16", "f16.gguf", "--vocab", stories.to_str().unwrap()]).ok();
    home
}

fn files(home: &Home) -> Vec<String> {
    let entries = home.0.path().read_dir().unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn recipes_patterns_and_replaced_formats_are_applied_and_named() {
    let home = home();
    let args =
        ["quantize", "./f16.gguf", "q.gguf", "--to", "q6_k", "--keep", "*.attn_v.weight=q8_0", "-t", "2"];
    let said = home.run(&args);
    said.ok();
    assert!(
        said.stderr().contains("tern: q.gguf: ") && said.stderr().contains(", checked\n"),
        "{}",
        said.stderr()
    );
    let file = Checkpoint::open(&home.path("q.gguf")).unwrap();
    assert_eq!(file.tensors["blk.0.attn_v.weight"].quant, &Q8_0);
    assert_eq!(file.tensors["blk.0.attn_q.weight"].quant, &Q6_K);
    home.run(&["run", "-q", "-m", "./q.gguf", "-n", "2", PROMPT]).ok();

    // the rows of one matrix are no whole blocks of 256
    home.run(&["synth", "tiny-gemma3:f16", "gemma.gguf"]).ok();
    let said = home.run(&["quantize", "./gemma.gguf", "g.gguf", "--to", "tq2_0"]);
    said.ok();
    let text = said.stderr();
    assert!(
        text.contains(
            "tern: warning: TQ2_0 is for models that were trained for it; others lose nearly everything\n"
        ),
        "{text}"
    );
    let file = Checkpoint::open(&home.path("g.gguf")).unwrap();
    let replaced = file.tensors.values().filter(|tensor| tensor.quant == &Q4_0).count();
    let line =
        format!("tern: {replaced} tensors are written as Q4_0: their rows are no whole blocks of TQ2_0\n");
    assert_eq!(text.contains(&line), replaced > 0, "{text}");

    let said = home.run(&["quantize", "./q.gguf", "again.gguf", "--to", "q4_0"]);
    said.ok();
    assert!(
        said.stderr().contains(" tensors are quantized already; quantizing floats loses less\n"),
        "{}",
        said.stderr()
    );
}

#[test]
fn wrong_flags_and_files_leave_nothing_behind() {
    let home = home();
    let usage = |args: &[&str]| home.run(args).usage().to_string();
    let quantize = ["quantize", "./f16.gguf", "q.gguf", "--to"];
    assert!(usage(&[&quantize[..], &["q4_9"]].concat()).contains("expected one of F32, F16, BF16, Q8_0"));
    let text = usage(&[&quantize[..], &["q4_0", "--keep", "output.weight"]].concat());
    assert!(text.contains("expected PATTERN=FORMAT, such as output.weight=q8_0"), "{text}");
    let text = usage(&[&quantize[..], &["q4_0", "--keep", "output.weight=iq1_s"]].concat());
    assert!(text.contains("iq1_s cannot be written"), "{text}");
    let text = usage(&[&quantize[..], &["q4_0", "--split-max-size", "4T"]].concat());
    assert!(text.contains("expected a size such as 500M or 4G"), "{text}");
    std::fs::write(home.path("im.dat"), b"none").unwrap();
    let text = home.run(&[&quantize[..], &["q4_0", "--imatrix", "im.dat"]].concat()).refusal().to_string();
    assert!(text.starts_with("im.dat: no importance matrix: "), "{text}");
    let text = home.run(&["convert", "./f16.gguf", "q.gguf", "--to", "q8_0"]).refusal().to_string();
    assert!(text.ends_with(" Q8_0 would change its weights: use `tern quantize`"), "{text}");
    let text = home.run(&["convert", "./f16.gguf", "folder", "--to", "q8_0"]).refusal().to_string();
    assert!(text.starts_with("--to Q8_0: folders of safetensors have F32, F16 or BF16; "), "{text}");
    let text = home.run(&["quantize", "./f16.gguf", "none/q.gguf", "--to", "q8_0"]).refusal().to_string();
    assert!(text.starts_with("none/q.gguf: "), "{text}");
    assert_eq!(files(&home), ["f16.gguf", "im.dat"]);
}

#[test]
fn a_split_model_runs_from_its_first_file() {
    let home = home();
    let said = home.run(&["quantize", "./f16.gguf", "q.gguf", "--to", "q8_0", "--split-max-size", "1M"]);
    said.ok();
    let names: Vec<String> = files(&home).into_iter().filter(|name| name.starts_with("q-")).collect();
    assert!(names.len() > 1 && names[0] == format!("q-00001-of-{:05}.gguf", names.len()), "{names:?}");
    let want = format!("tern: {} and {} more files: ", names[0], names.len() - 1);
    assert!(said.stderr().contains(&want), "{}", said.stderr());
    home.run(&["quantize", "./f16.gguf", "whole.gguf", "--to", "q8_0"]).ok();
    let first = format!("./{}", names[0]);
    let run = |model: &str| {
        home.run(&["run", "-q", "-m", model, "-n", "8", "--temp", "0", PROMPT]).ok().to_string()
    };
    assert_eq!(run(&first), run("./whole.gguf"));
    // and becomes one file again
    home.run(&["convert", &first, "one.gguf"]).ok();
    let [one, whole] = ["one.gguf", "whole.gguf"].map(|name| Checkpoint::open(&home.path(name)).unwrap());
    assert_eq!(one.metadata, whole.metadata);
    one.tensors
        .values()
        .zip(whole.tensors.values())
        .for_each(|(a, b)| assert_eq!(a.data(), b.data(), "{}", a.name));
}

#[test]
fn the_embedded_model_goes_to_a_folder_and_back() {
    let home = Home::new();
    let said = home.run(&["convert", "stories", "folder", "--to", "f16"]);
    said.ok();
    assert!(
        said.stderr().contains("tern: folder: Qwen3ForCausalLM, 90 tensors in 1 files, "),
        "{}",
        said.stderr()
    );
    let folder = Checkpoint::open(&home.path("folder")).unwrap();
    assert_eq!(folder.tensors["blk.0.attn_q.weight"].quant, &F16);
    let run = |model: &str| {
        home.run(&["run", "-q", "-m", model, "-n", "24", "--temp", "0", PROMPT]).ok().to_string()
    };
    assert!(CONTINUATION.starts_with(run("./folder").trim_end()));
    // its weights are one bit each, and still are
    home.run(&["convert", "./folder", "floats.gguf"]).ok();
    home.run(&["quantize", "./floats.gguf", "bits.gguf", "--to", "q1_0"]).ok();
    let [bits, stories] =
        [home.path("bits.gguf"), stories_file()].map(|path| Checkpoint::open(&path).unwrap());
    let (bits, stories) = (&bits.tensors["blk.3.ffn_up.weight"], &stories.tensors["blk.3.ffn_up.weight"]);
    assert_eq!(bits.data(), stories.data());
    let text = home.run(&["convert", "stories", "folder"]).refusal().to_string();
    assert_eq!(text, "folder exists already");
}

#[test]
fn a_comparison_measures_how_far_two_models_are_apart() {
    let home = Home::new();
    std::fs::write(home.path("story.txt"), format!("{PROMPT}{CONTINUATION} ").repeat(4)).unwrap();
    home.run(&["convert", "stories", "folder"]).ok();
    home.run(&["quantize", "./folder", "q2.gguf", "--to", "q2_k"]).ok();
    let args =
        ["perplexity", "-q", "-c", "32", "--chunks", "2", "--json", "-f", "story.txt", "--device", "cpu"];
    let compare = |model: &str, other: &str| {
        let ran =
            home.run(&[&args[..], &["-m", model, "--compare", other, "--compare-device", "cpu"]].concat());
        ran.json()["comparison"].clone()
    };
    let number = |of: &Value, key: &str| of[key].as_f64().unwrap();
    let same = compare("stories", "stories");
    assert_eq!((number(&same, "kl_largest"), number(&same, "same_top")), (0.0, 1.0), "{same}");
    let floats = compare("stories", "./folder");
    assert!(number(&floats, "kl_mean") < 1e-3, "the same weights: {floats}");
    let other = compare("./q2.gguf", "stories");
    assert!(number(&other, "kl_mean") > number(&floats, "kl_mean"), "{other}");
    assert!(
        number(&other, "kl_median") <= number(&other, "kl_99")
            && number(&other, "kl_99") <= number(&other, "kl_largest")
    );
    assert!(number(&other, "kl_error") > 0.0 && number(&other, "same_top_error") >= 0.0, "{other}");
    home.run(&["synth", "tiny-qwen3:q8_0", "plain.gguf"]).ok();
    let ran = home.run(&[&args[..], &["-m", "stories", "--compare", "./plain.gguf"]].concat());
    assert_eq!(ran.refusal(), "--compare ./plain.gguf: want a model with the same vocabulary");
}
