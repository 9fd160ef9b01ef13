//! Stdin and a prompt: piped text is appended, and stdin may be closed.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use std::process::{Command, Stdio};

use crate::support::{Home, Ran, tern};

const FLAGS: [&str; 6] = ["-q", "-n", "12", "--temp", "0", "--json"];

fn run(prompt: &str) -> Vec<&str> {
    [&["run"], &FLAGS[..], &[prompt]].concat()
}

fn answer(ran: &Ran) -> (String, u64) {
    let json = ran.json();
    (json["text"].to_string(), json["timing"]["prompt_tokens"].as_u64().unwrap())
}

#[test]
fn piped_text_is_appended_to_the_prompt() {
    let home = Home::new();
    let whole = answer(&home.run(&run("Tell the story again:\n\nOnce upon a time, Tom")));
    let piped = home.run_with(&run("Tell the story again:"), b"Once upon a time, Tom\n");
    assert_eq!(answer(&piped), whole);
    std::fs::write(home.path("story.txt"), "Once upon a time, Tom\n").unwrap();
    let file = std::fs::File::open(home.path("story.txt")).unwrap();
    let redirected = Ran(home.command(&run("Tell the story again:")).stdin(file).output().unwrap());
    assert_eq!(answer(&redirected), whole);
    assert_eq!(home.run_with(&run("x"), b"\xff").refusal(), "the text on stdin is not UTF-8");
}

#[test]
fn empty_stdin_changes_nothing() {
    let home = Home::new();
    let alone = answer(&tern(&run("Once upon a time")));
    assert_eq!(answer(&home.run_with(&run("Once upon a time"), b"\n \n")), alone, "blanks");
    let null = home.command(&run("Once upon a time")).stdin(Stdio::null()).output().unwrap();
    assert_eq!(answer(&Ran(null)), alone, "/dev/null");
    let closed = home.command(&run("Once upon a time"));
    let mut shell = Command::new("sh");
    shell.arg("-c").arg("exec \"$0\" \"$@\" <&-").arg(closed.get_program()).args(closed.get_args());
    shell.env("HOME", home.0.path()).current_dir(home.0.path());
    assert_eq!(answer(&Ran(shell.output().unwrap())), alone, "closed");
}

#[test]
fn help_describes_stdin() {
    assert!(tern(&["run", "--help"]).ok().contains("piped stdin is appended"));
}
