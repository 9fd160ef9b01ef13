//! The config file and TERN_MODEL, completions and man pages.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use std::process::Stdio;

use crate::support::{Home, PROMPT, Ran, stories_with, tern};

fn configured(text: &str) -> Home {
    let home = Home::new();
    std::fs::create_dir(home.path("tern")).unwrap();
    std::fs::write(home.path("tern/config.toml"), text).unwrap();
    home
}

fn run_with_variable(home: &Home, name: &str, value: &str, args: &[&str]) -> Ran {
    Ran(home.command(args).env(name, value).stdin(Stdio::null()).output().unwrap())
}

#[test]
fn flags_go_before_the_environment_and_that_before_the_file() {
    let home = configured("model = './none.gguf'\nquiet = true\n[run]\ntemp = 0\nmax-tokens = 3\n");
    stories_with(&home, "tale.gguf", &[]);
    let missing = "./none.gguf: no such file or folder";
    assert_eq!(home.run(&["run", PROMPT]).refusal(), missing);
    assert_eq!(
        home.run(&["run", PROMPT, "-m", "stories"]).ok(),
        ", there was\n",
        "-q, --temp and -n of the file"
    );
    assert_eq!(home.run(&["run", PROMPT, "-m", "stories", "-n", "1"]).ok(), ",\n");
    let ran = run_with_variable(&home, "TERN_MODEL", "./tale.gguf", &["run", PROMPT]);
    assert_eq!(ran.ok(), ", there was\n");
    let ran = run_with_variable(&home, "TERN_MODEL", "./other.gguf", &["run", PROMPT, "-m", "./none.gguf"]);
    assert_eq!(ran.refusal(), missing);
    let ran = run_with_variable(&home, "TERN_CONFIG", "", &["run", "-q", "-n", "3", "--temp", "0", PROMPT]);
    assert_eq!(ran.ok(), ", there was\n", "an empty TERN_CONFIG is no file");
    for command in ["chat", "serve"] {
        let ran = run_with_variable(&home, "TERN_MODEL", "./other.gguf", &[command]);
        assert_eq!(ran.refusal(), "./other.gguf: no such file or folder", "{command}");
    }
}

#[test]
fn the_file_and_its_settings_are_shown() {
    let home = configured("threads = 2\n[serve]\nport = 9000\n");
    let path = home.path("tern/config.toml");
    let shown = run_with_variable(&home, "TERN_MODEL", "stories", &["config"]);
    let want =
        format!("{}\nthreads = 2\nserve.port = 9000\nmodel = \"stories\" (TERN_MODEL)\n", path.display());
    assert_eq!(shown.ok(), want);
    assert!(home.run(&["serve", "--help"]).ok().contains("[default: 9000]"));
    assert!(tern(&["config"]).ok().ends_with("tern/config.toml (missing)\n"));
    assert!(tern(&["--help"]).ok().contains("`tern config`"));
}

#[test]
fn a_wrong_file_is_refused_with_its_name_and_the_nearest_key() {
    let home = configured("[serve]\nprot = 1\n");
    let want = format!(
        "{}: prot: no such flag of `serve` (did you mean port?)",
        home.path("tern/config.toml").display()
    );
    assert_eq!(home.run(&["list"]).refusal(), want);
    home.run(&["--help"]).ok();
    home.run(&["--version"]).ok();
    home.run(&["completions", "bash"]).ok();
    let ran = run_with_variable(&home, "TERN_CONFIG", "./none.toml", &["list"]);
    assert!(ran.refusal().starts_with("./none.toml: No such file"), "{}", ran.stderr());
    // a value is parsed as on the command line
    let home = configured("threads = 'many'\n");
    let ran = home.run(&["run", PROMPT]);
    assert!(ran.usage().contains("invalid value 'many' for '--threads"), "{}", ran.stderr());
    assert!(
        ran.usage().contains("tip: the value is from ") && ran.usage().contains("config.toml"),
        "{}",
        ran.stderr()
    );
}

#[test]
fn shells_and_man_know_every_command() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = tern(&["completions", shell]);
        for word in ["perplexity", "served-model-name", "completions"] {
            assert!(script.ok().contains(word), "{shell}: {word}");
        }
    }
    let home = Home::new();
    home.run(&["man", "pages"]).ok();
    for page in ["tern.1", "tern-chat.1", "tern-bench-serve.1"] {
        assert!(std::fs::read_to_string(home.path("pages").join(page)).unwrap().starts_with(".ie"), "{page}");
    }
    assert!(tern(&["man"]).ok().contains(".TH tern 1"));
}
