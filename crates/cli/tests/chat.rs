//! `tern chat`: commands are never sent to the model, and a full context does not end the conversation.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use crate::support::{Home, Ran, stories_with};

/// The story model with a template that writes the messages one after the other.
fn chat(args: &[&str], lines: &str) -> Ran {
    let home = Home::new();
    let template = "{% for m in messages %}{{ m.content }} {% endfor %}";
    stories_with(
        &home,
        "chat.gguf",
        &[("tokenizer.chat_template", tern::formats::Value::String(template.into()))],
    );
    home.run_with(&[&["chat", "./chat.gguf", "--temp", "0"], args].concat(), lines.as_bytes())
}

/// The prompt tokens of each answer, from the figures printed after it.
fn prompts(ran: &Ran) -> Vec<usize> {
    let figures = ran.stderr().lines().filter_map(|l| l.strip_prefix('(')?.split_once(" prompt tokens"));
    figures.map(|(count, _)| count.parse().unwrap()).collect()
}

#[test]
fn commands_are_executed_or_refused_and_never_sent() {
    let ran = chat(&["-n", "4"], "/set temperature 1\n/clear now\n/\n/help\n/exit\nOnce upon a time\n");
    assert_eq!(ran.ok(), "", "{}", ran.stderr());
    let stderr = ran.stderr();
    assert!(
        stderr.contains(
            "tern: unknown command /set: /clear starts a new conversation, /help shows this help, /exit quits"
        ),
        "{stderr}"
    );
    assert!(stderr.contains("tern: /clear takes no arguments: it starts a new conversation"), "{stderr}");
    assert!(stderr.contains("tern: unknown command /: "), "{stderr}");
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
