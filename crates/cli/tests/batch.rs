//! `tern batch`: order, errors, a run that is killed, and files that are refused.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use support::{CONTINUATION, Home, PROMPT};

fn line(id: &str, body: Value) -> String {
    json!({"custom_id": id, "method": "POST", "url": "/v1/completions", "body": body}).to_string() + "\n"
}

/// Requests of texts with ten words, or as many as given.
fn lines(count: usize, tokens: usize) -> String {
    let body = |at: usize| json!({"model": "stories", "prompt": format!("{PROMPT} {at}"), "max_tokens": tokens, "temperature": 1, "seed": at});
    (0..count).map(|at| line(&format!("id-{at}"), body(at))).collect()
}

fn results(home: &Home, name: &str) -> Vec<Value> {
    let text = fs::read_to_string(home.path(name)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Ids and texts.
fn texts(results: &[Value]) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let each =
        |line: &Value| (text(&line["custom_id"]), text(&line["response"]["body"]["choices"][0]["text"]));
    results.iter().map(each).collect()
}

const BATCH: [&str; 8] = ["batch", "in.jsonl", "out.jsonl", "--device", "cpu", "-t", "1", "-q"];

#[test]
fn results_have_the_order_of_the_requests_and_errors_their_own_file() {
    let home = Home::new();
    let good = json!({"prompt": PROMPT, "max_tokens": 29, "temperature": 0});
    let bad = json!({"prompt": PROMPT, "max_tokens": 29, "temprature": 0});
    let text =
        line("long", good) + "\n" + &line("bad", bad) + &lines(6, 3).replace("\"model\":\"stories\",", "");
    fs::write(home.path("in.jsonl"), text).unwrap();
    let ran = home.run(&[&BATCH[..], &["-m", "stories"]].concat());
    assert_eq!(ran.ok(), "7 succeeded: out.jsonl\n1 failed: out.errors.jsonl\n");
    let out = texts(&results(&home, "out.jsonl"));
    let ids: Vec<&str> = out.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids, ["long", "id-0", "id-1", "id-2", "id-3", "id-4", "id-5"]);
    assert_eq!(out[0].1, CONTINUATION);
    let errors = results(&home, "out.errors.jsonl");
    assert_eq!(
        (&errors[0]["custom_id"], &errors[0]["response"]["status_code"]),
        (&json!("bad"), &json!(400))
    );
    assert_eq!(errors[0]["response"]["body"]["error"]["param"], "temprature");
    // once more: nothing to do, and no model is loaded
    let again = home.run(&[&BATCH[..], &["-m", "missing.gguf"]].concat());
    assert_eq!(again.ok(), ran.ok());
}

#[test]
fn a_killed_run_continues_and_gives_the_same_results() {
    let home = Home::new();
    fs::write(home.path("in.jsonl"), lines(200, 30)).unwrap();
    let mut child = home.command(&BATCH).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let count = || fs::read_to_string(home.path("out.jsonl")).unwrap_or_default().lines().count();
    while count() < 5 {
        assert!(child.try_wait().unwrap().is_none(), "it ended early");
        thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();
    let before = count();
    assert!((5..200).contains(&before), "{before}");
    // as if it was killed while it wrote
    let cut = fs::read_to_string(home.path("out.jsonl")).unwrap();
    let cut = &cut[..cut.trim_end().len() - 40];
    fs::write(home.path("out.jsonl"), cut).unwrap();
    let mut loud: Vec<&str> = BATCH.to_vec();
    loud.retain(|flag| *flag != "-q");
    let ran = home.run(&loud);
    assert_eq!(ran.ok(), "200 succeeded: out.jsonl\n");
    let want = format!("tern: continuing after {} of 200 requests\n", cut.matches('\n').count());
    assert!(ran.stderr().starts_with(&want), "{}", ran.stderr());
    let resumed = texts(&results(&home, "out.jsonl"));
    fs::remove_file(home.path("out.jsonl")).unwrap();
    home.run(&[&BATCH[..], &["--max-num-seqs", "3"]].concat()).ok();
    assert_eq!(texts(&results(&home, "out.jsonl")), resumed);
    assert_eq!(
        resumed.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>(),
        (0..200).map(|at| format!("id-{at}")).collect::<Vec<_>>()
    );
}

#[test]
fn files_that_cannot_be_used_are_refused_before_a_model_is_loaded() {
    let home = Home::new();
    let refused = |files: [&str; 2], more: &[&str]| {
        let args = [&["batch", files[0], files[1], "-m", "missing.gguf"], more].concat();
        home.run(&args).refusal().to_owned()
    };
    fs::write(home.path("good"), lines(2, 1)).unwrap();
    fs::write(home.path("twice"), lines(2, 1) + &lines(1, 1)).unwrap();
    fs::write(home.path("notes"), "dear diary").unwrap();
    fs::write(home.path("empty"), "\n").unwrap();
    assert_eq!(
        refused(["twice", "out"], &[]),
        "twice: line 3: custom_id: \"id-0\" is that of an earlier line; every line needs its own"
    );
    assert_eq!(
        refused(["notes", "out"], &[]),
        "notes: line 1: not valid JSON: expected value at line 1 column 1"
    );
    assert_eq!(
        refused(["empty", "out"], &[]),
        "empty: line 1: the file has no lines; expected one request per line"
    );
    assert!(refused(["missing", "out"], &[]).starts_with("missing: No such file"), "missing");
    assert_eq!(
        refused(["good", "notes"], &[]),
        "notes: line 1 is not the result of a batch; choose another file"
    );
    assert_eq!(fs::read_to_string(home.path("notes")).unwrap(), "dear diary");
    assert_eq!(
        refused(["good", "./good"], &[]),
        "./good: the same file as good; every file of a batch needs its own"
    );
    assert_eq!(
        refused(["good", "out"], &["--errors", "out"]),
        "out: the same file as out; every file of a batch needs its own"
    );
    assert_eq!(fs::read_to_string(home.path("good")).unwrap(), lines(2, 1));
    let result = "{\"id\":\"batch_req_0\",\"custom_id\":\"other\",\"response\":null,\"error\":null}\n";
    fs::write(home.path("others"), result).unwrap();
    assert_eq!(
        refused(["good", "others"], &[]),
        "others: line 1 is the result of another input: its custom_id \"other\" is not in this one; choose another file"
    );
    for pipe in ["pipe", "pipe.errors"] {
        assert!(std::process::Command::new("mkfifo").arg(home.path(pipe)).status().unwrap().success());
    }
    assert_eq!(refused(["pipe", "out"], &[]), "pipe: not a regular file");
    assert_eq!(refused(["good", "pipe"], &[]), "pipe: not a regular file");
    assert_eq!(refused(["good", "out"], &["--errors", "pipe.errors"]), "pipe.errors: not a regular file");
    assert_eq!(refused(["good", "no/out"], &[]), "no/out: No such file or directory (os error 2)");
}

#[test]
fn requests_that_name_another_model_are_refused_before_it_is_loaded() {
    let home = Home::new();
    fs::write(home.path("in.jsonl"), lines(2, 1).replace("stories", "gpt-4o-mini")).unwrap();
    let refusal = home.run(&[&BATCH[..], &["-m", "stories"]].concat()).refusal().to_owned();
    let want = "in.jsonl: its requests name the model \"gpt-4o-mini\", and -m loads \"stories\"; add --served-model-name \
                \"gpt-4o-mini\" to answer them with it";
    assert_eq!(refusal, want);
    let ran = home.run(&[&BATCH[..], &["-m", "stories", "--served-model-name", "gpt-4o-mini"]].concat());
    assert_eq!(ran.ok(), "2 succeeded: out.jsonl\n");
    fs::write(home.path("none.jsonl"), line("a", json!({"prompt": "x"}))).unwrap();
    assert_eq!(
        home.run(&["batch", "none.jsonl", "out2.jsonl"]).refusal(),
        "none.jsonl: its first request names no model; name one with -m, or as \"model\" in the body"
    );
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_one_sentence_and_the_results_stay() {
    let home = Home::new();
    fs::write(home.path("in.jsonl"), lines(4, 2)).unwrap();
    // a file that may have 600 bytes: a result has more than 300
    let command =
        format!("ulimit -f 1; trap '' XFSZ; exec {} {}", env!("CARGO_BIN_EXE_tern"), BATCH.join(" "));
    let mut limited = home.command(&[]);
    let environment: Vec<_> =
        limited.get_envs().map(|(k, v)| (k.to_owned(), v.map(ToOwned::to_owned))).collect();
    limited = std::process::Command::new("bash");
    limited.current_dir(home.path("")).args(["-c", &command]);
    for (name, value) in environment {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    let out = limited.output().unwrap();
    let message = String::from_utf8(out.stderr).unwrap();
    let want = "tern: out.jsonl: File too large (os error 27); what is answered is kept: run the same command again for the rest\n";
    assert_eq!((out.status.code(), message.as_str()), (Some(1), want));
    let kept = results(&home, "out.jsonl").len();
    assert!((1..4).contains(&kept), "{kept}");
    home.run(&BATCH).ok();
    assert_eq!(results(&home, "out.jsonl").len(), 4);
}
