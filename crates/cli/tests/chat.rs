//! `tern chat`: commands are never sent to the model, and a full context does not end the conversation.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use crate::support::{Home, Ran, stories_with};

/// The story model with a template that writes the messages one after the other.
fn chat_home() -> Home {
    let home = Home::new();
    let template = "{% for m in messages %}{{ m.content }} {% endfor %}";
    stories_with(
        &home,
        "chat.gguf",
        &[("tokenizer.chat_template", tern::formats::Value::String(template.into()))],
    );
    home
}

fn chat(args: &[&str], lines: &str) -> Ran {
    chat_home().run_with(&[&["chat", "./chat.gguf", "--temp", "0"], args].concat(), lines.as_bytes())
}

/// The prompt tokens of each answer, from the figures printed after it.
fn prompts(ran: &Ran) -> Vec<usize> {
    let figures = ran.stderr().lines().filter_map(|l| l.strip_prefix('(')?.split_once(" prompt tokens"));
    figures.map(|(count, _)| count.parse().unwrap()).collect()
}

#[test]
fn commands_are_executed_or_refused_and_never_sent() {
    let lines = "/set temprature 1\n/set top-p 2\n/clear now\n/retry\n/\n/help\n/bye\nOnce upon a time\n";
    let ran = chat(&["-n", "4"], lines);
    assert_eq!(ran.ok(), "", "{}", ran.stderr());
    let stderr = ran.stderr();
    for want in [
        "tern: unknown parameter temprature (did you mean temp?): want one of temp, top-k, ",
        "tern: /set top-p 2: top_p: want 0 to 1, got 2",
        "tern: /clear takes no arguments: it starts a new conversation",
        "tern: unknown command /retry: want one of /set, /system, ",
        "tern: unknown command /: ",
        "\n  /save FILE  ",
    ] {
        assert!(stderr.contains(want), "{want}: {stderr}");
    }
    assert!(prompts(&ran).is_empty(), "{stderr}");
    let ran = chat(&["-n", "4"], " /usr/bin is a folder\n");
    assert_eq!(prompts(&ran).len(), 1, "a space before the slash makes it a message: {}", ran.stderr());
}

#[test]
fn a_full_context_drops_the_oldest_turns_and_says_so() {
    let lines = "Once upon a time there was a cat.\n".repeat(6);
    let ran = chat(&["-c", "48", "-n", "12"], &lines);
    let counts = prompts(&ran);
    assert_eq!(counts.len(), 6, "all were answered: {}", ran.stderr());
    assert!(counts.iter().all(|n| *n + 12 <= 48), "{counts:?}");
    let notes = ran.stderr().matches("the context of 48 tokens is full: the oldest ").count();
    assert!(notes >= 2, "{}", ran.stderr());
    let sums: Vec<_> = counts.windows(2).filter(|pair| pair[1] > pair[0]).collect();
    assert!(!sums.is_empty(), "turns are kept as long as they fit: {counts:?}");
}

#[test]
fn a_message_that_is_too_long_is_refused_and_the_conversation_goes_on() {
    let ran = chat(&["-c", "32", "-n", "4"], &format!("Hello.\n{}\nHello again.\n", "word ".repeat(60)));
    assert_eq!(prompts(&ran).len(), 2, "{}", ran.stderr());
    assert!(ran.stderr().contains("do not fit the context of 32"), "{}", ran.stderr());
}

#[test]
fn parameters_can_be_set_and_shown() {
    let lines = "/set max-tokens 3\nOnce upon a time\n/set seed 7\n/set think off\n/system \"\"\"Be\nbrief.\"\"\"\n/show\n/set\n";
    let ran = chat(&[], lines);
    assert_eq!(ran.ok().lines().count(), 1, "{}", ran.stderr());
    let stderr = ran.stderr();
    for want in [
        " prompt tokens, 3 tokens)",
        "model      ./chat.gguf\n           qwen3, 26,",
        " of 256 tokens are used by 3 messages\n",
        "system     Be\nbrief.\n",
        "  temp                 0\n",
        "  max-tokens           3\n",
        "  seed                 7\n",
        "  think                off\n",
    ] {
        assert!(stderr.contains(want), "{want}: {stderr}");
    }
}

#[test]
fn quotes_hold_a_message_of_several_lines() {
    let one = chat(&["-n", "4"], "\"\"\"\nOnce upon\n/bye a time\n\"\"\"\n/show\n");
    let two = chat(&["-n", "4"], "\"\"\"Once upon\n/bye a time\"\"\"\n");
    assert_eq!(prompts(&one).len(), 1, "{}", one.stderr());
    assert_eq!(one.ok(), two.ok());
    assert!(one.stderr().contains("used by 2 messages"), "{}", one.stderr());
}

#[test]
fn a_conversation_is_saved_and_continued() {
    let home = chat_home();
    let talk =
        |lines: &str| home.run_with(&["chat", "./chat.gguf", "--temp", "0", "-n", "6"], lines.as_bytes());
    let whole = talk("/system Be brief.\nOnce upon a time\nThe end.\n");
    talk("/system Be brief.\nOnce upon a time\n/save talk.json\n").ok();
    let saved: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(home.path("talk.json")).unwrap()).unwrap();
    let roles: Vec<_> = saved["messages"].as_array().unwrap().iter().map(|m| m["role"].clone()).collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
    let rest = talk("/load talk.json\nThe end.\n");
    assert_eq!(whole.ok().lines().last(), rest.ok().lines().last(), "{}", rest.stderr());
    assert!(rest.stderr().contains("tern: talk.json: 3 messages"), "{}", rest.stderr());
    std::fs::write(home.path("notes.txt"), "precious").unwrap();
    let refused = talk("/save notes.txt\n/load none.json\n/load notes.txt\n/save\n");
    for want in [
        "notes.txt exists and is not a conversation",
        "none.json: No such file",
        "notes.txt: not a conversation: ",
        "/save FILE: missing FILE",
    ] {
        assert!(refused.stderr().contains(want), "{want}: {}", refused.stderr());
    }
    assert_eq!(std::fs::read_to_string(home.path("notes.txt")).unwrap(), "precious");
}

#[test]
fn what_is_piped_in_is_not_kept_as_history() {
    let home = chat_home();
    home.run_with(&["chat", "./chat.gguf", "-n", "2"], b"Once upon a time\n").ok();
    assert!(!home.path("tern/chat_history").exists());
}
