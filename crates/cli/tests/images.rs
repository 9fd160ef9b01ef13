//! Images as a user of the command has them: `run --image`, `/image` of `chat`, and what `inspect`, `show`,
//! `convert` and `quantize` say and do about towers.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../../models/tests/recorded/mod.rs"]
#[expect(dead_code, reason = "folders alone are used")]
mod recorded;
mod support;

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tern::formats::Checkpoint;

use crate::support::{Home, stories_file};

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

/// A home with the model that sees, without its tower the same as `blind.gguf`, and the first picture.
fn home() -> (Home, String) {
    let home = Home::new();
    std::fs::create_dir(home.path("blind")).unwrap();
    for (from, to) in [
        ("model.gguf", "model.gguf"),
        ("mmproj-model.gguf", "mmproj-model.gguf"),
        ("model.gguf", "blind/blind.gguf"),
    ] {
        std::fs::copy(fixture("pictures").join(from), home.path(to)).unwrap();
    }
    let rows: Value =
        serde_json::from_str(&std::fs::read_to_string(fixture("pictures/held-out.json")).unwrap()).unwrap();
    let file = STANDARD.decode(rows[0]["image"].as_str().unwrap()).unwrap();
    std::fs::write(home.path("a picture.png"), file).unwrap();
    (home, rows[0]["question"].as_str().unwrap().to_string())
}

#[test]
fn an_image_is_answered_about_and_counts_as_tokens() {
    let (home, question) = home();
    let run = |more: &[&str]| {
        let args = ["run", "-m", "./model.gguf", "--temp", "0", "-n", "8", "--json", question.as_str()];
        let answer: Value = serde_json::from_str(home.run(&[&args, more].concat()).ok()).unwrap();
        (
            answer["text"].clone(),
            answer["timing"]["prompt_tokens"].as_u64().unwrap_or_else(|| panic!("{answer}")),
        )
    };
    let (none, one) = (run(&[]), run(&["--image", "a picture.png"]));
    let two = run(&["--image", "a picture.png", "--image", "a picture.png"]);
    // 9 rows, and a token before and after them
    assert_eq!((one.1, two.1), (none.1 + 11, none.1 + 22));
    assert_ne!(one.0, none.0);
}

#[test]
fn what_is_no_image_is_refused_by_name() {
    let (home, question) = home();
    std::fs::write(home.path("text.png"), "no image").unwrap();
    let refused = |model: &str, image: &str, want: &str| {
        let ran = home.run(&["run", "-m", model, "-n", "4", "--image", image, &question]);
        assert!(!ran.0.status.success() && ran.stderr().contains(want), "{image}: {}", ran.stderr());
    };
    refused("./model.gguf", "missing.png", "--image missing.png: ");
    refused("./model.gguf", ".", "--image .: want a file");
    refused("./model.gguf", "text.png", "in no known format: want JPEG, PNG, WebP, GIF or BMP");
    refused("./blind/blind.gguf", "a picture.png", "does not take images");
}

#[test]
fn chat_has_images_by_command_and_by_path() {
    let (home, question) = home();
    let chat = |model: &str, lines: &str| {
        home.run_with(&["chat", "-m", model, "--temp", "0", "-n", "4"], lines.as_bytes())
    };
    let prompts = |lines: &str| -> Vec<usize> {
        let ran = chat("./model.gguf", lines);
        let figures = ran.stderr().lines().filter_map(|l| l.strip_prefix('(')?.split_once(" prompt tokens"));
        figures.map(|(count, _)| count.parse().unwrap()).collect()
    };
    let none = prompts(&format!("{question}\n"))[0];
    for line in ["/image a picture.png", "'a picture.png'", "a picture.png"] {
        assert_eq!(prompts(&format!("{line}\n{question}\n")), [none + 11], "{line}");
    }
    // of both turns, and none after /clear
    let lines = format!(
        "/image a picture.png\n{question}\n/save s.json\n/clear\n{question}\n/load s.json\n{question}\n"
    );
    let counts = prompts(&lines);
    assert_eq!((counts[0], counts[1]), (none + 11, none));
    assert!(counts[2] > none + 11 + none - 8, "{counts:?}");
    let said = chat("./blind/blind.gguf", "/image a picture.png\n").stderr().to_string();
    assert!(said.contains("does not take images"), "{said}");
    let said = chat("./model.gguf", "/image missing.png\n/image\n").stderr().to_string();
    assert!(said.contains("tern: missing.png: ") && said.contains("/image FILE: missing FILE"), "{said}");
}

#[test]
fn commands_say_that_a_model_sees() {
    let (home, _) = home();
    let out = |args: &[&str]| home.run(args).ok().to_string();
    assert!(out(&["inspect", "./model.gguf"]).contains("\nimages\n  tower qwen3vl_merger, "));
    assert!(!out(&["inspect", "./blind/blind.gguf"]).contains("\nimages\n"));
    let tower = out(&["inspect", "./mmproj-model.gguf"]);
    assert!(
        tower.contains("tower qwen3vl_merger, for models of qwen35, ") && !tower.contains("cannot be run")
    );
    let of = |path: &str| -> Value { serde_json::from_str(&out(&["show", path, "--json"])).unwrap() };
    assert_eq!(of("./model.gguf")["images"], "qwen3vl_merger");
    assert!(of("./blind/blind.gguf")["images"].is_null());
}

#[test]
fn a_tower_of_another_model_is_refused_with_both_widths() {
    let (home, _) = home();
    let folder = home.path("other");
    std::fs::create_dir(&folder).unwrap();
    let text = std::fs::read_to_string(fixture("images/qwen3vl.json")).unwrap();
    write(&folder, &serde_json::from_str(&text).unwrap());
    home.run(&["convert", "./other", "other.gguf"]).ok();
    let ran = home.run(&["run", "-m", "./model.gguf", "--mmproj", "mmproj-other.gguf", "-n", "4", "a"]);
    let want =
        "the rows of the tower have 192 columns, those of the model 288: the files are of different models";
    assert!(!ran.0.status.success() && ran.stderr().contains(want), "{}", ran.stderr());
}

#[test]
fn a_folder_that_sees_becomes_a_pair_of_files() {
    let home = Home::new();
    let folder = home.path("folder");
    std::fs::create_dir(&folder).unwrap();
    let text = std::fs::read_to_string(fixture("images/qwen35.json")).unwrap();
    write(&folder, &serde_json::from_str(&text).unwrap());
    home.run(&["convert", "./folder", "out.gguf"]).ok();
    home.run(&["quantize", "./folder", "q.gguf", "--to", "q8_0"]).ok();
    home.run(&["quantize", "./mmproj-out.gguf", "small.gguf", "--to", "q8_0"]).ok();
    for (name, sees) in [("out.gguf", true), ("q.gguf", true), ("mmproj-out.gguf", true)] {
        let said =
            home.run(&["inspect", &format!("./{name}")]).ok().contains("\nimages\n  tower qwen3vl_merger");
        assert_eq!(said, sees, "{name}");
    }
    let open = |name: &str| Checkpoint::open(&home.path(name)).unwrap();
    let (exact, small) = (open("mmproj-out.gguf"), open("small.gguf"));
    assert!(exact.tensors.values().all(|tensor| tensor.quant.name == "F32"));
    assert!(small.tensors.values().any(|tensor| tensor.quant.name == "Q8_0"));
    assert_eq!(small.tensors["v.patch_embd.weight"].quant.name, "F32");
    // a text model has none
    std::fs::create_dir(home.path("text")).unwrap();
    std::fs::copy(stories_file(), home.path("text/stories.gguf")).unwrap();
    assert!(!home.run(&["inspect", "./text/stories.gguf"]).ok().contains("\nimages\n"));
}

fn write(folder: &Path, recorded: &Value) {
    recorded::write_folder(folder, recorded, "F32");
    let pixels = serde_json::json!({ "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5] });
    std::fs::write(folder.join("preprocessor_config.json"), pixels.to_string()).unwrap();
}
